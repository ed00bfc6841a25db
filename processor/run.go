package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/rules"
)

// Options of Run. JS and Pack are required.
type Options struct {
	JS         jetstream.JetStream
	Pack       *rules.Pack
	Log        *slog.Logger
	Partitions int    // 0 is all of them
	Evidence   *Asker // nil: no host is asked for evidence
}

// Run judges all partitions until ctx ends, each in its own goroutine, and returns nil then. A message is acknowledged after the
// findings it caused are stored, so that a crash repeats findings (with the same ids) rather than losing them.
func Run(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Partitions == 0 {
		o.Partitions = event.PartitionCount
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	verdicts, err := OpenVerdicts(ctx, o.JS, time.Now)
	if err != nil {
		return err
	}
	board := NewBoard() // peers are compared across partitions
	var running sync.WaitGroup
	for p := range o.Partitions {
		running.Go(func() {
			if err := newPartition(p, o, board, verdicts).run(ctx); err != nil && ctx.Err() == nil {
				stop(fmt.Errorf("judge partition %d: %w", p, err))
			}
		})
	}
	if o.Evidence != nil {
		running.Go(func() { o.Evidence.Run(ctx) })
	}
	running.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

const (
	pull        = 500
	pullWait    = 2 * time.Second
	retryAfter  = time.Second
	publishWait = 5 * time.Second
)
