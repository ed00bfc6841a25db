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

// point is what a worker holds in one state: the lowest of its samples, the spread inside it, and the work done until then.
type point struct {
	At        time.Time
	Low, High []float32 // by column; a float32 holds 64 GiB to 4 KiB, a fifth of a percent of the smallest noise
	Work      axes
	State     state
}

// state is what has to be the same for two points to be comparable, and what legitimate growers do.
type state struct {
	Release   string
	Sleeping  bool
	Adapters  float64 // NaN unknown, as all here
	PromptP95 float64
	Compiles  float64
}

// comparable says whether two points stand for the same state of the worker (design.md, Worker).
func (p *point) comparable(q *point) bool {
	return p.alike(q) && p.samePools(q)
}

// alike leaves the private pools out: for their own growth, which may not excuse itself.
func (p *point) alike(q *point) bool {
	same := func(a, b float64) bool { return math.IsNaN(a) || math.IsNaN(b) || a == b }
	return p.State.Release == q.State.Release && p.State.Sleeping == q.State.Sleeping && same(p.State.Adapters, q.State.Adapters)
}

func (p *point) samePools(q *point) bool {
	for c := column(graphs, 0); c < len(p.Low); c += deviceSeries {
		a, b := at(p.Low, c), at(q.Low, c)
		if !math.IsNaN(a) && !math.IsNaN(b) && math.Abs(a-b) > 0.02*math.Max(a, b) {
			return false
		}
	}
	return true
}

// merge takes one more sample in. It returns the columns whose lowest value changed, as bits.
func (p *point) merge(moment time.Time, values []float64, work axes, s state) (changed bits) {
	if p.At.IsZero() {
		p.At = moment
	}
	for len(p.Low) < len(values) {
		p.Low, p.High = append(p.Low, float32(math.NaN())), append(p.High, float32(math.NaN()))
	}
	for i, v := range values {
		if math.IsNaN(v) {
			continue
		}
		v := float32(v)
		if !(p.Low[i] <= v) {
			p.Low[i] = v
			changed.set(i)
		}
		if !(p.High[i] >= v) {
			p.High[i] = v
		}
	}
	p.Work, p.State = work, s
	return changed
}

// quiet finds quiet points in the samples of one worker: nothing runs and nothing waits, for 30 s or two samples.
type quiet struct {
	Points   []point
	Since    time.Time // when the present quiet began; zero while busy
	Samples  int
	Open     point
	Kept     bool // the present quiet has given its point, the newest one
	Last     time.Time
	Progress float64 // at the last point
}

// activity is whether a worker had something to do in a sample, from whoever says so.
type activity uint8

const (
	unclear activity = iota // nobody says, or a frozen sensor does
	idle
	working
)

// observe takes one sample. It returns the columns whose points changed, all of them when a point came.
func (q *quiet) observe(moment time.Time, doing activity, values []float64, work axes, s state) (changed bits) {
	switch doing {
	case unclear:
		return bits{}
	case working:
		q.Since, q.Kept = time.Time{}, false
		return bits{}
	}
	if q.Since.IsZero() {
		q.Since, q.Samples, q.Open = moment, 0, point{}
	}
	q.Samples++
	changed = q.Open.merge(moment, values, work, s)
	progress := work.progress()
	switch {
	case q.Kept && moment.Sub(q.Last) < quietIdle:
		newest := &q.Points[len(q.Points)-1] // still the same quiet: its lowest may come later
		newest.State, newest.Work = q.Open.State, q.Open.Work
		newest.Low, newest.High = append(newest.Low[:0], q.Open.Low...), append(newest.High[:0], q.Open.High...)
		return changed
	case q.Samples < 2 || moment.Sub(q.Since) < quietHold:
	case !q.Last.IsZero() && moment.Sub(q.Last) < quietEvery:
	case !q.Last.IsZero() && progress == q.Progress && moment.Sub(q.Last) < quietIdle:
	default:
		if q.Kept { // an hour of idling: a new point of its own
			q.Open = point{}
			q.Open.merge(moment, values, work, s)
		}
		q.keep(moment, progress)
		return everyBit
	}
	return bits{}
}

func (q *quiet) keep(moment time.Time, progress float64) {
	var spare point // of the ring, so that a long life does not make garbage
	if len(q.Points) == maxPoints {
		for i := 1; i < maxPoints/2; i++ {
			q.Points[i], q.Points[2*i] = q.Points[2*i], q.Points[i]
		}
		spare = q.Points[maxPoints/2]
		clear(q.Points[maxPoints/2:])
		q.Points = q.Points[:maxPoints/2]
	}
	kept := q.Open
	kept.Low, kept.High = append(spare.Low[:0], q.Open.Low...), append(spare.High[:0], q.Open.High...)
	q.Points = append(q.Points, kept)
	q.Last, q.Kept, q.Progress = moment, true, progress
}

// comparables appends the points after warm-up that are like the newest one, oldest first, and returns them.
func (q *quiet) comparables(dst []*point, warm time.Time, like func(a, b *point) bool) []*point {
	if len(q.Points) == 0 {
		return dst
	}
	newest := &q.Points[len(q.Points)-1]
	for i := range q.Points {
		if p := &q.Points[i]; !p.At.Before(warm) && like(p, newest) {
			dst = append(dst, p)
		}
	}
	return dst
}

// bits is a set of columns; more columns than it holds share the last bit.
type bits [4]uint64

var everyBit = bits{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

func (b *bits) set(i int)     { i = min(i, 255); b[i/64] |= 1 << (i % 64) }
func (b bits) has(i int) bool { i = min(i, 255); return b[i/64]&(1<<(i%64)) != 0 }
func (b bits) any() bool      { return b != bits{} }
func (b bits) or(c bits) bits { return bits{b[0] | c[0], b[1] | c[1], b[2] | c[2], b[3] | c[3]} }
