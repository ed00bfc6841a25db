package notifier

import (
	"context"
	"slices"
	"testing"
	"time"

	"lowtide/event"
)

// deliver makes at most one call to each outlet that may be called now, waits for them, and returns how long to wait for the next.
func (d *desk) deliver(ctx context.Context) time.Duration {
	wait := d.dispatch(ctx)
	d.await()
	return min(wait, d.rest(ctx))
}

// hanging is a medium that answers when it is let.
type hanging struct {
	called chan string // the incident and the state of each card, before it is answered
	answer chan error
}

func (h *hanging) Name() string { return "hanging" }

func (h *hanging) Post(_ context.Context, c Card) (Receipt, error) {
	h.called <- "post " + c.Incident + " " + c.State
	return Receipt{TS: "1"}, <-h.answer
}

func (h *hanging) Update(_ context.Context, _ Receipt, c Card) error {
	h.called <- "update " + c.Incident + " " + c.State
	return <-h.answer
}

// prompt is a medium that answers at once.
type prompt struct{ told chan string }

func (p *prompt) Name() string { return "prompt" }

func (p *prompt) Post(_ context.Context, c Card) (Receipt, error) {
	p.told <- "post " + c.Incident + " " + c.State
	return Receipt{TS: "2"}, nil
}

func (p *prompt) Update(_ context.Context, _ Receipt, c Card) error {
	p.told <- "update " + c.Incident + " " + c.State
	return nil
}

// An output that hangs holds up no other, gets one call at a time in the order of its incident, and is waited for at the end.
func TestAnOutputThatHangsHoldsUpNoOther(t *testing.T) {
	b := newBroker(t)
	h, p := &hanging{called: make(chan string, 10), answer: make(chan error)}, &prompt{told: make(chan string, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, b.js, Options{Senders: []Sender{h, p}, Interval: time.Millisecond, Backoff: time.Millisecond})
	}()
	next := func(from chan string, want string) {
		t.Helper()
		select {
		case got := <-from:
			if got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q is never told", want)
		}
	}
	b.publish(t, leak())
	next(h.called, "post inc-7f3a suspected")
	next(p.told, "post inc-7f3a suspected")
	b.publish(t, paged())
	next(p.told, "update inc-7f3a confirmed")
	b.publish(t, over())
	next(p.told, "update inc-7f3a resolved")
	deliveries := func() map[string]Delivery {
		t.Helper()
		r, err := (outbox{kv: b.kv}).load(t.Context(), "inc-7f3a")
		if err != nil {
			t.Fatal(err)
		}
		return r.deliveries
	}
	if d := deliveries()["hanging"]; d.Status != posting || d.Finding != "" {
		t.Errorf("before it answers, the outbox says %+v", d)
	}
	if len(h.called) > 0 {
		t.Errorf("it was called again before it answered: %s", <-h.called)
	}
	h.answer <- nil
	next(h.called, "update inc-7f3a resolved") // the newest card, not all that were missed
	if d := deliveries()["hanging"]; d.Status != told || d.Finding != "f1" || d.State != event.Suspected || d.Receipt.TS != "1" {
		t.Errorf("after it answered, the outbox says %+v", d)
	}

	cancel()
	select {
	case <-done:
		t.Fatal("it ended before the call that was under way")
	default:
	}
	h.answer <- nil
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, name := range []string{"hanging", "prompt"} {
		states = append(states, deliveries()[name].Finding)
	}
	if !slices.Equal(states, []string{"f3", "f3"}) {
		t.Errorf("at the end the outbox knows that %v was told", states)
	}
}
