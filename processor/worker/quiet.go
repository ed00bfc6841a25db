package worker

import (
	"math"
	"time"
)

const (
	quietHold  = 30 * time.Second
	quietEvery = 10 * time.Minute // at most one point in this time
	quietIdle  = time.Hour        // an idle worker still gives one, else timer leaks hide
	maxPoints  = 96               // then the ring halves itself
)

// point is one quiet point: the lowest of its samples, the spread inside it, and the work done until then.
type point struct {
	at          time.Time
	low, high   levels
	finished    float64
	aborted     float64
	errors      float64
	tokens      float64
	adapters    float64
	promptP95   float64
	privatePool float64
	compiles    float64
	release     string
	sleeping    bool
}

// comparable says whether two points stand for the same state of the worker (design.md, Worker).
func (p *point) comparable(q *point) bool {
	same := func(a, b float64) bool { return math.IsNaN(a) || math.IsNaN(b) || a == b }
	near := math.IsNaN(p.privatePool) || math.IsNaN(q.privatePool) ||
		math.Abs(p.privatePool-q.privatePool) <= 0.02*math.Max(p.privatePool, q.privatePool)
	return p.release == q.release && p.sleeping == q.sleeping && near && same(p.adapters, q.adapters)
}

// quiet finds quiet points in the samples of one worker: nothing runs and nothing waits, for 30 s or two samples.
type quiet struct {
	points  []point
	since   time.Time // when the present quiet began; zero while busy
	samples int
	open    point
	kept    bool // the present quiet has given its point, the newest one
	last    time.Time
	work    float64 // progress at the last point
	version int     // grows when a point comes or changes
}

func (q *quiet) observe(at time.Time, r *reading, l levels) {
	e := r.engine
	if e.Running == nil || e.Waiting == nil {
		return // unknown is neither quiet nor busy
	}
	if *e.Running != 0 || *e.Waiting != 0 {
		q.since, q.kept = time.Time{}, false
		return
	}
	if q.since.IsZero() {
		q.since, q.samples = at, 0
		q.open = point{low: unknownLevels(), high: unknownLevels()}
	}
	q.samples++
	q.open.merge(at, r, l)
	progress := q.open.finished + q.open.aborted + q.open.tokens
	switch {
	case q.kept && at.Sub(q.last) < quietIdle:
		q.points[len(q.points)-1] = q.open // still the same quiet: its lowest may come later
		q.version++
	case q.samples < 2 || at.Sub(q.since) < quietHold:
	case !q.last.IsZero() && at.Sub(q.last) < quietEvery:
	case !q.last.IsZero() && progress == q.work && at.Sub(q.last) < quietIdle:
	default:
		if q.kept { // an hour of idling: a new point of its own
			q.open = point{low: unknownLevels(), high: unknownLevels()}
			q.open.merge(at, r, l)
		}
		q.keep(at, progress)
	}
}

func (q *quiet) keep(at time.Time, progress float64) {
	if len(q.points) == maxPoints {
		half := q.points[:0]
		for i := 0; i < maxPoints; i += 2 {
			half = append(half, q.points[i])
		}
		q.points = half
	}
	q.points = append(q.points, q.open)
	q.last, q.kept, q.work = at, true, progress
	q.version++
}

func (p *point) merge(at time.Time, r *reading, l levels) {
	if p.at.IsZero() {
		p.at = at
	}
	for i, v := range l {
		if math.IsNaN(v) {
			continue
		}
		if math.IsNaN(p.low[i]) || v < p.low[i] {
			p.low[i] = v
		}
		if math.IsNaN(p.high[i]) || v > p.high[i] {
			p.high[i] = v
		}
	}
	e := r.engine
	p.finished, p.aborted, p.errors = float64(e.GetFinishedTotal()), float64(e.GetAbortedTotal()), number(e.ErrorsTotal)
	p.tokens = float64(e.GetGenerationTokensTotal())
	p.adapters, p.sleeping = number(e.LoadedAdapters), e.GetSleeping()
	p.promptP95 = math.NaN()
	if e.PromptTokensP95 != nil {
		p.promptP95 = *e.PromptTokensP95
	}
	p.privatePool, p.compiles = math.NaN(), math.NaN()
	var private, compiles total
	for _, g := range r.gpus {
		if g.allocator != nil {
			private.add(g.allocator.PrivatePoolBytes)
			compiles.add(g.allocator.CompilesTotal)
		}
	}
	p.privatePool, p.compiles = private.value(), compiles.value()
}

// comparables returns the points after warm-up that are comparable to the newest one, oldest first.
func (q *quiet) comparables(warm time.Time) []*point {
	if len(q.points) == 0 {
		return nil
	}
	newest := &q.points[len(q.points)-1]
	var out []*point
	for i := range q.points {
		if p := &q.points[i]; !p.at.Before(warm) && p.comparable(newest) {
			out = append(out, p)
		}
	}
	return out
}
