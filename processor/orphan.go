package processor

import (
	"math"
	"time"

	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

const (
	orphanStep   = 15 * time.Minute
	orphanPoints = 48               // then every second one goes
	orphanFloor  = 4 << 20          // two quanta of the driver
	settling     = 30 * time.Second // so long a process may take to be listed, or its memory to be given back
	orphanFactor = 8                // σ that a step has to be larger than
)

// orphanIDs are those that the workers of the card see too.
var orphanIDs = []variable.ID{cardIDs.now, cardIDs.level, cardIDs.growth, cardIDs.low, cardIDs.high, cardIDs.z, cardIDs.early, cardIDs.steady,
	cardIDs.isLevel, cardIDs.filling, cardIDs.step, cardIDs.ratio}

// orphan is the memory of a card that no living process accounts for: its lowest in each quarter of an hour, since a process that
// comes or goes is listed a moment late.
type orphan struct {
	points     []orphanPoint
	since      time.Time // of the quarter that is open
	low, high  float64
	part       time.Time // when the half minute that is open began
	now, ahead float64   // the lowest of that one, and of the one before
	parts      int
}

type orphanPoint struct {
	at        time.Time
	low, high float64
}

// observe takes one reading. It returns true when it closed a quarter.
func (o *orphan) observe(at time.Time, v float64) (closed bool) {
	if o.parts == 0 || !within(at, o.part, settling) {
		o.ahead, o.now, o.part = o.now, v, at
		o.parts++
	}
	o.now = min(o.now, v)
	if o.since.IsZero() {
		o.since, o.low, o.high = at, v, v
	}
	if within(at, o.since, orphanStep) {
		o.low, o.high = min(o.low, v), max(o.high, v)
		return false
	}
	if len(o.points) == orphanPoints {
		half := o.points[:0]
		for i := 0; i < orphanPoints; i += 2 {
			half = append(half, o.points[i])
		}
		o.points = half
	}
	if n := len(o.points); n > 0 && !o.since.After(o.points[n-1].at) {
		o.points = o.points[:0] // the clock was set back
	}
	o.points = append(o.points, orphanPoint{o.since, o.low, o.high})
	o.since, o.low, o.high = at, v, v
	return true
}

// settled says that two stretches were seen, so that a process which is just coming or going does not count.
func (o *orphan) settled() bool { return o.parts > 1 }

func (o *orphan) lowest() float64 { return min(o.now, o.ahead) }

// tell sets what the quarters say.
func (o *orphan) tell(s *variable.Sample) {
	n := len(o.points)
	x, y, spreads := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, p := range o.points {
		x[i], y[i], spreads[i] = p.at.Sub(o.points[0].at).Hours(), p.low, p.high-p.low
	}
	sigma := max(orphanFloor, trend.Median(spreads))
	var steady trend.SteadyResult
	if trend.Moved(y) < 2*sigma {
		steady.Growth = trend.Still(x, y)
	} else {
		steady = trend.Steady(x, y, sigma, 0, trend.CallHours)
	}
	g := steady.Growth
	s.SetNumber(cardIDs.level, y[n-1])
	s.SetNumber(cardIDs.growth, g.Slope)
	s.SetNumber(cardIDs.low, g.Low)
	s.SetNumber(cardIDs.high, g.High)
	s.SetNumber(cardIDs.z, g.Z)
	if g.Level.Known() {
		s.SetBool(cardIDs.isLevel, g.Level.Level())
	} else {
		s.Unset(cardIDs.isLevel)
	}
	early := trend.Early(x, y, sigma, trend.CallHours)
	s.SetBool(cardIDs.early, early.Called)
	s.SetBool(cardIDs.steady, steady.Called)
	s.SetBool(cardIDs.filling, false)
	s.SetBool(cardIDs.step, early.Step > orphanFactor*sigma && early.Rise-early.Step < orphanFactor*sigma && !early.Called)
}

// closeOrphan computes used − Σ process used where the list of processes is complete (vocabulary.md, Series).
func (c *card) closeOrphan(at time.Time) {
	g, s := c.gpu, c.sample
	now := math.NaN()
	if g.GetProcessesComplete() && g.UsedBytes != nil && !c.hidden {
		now = float64(*g.UsedBytes) - c.sum
	}
	if math.IsNaN(now) {
		if s.Known(cardIDs.now) { // a list that is not complete says nothing about what is missing from it
			s.Unset(cardIDs.now)
			s.Unset(cardIDs.ratio)
			c.version++
		}
		return
	}
	o := &c.orphan
	closed := o.observe(at, now)
	before := [2]uint64{s.Generation(cardIDs.now), s.Generation(cardIDs.ratio)}
	s.SetNumber(cardIDs.now, now)
	if total := float64(g.GetTotalBytes()); total > 0 && o.settled() {
		s.SetNumber(cardIDs.ratio, max(0, o.lowest())/total)
	}
	if closed {
		o.tell(s)
	}
	if closed || before != [2]uint64{s.Generation(cardIDs.now), s.Generation(cardIDs.ratio)} {
		c.version++
	}
}

// takeOrphan lets the worker see the memory of its cards that nobody accounts for: of the one with the most.
func (w *watched) takeOrphan() {
	var from *card
	versions := 0
	for _, c := range w.cards {
		versions += c.version
		if c.version == 0 {
			continue
		}
		v, _ := c.sample.Number(cardIDs.ratio)
		if best := from; best == nil {
			from = c
		} else if b, _ := best.sample.Number(cardIDs.ratio); v > b {
			from = c
		}
	}
	if from == nil || from == w.orphan && versions == w.orphanAt {
		return
	}
	w.orphan, w.orphanAt = from, versions
	s := w.Sheet()
	for _, id := range orphanIDs {
		switch variable.All()[id].Kind {
		case variable.Number:
			if v, known := from.sample.Number(id); known {
				s.SetNumber(id, v)
				continue
			}
		case variable.Bool:
			if v, known := from.sample.Bool(id); known {
				s.SetBool(id, v)
				continue
			}
		}
		s.Unset(id)
	}
}
