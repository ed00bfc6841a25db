// Package processor judges: it feeds events to workers and cards, asks the rules, and turns answers into incidents. One Judge is
// one partition, one recording or one test; live and replay share it. It knows no statistics and sends nothing to people.
package processor

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/processor/worker"
	"lowtide/rules"
	"lowtide/rules/variable"
)

const (
	forget     = 6 * time.Hour // a process that is silent this long is gone
	sweepEvery = time.Hour
	maxWorkers = 10_000           // of one partition
	maxHosts   = 10_000           // of one partition
	silent     = 5 * time.Minute  // a process that says nothing for as long does not speak for its slot
	endLag     = 10 * time.Second // an error may be told this long after the process that it ended
	compareGap = 10 * time.Minute // between two looks at the peers, while nothing is called or proven anew
)

// Judge judges the events of one partition in their order. It is not safe for concurrent use.
type Judge struct {
	emit      func(*event.Finding)
	wish      func(*Wish) // nil: what rules ask for is only remembered
	hosts     map[hostName]*host
	last      *host // of the newest event
	workers   map[string]*watched
	instances map[string]*instance
	epoch     int    // grows when a worker is found by another instance or card
	turn      uint64 // grows with every event
	board     *Board
	seat      uint64 // by which the board knows it
	incidents *incident.Tracker
	shadows   *incident.Tracker // of rules that are tried out
	awaiting  []awaited

	perWorker, perInstance, perCard, perHost *questions
	rules                                    map[string]*rules.Rule // by id
	asked                                    []ruleMark             // in precedence
	tried                                    []ruleMark             // in shadow
	calls                                    variable.Set           // what tells that the worker looked at its points anew
	proofs                                   variable.Set           // what prove sets
	killed                                   *questions             // the rules of class external_kill
	uncalibrated                             bool                   // findings carry scores instead of probabilities
	labels                                   Labels

	seen  view // what is being observed, and by which rule: fill tells a finding about it
	about *question
	fill  func(*event.Finding)
	work  variable.Reading
	clock clock

	wanted *worker.Wanted // by the rules about workers
}

// clock is the time of the newest event, as it was written and as it is used: four of five have that of the one before.
type clock struct {
	of      *timestamppb.Timestamp // events of one tick share it mostly
	seconds int64
	nanos   int32
	at      time.Time
}

func (c *clock) shows(t *timestamppb.Timestamp) bool {
	return t != nil && (t == c.of || t.Seconds == c.seconds && t.Nanos == c.nanos)
}

func (c *clock) read(e *event.Event) time.Time {
	*c = clock{e.Time, e.Time.GetSeconds(), e.Time.GetNanos(), e.At()}
	return c.at
}

// NewJudge returns a judge that calls emit with every transition, in the goroutine that calls Apply, Tick or Flush.
func NewJudge(pack *rules.Pack, emit func(*event.Finding)) *Judge {
	return NewJudgeWith(pack, NewBoard(), emit)
}

// NewJudgeWith is NewJudge with a board that other judges write to as well, as the partitions of one process do.
func NewJudgeWith(pack *rules.Pack, board *Board, emit func(*event.Finding)) *Judge {
	j := &Judge{emit: emit, hosts: make(map[hostName]*host), workers: make(map[string]*watched), instances: make(map[string]*instance),
		board: board, seat: board.join(), incidents: incident.NewTracker(), shadows: incident.NewShadowTracker(), rules: make(map[string]*rules.Rule), clock: clock{at: time.Unix(0, 0).UTC()}}
	asked, tried := inPrecedence(pack, false), inPrecedence(pack, true)
	j.asked, j.tried = marksOf(asked), marksOf(tried)
	about := func(scope string) *questions {
		q := newQuestions(asked, scope, j.incidents)
		if shadow := newQuestions(tried, scope, j.shadows); len(shadow.all) > 0 {
			q.shadow = shadow
		}
		return q
	}
	j.perWorker, j.perInstance, j.perCard, j.perHost = about("worker"), about("instance"), about("gpu"), about("host")
	j.proofs = variable.NewSet(proofIDs...)
	j.calls = variable.NewSet(variable.Must("quiet.count"))
	for _, id := range growerIDs {
		j.calls.Join(variable.NewSet(id.early, id.steady, id.level))
	}
	j.wanted = worker.NewWanted(j.perWorker.reads().With(j.perInstance.reads()))
	for _, rule := range pack.Rules {
		j.rules[rule.ID] = rule
	}
	j.killed, j.work = j.perWorker.of("external_kill"), variable.NewReading()
	j.fill = func(f *event.Finding) {
		j.seen.look()
		fill(f, &j.seen, j.about)
		if w := j.seen.w; w != nil {
			f.Replicas = j.replicas(w, j.about.series, j.seen.at)
		}
		f.Confidence = j.confidence(f, &j.seen, j.about)
	}
	return j
}

// Apply takes one event that names its host. Samples are nearly all that comes, so that they are told first.
func (j *Judge) Apply(e *event.Event) {
	at := j.clock.at
	if !j.clock.shows(e.Time) {
		at = j.clock.read(e)
	}
	h := j.host(e.Host, at)
	if e.Worker != nil && len(e.Worker.GpuUuids) > maxCardsOfWorker {
		e = proto.CloneOf(e)
		e.Worker.GpuUuids = e.Worker.GpuUuids[:maxCardsOfWorker]
	}
	switch {
	case e.GpuProcess != nil:
		if w := j.worker(h, e, at); w != nil {
			if c := w.card(e.GpuProcess.GpuUuid); c != nil {
				j.closeCard(c, at)
				c.process(at, e.GpuProcess)
			}
			j.give(w, e, at)
		}
	case e.Gpu != nil:
		layout := h.layout
		c := h.card(e.Gpu.Uuid)
		if c.place(e.Gpu); h.layout != layout {
			j.epoch++
		}
		j.closeCard(c, at)
		c.device(at, e.Gpu)
		for _, w := range present(c.users, at) {
			j.give(w, e, at)
		}
	case e.Worker != nil && e.Engine != nil:
		j.spoken(h, e, at)
	case e.Worker != nil && (e.Allocator != nil || e.Process != nil):
		j.own(h, e, at)
	default:
		j.news(h, e, at)
	}
	j.pass(h, at)
}

// spoken gives an engine's word to those for whom it holds.
func (j *Judge) spoken(h *host, e *event.Event, at time.Time) {
	for _, w := range present(j.speaksFor(h, e, at), at) {
		j.give(w, e, at)
	}
}

// own gives a process what is said of itself.
func (j *Judge) own(h *host, e *event.Event, at time.Time) {
	if w := j.worker(h, e, at); w != nil {
		if e.Process != nil {
			w.anon.observe(at, e.Process)
		}
		j.give(w, e, at)
	}
}

// news takes what is no sample.
func (j *Judge) news(h *host, e *event.Event, at time.Time) {
	if e.Oom != nil {
		e = spelled(e)
	}
	switch {
	case e.Xid != nil:
		j.xid(h, e, at)
	case e.Oom != nil && victim(e) != 0:
		if w := h.find(victim(e), at); w != nil { // nobody else's, wherever it was seen
			w.doomed, w.doomedAt = e.Oom.Kind, at
			j.reread(h, w, at)
			j.give(w, e, at)
			if w.end.at.IsZero() { // what the kernel kills is dead, whether or not somebody sees it go
				gone := &event.Event{Time: e.Time, Host: e.Host, Worker: w.Who, Lifecycle: &event.Lifecycle{State: "exited", Signal: event.Ptr(int64(sigKill)), By: e.Oom.Kind}}
				j.exit(h, w, gone, at)
			}
		}
	case e.Source != nil:
		j.source(h, e.Source, at)
	case e.Mark != nil && e.Mark.Kind == "deploy":
		h.deploys.add(note{at: at, unit: h.unitOf(e)})
	case e.Worker == nil:
	case e.Config != nil || e.Lifecycle.GetState() == "ready":
		j.spoken(h, e, at)
	case e.Lifecycle != nil:
		j.lifecycle(h, e, at)
	case e.Snapshot != nil && h.process(e, at) == nil: // of a life that nobody else tells of: it begins none
	default:
		j.own(h, e, at)
	}
}

// pass does what the passing of time asks for.
func (j *Judge) pass(h *host, at time.Time) {
	if len(j.awaiting) > 0 {
		j.reconsider(h, at, false)
	}
	if h.blind > 0 {
		j.watch(h, at)
	}
	if h.elapsed-h.swept > sweepEvery {
		j.sweep()
	}
}

// victim is the process that a kernel's or a cgroup's OOM killer ended; zero where the event tells of none.
func victim(e *event.Event) int64 {
	if e.Oom.Kind != "kernel" && e.Oom.Kind != "cgroup" {
		return 0
	}
	if e.Oom.VictimPid != nil {
		return *e.Oom.VictimPid
	}
	return e.Worker.GetPid()
}

// xid gives an error of a device to the card and to whom it concerns. NVML names only the device. What the device did is true for
// all that use it; what a program did, for the only one.
func (j *Judge) xid(h *host, e *event.Event, at time.Time) {
	layout := h.layout
	c := h.faulty(e.Xid)
	if h.layout != layout {
		j.epoch++ // as when a card tells of itself: another one may be its part
	}
	if c == nil && e.Worker != nil {
		c = h.onlyCardOf(e.Worker)
	}
	if c != nil {
		c.fault(at, e.Xid)
		j.judgeCard(c, at)
	}
	if e.Worker != nil {
		w := h.named(e.Worker, at)
		if w == nil {
			w = j.worker(h, e, at)
		}
		j.blameProgram(w, e, at)
		return
	}
	if c == nil {
		return
	}
	all := c.everyone()
	users := present(all, at)
	if len(users) == 0 {
		users = present(all, at.Add(-endLag)) // the error may be what ended it
	}
	if len(users) == 1 || !event.ApplicationXid(event.CauseXid(e.Xid)) {
		for _, w := range users {
			j.blameProgram(w, e, at)
		}
	}
}

func (j *Judge) blameProgram(w *watched, e *event.Event, at time.Time) {
	if event.ApplicationXid(event.CauseXid(e.Xid)) {
		w.faultAt = at
	}
	j.give(w, e, at)
}

// Flush closes every tick that is still being put together: the end of a recording is its last moment.
func (j *Judge) Flush() {
	for _, h := range j.ordered() {
		for _, c := range h.sortedCards() {
			j.closeCard(c, time.Time{})
		}
	}
	for _, w := range j.sorted() {
		if w.End() {
			j.evaluate(w, w.Last)
		}
	}
	j.reconsider(nil, time.Time{}, true)
}

// Reports returns what each process looks like, those that have ended lately too, in the order of their keys.
func (j *Judge) Reports() []worker.Report {
	all := make([]worker.Report, 0, len(j.workers))
	for _, w := range j.sorted() {
		r := w.Report()
		r.Asked = w.asked()
		all = append(all, r)
	}
	return all
}

func (j *Judge) give(w *watched, e *event.Event, at time.Time) {
	if w.ApplyAt(e, at) {
		if e.Oom == nil && e.Xid == nil {
			at = w.Last
		}
		j.evaluate(w, at)
	}
}

// evaluate judges a worker at the end of a tick. Of one that has ended, news that came late is heard, not that it goes on.
func (j *Judge) evaluate(w *watched, at time.Time) {
	if w.heard.Before(at) && !w.end.at.IsZero() {
		w.heard = at
	}
	j.judge(w, at, false)
}

func (j *Judge) judge(w *watched, at time.Time, exited bool) {
	// A tick is closed by the one after it, and may hold what was told at once in between: that began no earlier than it was told.
	if w.judged.After(at) && event.Ago(w.judged, at) < setBack {
		at = w.judged
	}
	w.judged = at
	s := w.Wanted(j.wanted)
	w.ticks++
	if place := w.place; place != nil && w.end.at.IsZero() {
		if place.before != nil {
			j.vanished(place, w, at)
		}
		place.tell(w, at)
	}
	if s.Touched(j.calls) || w.called != 0 && !within(at, w.compared, compareGap) {
		j.compare(w, at)
	}
	w.takeOrphan()
	if w.called != 0 || !j.unmoved(j.perWorker, &w.answers, s, w.Slot) {
		j.ask(j.perWorker, &w.answers, &view{kind: "worker", subject: w.Key, key: w.Slot, at: at, sample: s, w: w, host: w.home, related: w.relatives(j), life: w.Key, exited: exited})
	}
	if in := w.in; in != nil && in.heardBy(w, at) {
		if key := j.standing(in, w, at); w.called != 0 || !j.unmoved(j.perInstance, &w.shared, s, key) {
			j.ask(j.perInstance, &w.shared, &view{kind: "instance", subject: in.key, key: key, at: at, sample: s, w: w, host: w.home, related: w.relatives(j), life: in.life, exited: exited && in.life == w.Key})
		}
	} else {
		w.shared.loosen()
		if speaker := in.speaking(); exited && speaker != nil && in.life == w.Key { // another one tells that the instance's life is over
			j.ask(j.perInstance, &speaker.shared, &view{kind: "instance", subject: in.key, key: in.slot, at: at, sample: speaker.Sample(), w: speaker, host: w.home, related: w.relatives(j), life: in.life, exited: exited})
		}
	}
	s.Settle()
}

// askAbout asks only the rules of one class about a worker, such as one that has ended and been followed.
func (j *Judge) askAbout(w *watched, q *questions, at time.Time) {
	var once answers
	j.ask(q, &once, &view{kind: "worker", subject: w.Key, key: w.Slot, at: at, sample: w.Sample(), w: w, host: w.home, related: w.relatives(j), life: w.Key})
}
