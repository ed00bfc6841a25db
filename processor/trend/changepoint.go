package trend

const (
	onsetSlack = 0.5 // σ: the k of CUSUM, half of the smallest shift that matters
	onsetLimit = 8   // σ: its h
)

// Change is where a series left its reference upwards.
type Change struct {
	Found bool
	Onset int // index of the first point of the change; −1 where none was found
	Alarm int // index of the point at which it was certain; −1 where none was found
}

// Onset finds where y began to stay above a reference, by the upper one-sided
// CUSUM (Page, Biometrika 41, 1954): g = max(0, g + (y−reference)/σ − 0.5),
// alarm at g > 8, onset at the point after g was last zero. Reference and
// sigma are in the unit of y: the level before, say the median of the first
// points, and the noise of one point. It says when, never whether something
// leaks: a single step is found as well. The values −y and −reference find a
// change downwards. Nothing is found for an unknown reference or a sigma that
// is not positive.
func Onset(y []float64, reference, sigma float64) Change {
	return cusum(y, reference, sigma, onsetSlack, onsetLimit)
}

func cusum(y []float64, reference, sigma, slack, limit float64) Change {
	none := Change{Onset: -1, Alarm: -1}
	if !finite(reference) || !(sigma > 0) || !finite(sigma) {
		return none
	}
	sum, onset := 0.0, -1
	for i, value := range y {
		if !finite(value) {
			continue
		}
		sum += (value-reference)/sigma - slack
		if !(sum > 0) {
			sum, onset = 0, -1
			continue
		}
		if onset < 0 {
			onset = i
		}
		if sum > limit {
			return Change{Found: true, Onset: onset, Alarm: i}
		}
	}
	return none
}
