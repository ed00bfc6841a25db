package ownership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// heart tells the others that this processor lives, and this processor when the others may think that it does not.
type heart struct {
	kv      jetstream.KeyValue
	clock   func() time.Duration
	pace    pace
	log     *slog.Logger
	metrics *Metrics
	view    *view
	name    string
	alone   bool

	said     member // sent with the next beat; only the goroutine of run changes it after join
	revision uint64 // of the last beat; 0: not known
	sent     time.Duration

	mu      sync.Mutex
	life    context.Context // ends when works must; nil while there is none
	end     context.CancelCauseFunc
	began   time.Duration // when this life did
	until   time.Duration // when it does, if no other beat is taken
	guard   *time.Timer
	leaving chan struct{}
}

func newHeart(o Options, clock func() time.Duration, kv jetstream.KeyValue, v *view, roles []Role) *heart {
	said := member{Session: rand.Text(), Roles: make(map[string]int), Version: o.Version, Since: o.wall().UTC()}
	for _, r := range roles {
		said.Roles[r.Name] = r.Seats
	}
	v.session = said.Session
	return &heart{kv: kv, clock: clock, pace: o.pace, log: o.Log, metrics: o.Metrics, view: v, name: o.Member, alone: o.Alone, said: said, leaving: make(chan struct{})}
}

// join waits until nobody else lives under this name, and sends the first heartbeat. Its errors are ctx's and ErrTaken.
func (h *heart) join(ctx context.Context) error {
	silent, known, told := h.clock(), uint64(0), false
	for {
		err := h.beat(ctx)
		if err == nil {
			return nil
		}
		var other *namesake
		switch {
		case errors.As(err, &other):
			if known != 0 && other.revision != known && !h.alone {
				return fmt.Errorf("join as %s: %w", h.name, ErrTaken)
			}
			if known == 0 {
				silent, known = h.clock(), other.revision
			}
			if h.alone || h.clock()-silent >= h.pace.expiry {
				h.revision = other.revision // it died: what it said last is replaced
				if err := h.beat(ctx); err == nil {
					return nil
				}
			}
		case !told && ctx.Err() == nil:
			told = true
			h.log.Warn("cannot join the processors, trying again", "error", err)
		}
		if !broker.Wait(ctx, h.pace.beat/2) {
			return fmt.Errorf("join as %s: %w", h.name, context.Cause(ctx))
		}
	}
}

// namesake is the error of a heartbeat that found another session's under our name.
type namesake struct{ revision uint64 }

func (*namesake) Error() string { return "another session uses this name" }

// run beats until ctx ends. It returns an error only when somebody else lives under our name: all works have been told to end then.
func (h *heart) run(ctx context.Context) error {
	defer h.fail(context.Canceled)
	left := h.leaving
	failed := false
	for pause := h.pace.beat; ; {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-left:
			timer.Stop()
			left, h.said.Leaving = nil, true
		case <-timer.C:
		}
		err := h.beat(ctx)
		pause = max(0, h.pace.beat-(h.clock()-h.sent))
		var other *namesake
		switch {
		case err == nil && failed:
			failed = false
			h.log.Info("heartbeats are taken again")
		case errors.As(err, &other) && !h.alone:
			h.fail(ErrTaken)
			return fmt.Errorf("beat as %s: %w", h.name, ErrTaken)
		case errors.As(err, &other):
			h.revision = other.revision // nobody else can be there: it was the one before us, whose words came late
		case err != nil && ctx.Err() == nil:
			pause = h.pace.beat / 4
			if !failed {
				failed = true
				h.log.Warn("heartbeat was not taken, trying again", "error", err)
			}
		}
	}
}

// beat sends one heartbeat. Its place in time is when it was sent: nobody can have seen it sooner.
func (h *heart) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.pace.request)
	defer cancel()
	h.sent = h.clock()
	h.said.Beat++
	text, err := encode(h.said)
	if err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	if h.revision == 0 {
		if err := h.find(ctx); err != nil {
			return err
		}
	}
	var revision uint64
	if h.revision == 0 {
		revision, err = h.kv.Create(ctx, h.name, text)
	} else {
		revision, err = h.kv.Update(ctx, h.name, text, h.revision)
	}
	if err != nil {
		h.revision = 0 // it may have been stored all the same
		return broker.Explain("send heartbeat", err)
	}
	h.revision = revision
	h.good()
	return nil
}

// find looks for what was stored under our name.
func (h *heart) find(ctx context.Context) error {
	entry, err := h.kv.Get(ctx, h.name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return broker.Explain("read heartbeat", err)
	}
	if m, err := decodeMember(entry.Value()); err != nil || m.Session != h.said.Session {
		return &namesake{entry.Revision()}
	}
	h.revision = entry.Revision()
	return nil
}

// good begins a life or prolongs it.
func (h *heart) good() {
	left := h.sent + h.pace.letGo - h.clock()
	h.metrics.beaten(h.sent, h.clock)
	h.mu.Lock()
	defer h.mu.Unlock()
	if left <= 0 && !h.alone {
		return // the answer came too late to be of use
	}
	if h.life == nil {
		h.life, h.end = context.WithCancelCause(context.Background())
		h.began = h.sent
		defer h.view.callAll()
	}
	if h.alone {
		return // nobody waits for our silence
	}
	h.until = h.sent + h.pace.letGo
	if h.guard == nil {
		h.guard = time.AfterFunc(left, h.silence)
	} else {
		h.guard.Reset(left)
	}
}

// silence ends the life when its time has come.
func (h *heart) silence() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life == nil || h.clock() < h.until {
		return // the timer ran out just as it was prolonged, and has been set again
	}
	h.end(ErrSilent)
	h.life = nil
	h.log.Warn("works are stopped: the broker took no heartbeat for too long, and others may take the seats", "limit", h.pace.letGo)
}

// fail ends the life for good.
func (h *heart) fail(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.guard != nil {
		h.guard.Stop()
	}
	if h.life != nil {
		h.end(cause)
		h.life = nil
	}
}

// alive returns the context of works that begin now, nil while none may.
func (h *heart) alive() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life == nil || !h.alone && h.clock()-h.began < h.pace.settle {
		return nil
	}
	return h.life
}

// leave tells the others to take over what will be given back.
func (h *heart) leave() { close(h.leaving) }

// goodbye withdraws the heartbeat, after run has ended and every seat was given back.
func (h *heart) goodbye() {
	if h.revision == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.pace.request)
	defer cancel()
	if err := h.kv.Delete(ctx, h.name, jetstream.LastRevision(h.revision)); err != nil {
		h.log.Warn("no goodbye was said; the others will notice", "error", err)
	}
}
