package worker

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

// call is what was concluded about one column, kept between points.
type call struct {
	Points        int
	Early, Steady bool
	Lacking       trend.Condition // of the early call
	Filling, Step bool
	Proven        bool // level, with four points over three hours that say so
	Work          bool // growth follows the work better than the time
	Onset         time.Time
	Growth        trend.Growth
	Level         float64
	Proof         proof
	sentence      string             // Proof in words, once somebody asked
	Per           [axisCount]float64 // slopes against work; NaN where not significant
}

// proof is what a level series was proven by.
type proof struct {
	Points      int
	Hours, High float64
}

func newCall() call {
	c := call{Level: nan}
	c.unsettle()
	return c
}

func (c *call) unsettle() {
	for i := range c.Per {
		c.Per[i] = nan
	}
	c.Work = false
}

func (c *call) called() bool { return c.Early || c.Steady }

// desk is the room that calls are worked out in: tens of kilobytes that no worker needs to keep.
type desk struct {
	trend.Scratch
	sight   sight
	polish  polish
	points  []view
	pools   []view // those that graphs are judged at
	work    []float64
	spreads []float64

	hours, poolHours []float64 // of points and pools
}

// leave gives the desk back, without what would keep a worker in memory.
func (d *desk) leave() {
	clear(d.points)
	clear(d.pools)
	clear(d.sight.points)
	desks.Put(d)
}

var desks = sync.Pool{New: func() any {
	return &desk{spreads: make([]float64, 0, maxPoints), work: make([]float64, 0, maxPoints)}
}}

// bigStep is a jump, in σ, that stands for itself.
const bigStep = 8

// spreadToCall is how far a series must have moved, in σ, before the robust statistics are worth their cost: neither call can be
// made below it.
const spreadToCall = 2

// moves says that the robust statistics are needed.
func (c *call) moves(s *sight) bool {
	return len(s.Level) > 0 && (c.called() || s.distance() >= spreadToCall*s.Sigma)
}

// judge makes the calls anew from what was seen. It says whether what the growth follows is still to be worked out.
func (c *call) judge(series int, s *sight, w *Worker, at *desk) (owes bool) {
	if len(s.Level) == 0 {
		return false
	}
	c.Points, c.Level = len(s.Level), s.Level[len(s.Level)-1]
	floor := levelFloors[series]
	if !c.moves(s) {
		c.unsettle()
		c.Growth = flat(s)
		c.Lacking, c.Step = trend.SmallRise, false
		c.prove(s, floor)
		return false
	}
	if !judged[series] {
		c.Growth = at.Measure(s.Hours, s.Level, s.Sigma)
		return true
	}
	early := trend.Early(s.Hours, s.Level, s.Sigma, trend.CallHours)
	from := beginning(s)
	c.Lacking = early.Lacking
	c.Step = early.Step > bigStep*s.Sigma && early.Rise-early.Step < bigStep*s.Sigma && !early.Called
	c.Filling = w.filling(series, s)
	// Of a series that was called steady nothing can change but the growth since it began, so that the whole needs no second look.
	settled := from > 0 && len(s.Level)-from >= 3 && c.Steady
	var steady trend.SteadyResult
	since := -1 // the point from which steady was asked
	if !settled {
		steady, since = at.Steady(s.Hours, s.Level, s.Sigma, 0, trend.CallHours), 0
		c.Growth = steady.Growth
		if !early.Called && !steady.Called {
			// Level for hours, or through with a capture or an adapter, and growing since: the whole does not show it, the rest does.
			if from == 0 && early.Step > bigStep*s.Sigma {
				from = early.StepAt
			}
			if from > 0 && trend.Moved(s.Level[from:]) >= spreadToCall*s.Sigma {
				early = trend.Early(s.Hours[from:], s.Level[from:], s.Sigma, trend.CallHours)
				steady, since = at.Steady(s.Hours[from:], s.Level[from:], s.Sigma, 0, trend.CallHours), from
			}
		}
	}
	if !lasted(s, from) {
		early.Called, steady.Called = false, false
	}
	called := early.Called || w.calledBeforeOOM(s)
	if !c.called() && (called || steady.Called) {
		c.Onset = s.From.Add(time.Duration(s.Hours[from] * float64(time.Hour)))
	}
	c.Early = c.Early || called
	c.Steady = c.Steady || steady.Called
	if from > 0 && len(s.Level)-from >= 3 && c.called() {
		// A worker that was level for a day and leaks since an hour ago grows as it does since then.
		if since != from {
			steady.Growth = at.Measure(s.Hours[from:], s.Level[from:], s.Sigma)
		}
		c.Growth = steady.Growth
	}
	if c.prove(s, floor); c.called() && len(w.ooms.times) > 0 {
		c.Proven = false // it is level because there is no more: level after an OOM proves nothing
	}
	if c.Proven {
		c.Early, c.Steady = false, false
		c.unsettle() // what does not grow follows nothing
		return false
	}
	return true
}

// lasted says that growth itself, from its beginning to the last rise, went on for as long as a call wants: points from before it
// began, or from after it ended, are no part of it. A cache that fills within an hour in the fourth is no leak.
func lasted(s *sight, from int) bool {
	high, last := s.Level[from], s.Hours[from]
	for i := from; i < len(s.Level); i++ {
		if s.Level[i] > high+s.Sigma {
			high, last = s.Level[i], s.Hours[i]
		}
	}
	return last-s.Hours[from] >= trend.CallHours-1.0/12
}

// flat is the growth of a series that has not moved: its least squares line.
func flat(s *sight) trend.Growth {
	n := len(s.Level)
	if s.distance() == 0 && n >= 3 && s.Hours[n-1] > s.Hours[n-2] && slices.IsSorted(s.Hours) { // as of most handles: the line is known
		return trend.Growth{Points: n, Hours: s.Hours[n-1] - s.Hours[0], Z: nan, Serial: nan, Level: trend.Levelling{Ratio: nan, Halves: nan}}
	}
	return trend.Still(s.Hours, s.Level)
}

// beginning is the index of the point from which a series grows: the last one before it left the level of its first points for good.
func beginning(s *sight) int {
	n := len(s.Level)
	reference := trend.Median(s.Level[:max(1, n/4)])
	change := trend.Onset(s.Level, reference, s.Sigma)
	if from := change.Onset - 1; change.Found && from > 1 {
		return from
	}
	return 0
}

// prove looks for the proof that growth ended: four or more points over three hours, up to the newest, whose upper bound of growth
// is under the floor, in which the worker worked about as it did before. Noise may want more points than the last three hours have,
// so it looks back further, by halves.
func (c *call) prove(s *sight, floor float64) {
	c.Proven, c.sentence = false, ""
	x, y := s.Hours, s.Level
	last := len(x) - 1
	for from := last; from >= 0; {
		span := x[last] - x[from]
		if span < trend.CallHours-1.0/12 || last-from < 3 {
			from--
			continue
		}
		if g := trend.LeastSquares(x[from:], y[from:]); g.High < floor && c.tested(s, from) {
			c.Proven, c.Proof = true, proof{last - from + 1, span, g.High}
			return
		}
		next := from - max(1, (last-from)/2)
		if next < 0 && from > 0 {
			next = 0
		}
		from = next
	}
}

// tested says that what has been level since a point was put to the test: half as much was done in an hour as before, since a night
// without requests proves nothing about a leak by request, nor does a process that was started and never asked; and it lasted longer
// than growth has paused before.
func (c *call) tested(s *sight, from int) bool {
	last := len(s.Level) - 1
	rate := func(a, b int) float64 {
		return (s.workAt(b).done() - s.workAt(a).done()) / max(s.Hours[b]-s.Hours[a], 1.0/60)
	}
	now := rate(from, last)
	if !c.called() {
		return now > 0
	}
	if before := rate(0, from); from > 0 && now < before/2 {
		return false
	}
	return s.Hours[last]-s.Hours[from] > 1.25*pause(s, from)
}

// pause is the longest time, in hours, that a series stayed within its noise before a point and rose again.
func pause(s *sight, to int) (longest float64) {
	high, at := s.Level[0], s.Hours[0]
	for i := 1; i <= to; i++ {
		if s.Level[i] > high+2*s.Sigma {
			longest = max(longest, s.Hours[i]-at)
			high, at = s.Level[i], s.Hours[i]
		}
	}
	return longest
}

func (c *call) proof(series int) string {
	if c.sentence == "" {
		high := event.FormatQuantity(max(0, c.Proof.High), units[series])
		c.sentence = fmt.Sprintf("%d quiet points over %.1f h, growth at most %s/h", c.Proof.Points, c.Proof.Hours, high)
	}
	return c.sentence
}

// calledBeforeOOM judges the points before the first OOM without the three hours: an OOM ends the wait, and level after it proves
// nothing.
func (w *Worker) calledBeforeOOM(s *sight) bool {
	if len(w.ooms.times) == 0 {
		return false
	}
	hours := w.ooms.times[0].Sub(s.From).Hours()
	n, _ := slices.BinarySearch(s.Hours, hours)
	return trend.Early(s.Hours[:n], s.Level[:n], s.Sigma, 0).Called
}

// filling says that the growth since the first point still fits into the caches that the worker declared for that memory.
func (w *Worker) filling(series int, s *sight) bool {
	caps := w.caches(series)
	return caps > 0 && s.Level[len(s.Level)-1]-s.Level[0] <= caps*1.05+4*s.Sigma
}

// caches is the sum of the declared caps of the memory that a series is about.
func (w *Worker) caches(series int) (sum float64) {
	for _, c := range w.Config.GetDeclaredCaches() {
		switch {
		case (series == live || series == outside) && !onHost(c.GetName()), (series == anon || series == pinned) && onHost(c.GetName()):
			sum += float64(c.GetCapBytes())
		}
	}
	return sum
}

// follow sets the slopes against work. Any two running totals fit each other, so a slope is kept only where time is not decidedly
// the better explanation; and it is proof only where the work is: the steps of the series follow the steps of the work.
func (c *call) follow(s *sight, work []float64) {
	c.unsettle()
	if !(c.Growth.Low > 0) {
		return
	}
	last := len(s.Level) - 1
	for axis := range axisCount {
		if s.workAt(0).along(axis) == s.workAt(last).along(axis) {
			continue // totals: nothing was done
		}
		work = work[:0]
		for i := range s.Level {
			work = append(work, s.workAt(i).along(axis))
		}
		fit := trend.Regress(work, s.Level)
		if !fit.Significant {
			continue
		}
		against := trend.Compare(s.Hours, work, s.Level)
		if against.Decided && against.Better == trend.FirstAxis {
			continue
		}
		c.Per[axis] = fit.Slope
		if against.Decided && against.Better == trend.SecondAxis && fit.Slope > 0 {
			c.Work = true
		}
	}
}

// residues are what should be empty when nothing runs: the lower of the last two quiet points. They need no warm-up.
func (w *Worker) residues() {
	n := len(w.quiet.Points)
	if n < 2 {
		return
	}
	a, b := w.quiet.view(n-2), w.quiet.view(n-1)
	w.sample.SetNumber(pointIDs.kvQuiet, math.Min(a.low(column(kv, 0)), b.low(column(kv, 0))))
	most := nan
	for card := range w.now.cards {
		if v := math.Min(a.low(column(awaiting, card)), b.low(column(awaiting, card))); !(v <= most) && !math.IsNaN(v) {
			most = v
		}
	}
	w.sample.SetNumber(pointIDs.awaitingQuiet, most)
}

// movers are the six legitimate growers, between the first and the newest comparable point; a sensor that does not say leaves
// its mover unknown.
func (w *Worker) movers(points []view) {
	first, last := points[0], points[len(points)-1]
	moved := func(id variable.ID, a, b, tolerance float64) {
		if !math.IsNaN(a) && !math.IsNaN(b) {
			w.sample.SetBool(id, math.Abs(b-a) > tolerance)
		}
	}
	a, b := first.Figures, last.Figures
	moved(moverIDs.adapters, float64(a.Adapters), float64(b.Adapters), 0)
	moved(moverIDs.compiles, float64(a.Compiles), float64(b.Compiles), 0)
	moved(moverIDs.prompts, float64(a.PromptP95), float64(b.PromptP95), 0.2*float64(a.PromptP95))
	moved(moverIDs.kv, first.low(column(kv, 0)), last.low(column(kv, 0)), floors[kv])
	graph, pools := column(graphs, 0), false
	for card := range w.now.cards {
		c := column(graphs, card)
		if math.Abs(last.low(c)-first.low(c)) > floors[graphs] {
			graph = c
		}
		if c := column(cached, card); c < len(w.calls) && w.calls[c].Growth.Low > levelFloors[cached] {
			pools = true
		}
	}
	moved(moverIDs.graphs, first.low(graph), last.low(graph), floors[graphs])
	if len(w.now.cards) > 0 {
		w.sample.SetBool(moverIDs.pools, pools)
	}
}

var moverIDs = struct{ graphs, adapters, compiles, prompts, kv, pools variable.ID }{
	variable.Must("graphs.moved"), variable.Must("adapters.moved"), variable.Must("compiles.moved"), variable.Must("prompts.moved"), variable.Must("kv.moved"),
	variable.Must("pools.moved"),
}
