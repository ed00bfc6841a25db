package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/event"
)

const (
	quietHold   = 30 * time.Second
	quietEvery  = 10 * time.Minute // at most one point in this time
	quietIdle   = time.Hour        // an idle worker still gives one, else timer leaks hide
	maxPoints   = 32               // then the older half thins itself
	maxReleases = 64               // all that come later are taken for the last one
)

// point is when a worker was in one state, and the work done until then.
type point struct {
	Unix    int64 // microseconds since 1970
	Work    tally
	Figures figures
	Release uint16 // of quiet.Releases
}

func (p *point) at() time.Time { return time.UnixMicro(p.Unix).UTC() }

// stay is a point that is being put together: what the worker holds, as the lowest of its samples and the spread inside it.
type stay struct {
	At        time.Time
	Work      axes
	State     state
	Low, High []float32 // by column; a float32 holds 64 GiB to 4 KiB, a fifth of a percent of the smallest noise
}

// view is one of the points that were kept.
type view struct {
	*point
	of *quiet
	i  int
}

func (v view) low(column int) float64 { return at(v.of.Low.row(v.i), column) }

func (v view) spread(column int) float64 {
	if column >= v.of.Spread.Width {
		return nan
	}
	return v.of.Spread.row(v.i)[column].value()
}

// state is what has to be the same for two points to be comparable, and what legitimate growers do.
type state struct {
	Release string
	Figures figures
}

// figures are what changes of a state.
type figures struct {
	Adapters  float32 // NaN unknown, as all here
	PromptP95 float32
	Compiles  float32
	Sleeping  bool
}

// comparable says whether two points stand for the same state of the worker (design.md, Worker).
func (p view) comparable(q view) bool {
	return p.alike(q) && p.samePools(q)
}

// alike leaves the private pools out: for their own growth, which may not excuse itself.
func (p view) alike(q view) bool {
	same := func(a, b float32) bool { return a != a || b != b || a == b }
	return p.Release == q.Release && p.Figures.Sleeping == q.Figures.Sleeping && same(p.Figures.Adapters, q.Figures.Adapters)
}

func (p view) samePools(q view) bool { return samePools(p.of.Low.row(p.i), q.of.Low.row(q.i)) }

// samePools compares two rows of levels.
func samePools(p, q []float32) bool {
	for c := column(graphs, 0); c < len(p); c += deviceSeries {
		a, b := float64(p[c]), float64(q[c])
		if a > b {
			a, b = b, a
		}
		if b-a > 0.02*b { // NaN is like all
			return false
		}
	}
	return true
}

// unknownTo makes columns up to a number of them, of which nothing was read.
func unknownTo(low []float32, columns int) []float32 {
	n := len(low)
	if n >= columns {
		return low
	}
	low = slices.Grow(low, columns-n)[:columns]
	forget(low[n:])
	return low
}

// merge takes one more sample in. It returns the columns whose lowest value changed, as bits.
func (p *stay) merge(moment time.Time, values []float64, work axes, s state) (changed bits) {
	if p.At.IsZero() {
		p.At = moment
	}
	p.Low, p.High = unknownTo(p.Low, len(values)), unknownTo(p.High, len(values))
	low, high := p.Low[:len(values)], p.High[:len(values)]
	for i, v := range values {
		if math.IsNaN(v) {
			continue
		}
		v := float32(v)
		if !(low[i] <= v) {
			low[i] = v
			changed.set(i)
		}
		if !(high[i] >= v) {
			high[i] = v
		}
	}
	p.Work, p.State = work, s
	return changed
}

// clear forgets the samples, not the room for them.
func (p *stay) clear() { *p = stay{Low: p.Low[:0], High: p.High[:0]} }

// quiet finds quiet points in the samples of one worker: nothing runs and nothing waits, for 30 s or two samples.
type quiet struct {
	Points   []point
	Releases []string        // that points are of
	Low      matrix[float32] // of Points, a row each
	Spread   matrix[half]    // highest less lowest
	Since    time.Time       // when the present quiet began; zero while busy
	Samples  int
	Open     stay
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
		q.interrupt()
		return bits{}
	}
	if q.Since.IsZero() {
		q.Since, q.Samples = moment, 0
		q.Open.clear()
	}
	q.Samples++
	changed = q.Open.merge(moment, values, work, s)
	progress := work.progress()
	switch {
	case q.Kept && event.Ago(moment, q.Last) < quietIdle:
		newest := &q.Points[len(q.Points)-1] // still the same quiet: its lowest may come later
		newest.Release, newest.Figures, newest.Work = q.release(q.Open.State.Release), q.Open.State.Figures, q.Open.Work.tally()
		q.put(len(q.Points) - 1)
		return changed
	case q.Samples < 2 || event.Ago(moment, q.Since) < quietHold:
	case !q.Last.IsZero() && event.Ago(moment, q.Last) < quietEvery:
	case !q.Last.IsZero() && progress == q.Progress && event.Ago(moment, q.Last) < quietIdle:
	default:
		if q.Kept { // an hour of idling: a new point of its own
			q.Open.clear()
			q.Open.merge(moment, values, work, s)
		}
		q.keep(moment, progress)
		return everyBit
	}
	return bits{}
}

// interrupt ends the present quiet: there is something to do again.
func (q *quiet) interrupt() { q.Since, q.Kept = time.Time{}, false }

func (q *quiet) keep(moment time.Time, progress float64) {
	if len(q.Points) == maxPoints {
		q.thin()
	}
	q.Points = push(q.Points, point{q.Open.At.UnixMicro(), q.Open.Work.tally(), q.Open.State.Figures, q.release(q.Open.State.Release)})
	q.put(len(q.Points) - 1)
	q.Last, q.Kept, q.Progress = moment, true, progress
}

// thin makes one point of two: of the older half, those that lie closest together, so that half of the points are of the last hours and
// half spread evenly over the life before. Two of one state leave the lower level of each series, of two states the earlier stays. The
// first point stays where it is.
func (q *quiet) thin() {
	at, closest := 1, int64(math.MaxInt64)
	for i := 1; i < maxPoints/2; i++ {
		if apart := q.Points[i+1].Unix - q.Points[i-1].Unix; apart < closest {
			at, closest = i, apart
		}
	}
	if before := at - 1; q.view(before).comparable(q.view(at)) {
		lower(q.Low.row(before), q.Low.row(at))
	}
	q.Points = slices.Delete(q.Points, at, at+1)
	q.Low.remove(at)
	q.Spread.remove(at)
}

// release numbers the releases of a life, which has one, or a few where somebody learns of them late.
func (q *quiet) release(name string) uint16 {
	if i := slices.Index(q.Releases, name); i >= 0 {
		return uint16(i)
	}
	if len(q.Releases) < maxReleases {
		q.Releases = append(q.Releases, name)
	}
	return uint16(len(q.Releases) - 1)
}

// put makes the levels of the open stay those of a kept point.
func (q *quiet) put(i int) {
	q.Low.widen(len(q.Open.Low))
	q.Spread.widen(len(q.Open.Low))
	if i == q.Low.rows() {
		q.Low.add()
		q.Spread.add()
	}
	copy(q.Low.row(i), q.Open.Low)
	spread := q.Spread.row(i)
	for c, high := range q.Open.High {
		spread[c] = halfOf(high - q.Open.Low[c])
	}
}

func (q *quiet) view(i int) view { return view{&q.Points[i], q, i} }

// comparables appends the points after warm-up that are like the newest one, oldest first, and returns them; pools says that those with
// other private pools are not.
func (q *quiet) comparables(dst []view, warm time.Time, pools bool) []view {
	if len(q.Points) == 0 {
		return dst
	}
	newest, from := q.view(len(q.Points)-1), warm.UnixMicro()
	if warm.Nanosecond()%1000 > 0 {
		from++ // points are in whole microseconds
	}
	levels := q.Low.row(newest.i)
	for i := range q.Points {
		if p := q.view(i); p.Unix >= from && p.alike(newest) && (!pools || samePools(q.Low.row(i), levels)) {
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
