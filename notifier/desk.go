package notifier

import (
	"context"
	"slices"
	"time"

	"lowtide/event"
)

// The limits of waiting and keeping.
const (
	maxBackoff = 15 * time.Second
	keepFor    = 30 * 24 * time.Hour // a resolved incident that was told is forgotten after this
	idle       = time.Minute
)

// desk holds the incidents about which somebody has still to be told. One goroutine uses it; the calls of its outlets run beside that.
type desk struct {
	o       Options
	box     outbox
	routes  routing
	outlets []*outlet
	ended   chan func() // what is to be noted of a call that has ended; has room for one of each outlet
	pending map[string]*entry
	storms  map[string]string    // the digest that new incidents join, by where they are to be told; none in calm weather
	leads   map[string]string    // the incident whose card its like join, by likeness
	clocks  map[string]time.Time // when a reminder is due, by key
	asked   int                  // changes of what people said: what was seen before one is looked at anew
	swept   time.Time            // when the outbox was swept; zero for never
	sweepAt time.Time            // when it is to be swept next
	full    bool                 // the outbox refused something for want of room
	unkept  map[string]refusal   // findings that could not be kept, by key
}

func newDesk(o Options, box outbox) *desk {
	d := &desk{o: o, box: box, pending: map[string]*entry{}, storms: map[string]string{}, leads: map[string]string{},
		clocks: map[string]time.Time{}, unkept: map[string]refusal{}, routes: o.routes}
	d.ended = make(chan func(), len(o.Senders))
	for _, s := range o.Senders {
		out := &outlet{Sender: s}
		_, out.thread = s.(replier)
		if f, ok := s.(fixed); ok {
			out.fixed = f.Fixed()
		}
		if f, ok := s.(Refresher); ok {
			out.forget = f.Every()
		}
		d.outlets = append(d.outlets, out)
		if len(o.routes.routes) == 0 && len(o.routes.otherwise) == 0 {
			d.routes.otherwise = append(d.routes.otherwise, s.Name())
		}
	}
	return d
}

// resume puts on the desk what the last run left untold. What is over goes with the first sweep.
func (d *desk) resume(ctx context.Context) error {
	err := d.box.all(ctx, func(r *record, err error) {
		if err != nil {
			d.o.Log.Error("skip an outbox record", "error", err)
			return
		}
		d.weather(r)
		d.follow(r)
		d.wind(r)
		if d.due(r) {
			d.put(r)
		}
	})
	if err != nil {
		return err
	}
	return d.adopt(ctx)
}

// review looks at every incident again, after people said something, or a silence ended.
func (d *desk) review(ctx context.Context) error {
	d.asked++
	call, cancel := d.call(ctx)
	defer cancel()
	var found []*record
	if err := d.box.all(call, func(r *record, err error) {
		if err == nil && d.pending[keyOf(r.history.Latest.Incident)] == nil {
			found = append(found, r)
		}
	}); err != nil {
		return err
	}
	for _, r := range found {
		if err := d.raise(call, r); err != nil {
			return err
		}
	}
	return nil
}

// reviewOne looks at one incident again, by its key, and at the one whose card tells about it.
func (d *desk) reviewOne(ctx context.Context, key string) error {
	call, cancel := d.call(ctx)
	defer cancel()
	for range 2 {
		e := d.pending[key]
		if e == nil {
			r, err := d.box.at(call, key)
			if err != nil || r == nil {
				return err
			}
			e = &entry{record: r}
			if err := d.raise(call, r); err != nil {
				return err
			}
		}
		e.seen = nil
		if e.record.storm == "" {
			return nil
		}
		key = keyOf(e.record.storm)
	}
	return nil
}

// raise puts a record of the bucket onto the desk when somebody has to be told. One that was silenced until now joins its like, as it would
// have when it was new.
func (d *desk) raise(ctx context.Context, r *record) error {
	d.wind(r)
	if !d.due(r) {
		return nil
	}
	if r.storm == "" && r.hushed {
		if err := d.shelter(ctx, r); err != nil {
			return err
		}
		if r.storm != "" {
			return d.box.save(ctx, r)
		}
	}
	d.follow(r)
	d.put(r)
	return nil
}

// due says whether any outlet has something to tell.
func (d *desk) due(r *record) bool {
	s := d.look(r)
	return slices.ContainsFunc(d.outlets, func(out *outlet) bool {
		step, _ := d.decide(r, s, out)
		return step != Nothing
	})
}

// call bounds a call, and lets one that is under way at shutdown end in order.
func (d *desk) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d.o.Timeout)
}

// fold adds a finding to its incident's record in the bucket, and to the desk when somebody has to be told. Of an incident that is no
// more than information nothing is kept: nobody is told of it.
func (d *desk) fold(ctx context.Context, f *event.Finding) (err error) {
	defer func() { d.kept(f.Incident, err) }()
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
		if r, err = d.box.load(call, f.Incident); err != nil {
			return err
		}
	}
	if r.history.Latest == nil && f.Severity == event.Info {
		return nil
	}
	before, storm, hushed := r.history, r.storm, r.hushed
	if r.history = before.Add(f); r.history == before {
		return nil
	}
	if before.Latest == nil {
		r.hushed = len(d.o.silences.Covering(f, d.o.Now())) > 0
	}
	err = d.shelter(call, r) // first, since a message that names what has one of its own does less harm than silence
	if err == nil {
		err = d.box.save(call, r)
	}
	if err != nil {
		r.history, r.storm, r.hushed = before, storm, hushed
		if e != nil {
			e.stale, e.seen = true, nil
		}
		return err
	}
	d.follow(r)
	d.wind(r)
	if e != nil {
		e.unsaved, e.seen = false, nil
	} else if d.due(r) {
		d.put(r)
		return d.gather(call)
	}
	return nil
}

// dispatch begins a call of each outlet that has none under way and may be called now. It returns how long until the outbox is to be
// swept, or a reminder is due.
func (d *desk) dispatch(ctx context.Context) time.Duration {
	wait := min(d.sweep(ctx), d.alarm(ctx))
	for _, out := range d.outlets {
		if ctx.Err() != nil {
			return 0
		}
		if out.busy || out.notBefore.After(d.o.Now()) {
			continue
		}
		if e := d.first(out); e != nil {
			d.tell(ctx, out, e)
		}
	}
	return wait
}

// rest notes what is not noted yet, takes from the desk what is told, and returns how long until an outlet may be called. The end of a call
// comes by itself.
func (d *desk) rest(ctx context.Context) time.Duration {
	wait := idle
	for key, e := range d.pending {
		if e.unsaved {
			d.keep(ctx, e)
		}
		switch {
		case e.unsaved:
			wait = min(wait, d.o.Backoff)
		case e.calls == 0 && !d.due(e.record):
			delete(d.pending, key)
		case d.o.Now().Before(e.quiet):
			wait = min(wait, e.quiet.Sub(d.o.Now()))
		}
	}
	for _, out := range d.outlets {
		if out.busy {
			continue
		}
		if left := out.notBefore.Sub(d.o.Now()); left > 0 {
			wait = min(wait, left)
		} else if d.first(out) != nil {
			wait = 0
		}
	}
	return wait
}
