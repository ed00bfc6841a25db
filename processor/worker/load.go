package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/event"
)

const (
	loadWindow   = 30 * time.Minute
	loadSamples  = 360 // bounds the window when ticks are fast
	baselineSize = 256
	fullKV       = 0.8 // from here on the next long prompt no longer fits beside what runs
	latencyRatio = 1.5
	latencyFloor = 0.5 // seconds; below this a slow first token is nobody's complaint
)

type loadSample struct {
	at          time.Time
	full, queue bool
	kv, waiting float64
	preemptions float64
	slow        bool
}

// load is what the engine was doing lately: how full, how queued, how slow against itself.
type load struct {
	recent     []loadSample
	unhindered []float64 // p95 TTFT of samples in which work ran and nothing waited: the worker's own baseline
	fastest    float64   // p95 TTFT, seconds
	slowAt     time.Time
	finished   uint64
	tokens     uint64
	movedAt    time.Time
	seen       bool
}

func (l *load) observe(at time.Time, e *event.Engine) {
	if e == nil || e.Running == nil || e.Waiting == nil {
		return
	}
	running, waiting := *e.Running, *e.Waiting
	if moved := e.GetFinishedTotal() != l.finished || e.GetGenerationTokensTotal() != l.tokens; moved || !l.seen || running+waiting == 0 {
		l.movedAt = at
	}
	l.seen, l.finished, l.tokens = true, e.GetFinishedTotal(), e.GetGenerationTokensTotal()
	s := loadSample{at: at, queue: running > 0 && waiting > 0, waiting: float64(waiting), kv: math.NaN(), preemptions: number(e.PreemptionsTotal)}
	if e.KvUsage != nil {
		s.kv = *e.KvUsage - e.GetKvEvictable()
		s.full = s.kv >= fullKV
	}
	s.slow = l.slow(e)
	l.recent = append(l.recent, s)
	cut := 0
	for cut < len(l.recent) && (at.Sub(l.recent[cut].at) > loadWindow || len(l.recent)-cut > loadSamples) {
		cut++
	}
	l.recent = slices.Delete(l.recent, 0, cut)
	if l.slowNow() {
		l.slowAt = at
	}
}

// slow compares with the baseline, and feeds it while nothing waits.
func (l *load) slow(e *event.Engine) bool {
	if e.TtftP95Seconds == nil || *e.Running == 0 {
		return false
	}
	ttft := *e.TtftP95Seconds
	if *e.Waiting == 0 {
		if len(l.unhindered) == baselineSize {
			l.unhindered = slices.Delete(l.unhindered, 0, 1)
		}
		l.unhindered = append(l.unhindered, ttft)
	}
	if l.fastest == 0 || ttft < l.fastest {
		l.fastest = ttft
	}
	if ttft <= latencyFloor {
		return false
	}
	baseline := l.fastest // of a worker that was full from its first minute, which has never been seen unhindered
	if len(l.unhindered) >= 3 {
		sorted := slices.Sorted(slices.Values(l.unhindered))
		baseline = sorted[len(sorted)/2]
	}
	return ttft > latencyRatio*baseline
}

// slowNow wants three of the last six samples: one slow window is noise.
func (l *load) slowNow() bool {
	slow := 0
	for _, s := range l.recent[max(0, len(l.recent)-6):] {
		if s.slow {
			slow++
		}
	}
	return slow >= 3
}

// share returns the part of the window's samples for which is holds; ok is false below ten minutes of samples.
func (l *load) share(is func(loadSample) bool) (part float64, ok bool) {
	if len(l.recent) < 3 || l.recent[len(l.recent)-1].at.Sub(l.recent[0].at) < 10*time.Minute {
		return 0, false
	}
	n := 0
	for _, s := range l.recent {
		if is(s) {
			n++
		}
	}
	return float64(n) / float64(len(l.recent)), true
}
