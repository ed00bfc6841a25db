package trend

import "slices"

const (
	robustPoints  = 6 // from here on the robust statistics are used
	minimumWindow = 3
	steadyZ       = 3.0

	// manyMinima is from how many minima on every second one says as much: neighbours share two of their three points, which the correction
	// for serial correlation takes off again, and a quarter of the pairs takes a quarter of the time.
	manyMinima = 25
)

// Growth is how fast a series rises, per unit of x. What the points do not
// settle is NaN.
type Growth struct {
	Points    int     // measured points
	Hours     float64 // from first to last
	Slope     float64
	Low, High float64 // 95 % interval of the slope
	Z         float64 // Mann–Kendall z, corrected for serial correlation; NaN below six points
	Serial    float64 // lag-one autocorrelation that z was corrected by; NaN below six points
	Robust    bool    // six points or more: rolling minimum and Theil–Sen, else least squares
	Level     Levelling
}

// Measure returns the growth of a series; see Scratch.Measure.
func Measure(x, y []float64, sigma float64) Growth {
	var scratch Scratch
	return scratch.Measure(x, y, sigma)
}

// Measure returns the growth of a series of quiet levels, x ascending. With
// fewer than six points it is the least squares line and its t interval, since
// each point is a minimum already. From six on it is the Theil–Sen slope of
// the rolling minimum of three, with the Mann–Kendall z corrected for the
// serial correlation that noise and the minimum leave behind. Only full
// windows count, since the first two would make a straight rise begin flat (a
// slope a third too low at six points), and each counts where its minimum was
// measured, since points that do not come evenly would lie too close or too far
// apart at the ends of their windows; six points have too few of them for an
// interval and are taken as they are. Sigma is the noise of one point in the
// unit of y: values within it count as equal. All numbers are NaN where x does
// not ascend.
func (s *Scratch) Measure(x, y []float64, sigma float64) Growth {
	x, y = s.points(x, y)
	growth := Growth{Points: len(x), Hours: unknown(), Slope: unknown(), Low: unknown(), High: unknown(), Z: unknown(), Serial: unknown()}
	growth.Level = Level(nil, nil)
	if len(x) == 0 || !ascending(x) {
		return growth
	}
	if len(x) < robustPoints {
		return Still(x, y)
	}
	growth.Hours = known(x[len(x)-1] - x[0])
	growth.Robust = true
	ends := x
	if partial := minimumWindow - 1; len(y)-partial >= intervalPoints {
		s.minima, s.places = fullMinima(s.minima[:0], s.places[:0], y, x)
		ends, x, y = x[partial:], s.places, s.minima
		for len(y) >= manyMinima {
			ends, x, y = s.halved(ends, x, y)
		}
	}
	growth.Slope, growth.Low, growth.High = s.TheilSen(x, y)
	growth.Serial = Autocorrelation(x, y, growth.Slope)
	growth.Z = s.MannKendall(y, sigma).Corrected(growth.Serial)
	// Where the series has stopped to rise its minima lie before its end, which is what shows that it stopped.
	growth.Level = Level(ends, y)
	return growth
}

// halved keeps every second of the minima, the newest among them. Ends is copied, because it is the caller's.
func (s *Scratch) halved(ends, x, y []float64) (e, places, minima []float64) {
	n := 0
	s.ends = slices.Grow(s.ends[:0], len(ends))[:len(ends)]
	for i := (len(y) - 1) % 2; i < len(y); i += 2 {
		s.ends[n], x[n], y[n] = ends[i], x[i], y[i]
		n++
	}
	return s.ends[:n], x[:n], y[:n]
}

// Still returns the growth of a series of few points, or of one that has stayed within its noise, x ascending: the least squares line,
// without what only the robust statistics say. No call can be made below two sigma, so that they would not be worth their cost.
func Still(x, y []float64) Growth {
	x, y = common(x, y)
	line, level := LineAndLevel(x, y)
	growth := Growth{Points: len(x), Hours: unknown(), Slope: line.Slope, Low: line.Low, High: line.High, Z: unknown(), Serial: unknown(), Level: level}
	if len(x) > 0 {
		growth.Hours = known(x[len(x)-1] - x[0])
	}
	return growth
}

// Moved is the distance between the lowest value and the highest; 0 for none.
func Moved(y []float64) float64 {
	if len(y) == 0 {
		return 0
	}
	low, high := y[0], y[0]
	for _, v := range y {
		switch {
		case v < low:
			low = v
		case v > high:
			high = v
		case v != v:
			return unknown()
		}
	}
	return high - low
}

// SteadyResult is the outcome of Steady with the growth it was decided on.
type SteadyResult struct {
	Called  bool
	Lacking Condition // the first condition that failed; Met when called
	Growth  Growth
}

// Steady makes the slow call; see Scratch.Steady.
func Steady(x, y []float64, sigma, floor, hours float64) SteadyResult {
	var scratch Scratch
	return scratch.Steady(x, y, sigma, floor, hours)
}

// Steady makes the slow call, for a series too noisy or too slow for Early. It
// wants, in this order, x ascending; six points; the given hours from first to
// last, rounded to the nearest ten minutes (CallHours, or 0 to waive them); a
// lower bound of the slope above the floor, in y per x; a corrected
// Mann–Kendall z of at least three, which nothing shorter than nine points
// reaches; and growth that is not level at the end, nor in its second half
// less than LevelRatio of that in its first, nor surely over by the newest
// points. Sigma, the noise of one
// point in the unit of y, must not be negative.
func (s *Scratch) Steady(x, y []float64, sigma, floor, hours float64) SteadyResult {
	result := SteadyResult{Growth: s.Measure(x, y, sigma)}
	x, y = s.points(x, y)
	growth := result.Growth
	switch {
	case !(sigma >= 0) || !finite(sigma) || !finite(floor) || !finite(hours):
		result.Lacking = NoScale
	case !ascending(x):
		result.Lacking = Disorder
	case growth.Points < robustPoints:
		result.Lacking = FewPoints
	case !enough(growth.Hours, hours):
		result.Lacking = ShortSpan
	case !(growth.Low > floor):
		result.Lacking = LowSlope
	case !(growth.Z >= steadyZ):
		result.Lacking = WeakTrend
	case !growth.Level.Rising(), growth.Level.Halves < LevelRatio, stopped(x, y, growth.Level.Mean):
		result.Lacking = LevelsOff
	}
	result.Called = result.Lacking == Met
	return result
}

// stopped reports whether the points of the last third themselves, which the
// rolling minimum sees two points late, surely rise less than LevelRatio of
// the mean slope. Few points, or noisy ones, are sure of nothing.
func stopped(x, y []float64, mean float64) bool {
	last := len(x) - 1
	from := since(x, x[last]-(x[last]-x[0])/3, x[last]-x[0])
	if last-from < 3 {
		return false
	}
	return LeastSquares(x[from:], y[from:]).High < LevelRatio*mean
}
