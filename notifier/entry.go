package notifier

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// entry is an incident on the desk.
type entry struct {
	record   *record
	since    time.Time // when it came onto the desk
	failures int
	calls    int       // that are under way about it
	quiet    time.Time // a digest is not told again before
	unsaved  bool      // the record knows a receipt that the bucket does not
	stale    bool      // the bucket may know more than the record
	seen     *scene    // what it looks like; nil when that has to be found out
	asked    int       // of the desk, when it was seen
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

// reload takes the bucket's revision and findings into the entry, and keeps what only the entry knows of the deliveries.
func (d *desk) reload(ctx context.Context, e *entry) error {
	r, err := d.box.load(ctx, e.record.history.Latest.Incident)
	if err != nil {
		return err
	}
	if r.history.Latest != nil {
		e.record.history, e.record.storm, e.record.members, e.record.joined = r.history, r.storm, r.members, r.joined
		e.record.outputs, e.record.hushed, e.seen = r.outputs, r.hushed, nil
	}
	if !e.unsaved {
		e.record.deliveries = r.deliveries
	}
	for name, theirs := range r.deliveries {
		// What the thread knows was noted before it was said: it may be another notifier that did, which announced while this one stood still.
		if own, known := e.record.deliveries[name]; known && own.Receipt == theirs.Receipt {
			own.Said, own.Saying, own.Reminded = theirs.Said, theirs.Saying, theirs.Reminded
			e.record.deliveries[name] = own
		}
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
		d.full = d.full || noRoom(err)
		return
	}
	e.unsaved = false
}

// first chooses whom to tell next: what failed least, so that one card that is refused does not hold up the others; then pages;
// then what waits longest. What is said in a thread comes after the cards.
func (d *desk) first(out *outlet) *entry {
	var best *entry
	var what Step
	for _, e := range d.pending {
		if d.o.Now().Before(e.quiet) {
			continue
		}
		step, _ := d.decide(e.record, d.scene(e), out)
		if step != Nothing && (best == nil || before(e, step, best, what)) {
			best, what = e, step
		}
	}
	return best
}

func before(a *entry, does Step, b *entry, did Step) bool {
	if a.failures != b.failures {
		return a.failures < b.failures
	}
	if x, y := does >= Say, did >= Say; x != y {
		return y
	}
	if x, y := a.seen.face.Severity == event.Page, b.seen.face.Severity == event.Page; x != y {
		return x
	}
	return a.since.Before(b.since)
}
