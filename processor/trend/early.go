package trend

const (
	earlyPoints = 4
	earlyRise   = 8 // σ, without the largest step
	earlyRest   = 4 // σ, without the two largest
)

// EarlyResult is the outcome of Early with the numbers it was decided on; what
// could not be computed is NaN.
type EarlyResult struct {
	Called  bool
	Lacking Condition // the first condition that failed; Met when called
	Points  int       // measured points
	Hours   float64   // from first to last
	Fall    float64   // largest drop from one point to the next, in y; 0 where none falls
	Rise    float64   // last − first, in y
	Step    float64   // largest rise from one point to the next, in y
	StepAt  int       // index, among the measured points, of the point that the step leads to; 0 where nothing rises
	Second  float64   // the next largest rise
	Level   Levelling
}

// Early makes the early call: a short series that is clean enough to be called
// growth. It wants, in this order, x ascending; four points; the given hours
// from first to last, rounded to the nearest ten minutes (CallHours, or 0 to
// waive them); no point lower than the one before by more than sigma; a rise
// from first to last of at least eight sigma even without its largest step, and
// of four without the two largest, so that neither a jump nor two, as a graph
// capture and the load of an adapter make, are growth; and in the last third of
// the time at least LevelRatio of the mean slope. Sigma is the noise of one point in the unit of
// y and must be positive.
func Early(x, y []float64, sigma, hours float64) EarlyResult {
	x, y = common(x, y)
	if !measured(x) || !measured(y) {
		var scratch Scratch
		x, y = scratch.points(x, y)
	}
	result := EarlyResult{Points: len(x), Hours: unknown(), Fall: unknown(), Rise: unknown(), Step: unknown(), Second: unknown(), Level: levelling(x, y, centre(x, y))}
	if len(x) > 0 {
		last := len(x) - 1
		result.Hours = known(x[last] - x[0])
		result.Rise = known(y[last] - y[0])
		result.Fall, result.Step, result.Second = 0, 0, 0
		for i := 1; i < len(y); i++ {
			step := y[i] - y[i-1]
			if step > result.Step {
				result.Second = result.Step
				result.Step, result.StepAt = step, i
			} else {
				result.Second = max(result.Second, step)
			}
			result.Fall = max(result.Fall, -step)
		}
	}
	result.Lacking = result.lacking(x, sigma, hours)
	result.Called = result.Lacking == Met
	return result
}

// lacking asks the conditions in their order. Each is written so that a NaN
// fails it.
func (r EarlyResult) lacking(x []float64, sigma, hours float64) Condition {
	switch {
	case !(sigma > 0) || !finite(sigma) || !finite(hours):
		return NoScale
	case !ascending(x):
		return Disorder
	case r.Points < earlyPoints:
		return FewPoints
	case !enough(r.Hours, hours):
		return ShortSpan
	case !(r.Fall <= sigma):
		return Falls
	case !(r.Rise-r.Step >= earlyRise*sigma), !(r.Rise-r.Step-r.Second >= earlyRest*sigma):
		return SmallRise
	case !r.Level.Rising():
		return LevelsOff
	}
	return Met
}
