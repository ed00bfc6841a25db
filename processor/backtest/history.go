package backtest

import (
	"context"
	"time"

	"lowtide/event"
	"lowtide/sink"
)

// heard is an event and when it was heard: the broker's time, or its own where nobody kept that.
type heard struct {
	event *event.Event
	at    time.Time
}

// history is where what happened is kept.
type history interface {
	// name says in a word or two where that is.
	name() string
	// look says of how many hosts there are events between two times, zero where that is not known beforehand, and when the oldest event
	// that is kept at all was; that is zero where there is none.
	look(ctx context.Context, from, to time.Time) (hosts int, oldest time.Time, err error)
	// events visits them in their order, and ends with the visitor's first error.
	events(ctx context.Context, from, to time.Time, visit func(heard) error) error
	// findings visits what the active rules said, in its order.
	findings(ctx context.Context, from, to time.Time, visit func(*event.Finding)) error
}

// store is the history in ClickHouse.
type store struct {
	access sink.Access
	hosts  []string // cluster/name; empty for all
	found  []string
}

func (s *store) name() string { return "ClickHouse" }

func (s *store) look(ctx context.Context, from, to time.Time) (int, time.Time, error) {
	past, err := s.access.Past(ctx, s.hosts, from, to)
	s.found = past.Hosts
	return len(past.Hosts), past.Oldest, err
}

func (s *store) events(ctx context.Context, from, to time.Time, visit func(heard) error) error {
	if len(s.found) == 0 {
		return nil
	}
	return s.access.Events(ctx, s.found, from, to, func(e *event.Event) error { return visit(heard{e, e.At()}) })
}

func (s *store) findings(ctx context.Context, from, to time.Time, visit func(*event.Finding)) error {
	return s.access.Findings(ctx, s.hosts, from, to, func(f *event.Finding) error {
		visit(f)
		return nil
	})
}
