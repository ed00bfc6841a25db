package notifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// The limits of waiting and keeping.
const (
	maxBackoff = 15 * time.Second
	keepFor    = 30 * 24 * time.Hour // a resolved incident that was told is forgotten after this
	idle       = time.Minute
)

// desk holds the incidents about which somebody has still to be told. One goroutine uses it.
type desk struct {
	o       Options
	box     outbox
	outlets []*outlet
	pending map[string]*entry
	storm   string // the digest that new incidents join; empty in calm weather
}

// outlet is a Sender with its pace.
type outlet struct {
	Sender
	notBefore time.Time
	failures  int // in a row
}

// entry is an incident on the desk.
type entry struct {
	record   *record
	since    time.Time // when it came onto the desk
	failures int
	quiet    time.Time // a digest is not told again before
	unsaved  bool      // the record knows a receipt that the bucket does not
	stale    bool      // the bucket may know more than the record
}

func newDesk(o Options, box outbox) *desk {
	d := &desk{o: o, box: box, pending: map[string]*entry{}}
	for _, s := range o.Senders {
		d.outlets = append(d.outlets, &outlet{Sender: s})
	}
	return d
}

// resume puts on the desk what the last run left untold.
func (d *desk) resume(ctx context.Context) error {
	var old []*record
	err := d.box.all(ctx, func(r *record, err error) {
		switch {
		case err != nil:
			d.o.Log.Error("skip an outbox record", "error", err)
		case d.due(r):
			d.put(r)
			d.weather(r)
		case d.weather(r):
		case r.history.Latest.State == event.Resolved && d.o.Now().Sub(r.history.Latest.Time) > keepFor:
			old = append(old, r)
		}
	})
	if err != nil {
		return err
	}
	for _, r := range old {
		if err := d.box.remove(ctx, r); err != nil {
			return err
		}
	}
	return d.adopt(ctx)
}

func (d *desk) put(r *record) *entry {
	key := keyOf(r.history.Latest.Incident)
	e := d.pending[key]
	if e == nil {
		e = &entry{record: r, since: d.o.Now()}
		d.pending[key] = e
	}
	return e
}

// due says whether any outlet has something to tell.
func (d *desk) due(r *record) bool {
	card := r.card()
	for _, out := range d.outlets {
		if action, _ := r.decide(out.Name(), card); action != Nothing {
			return true
		}
	}
	return false
}

// call bounds a call, and lets one that is under way at shutdown end in order.
func (d *desk) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d.o.Timeout)
}

// fold adds a finding to its incident's record in the bucket, and to the desk when somebody has to be told.
func (d *desk) fold(ctx context.Context, f *event.Finding) error {
	call, cancel := d.call(ctx)
	defer cancel()
	e := d.pending[keyOf(f.Incident)]
	if e != nil && e.stale {
		if err := d.reload(call, e); err != nil {
			return err
		}
	}
	var r *record
	if e != nil {
		r = e.record
	} else {
		var err error
		if r, err = d.box.load(call, f.Incident); err != nil {
			return err
		}
	}
	before, storm := r.history, r.storm
	if r.history = before.Add(f); r.history == before {
		return nil
	}
	err := d.shelter(call, r) // first, since a digest that names what has a message of its own does less harm than silence
	if err == nil {
		err = d.box.save(call, r)
	}
	if err != nil {
		r.history, r.storm = before, storm
		if e != nil {
			e.stale = true
		}
		return err
	}
	if e != nil {
		e.unsaved = false
	} else if d.due(r) {
		d.put(r)
		return d.gather(call)
	}
	return nil
}

// reload takes the bucket's revision and findings into the entry, and keeps what only the entry knows of the deliveries.
func (d *desk) reload(ctx context.Context, e *entry) error {
	r, err := d.box.load(ctx, e.record.history.Latest.Incident)
	if err != nil {
		return err
	}
	if r.history.Latest != nil {
		e.record.history, e.record.storm, e.record.members, e.record.joined = r.history, r.storm, r.members, r.joined
	}
	if !e.unsaved {
		e.record.deliveries = r.deliveries
	}
	e.record.revision = r.revision
	e.stale = false
	return nil
}

// keep saves the entry's record after a delivery. When that fails the entry stays on the desk until it succeeds.
func (d *desk) keep(ctx context.Context, e *entry) {
	e.unsaved = true
	call, cancel := d.call(ctx)
	defer cancel()
	err := d.box.save(call, e.record)
	if errors.Is(err, jetstream.ErrKeyExists) { // the write before this one arrived and its answer did not
		if err = d.reload(call, e); err == nil {
			err = d.box.save(call, e.record)
		}
	}
	if err != nil {
		d.o.Log.Warn("note what was told", "error", err)
		e.stale = true
		return
	}
	e.unsaved = false
}

// deliver makes at most one call to each outlet that may be called now, and returns how long to wait for the next.
func (d *desk) deliver(ctx context.Context) time.Duration {
	wait := idle
	for _, out := range d.outlets {
		if ctx.Err() != nil {
			return 0
		}
		if left := out.notBefore.Sub(d.o.Now()); left > 0 {
			wait = min(wait, left)
			continue
		}
		e := d.first(out)
		if e == nil {
			continue
		}
		d.tell(ctx, out, e)
		wait = min(wait, max(0, out.notBefore.Sub(d.o.Now())))
	}
	for key, e := range d.pending {
		if e.unsaved {
			d.keep(ctx, e)
		}
		switch {
		case e.unsaved:
			wait = min(wait, d.o.Backoff)
		case !d.due(e.record):
			delete(d.pending, key)
		case d.o.Now().Before(e.quiet):
			wait = min(wait, e.quiet.Sub(d.o.Now()))
		}
	}
	return wait
}

// first chooses whom to tell next: what failed least, so that one card that is refused does not hold up the others; then pages;
// then what waits longest.
func (d *desk) first(out *outlet) *entry {
	var best *entry
	for _, e := range d.pending {
		if d.o.Now().Before(e.quiet) {
			continue
		}
		action, _ := e.record.decide(out.Name(), e.record.card())
		if action != Nothing && (best == nil || before(e, best)) {
			best = e
		}
	}
	return best
}

func before(a, b *entry) bool {
	if a.failures != b.failures {
		return a.failures < b.failures
	}
	if x, y := a.record.history.Latest.Severity == event.Page, b.record.history.Latest.Severity == event.Page; x != y {
		return x
	}
	return a.since.Before(b.since)
}

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
	name, h := out.Name(), e.record.history
	card := e.record.card()
	delivery := e.record.deliveries[name]
	action, why := e.record.decide(name, card)
	receipt, err := delivery.Receipt, error(nil)
	switch action {
	case Nothing: // known only after reading the record again
		return
	case Recover:
		d.recover(ctx, call, out, e)
		return
	case Post:
		e.record.deliveries[name] = Delivery{Status: posting, Since: d.o.Now()}
		if err := d.box.save(call, e.record); err != nil {
			// Not sent, since after a crash nobody would know of it.
			e.record.deliveries[name] = delivery
			e.stale = true
			d.failed(out, e, err)
			return
		}
		receipt, err = out.Post(call, card)
	case Update:
		err = out.Update(call, receipt, card)
	}

	var failure *Failure
	switch {
	case err == nil:
		e.record.deliveries[name] = Delivery{Status: told, Finding: h.Latest.ID, State: h.Latest.State, Level: h.Latest.Severity,
			Digest: card.Digest(), Receipt: receipt}
		out.failures, e.failures = 0, 0
		out.notBefore = d.o.Now().Add(d.o.Interval)
		if e.record.members != nil {
			e.quiet = d.o.Now().Add(stormPace * d.o.Interval)
		}
		d.o.Gauge.tell(name, action)
		d.keep(ctx, e)
		d.o.Log.Info("told", "incident", h.Latest.Incident, "sender", name, "why", why, "waited", d.o.Now().Sub(e.since).Round(time.Millisecond))
		e.since = d.o.Now()
		return
	case errors.Is(err, ErrGone) && h.Latest.State == event.Resolved:
		// Somebody took the message away and the incident is over: there is nothing left to correct.
		delivery.Finding, delivery.State, delivery.Level = h.Latest.ID, h.Latest.State, h.Latest.Severity
		e.record.deliveries[name] = delivery
		d.keep(ctx, e)
	case errors.Is(err, ErrGone):
		e.record.deliveries[name] = Delivery{}
		d.keep(ctx, e)
	case action == Post && errors.As(err, &failure):
		e.record.deliveries[name] = delivery // provably not sent, so it can be posted again without looking
	}
	d.failed(out, e, err)
}

// recover asks the medium whether the message that was being posted exists.
func (d *desk) recover(ctx, call context.Context, out *outlet, e *entry) {
	name, incident := out.Name(), e.record.history.Latest.Incident
	next := Delivery{}
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
			next = Delivery{Status: told, Receipt: receipt}
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
	d.o.Gauge.fail(out.Name(), err, paused)
	d.o.Log.Warn("tell later", "incident", e.record.history.Latest.Incident, "sender", out.Name(), "wait", wait, "error", fmt.Sprint(err))
}
