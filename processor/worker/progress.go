package worker

import (
	"math"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

const (
	stallAfter   = 2 * time.Minute  // without a token: what serving engines themselves allow before they call a rank dead (real-cases.md, gonka)
	stallAlone   = 10 * time.Minute // where a single request has the GPU to itself, or only finished requests are counted
	stallFilling = 30 * time.Minute // where the KV cache fills meanwhile: a long prompt, or an engine that counts tokens at the end
	stallSamples = 3
	idleDevice   = 0.02 // utilisation
	spinDevice   = 0.98
	sharedDevice = 0.1 // of a card's memory held by others: its utilisation is theirs too
)

// progress is when the engine last brought anything forward. Tokens read and written and finished requests are progress; an abort is
// the client's.
type progress struct {
	MovedAt   time.Time // last progress
	ChangedAt time.Time // any field of the engine
	FilledAt  time.Time // the KV cache last held more than before
	CameAt    time.Time // last arrival: more ran and waited than before
	Print     uint64    // of the newest sample
	KV, ITL   float64
	Samples   int // of the engine since the last progress
	Running   uint64
	Waiting   uint64
	Sleeping  bool
	Counts    bool      // tokens written are counted
	Ever      bool      // it has brought something forward since it was first seen
	Work      time.Time // it first had work

	// What the worker's GPUs did in each sample since the last progress.
	Devices    int
	Idle, Spin bool
	Shared     bool // in one of them at least
	Seen       bool // the utilisation is read

	// What the process itself holds, which nobody else on the card can move.
	Held    uint64    // fingerprint
	HeldAt  time.Time // it last changed; zero before it was read
	Holding int       // readings since that change and the last progress

	StalledAt  time.Time
	StalledFor time.Duration // then
}

func (p *progress) observe(at time.Time, e *event.Engine, moved, first bool) {
	if *e.Running+*e.Waiting > p.Running+p.Waiting {
		p.CameAt = at
	}
	p.Running, p.Waiting, p.Sleeping, p.Counts = *e.Running, *e.Waiting, e.GetSleeping(), e.GenerationTokensTotal != nil
	if v := e.ItlP95Seconds; v != nil {
		moved = moved || *v != p.ITL && !first // a new time between tokens: tokens came
		p.ITL = *v
	}
	print := fingerprint(e)
	if print != p.Print || first {
		p.Print, p.ChangedAt = print, at
	}
	if e.KvUsage != nil {
		if *e.KvUsage > p.KV {
			p.FilledAt = at
		}
		p.KV = *e.KvUsage
	}
	working := p.Running+p.Waiting > 0
	if working && p.Work.IsZero() {
		p.Work = at
	}
	p.Samples++
	p.Ever = p.Ever || moved
	if moved || first || !working {
		p.MovedAt, p.Samples = at, 0
		p.Devices, p.Idle, p.Spin, p.Shared = 0, true, true, false
		p.Holding = 0
	}
}

// holds takes the fingerprint of what the process holds. CPU time is no part of it: a process that hangs in a CUDA call or a collective
// spins as fast as one that works.
func (p *progress) holds(at time.Time, held uint64) {
	if p.HeldAt.IsZero() || held != p.Held {
		p.Held, p.HeldAt, p.Holding = held, at, 0
		return
	}
	p.Holding++
}

// still is for how long the process has neither brought anything forward nor moved its own memory; zero where too few readings say so.
func (p *progress) still(at time.Time) time.Duration {
	if p.HeldAt.IsZero() || p.Holding < stallSamples {
		return 0
	}
	return max(0, event.Ago(at, later(p.HeldAt, p.MovedAt)))
}

// device takes the utilisation of the busiest of the worker's GPUs.
func (p *progress) device(at time.Time, utilization float64, shared func() bool) {
	p.Seen = true
	if event.Ago(at, p.MovedAt) <= 0 {
		return
	}
	p.Devices++
	p.Shared = p.Shared || shared()
	p.Idle = p.Idle && utilization <= idleDevice
	p.Spin = p.Spin && utilization >= spinDevice
}

func (p *progress) idle() bool { return p.Idle && p.Devices >= stallSamples }
func (p *progress) spin() bool { return p.Spin && p.Devices >= stallSamples }

// stalled says that work was accepted and no token came out, as of the newest sample. Before the first token ever, the engine may be
// compiling, and has until the end of warm-up.
//
// Requests that came since the last token while numbers still move are enough. While every field of the engine stands still, its metrics
// say nothing by themselves: gauges freeze when a loop ends early, too (engine-metrics.md, 10). Then the device must agree: it spins,
// with nobody else on it, or it idles although something waits. A number of running requests that is left behind on an idle device is a
// frozen gauge. Where somebody else is on the device too, or nobody reads it, what it does says nothing about this process; but one that
// works moves its own memory, whatever its metrics say.
func (p *progress) stalled(at, warm time.Time) bool {
	still := event.Ago(at, p.MovedAt)
	if p.Running+p.Waiting == 0 || p.Sleeping || still < stallAfter || p.Samples < stallSamples || !p.Ever && at.Before(warm) {
		return false
	}
	if !p.Counts && still < stallAlone {
		return false
	}
	if still < stallFilling && p.Running > 0 && !p.FilledAt.Before(p.MovedAt) && event.Ago(at, p.FilledAt) < stallAfter {
		return false
	}
	if event.Ago(at, p.ChangedAt) < stallAfter && p.CameAt.After(p.MovedAt) {
		return true
	}
	if p.idle() {
		return p.Waiting > 0
	}
	alone := p.Running == 1 && p.Waiting == 0
	if p.Devices >= stallSamples && !p.Shared {
		return p.spin() && (!alone || still >= stallAlone)
	}
	if p.Waiting > 0 {
		return p.still(at) >= stallAfter
	}
	return p.still(at) >= stallAlone
}

var progressIDs = struct{ seconds, frozen, still, stalled, idle, spin variable.ID }{
	variable.Must("progress.seconds"), variable.Must("frozen.seconds"), variable.Must("still.seconds"), variable.Must("symptom.stalled"),
	variable.Must("device.idle"), variable.Must("device.spinning"),
}

func (w *Worker) progressFeatures(at time.Time) {
	l, s, p := &w.load, w.sample, &w.load.Progress
	if p.Seen {
		s.SetBool(progressIDs.idle, p.idle())
		if p.Shared && p.spin() {
			s.Unset(progressIDs.spin) // whose doing that is, nobody knows
		} else {
			s.SetBool(progressIDs.spin, p.spin())
		}
	}
	if !l.counts() {
		return // an engine that counts nothing cannot be seen to move
	}
	if l.Fresh {
		s.SetNumber(progressIDs.seconds, event.Ago(l.Last, p.MovedAt).Seconds())
		if !p.HeldAt.IsZero() {
			s.SetNumber(progressIDs.still, p.still(l.Last).Seconds())
		}
		if p.stalled(l.Last, l.Warm) {
			p.StalledAt, p.StalledFor = l.Last, event.Ago(l.Last, p.MovedAt)
		}
	}
	s.SetBool(progressIDs.stalled, within(at, p.StalledAt))
}

// frozen sets for how long all that the engine tells has stood still.
func (w *Worker) frozen() {
	if l := &w.load; l.counts() && !l.Last.IsZero() {
		w.sample.SetNumber(progressIDs.frozen, event.Ago(l.Last, l.Progress.ChangedAt).Seconds())
	}
}

// counts says that the engine tells of anything that it has done.
func (l *load) counts() bool { return l.Finished.Known || l.Prompt.Known || l.Generated.Known }

// shared says that another process holds a part of one of the worker's GPUs, so that what the GPU does need not be the worker's doing.
func (w *Worker) shared() bool {
	for i := range w.now.cards {
		c := &w.now.cards[i]
		if c.device == nil || c.process == nil {
			continue
		}
		others := number(c.device.UsedBytes) - number(c.process.UsedBytes)
		if others > sharedDevice*number(c.device.TotalBytes) {
			return true
		}
	}
	return false
}

// observeDevice takes what the tick says about the worker's GPUs.
func (w *Worker) observeDevice(at time.Time) {
	w.load.Room.observe(w, at)
	if w.now.freshAllocator {
		w.load.Progress.holds(at, w.now.held())
	}
	if !w.now.freshDevice {
		return
	}
	if u := w.now.utilization(); !math.IsNaN(u) {
		w.load.Progress.device(at, u, w.shared)
		w.sample.SetNumber(faultIDs.utilization, u)
	}
	w.faults.Seen = true
	for i := range w.now.cards {
		if c := &w.now.cards[i]; c.device != nil {
			w.faults.read(at, c.uuid, c.device)
		}
	}
	w.faults.ReadAt = at
}
