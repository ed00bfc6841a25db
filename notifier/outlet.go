package notifier

import (
	"context"
	"errors"
	"fmt"
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
	failures  int // in a row
}

// fixed is a Sender whose messages cannot be edited: Update sends another one, and is called only for another state or severity.
type fixed interface{ Fixed() bool }

// tell takes one incident one step further on one outlet.
func (d *desk) tell(ctx context.Context, out *outlet, e *entry) {
	call, cancel := d.call(ctx)
	defer cancel()
	if e.stale {
		if err := d.reload(call, e); err != nil {
			d.failed(out, e, err)
			return
		}
	}
	name, s := out.Name(), d.scene(e)
	delivery := e.record.deliveries[name]
	step, why := d.decide(e.record, s, out)
	receipt, err := delivery.Receipt, error(nil)
	switch step {
	case Nothing: // known only after reading the record again
		return
	case Recover:
		d.recover(ctx, call, out, e)
		return
	case Say, Remind:
		d.say(ctx, call, out, e, step)
		return
	case Listen:
		d.listen(ctx, call, out, e)
		return
	case Post:
		if !d.begin(call, out, e, Delivery{Status: posting, Since: d.o.Now(), Said: s.now}) {
			return // not sent, since after a crash nobody would know of it
		}
		delivery.Said = s.now
		receipt, err = out.Post(call, s.card)
	case Update:
		err = out.Update(call, receipt, s.card)
	}

	var failure *Failure
	switch {
	case err == nil:
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
		delivery.Said = Situation{}
		e.record.deliveries[name] = delivery // provably not sent, so it can be posted again without looking
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
func (d *desk) recover(ctx, call context.Context, out *outlet, e *entry) {
	name, incident := out.Name(), e.record.history.Latest.Incident
	next := Delivery{}
	said := e.record.deliveries[name].Said
	if medium, ok := out.Sender.(finder); ok {
		receipt, found, err := medium.Find(call, incident, e.record.deliveries[name].Since)
		switch {
		case errors.Is(err, ErrCannotLook):
			// A message twice is better than none.
			d.o.Log.Warn("post again, perhaps twice", "incident", incident, "error", err)
		case err != nil:
			d.failed(out, e, err)
			return
		case found:
			next = Delivery{Status: told, Receipt: receipt, Said: said}
		}
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
