package notifier

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	routes  routing
	outlets []*outlet
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

// entry is an incident on the desk.
type entry struct {
	record   *record
	since    time.Time // when it came onto the desk
	failures int
	quiet    time.Time // a digest is not told again before
	unsaved  bool      // the record knows a receipt that the bucket does not
	stale    bool      // the bucket may know more than the record
	seen     *scene    // what it looks like; nil when that has to be found out
	asked    int       // of the desk, when it was seen
}

func newDesk(o Options, box outbox) *desk {
	d := &desk{o: o, box: box, pending: map[string]*entry{}, storms: map[string]string{}, leads: map[string]string{},
		clocks: map[string]time.Time{}, unkept: map[string]refusal{}, routes: o.routes}
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
	s := d.look(r)
	return slices.ContainsFunc(d.outlets, func(out *outlet) bool {
		step, _ := d.decide(r, s, out)
		return step != Nothing
	})
}

// look makes the scene of a record as it is now.
func (d *desk) look(r *record) scene {
	face := r.face()
	if face == nil {
		return scene{}
	}
	s := scene{face: face, open: r.history.Case != nil, hushed: r.hushed}
	s.loud = face.Severity != event.Info
	if c := r.history.Case; c != nil && face.State == event.Resolved {
		s.loud = c.Severity != event.Info
	}
	for _, delivery := range r.deliveries {
		s.told = s.told || delivery.Status == told
	}
	lines, n := r.workers()
	if r.digest() {
		s.card = stormCard(r)
	} else {
		h := r.history
		h.Latest = face
		s.card = Build(h).of(lines, n).ready(d.o.Hints)
	}
	stance := Standing(d.o.actions.Of(face.Incident))
	covering := d.o.silences.Covering(face, d.o.Now())
	s.now = situation(face, n, stance, covering)
	s.card = s.card.standing(face, stance, covering)
	if s.version = face.ID; len(lines)+len(s.card.People) > 0 {
		s.version += "+" + keyFor(fmt.Sprint(lines, s.card.People, face.State, face.Severity))
	}
	return s
}

// scene is that of an entry, which is looked at again only when something changed.
func (d *desk) scene(e *entry) scene {
	if e.seen == nil || e.asked != d.asked {
		s := d.look(e.record)
		e.seen, e.asked = &s, d.asked
	}
	return *e.seen
}

// decide says what is to be done about the record on one medium.
func (d *desk) decide(r *record, s scene, out *outlet) (Step, string) {
	if r.storm != "" {
		return Nothing, "the message of " + r.storm + " tells about it"
	}
	t, _ := d.terms(r, out)
	return decide(r.deliveries[out.Name()], s, t)
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

// deliver makes at most one call to each outlet that may be called now, and returns how long to wait for the next.
func (d *desk) deliver(ctx context.Context) time.Duration {
	wait := min(d.sweep(ctx), d.alarm(ctx))
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

// alarm looks at what time alone has changed: a silence that ended, a reminder that is due. It returns how long until the next.
func (d *desk) alarm(ctx context.Context) time.Duration {
	now, wait := d.o.Now(), idle
	for key, at := range d.clocks {
		if left := at.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		delete(d.clocks, key)
		if err := d.reviewOne(ctx, key); err != nil {
			d.o.Log.Warn("look whether a page is acknowledged", "error", err)
			d.clocks[key] = now.Add(d.o.Backoff)
			wait = min(wait, d.o.Backoff)
		}
	}
	if over := d.o.silences.Unnoticed(now); len(over) > 0 {
		if err := d.afterSilence(ctx, over); err != nil {
			d.o.Log.Warn("look what a silence covered that is over", "error", err)
			wait = min(wait, d.o.Backoff)
		}
	}
	if at, ok := d.o.silences.Next(now); ok {
		wait = min(wait, max(at.Sub(now), time.Millisecond))
	}
	return wait
}

// afterSilence puts on the desk what silences covered that are over, and notes that they were looked at.
func (d *desk) afterSilence(ctx context.Context, over []Silence) error {
	if err := d.review(ctx); err != nil {
		return err
	}
	call, cancel := d.call(ctx)
	defer cancel()
	for _, one := range over {
		if err := d.o.silences.Notice(call, one.ID); err != nil {
			return err
		}
	}
	return nil
}

// wind sets the clock of a page that nobody has acknowledged.
func (d *desk) wind(r *record) {
	if r.history.Latest == nil {
		return
	}
	key := keyOf(r.history.Latest.Incident)
	delete(d.clocks, key)
	if r.storm != "" || len(r.deliveries) == 0 {
		return
	}
	var s *scene
	for _, out := range d.outlets {
		t, _ := d.terms(r, out)
		if (t.remind <= 0 || !out.thread) && t.forget <= 0 {
			continue
		}
		if s == nil {
			one := d.look(r)
			s = &one
		}
		set := func(at time.Time, ok bool) {
			if ok && (d.clocks[key].IsZero() || at.Before(d.clocks[key])) {
				d.clocks[key] = at
			}
		}
		if out.thread {
			set(reminder(r.deliveries[out.Name()], *s, t.remind))
		}
		set(refresh(r.deliveries[out.Name()], *s, t.forget))
	}
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
