package broker

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	askOnce  = 5 * time.Second
	askAgain = 500 * time.Millisecond
)

// persist asks again while nothing answers, until ctx ends: a cluster that is choosing its leaders drops a request without a word. What is
// asked must do no harm the second time.
func persist(ctx context.Context, ask func(context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, askOnce)
		err := ask(once)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
		if !Wait(ctx, askAgain) {
			return err
		}
	}
}

// Wait returns after d, or with false when ctx ends first.
func Wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
