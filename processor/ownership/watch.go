package ownership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// watch reads a bucket and then what changes in it. Watchers have been seen to fall silent for good after a broker's restart, so it is
// made anew now and then, and whenever again says so: the bucket is read as a whole each time.
type watch struct {
	kv    jetstream.KeyValue
	pace  pace
	log   *slog.Logger
	again <-chan struct{}
	each  func(jetstream.KeyValueEntry)
}

func (w *watch) run(ctx context.Context) {
	told := false
	for {
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			told = false
			continue
		}
		if !told {
			told = true
			w.log.Warn("cannot watch the other processors, trying again", "error", err)
		}
		if !broker.Wait(ctx, w.pace.beat+spread(w.pace.beat)) { // not in step with all others: each watcher costs the broker a consumer
			return
		}
	}
}

// once returns nil when it is time to begin anew.
func (w *watch) once(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // not Stop of the watcher: it waits until the broker has answered, which on a dead line is five seconds
	limit := time.AfterFunc(w.pace.request, stop)
	watcher, err := w.kv.WatchAll(ctx)
	if !limit.Stop() {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", w.kv.Bucket(), err)
	}
	enough := time.NewTimer(w.pace.reread + spread(w.pace.reread/4))
	defer enough.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-enough.C:
			return nil
		case <-w.again:
			return nil
		case entry, open := <-watcher.Updates():
			if !open {
				return errors.New("watch bucket " + w.kv.Bucket() + ": the watcher ended")
			}
			if entry != nil { // nil: all of before was read
				w.each(entry)
			}
		}
	}
}

func spread(d time.Duration) time.Duration { return rand.N(max(d, 1)) }
