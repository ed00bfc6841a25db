// Package worker knows what one worker process is doing: its series as residuals of the memory identity, its quiet points, its
// load, and the features that rules read. It keeps bounded state per process life, does no I/O and judges nothing.
package worker

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/rules/variable"
)

const (
	warmUp        = 20 * time.Minute       // after the engine is ready: compilation, graph capture and first caches settle
	symptomWindow = time.Hour              // the default `pair` of a rule
	sameTick      = 500 * time.Millisecond // sensors that stamp their events themselves mean one moment
	maxSymptoms   = 64
)

// Worker is one process life (an epoch). It is not safe for concurrent use.
type Worker struct {
	Key, Slot, Instance string
	Host                *event.Host
	Who                 *event.Worker
	Config              *event.Config
	First, Last         time.Time

	tick  time.Time // the tick that is being put together
	dirty bool
	now   reading
	level []float64 // of the newest tick, by column

	ready  time.Time // first `ready`, else first finished request
	said   bool      // ready was said, not inferred
	exited time.Time // zero while nobody has said so

	load     load
	counters counters
	quiet    quiet
	match    match
	inferred inferred
	ooms     ooms
	faults   faults
	marks    marks
	quality  quality
	trace    trace

	snapshots snapshots

	sample *variable.Sample
	basis  basis
	calls  []call // by column

	// Worked out anew after a restart.
	warmed warmed
	born   time.Time // when the process started, as far as is known; zero until somebody asks
	slopes slopes

	wanted  *Wanted // nil is everything
	unshown unshown
}

// New starts the life of a process at its first event.
func New(key string, host *event.Host, who *event.Worker, at time.Time) *Worker {
	w := &Worker{
		Key: key, Slot: event.SlotKey(host, who), Instance: event.InstanceKey(host, who),
		Host: host, Who: who, First: at, Last: at, sample: variable.NewSample(), inferred: inferred{Allocated: nan}, ooms: ooms{pid: who.GetPid()},
	}
	w.identify()
	return w
}

// Learn takes over what a later event knows better about who the process is: its GPUs once CUDA is up, the model and unit once
// the engine listens. What it leaves out stays. It says whether anything changed; Slot and Instance are the caller's to move.
func (w *Worker) Learn(who *event.Worker) bool {
	if who == nil || who == w.Who || knows(w.Who, who) {
		return false
	}
	w.show()
	merged := proto.CloneOf(w.Who)
	if len(who.GpuUuids) > 0 {
		merged.GpuUuids = nil // the set as it is now, not the union
	}
	proto.Merge(merged, who)
	w.Who = merged
	w.identify()
	return true
}

// knows says that b tells nothing that a does not say already.
func knows(a, b *event.Worker) bool {
	text := func(a, b string) bool { return b == "" || a == b }
	count := func(a, b *int64) bool { return b == nil || a != nil && *a == *b }
	return text(a.Unit, b.Unit) && text(a.Model, b.Model) && text(a.Engine, b.Engine) && text(a.Role, b.Role) && text(a.Release, b.Release) &&
		text(a.Pod, b.Pod) && text(a.ContainerId, b.ContainerId) && count(a.Rank, b.Rank) && count(a.EngineIndex, b.EngineIndex) &&
		(len(b.GpuUuids) == 0 || slices.Equal(a.GpuUuids, b.GpuUuids))
}

// Exited says that the process was reported to have ended before a time.
func (w *Worker) Exited(at time.Time) bool { return !w.exited.IsZero() && w.exited.Before(at) }

// Ready says that the engine was ready, by its word or by a finished request.
func (w *Worker) Ready() bool { return !w.ready.IsZero() }

// Apply takes one event about this worker, its instance or its device. It returns true when the event closed a tick, after
// which Sample holds the features of that tick. OOMs and lifecycle events take effect at once.
func (w *Worker) Apply(e *event.Event) (closed bool) { return w.ApplyAt(e, e.At()) }

// ApplyAt is Apply for who has computed the event's time already.
func (w *Worker) ApplyAt(e *event.Event, at time.Time) (closed bool) {
	if at == w.tick && w.quality.Shift == 0 && w.now.takes(e) { // four of five events are of the tick that is open
		w.quality.Backs = 0
		w.now.apply(e, w.Who)
		w.dirty = true
		return false
	}
	at = w.quality.moment(at, w.tick)
	if !w.now.takes(e) {
		return w.news(e, at)
	}
	apart := event.Ago(at, w.tick)
	if apart != 0 && apart.Abs() < sameTick && !w.now.has(e) {
		at, apart = w.tick, 0 // another sensor's word on the same moment
	}
	switch {
	case apart < 0:
		w.quality.late() // the tick it belongs to has been judged
		return false
	case apart > 0:
		closed = w.Close()
		w.quality.silence(apart, w.tick)
		w.tick = at
	}
	w.now.apply(e, w.Who)
	w.dirty = true
	return closed
}

// news takes what is no reading of a tick.
func (w *Worker) news(e *event.Event, at time.Time) (closed bool) {
	w.show()
	switch {
	case e.Oom != nil:
		w.ooms.event(at, e.Oom)
		w.recallGrowth(at)
		w.features(at)
		return true
	case e.Xid != nil:
		w.faults.observe(at, e.Xid)
		w.features(at)
		return true
	case e.Lifecycle != nil:
		w.lifecycle(at, e.Lifecycle)
	case e.Config != nil:
		w.configure(e.Config)
	case e.Mark != nil:
		w.marks.note(at, e.Mark)
	case e.Snapshot != nil:
		if !w.takeSnapshot(at, e.Snapshot) {
			return false
		}
		w.oomFeatures(w.Last)
		w.snapshotFeatures(at)
		return len(w.now.cards) < 2 // else those of its other GPUs come with it
	}
	return false
}

func (w *Worker) lifecycle(at time.Time, l *event.Lifecycle) {
	switch l.State {
	case "ready":
		if !w.said {
			w.ready, w.said = at, true
		}
	case "exited":
		w.exited = at
	}
}

// configure adds what one origin says to what others said: the engine, the probe and the log each know a part.
func (w *Worker) configure(c *event.Config) {
	merged := proto.CloneOf(w.Config)
	if merged == nil {
		merged = new(event.Config)
	}
	if len(c.DeclaredCaches) > 0 {
		merged.DeclaredCaches = nil
	}
	proto.Merge(merged, c)
	if !proto.Equal(merged, w.Config) { // a new pointer is what tells that something changed
		w.Config = merged
	}
}

// Close ends the tick that is being put together and computes the features. It returns false when there is none.
func (w *Worker) Close() bool {
	if !w.dirty {
		return false
	}
	w.dirty = false
	w.Last = w.tick
	if w.ready.IsZero() && w.now.engine.GetFinishedTotal() > 0 {
		w.ready = w.tick
	}
	if w.ooms.counter(w.tick, w.now.oomsTotal()) {
		w.recallGrowth(w.tick)
	}
	w.level = w.now.levels(w.level, w.Who.GetEngine())
	if more := len(w.level) - len(w.calls); more > 0 {
		w.calls = slices.Grow(w.calls, more) // all at once, so that nothing is left over
		for range more {
			w.calls = append(w.calls, newCall())
		}
	}
	w.trace.observe(w.tick, w.level)
	w.observeLoad()
	w.observeDevice(w.tick)
	w.features(w.tick)
	w.now.endTick()
	return true
}

// End closes the tick and judges all that waits for its turn, because there may be no other tick. It returns false when nothing was new.
func (w *Worker) End() bool {
	closed := w.Close()
	return w.settle() || closed
}

// observeLoad takes what the engine says that it does, else what the worker marks, else what it looks like.
func (w *Worker) observeLoad() {
	cycles := w.marks.until(w.tick)
	w.counters.Work.Cycles += cycles
	if w.now.freshEngine { // the device may be read more often than the engine
		w.counters.observe(w.now.engine)
		w.load.observe(w.tick, w.now.engine)
		w.rest(w.engineActivity())
		return
	}
	if w.now.engine != nil || !w.now.freshAllocator && !w.now.freshProcess {
		return // an engine knows better, or this tick holds no memory to compare
	}
	if w.marks.Said {
		doing := idle
		if w.marks.Busy {
			doing = working
		}
		w.rest(doing)
		return
	}
	doing, became := w.inferred.observe(w.now.allocated(), w.now.utilization())
	if became {
		w.counters.Work.Cycles++
	}
	w.rest(doing)
}

// engineActivity is unclear while the engine does not say what runs, and while its numbers are frozen although the GPU works. Of an
// engine that never says what waits, quiet is inferred from what runs.
func (w *Worker) engineActivity() activity {
	e := w.now.engine
	switch {
	case e.Running == nil:
		return unclear
	case *e.Running != 0 || e.GetWaiting() != 0:
		return working
	case w.quality.frozen(w.load.fingerprint(e), w.now.allocated(), w.now.utilization()):
		return unclear
	}
	return idle
}

func (w *Worker) rest(doing activity) {
	switch doing {
	case idle:
		if changed := w.quiet.observe(w.tick, doing, w.level, w.counters.Work, w.state()); changed.any() {
			w.basis.changed = w.basis.changed.or(changed)
		}
	case working: // there is no point to keep, nor a state to keep it with
		w.quiet.interrupt()
		if e := w.now.engine; e != nil && reached(w.tick, w.warm()) {
			if w.match.observe(w.tick, bin(e.GetRunning(), e.GetWaiting(), w.value(column(kv, 0))), w.level, w.counters.Work) {
				w.basis.windows = everyBit
			}
		}
	}
}

func (w *Worker) state() state {
	none := float32(nan)
	s := state{w.Who.GetRelease(), figures{Adapters: none, PromptP95: none, Compiles: none}}
	if e := w.now.engine; e != nil {
		s.Figures.Sleeping, s.Figures.Adapters = e.GetSleeping(), float32(number(e.LoadedAdapters))
		if e.PromptTokensP95 != nil {
			s.Figures.PromptP95 = float32(*e.PromptTokensP95)
		}
	}
	for i := range w.now.cards {
		if a := w.now.cards[i].allocator; a != nil && a.CompilesTotal != nil {
			s.Figures.Compiles = float32(max(number(a.CompilesTotal), zeroIfUnknown(float64(s.Figures.Compiles))))
		}
	}
	return s
}

// reached says that a moment is not before another, as !Before does, mostly without a call.
func reached(at, when time.Time) bool {
	if s := at.Unix() - when.Unix(); s != 0 {
		return s > 0
	}
	return !at.Before(when)
}

// warm is the moment after which quiet points count.
func (w *Worker) warm() time.Time {
	if w.warmed.ready != w.ready || w.warmed.at.IsZero() {
		w.warmed = warmed{w.ready, w.warms()}
	}
	return w.warmed.at
}

// warmed is what warm last said, and what it went by: it is asked for several times at each tick.
type warmed struct{ ready, at time.Time }

func (w *Worker) warms() time.Time {
	if !w.ready.IsZero() {
		return w.ready.Add(warmUp)
	}
	if start := w.Who.GetStartTime(); start != nil {
		return start.AsTime().Add(warmUp)
	}
	return w.First.Add(warmUp)
}
