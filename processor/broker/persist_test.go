package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

func TestPersistAsksASilentClusterAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		asked := 0
		err := persist(ctx, func(once context.Context) error {
			switch asked++; asked {
			case 1:
				<-once.Done()
				return once.Err()
			case 2:
				return nats.ErrNoResponders
			}
			return nil
		})
		if err != nil || asked != 3 {
			t.Errorf("%v after %d requests", err, asked)
		}
		refused := errors.New("stream name already in use")
		asked = 0
		if err := persist(ctx, func(context.Context) error { asked++; return refused }); err != refused || asked != 1 {
			t.Errorf("an answer is not asked for again: %v, %d", err, asked)
		}
		start := time.Now()
		if err := persist(ctx, func(once context.Context) error { <-once.Done(); return once.Err() }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if waited := time.Since(start); waited > 30*time.Second {
			t.Errorf("it goes on for %s", waited)
		}
	})
}
