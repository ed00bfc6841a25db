package trend

// LevelRatio is the share of the mean slope below which the last third of the
// time counts as level.
const LevelRatio = 0.6

// Levelling says whether growth goes on at the end of a series. Slopes are in
// y per x; what the points do not settle is NaN.
type Levelling struct {
	Mean   float64 // least squares slope of the whole
	Last   float64 // least squares slope of the last third of the time
	Ratio  float64 // Last/Mean; NaN where the mean does not rise
	Halves float64 // slope of the second half of the time over that of the first; NaN where the first does not rise
}

// Known reports whether both slopes are known.
func (l Levelling) Known() bool { return finite(l.Mean) && finite(l.Last) }

// Level reports whether growth is known to have ended: the last third is below
// LevelRatio of the mean slope, or the mean does not rise at all.
func (l Levelling) Level() bool {
	return l.Known() && !l.Rising()
}

// Rising reports whether growth is known to go on: the mean rises and the last
// third is at least LevelRatio of it.
func (l Levelling) Rising() bool {
	return l.Known() && l.Mean > 0 && l.Last >= LevelRatio*l.Mean
}

// Level compares the slope at the end of a series with that of the whole, x
// ascending. The last third is counted by time, not by points: all points
// within a third of the span of the last one, and the last point before those,
// so that there are always two. A straight line has ratio 1, a saturating
// curve goes to 0. The halves share the point in the middle; a cache that
// fills with time constant τ has Halves = exp(−span/2τ) exactly. All is NaN
// for fewer than two points and where x does not ascend.
func Level(x, y []float64) Levelling {
	x, y = common(x, y)
	if !measured(x) || !measured(y) {
		var scratch Scratch
		x, y = scratch.points(x, y)
	}
	return levelling(x, y, centre(x, y))
}

// levelling is Level of measured points whose sums are known.
func levelling(x, y []float64, sums centred) Levelling {
	level := Levelling{Mean: unknown(), Last: unknown(), Ratio: unknown(), Halves: unknown()}
	if len(x) < 2 || !ascending(x) {
		return level
	}
	first, last := x[0], x[len(x)-1]
	span := last - first
	if !(span > 0) || !finite(span) {
		return level
	}
	level.Mean = sums.slope()
	from := since(x, last-span/3, span)
	level.Last = centre(x[max(0, from-1):], y[max(0, from-1):]).slope()
	if level.Mean > 0 {
		level.Ratio = known(level.Last / level.Mean)
	}

	middle := first + span/2
	second := since(x, middle, span)
	end := second
	for end < len(x) && x[end] <= middle+span*sameTime {
		end++
	}
	// Without a point in the middle each half reaches to the next one.
	if end == second {
		second, end = second-1, second+1
	}
	before := centre(x[:end], y[:end]).slope()
	after := centre(x[second:], y[second:]).slope()
	if before > 0 {
		level.Halves = known(after / before)
	}
	return level
}

// sameTime is the share of the span within which two times are the same, so
// that a point on a boundary does not fall to either side by rounding.
const sameTime = 1e-9

// since returns the index of the first point at or after a time.
func since(x []float64, time, span float64) int {
	for i := range x {
		if x[i] >= time-span*sameTime {
			return i
		}
	}
	return len(x)
}
