package worker

import (
	"math"
	mathbits "math/bits"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
)

const (
	paceWindow   = 55 * time.Second // one window: the samples of a minute, or one sample where they come slower
	paceStale    = 20 * time.Minute // windows older than this are not beside each other any more
	slowRatio    = 1.5              // against the same load without a queue
	crawlRatio   = 3                // against the lower quartile, for a worker that was never seen without a queue
	ttftFloor    = 0.5              // seconds; below this a slow first token is nobody's complaint
	itlFloor     = 0.1              // seconds between tokens; ten a second read as fast as people do
	learnFirst   = 8                // windows of one load that are all learnt; later one in
	learnEvery   = 15 * time.Minute // so that a baseline spans hours and a bad hour does not become the norm
	fewWindows   = 3                // before a load without a queue has a baseline of its own
	loadBins     = 12               // running in powers of two: 0, 1, 2–3, 4–7, … 1024 and more
	sloTarget    = 0.95             // while the worker's own share is not known
	sloMargin    = 0.05
	sloRequests  = 20 // a share of fewer is noise
	queuedValues = 32
)

// baseline is the newest values of one load, in seconds or as a share; the oldest gives way.
type baseline struct {
	Values  [16]float32
	N, Next uint8
	Warm    bool // learnt after warm-up
	At      time.Time
	Middle  float64 // the median; NaN until somebody asks for it
}

// learn takes a value in. The first after warm-up drops those from before, which compilation and first caches had made slow.
func (b *baseline) learn(at time.Time, v float64, warm bool) {
	if warm && !b.Warm {
		b.N, b.Next, b.Warm = 0, 0, true
	}
	if b.N >= learnFirst && event.Ago(at, b.At) < learnEvery {
		return
	}
	b.Values[b.Next] = float32(v)
	b.Next = (b.Next + 1) % uint8(len(b.Values))
	b.N, b.At, b.Middle = min(b.N+1, uint8(len(b.Values))), at, nan
}

// median is worked out when it is asked for: most values are learnt by a worker that is never slow enough to be compared.
func (b *baseline) median() float64 {
	if b.Middle != b.Middle {
		var all [len(b.Values)]float64
		b.Middle = trend.Median(wide(all[:0], b.Values[:b.N]))
	}
	return b.Middle
}

// wide appends what was kept of some values.
func wide(dst []float64, values []float32) []float64 {
	for _, v := range values {
		dst = append(dst, float64(v))
	}
	return dst
}

// thinned keeps values over a whole life: when full, every other goes, and from then on every other comes.
type thinned struct {
	Values       [queuedValues]float32
	N            uint8
	Stride, Skip uint32
	Low          float64 // the lower quartile; NaN until somebody asks for it
}

func (t *thinned) add(v float64) {
	if t.Skip > 0 {
		t.Skip--
		return
	}
	if t.N == queuedValues {
		for i := range queuedValues / 2 {
			t.Values[i] = t.Values[2*i]
		}
		t.N, t.Stride = queuedValues/2, 2*t.Stride+1
	}
	t.Values[t.N], t.N, t.Skip, t.Low = float32(v), t.N+1, t.Stride, nan
}

func (t *thinned) quartile() float64 {
	if t.Low != t.Low {
		var all [queuedValues]float64
		t.Low = trend.Quantile(wide(all[:0], t.Values[:t.N]), 0.25)
	}
	return t.Low
}

// recent are the verdicts on the last six windows.
type recent struct {
	Bits uint8
	At   time.Time
}

// add says whether three of the last six windows were bad: one bad window is noise.
func (r *recent) add(at time.Time, bad bool) bool {
	if event.Ago(at, r.At) > paceStale {
		r.Bits = 0
	}
	r.At, r.Bits = at, r.Bits<<1&0x3f
	if bad {
		r.Bits |= 1
	}
	return mathbits.OnesCount8(r.Bits) >= 3
}

// pace is one latency of a worker against its own at the same load.
type pace struct {
	Floor  float64
	Known  bool
	Sum    float64 // of the window that is being put together
	N      float64
	Last   float64 // value of the window before
	Recent recent
	Free   [loadBins]*baseline // while nothing waited; nil for a load that was never seen
	Queued thinned             // while something did
}

func (p *pace) take(v *float64) {
	if v != nil {
		p.Known = true
		p.Sum += *v
		p.N++
	}
}

// close ends a window and says whether the latency is bad now. A gauge that repeats itself because no request finished is the window
// before once more.
func (p *pace) close(at time.Time, running float64, queued, finished, warm bool) bool {
	if p.N == 0 {
		return false
	}
	v := p.Sum / p.N
	p.Sum, p.N = 0, 0
	if v == p.Last && !finished || running == 0 {
		return false
	}
	p.Last = v
	bin := min(mathbits.Len64(uint64(math.Round(running))), loadBins-1)
	slow := v > p.Floor && p.slow(v, bin, queued)
	if queued {
		p.Queued.add(v)
	} else {
		if p.Free[bin] == nil {
			p.Free[bin] = new(baseline)
		}
		p.Free[bin].learn(at, v, warm)
	}
	return p.Recent.add(at, slow)
}

func (p *pace) slow(v float64, bin int, queued bool) bool {
	few, reach := uint8(fewWindows), 1
	if queued {
		few, reach = 1, 2 // what waits has been slowed down by the queue, whatever the exact load was
	}
	// Of two loads that are equally near the higher one, since it is the slower.
	for away := 0; away <= reach; away++ {
		for _, near := range [...]int{bin + away, bin - away} {
			if near >= 0 && near < loadBins && p.Free[near] != nil && p.Free[near].N >= few {
				return v > slowRatio*p.Free[near].median()
			}
		}
	}
	// Full from its first minute: never seen without a queue. Its fastest windows stand in, the lower quartile so that a lucky minute is
	// no norm, and three times as slow so that a minute of long prompts is no symptom.
	return queued && p.Queued.N >= 6 && v > crawlRatio*p.Queued.quartile()
}

// objective is the share of requests inside the SLO.
type objective struct {
	OK, Total counter
	Known     bool
	Met, All  uint64 // of the window that is being put together
	Queued    bool
	Since     time.Time
	Recent    recent
	Own       baseline
	MissedAt  time.Time
}

// latency puts an engine's samples together to windows.
type latency struct {
	Since             time.Time
	Samples, Running  float64
	Queued, Moved     bool
	TTFT, ITL         pace
	Objective         objective
	SlowAt, SlowITLAt time.Time // SlowAt: of either
}

func (l *latency) known() bool { return l.TTFT.Known || l.ITL.Known }

func (l *latency) observe(at time.Time, e *event.Engine, finished uint64, warm time.Time, gap bool) {
	if gap {
		l.Since, l.Samples, l.Running, l.Queued, l.Moved = at.Add(-paceWindow), 0, 0, false, false
		l.TTFT.Sum, l.TTFT.N, l.ITL.Sum, l.ITL.N = 0, 0, 0, 0
		l.TTFT.Floor, l.ITL.Floor = ttftFloor, itlFloor
	}
	l.Samples++
	l.Running += float64(*e.Running)
	l.Queued = l.Queued || *e.Waiting > 0
	l.Moved = l.Moved || finished > 0
	if *e.Running > 0 {
		l.TTFT.take(e.TtftP95Seconds)
		l.ITL.take(e.ItlP95Seconds)
	}
	l.Objective.observe(at, e, warm, gap)
	if event.Ago(at, l.Since) < paceWindow {
		return
	}
	running, settled := l.Running/l.Samples, settled(at, warm)
	slow := l.TTFT.close(at, running, l.Queued, l.Moved, settled)
	if l.ITL.close(at, running, l.Queued, l.Moved, settled) {
		l.SlowITLAt, slow = at, true
	}
	if slow {
		l.SlowAt = at
	}
	l.Since, l.Samples, l.Running, l.Queued, l.Moved = at, 0, 0, false, false
}

// settled says that a moment is after warm-up.
func settled(at, warm time.Time) bool { return !warm.IsZero() && !at.Before(warm) }

// observe adds requests until there are enough for a share, ten minutes at most.
func (o *objective) observe(at time.Time, e *event.Engine, warm time.Time, gap bool) {
	if e.SloTotal == nil || e.SloOkTotal == nil {
		return
	}
	o.Known = true
	fell := o.Total.Known && *e.SloTotal < o.Total.Newest
	all, met := o.Total.step(e.SloTotal), o.OK.step(e.SloOkTotal)
	if gap || fell {
		o.Met, o.All, o.Queued, o.Since = 0, 0, false, at
		return
	}
	o.All, o.Met = o.All+all, o.Met+min(met, all)
	o.Queued = o.Queued || *e.Waiting > 0
	switch age := event.Ago(at, o.Since); {
	case age < paceWindow || o.All < sloRequests && age < 10*time.Minute:
		return
	case o.All >= sloRequests:
		o.close(at, settled(at, warm))
	}
	o.Met, o.All, o.Queued, o.Since = 0, 0, false, at
}

// close compares with the worker's own share. The margin is never less than chance allows for so few requests (three standard
// errors of a share). The first windows without a queue are not compared but learnt: how strict an objective is, nobody else knows.
func (o *objective) close(at time.Time, settled bool) {
	share, floor := float64(o.Met)/float64(o.All), 0.0
	switch {
	case o.Own.N < fewWindows && o.Queued:
		floor = sloTarget
	case o.Own.N >= fewWindows:
		own := o.Own.median()
		floor = own - max(sloMargin, 3*math.Sqrt(own*(1-own)/float64(o.All)))
	}
	if o.Recent.add(at, share < floor) {
		o.MissedAt = at
	}
	if !o.Queued {
		o.Own.learn(at, share, settled)
	}
}
