package notifier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lowtide/event"
)

// outlet is a Sender with its pace.
type outlet struct {
	Sender
	thread    bool
	fixed     bool
	forget    time.Duration
	notBefore time.Time
	failures  int  // in a row
	busy      bool // a call is under way
}

// fixed is a Sender whose messages cannot be edited: Update sends another one, and is called only for another state or severity.
type fixed interface{ Fixed() bool }

// beside makes a call of an outlet beside the desk, so that one that hangs holds up no other. What do returns is done by the desk once the
// call has ended; until then the outlet gets no other one, and the entry stays on the desk.
func (d *desk) beside(ctx context.Context, out *outlet, e *entry, do func(call context.Context) (note func())) {
	out.busy = true
	e.calls++
	go func() {
		call, cancel := d.call(ctx)
		defer cancel()
		note := do(call)
		d.ended <- func() {
			out.busy = false
			e.calls--
			note()
		}
	}()
}

// await waits for the calls that are under way, each of which has a deadline, and notes them.
func (d *desk) await() {
	for slices.ContainsFunc(d.outlets, func(out *outlet) bool { return out.busy }) {
		(<-d.ended)()
	}
}

// tell takes one incident one step further on one outlet: what has to be noted before the call is noted, and the call begun.
func (d *desk) tell(ctx context.Context, out *outlet, e *entry) {
	call, cancel := d.call(ctx)
	defer cancel()
	if e.stale {
		if err := d.reload(call, e); err != nil {
			d.failed(out, e, err)
			return
		}
	}
	s := d.scene(e)
	receipt := e.record.deliveries[out.Name()].Receipt
	step, why := d.decide(e.record, s, out)
	switch step {
	case Nothing: // known only after reading the record again
	case Recover:
		d.recover(ctx, out, e)
	case Say, Remind:
		d.say(ctx, call, out, e, step)
	case Listen:
		d.listen(ctx, out, e)
	case Post:
		if !d.begin(call, out, e, Delivery{Status: posting, Since: d.o.Now(), Said: s.now}) {
			return // not sent, since after a crash nobody would know of it
		}
		d.beside(ctx, out, e, func(call context.Context) func() {
			receipt, err := out.Post(call, s.card)
			return func() { d.sent(ctx, out, e, step, why, s, receipt, err) }
		})
	case Update:
		d.beside(ctx, out, e, func(call context.Context) func() {
			err := out.Update(call, receipt, s.card)
			return func() { d.sent(ctx, out, e, step, why, s, receipt, err) }
		})
	}
}

// sent notes what became of a post or an update. The record may know more by now than the scene that was told.
func (d *desk) sent(ctx context.Context, out *outlet, e *entry, step Step, why string, s scene, receipt Receipt, err error) {
	name := out.Name()
	delivery := e.record.deliveries[name]
	var failure *Failure
	switch {
	case err == nil:
		if medium, ok := out.Sender.(noter); ok && step == Update {
			receipt = medium.Noted(receipt, s.card)
		}
		next := delivery
		next.Status, next.Since, next.Receipt, next.Told = told, time.Time{}, receipt, d.o.Now()
		next.Finding, next.State, next.Level, next.Digest = s.version, s.card.State, s.card.Severity, s.card.Digest()
		if next.Said.State == "" { // of a notifier that had no threads yet
			next.Said = s.now
		}
		if s.card.Severity != event.Page {
			next.Paged = time.Time{}
		} else if next.Paged.IsZero() {
			next.Paged = d.o.Now()
		}
		e.record.deliveries[name] = next
		d.done(ctx, out, e, step, why)
		return
	case errors.Is(err, ErrGone) && s.card.State == event.Resolved:
		// Somebody took the message away and the incident is over: there is nothing left to correct.
		delivery.Finding, delivery.State, delivery.Level, delivery.Said = s.version, s.card.State, s.card.Severity, s.now
		e.record.deliveries[name] = delivery
		d.keep(ctx, e)
	case errors.Is(err, ErrGone):
		e.record.deliveries[name] = Delivery{}
		d.keep(ctx, e)
	case step == Post && errors.As(err, &failure):
		e.record.deliveries[name] = Delivery{} // provably not sent, so it can be posted again without looking
	}
	d.failed(out, e, err)
}

// begin notes what is about to be sent. When that fails, nothing is to be sent.
func (d *desk) begin(call context.Context, out *outlet, e *entry, next Delivery) bool {
	was := e.record.deliveries[out.Name()]
	e.record.deliveries[out.Name()] = next
	if err := d.box.save(call, e.record); err != nil {
		e.record.deliveries[out.Name()] = was
		e.stale = true
		d.full = d.full || noRoom(err)
		d.failed(out, e, err)
		return false
	}
	return true
}

// done notes a step that the medium took.
func (d *desk) done(ctx context.Context, out *outlet, e *entry, step Step, why string) {
	out.failures, e.failures = 0, 0
	out.notBefore = d.o.Now().Add(d.o.Interval)
	if e.record.digest() {
		e.quiet = d.o.Now().Add(stormPace * d.o.Interval)
	}
	d.o.Gauge.tell(out.Name(), step)
	d.keep(ctx, e)
	d.wind(e.record)
	d.o.Log.Info("told", "incident", e.record.history.Latest.Incident, "sender", out.Name(), "what", step.String(), "why", why,
		"waited", d.o.Now().Sub(e.since).Round(time.Millisecond))
	e.since = d.o.Now()
}

// recover asks the medium whether the message that was being posted exists.
func (d *desk) recover(ctx context.Context, out *outlet, e *entry) {
	medium, ok := out.Sender.(finder)
	if !ok {
		d.recovered(ctx, out, e, Receipt{}, false, nil)
		return
	}
	incident, since := e.record.history.Latest.Incident, e.record.deliveries[out.Name()].Since
	d.beside(ctx, out, e, func(call context.Context) func() {
		receipt, found, err := medium.Find(call, incident, since)
		return func() { d.recovered(ctx, out, e, receipt, found, err) }
	})
}

// recovered notes what the medium said.
func (d *desk) recovered(ctx context.Context, out *outlet, e *entry, receipt Receipt, found bool, err error) {
	name, next := out.Name(), Delivery{}
	switch {
	case errors.Is(err, ErrCannotLook):
		// A message twice is better than none.
		d.o.Log.Warn("post again, perhaps twice", "incident", e.record.history.Latest.Incident, "error", err)
	case err != nil:
		d.failed(out, e, err)
		return
	case found:
		d.o.Gauge.answered(name)
		next = Delivery{Status: told, Receipt: receipt, Said: e.record.deliveries[name].Said}
	}
	e.record.deliveries[name] = next
	out.notBefore = d.o.Now().Add(d.o.Interval)
	d.keep(ctx, e)
}

// failed sets when the outlet may be called again.
func (d *desk) failed(out *outlet, e *entry, err error) {
	wait := min(d.o.Backoff<<min(out.failures, 10), maxBackoff)
	var failure *Failure
	if errors.As(err, &failure) && failure.After > 0 {
		wait = failure.After
	} else {
		e.failures++
		out.failures++
	}
	out.notBefore = d.o.Now().Add(wait)
	paused := time.Time{}
	if failure != nil && failure.After > 0 {
		paused = out.notBefore
	}
	d.o.Gauge.fail(out.Name(), err, d.o.Now(), paused)
	d.o.Log.Warn("tell later", "incident", e.record.history.Latest.Incident, "sender", out.Name(), "wait", wait, "error", fmt.Sprint(err))
}
