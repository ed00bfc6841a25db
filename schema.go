package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"lowtide/processor/broker"
	"lowtide/processor/ownership"
	"lowtide/sink"
)

// schemaAgain is the pause before the schema is tried again.
const schemaAgain = 5 * time.Second

// schema brings the tables up to date, however long the store is away: judging and paging do not wait for it, storing does.
type schema struct {
	migrate func(context.Context) error
	fill    func(context.Context) error // new rollups from older samples; returns nil when ctx ends
	log     *slog.Logger
	done    chan struct{} // closed when the tables are there

	mu   sync.Mutex
	last error
}

func newSchema(store *sink.ClickHouse, log *slog.Logger) *schema {
	return &schema{migrate: store.Migrate, fill: store.Backfill, log: log, done: make(chan struct{}), last: errors.New("the tables are not looked at yet")}
}

// run tries until it is done, fills what is new from what is old, and then waits for the end of ctx.
func (s *schema) run(ctx context.Context) error {
	told := ""
	for {
		err := s.migrate(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
		if err == nil {
			close(s.done)
			if err := s.fill(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("questions about the time before this version find less: rollups were not filled from older samples", "error", err, "hint", "lowtide schema up")
			}
			<-ctx.Done()
			return nil
		}
		if text := err.Error(); text != told {
			told = text
			s.log.Warn("nothing is stored yet, events wait in the stream; the schema is tried again", "error", err)
		}
		if !broker.Wait(ctx, schemaAgain) {
			return nil
		}
	}
}

// well returns why nothing can be stored yet.
func (s *schema) well() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// first lets a work begin once the tables are there.
func (s *schema) first(work ownership.Work) ownership.Work {
	return func(ctx context.Context, seat int, fence uint64) error {
		select {
		case <-ctx.Done():
			return nil
		case <-s.done:
			return work(ctx, seat, fence)
		}
	}
}
