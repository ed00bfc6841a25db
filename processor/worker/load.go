package worker

import (
	"math"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

const (
	loadMinutes  = 31               // the last half hour, and the minute that is going on
	loadSpan     = 10 * time.Minute // below this a share of the window says nothing
	loadGap      = 5 * time.Minute  // after a longer silence totals are read anew: what was done meanwhile belongs to no minute
	waitingEvery = 5                // minutes between two slopes of what waits
	fullKV       = 0.9              // from here on the next long prompt does not fit beside what runs
)

// counter is one total of an engine. The first reading is the base; a total that falls was reset, and what it shows counts for nothing.
type counter struct {
	Newest uint64
	Known  bool
}

func (c *counter) step(v *uint64) (delta uint64) {
	if v == nil {
		return 0
	}
	if c.Known && *v > c.Newest {
		delta = *v - c.Newest
	}
	c.Newest, c.Known = *v, true
	return delta
}

// still says that a reading changes nothing.
func (c *counter) still(v *uint64) bool { return v == nil || c.Known && *v == c.Newest }

// minute is what the engine's samples of one minute add up to. All are whole numbers, so that a minute can be taken out of a sum again.
type minute struct {
	Samples, Full, Queued, KVs   uint32
	Running, Waiting             uint32 // sums over the samples
	Finished, Aborted, Preempted uint32
	Open                         uint32 // running and waiting at its first sample
	KV, Done                     uint64 // KV: sum in millionths; Done: tokens read and written
}

func (m *minute) add(o *minute) {
	m.Samples, m.Full, m.Queued, m.KVs = m.Samples+o.Samples, m.Full+o.Full, m.Queued+o.Queued, m.KVs+o.KVs
	m.Running, m.Waiting, m.KV = m.Running+o.Running, m.Waiting+o.Waiting, m.KV+o.KV
	m.Finished, m.Aborted, m.Preempted, m.Done = m.Finished+o.Finished, m.Aborted+o.Aborted, m.Preempted+o.Preempted, m.Done+o.Done
}

func (m *minute) remove(o *minute) {
	m.Samples, m.Full, m.Queued, m.KVs = m.Samples-o.Samples, m.Full-o.Full, m.Queued-o.Queued, m.KVs-o.KVs
	m.Running, m.Waiting, m.KV = m.Running-o.Running, m.Waiting-o.Waiting, m.KV-o.KV
	m.Finished, m.Aborted, m.Preempted, m.Done = m.Finished-o.Finished, m.Aborted-o.Aborted, m.Preempted-o.Preempted, m.Done-o.Done
}

// few is a count that no sample of an engine goes beyond, so that the sums of half an hour stay within 32 bits.
func few(n uint64) uint32 { return uint32(min(n, 1<<20)) }

// load is what the engine was doing lately: how full, how queued, how slow against itself.
type load struct {
	Last   time.Time // newest sample
	Since  time.Time // first sample after the last silence
	Newest int64     // minute since 1970 of the newest sample
	Ring   [loadMinutes]minute
	Window minute // the sum of the ring
	Fresh  bool   // a sample came since the features were computed
	Turned bool   // and it began a minute

	Finished, Aborted, Preempted, Prompt, Generated counter
	NewPrompt, NewGenerated                         uint64 // tokens of the newest sample
	Warm                                            time.Time
	WaitingGrowth                                   float64 // requests per hour
	Rising, RisingKnown                             bool

	Latency  latency
	Storm    storm
	Demand   demand
	Progress progress
	Room     room
}

// observe takes a sample of the engine. Samples come in the order of time.
func (l *load) observe(at time.Time, e *event.Engine) {
	apart, first := event.Ago(at, l.Last), l.Last.IsZero()
	if e == nil || e.Running == nil || e.Waiting == nil || !first && apart < 0 {
		return
	}
	gap := first || apart > loadGap
	if gap {
		l.Since, l.Ring, l.Window = at, [loadMinutes]minute{}, minute{}
	}
	s := minute{Samples: 1, Running: few(*e.Running), Waiting: few(*e.Waiting), Finished: few(l.Finished.step(e.FinishedTotal)),
		Aborted: few(l.Aborted.step(e.AbortedTotal)), Preempted: few(l.Preempted.step(e.PreemptionsTotal))}
	l.NewPrompt, l.NewGenerated = l.Prompt.step(e.PromptTokensTotal), l.Generated.step(e.GenerationTokensTotal)
	s.Done = l.NewPrompt + l.NewGenerated
	if e.KvUsage != nil {
		kv := max(0, *e.KvUsage-e.GetKvEvictable())
		s.KVs, s.KV = 1, uint64(kv*1e6)
		if kv >= fullKV {
			s.Full = 1
		}
	}
	if *e.Running > 0 && *e.Waiting > 0 {
		s.Queued = 1
	}
	moved := s.Finished > 0 || s.Done > 0
	if gap {
		s.Finished, s.Aborted, s.Preempted, s.Done = 0, 0, 0, 0
	}
	l.turn(at, s.Running+s.Waiting)
	l.Ring[slot(l.Newest)].add(&s)
	l.Window.add(&s)
	if s.Preempted > 0 {
		l.Storm.Hour.add(at, uint64(s.Preempted))
	}
	l.Latency.observe(at, e, uint64(s.Finished), l.Warm, gap)
	l.Progress.observe(at, e, moved, first)
	l.Last, l.Fresh = at, true
	if l.Turned {
		l.minutely(at)
	}
}

// fingerprint is that of the newest reading of the engine, which is worked out already where observe took it.
func (l *load) fingerprint(e *event.Engine) uint64 {
	if l.Fresh {
		return l.Progress.Print
	}
	return fingerprint(e)
}

// turn begins a new minute where the sample is in one, and drops those that are out of the window.
func (l *load) turn(at time.Time, open uint32) {
	now := at.Unix() / 60
	if now == l.Newest {
		return
	}
	for m := max(l.Newest+1, now-loadMinutes+1); m <= now; m++ {
		gone := &l.Ring[slot(m)]
		l.Window.remove(gone)
		*gone = minute{}
	}
	l.Ring[slot(now)].Open = open
	l.Newest, l.Turned = now, true
}

// minutely computes what changes slowly.
func (l *load) minutely(at time.Time) {
	if l.Newest%waitingEvery == 0 || l.Window.Waiting == 0 || !l.covered() || l.WaitingGrowth != l.WaitingGrowth {
		l.WaitingGrowth = l.slopeOfWaiting()
	}
	l.Rising, l.RisingKnown = l.rises()
	per, ok := l.preemptionsPerRequest()
	l.Storm.judge(at, per, uint64(l.Window.Preempted), ok)
	l.Demand.observe(at, l, per)
}

// slot is the place of a minute in the ring, also of one before 1970: a clock that was never set.
func slot(minute int64) int64 { return (minute%loadMinutes + loadMinutes) % loadMinutes }

// wait is what a request waits for its turn, in seconds: those that wait over the rate at which requests finish. It is NaN for a window
// that is too short, or in which nothing finished.
func (l *load) wait() float64 {
	if !l.covered() || l.Window.Finished == 0 {
		return nan
	}
	span := min(event.Ago(l.Last, l.Since), loadMinutes*time.Minute).Seconds()
	return float64(l.Window.Waiting) / float64(l.Window.Samples) * span / float64(l.Window.Finished)
}

// covered says that the window holds enough to speak of shares.
func (l *load) covered() bool { return l.Window.Samples >= 3 && event.Ago(l.Last, l.Since) >= loadSpan }

// slopeOfWaiting is NaN for a window that is too short.
func (l *load) slopeOfWaiting() float64 {
	if !l.covered() {
		return nan
	}
	if l.Window.Waiting == 0 {
		return 0
	}
	var x, y [loadMinutes]float64
	n := 0
	for m := l.Newest - loadMinutes + 1; m <= l.Newest; m++ {
		if s := &l.Ring[slot(m)]; s.Samples > 0 {
			x[n], y[n] = float64(m-l.Newest)/60, float64(s.Waiting)/float64(s.Samples)
			n++
		}
	}
	return trend.LeastSquares(x[:n], y[:n]).Slope
}

// rises says that more runs, or more of the KV cache is held, in the last five minutes than in the five a quarter of an hour before:
// memory that is in use then says nothing. It errs on the side of rising, since it only ever holds an alarm back.
func (l *load) rises() (rising, known bool) {
	now, then := l.sum(0, 5), l.sum(15, 20)
	if now.Samples < 2 || then.Samples < 2 {
		return false, false
	}
	mean := func(sum uint64, n uint32) float64 { return float64(sum) / float64(max(1, n)) }
	runs, ran := mean(uint64(now.Running), now.Samples), mean(uint64(then.Running), then.Samples)
	holds, held := mean(now.KV, now.KVs), mean(then.KV, then.KVs)
	return runs > 1.15*ran+1 || now.KVs > 0 && then.KVs > 0 && holds > held+0.05e6, true
}

// sum adds up what rises asks about minutes by their age, from inclusive, to exclusive.
func (l *load) sum(from, to int64) (s minute) {
	for at, left := slot(l.Newest-from), to-from; left > 0; left-- {
		m := &l.Ring[at]
		if at--; at < 0 {
			at = loadMinutes - 1
		}
		s.Samples, s.KVs, s.Running, s.KV = s.Samples+m.Samples, s.KVs+m.KVs, s.Running+m.Running, s.KV+m.KV
	}
	return s
}

var loadIDs = struct {
	running, waiting, busy, evict, full, queue, wait, rising, waitingGrowth, latency, slo, preemption, preemptions, perRequest, demand variable.ID
}{
	variable.Must("running.now"), variable.Must("waiting.now"), variable.Must("kv.busy"), variable.Must("kv.may_evict"), variable.Must("kv.full"),
	variable.Must("queue.held"), variable.Must("queue.seconds"), variable.Must("load.rising"), variable.Must("demand.waiting_growth"), variable.Must("symptom.latency"),
	variable.Must("symptom.slo"), variable.Must("symptom.preemption"), variable.Must("preemptions.hour"), variable.Must("preemptions.per_request"),
	variable.Must("demand.ratio"),
}

// loadFeatures sets what the engine's samples say. What no sample gave stays unknown.
func (w *Worker) loadFeatures(at time.Time) {
	l, s := &w.load, w.sample
	l.Warm = w.warm()
	if e := w.now.engine; e != nil && e.KvUsage != nil && (e.KvEvictable != nil || w.Who.GetEngine() == "vllm") {
		s.SetBool(loadIDs.evict, false) // vLLM counts unreferenced blocks as free (engine-metrics.md, 2)
	}
	if l.Last.IsZero() {
		return
	}
	if l.Fresh {
		w.engineFeatures()
	}
	if l.Latency.known() {
		s.SetBool(loadIDs.latency, within(at, l.Latency.SlowAt))
	}
	if l.Latency.Objective.Known {
		s.SetBool(loadIDs.slo, within(at, l.Latency.Objective.MissedAt))
	}
	if l.Preempted.Known && l.Finished.Known {
		s.SetBool(loadIDs.preemption, within(at, l.Storm.At))
	}
	if l.Preempted.Known {
		s.SetNumber(loadIDs.preemptions, float64(l.Storm.Hour.total(at)))
	}
	w.progressFeatures(at)
	l.Fresh, l.Turned = false, false
}

// engineNow sets the newest values, also of a tick that an OOM or an error interrupts.
func (w *Worker) engineNow() {
	s, e := w.sample, w.now.engine
	if e == nil {
		return
	}
	if e.Running != nil {
		s.SetNumber(loadIDs.running, float64(*e.Running))
	}
	if e.Waiting != nil {
		s.SetNumber(loadIDs.waiting, float64(*e.Waiting))
	}
	if e.KvUsage != nil {
		s.SetNumber(loadIDs.busy, *e.KvUsage-e.GetKvEvictable())
	}
}

// engineFeatures sets what changes with a sample.
func (w *Worker) engineFeatures() {
	l, s := &w.load, w.sample
	covered := l.covered()
	share := func(id variable.ID, part, whole uint32) {
		if !covered || whole == 0 {
			s.Unset(id)
			return
		}
		s.SetBool(id, 2*part >= whole)
	}
	share(loadIDs.full, l.Window.Full, l.Window.KVs)
	share(loadIDs.queue, l.Window.Queued, l.Window.Samples)
	if l.Preempted.Known {
		if covered && l.Finished.Known {
			s.SetNumber(loadIDs.perRequest, l.preempted())
		} else {
			s.Unset(loadIDs.perRequest)
		}
	}
	if !l.Turned {
		return
	}
	s.SetNumber(loadIDs.waitingGrowth, l.WaitingGrowth)
	s.SetNumber(loadIDs.wait, l.wait())
	s.SetNumber(loadIDs.demand, l.Demand.Ratio)
	if l.RisingKnown {
		s.SetBool(loadIDs.rising, l.Rising)
	} else {
		s.Unset(loadIDs.rising)
	}
}

// within says that something happened in the last `pair` length.
func within(at, when time.Time) bool { return !when.IsZero() && event.Ago(at, when) < symptomWindow }

// hourly counts in twelve parts of an hour, so that the count of the last hour is between 55 and 60 minutes long.
type hourly struct {
	Part  int64 // newest, in units of five minutes since 1970
	Parts [12]uint32
}

func (h *hourly) turn(at time.Time) {
	now := at.Unix() / 300
	for p := max(h.Part+1, now-11); p <= now; p++ {
		h.Parts[(p%12+12)%12] = 0
	}
	h.Part = max(h.Part, now)
}

func (h *hourly) add(at time.Time, n uint64) {
	h.turn(at)
	h.Parts[(h.Part%12+12)%12] += uint32(min(n, math.MaxInt32))
}

func (h *hourly) total(at time.Time) (n uint64) {
	if h.Part == 0 {
		return 0
	}
	h.turn(at)
	for _, p := range h.Parts {
		n += uint64(p)
	}
	return n
}
