package trend

import "math"

const (
	regressPoints = 4
	regressR2     = 0.5
)

// Regression is the slope of y per unit of work.
type Regression struct {
	Line
	// Significant is true for at least four points, an interval that excludes
	// zero, and a line that explains more than half of the variance of y: with
	// many points an interval alone excludes zero for a slope that explains
	// next to nothing.
	Significant bool
}

// Regress fits y against work done (requests, aborts, tokens; a running total)
// by least squares. Two totals that both grow with time always fit each other
// (Granger & Newbold, J. Econometrics 2, 1974), so that a significant slope
// says how much, not why: Compare tells axes apart. The slope may be negative.
func Regress(work, y []float64) Regression {
	line := LeastSquares(work, y)
	excludes := line.Low > 0 || line.High < 0
	return Regression{Line: line, Significant: line.Points >= regressPoints && excludes && line.R2 > regressR2}
}

// Axis names one of the two axes of Compare. The zero value is NoAxis.
type Axis uint8

// The axes of Compare.
const (
	NoAxis Axis = iota
	FirstAxis
	SecondAxis
)

// String names the axis.
func (a Axis) String() string {
	switch a {
	case FirstAxis:
		return "first"
	case SecondAxis:
		return "second"
	}
	return "neither"
}

// Comparison says which of two axes explains the growth of y better.
type Comparison struct {
	Differences int // steps between consecutive points that were used
	// First and Second are the correlations of the steps of y with those of
	// the axis; NaN where the axis, or y, takes equal steps throughout.
	First, Second float64
	// Better is the axis of the higher positive correlation; NoAxis where no
	// correlation is positive, both are equal or there are fewer than three
	// steps.
	Better Axis
	// Decided is true when the correlations differ significantly, at 5 % and
	// two-sided.
	Decided bool
}

// Compare says which of two work axes explains y better. The axes may grow
// together, as requests and aborts do, or one may be the time; levels then fit
// both, but steps do not: it correlates the step of y from each point to the
// next with the step of each axis (first differences, Granger & Newbold 1974).
// The difference of the two correlations, which share y, is tested by
// Williams' t with n−3 degrees of freedom (Williams, J. R. Stat. Soc. B 21,
// 1959; Steiger, Psychol. Bull. 87, 1980, eq. 7). An axis that takes equal
// steps throughout explains no step and counts as correlation zero there. A
// point where any of the three was not measured is left out, and the step
// spans it.
func Compare(first, second, y []float64) Comparison {
	n := min(len(first), len(second), len(y))
	var a, b, c moments
	var ab, ac, bc float64
	var steps int
	// Welford's updates (Technometrics 4, 1962) for three variables at once.
	previous := -1
	for i := range n {
		if !finite(first[i]) || !finite(second[i]) || !finite(y[i]) {
			continue
		}
		if previous >= 0 {
			steps++
			count := float64(steps)
			da := a.add(first[previous], first[i], count)
			db := b.add(second[previous], second[i], count)
			dc := c.add(y[previous], y[i], count)
			weight := (count - 1) / count
			ab += da * db * weight
			ac += da * dc * weight
			bc += db * dc * weight
		}
		previous = i
	}
	result := Comparison{Differences: steps, First: correlation(ac, a, c), Second: correlation(bc, b, c)}
	if steps < 3 {
		result.First, result.Second = unknown(), unknown()
		return result
	}
	r1, r2 := zeroIfUnknown(result.First), zeroIfUnknown(result.Second)
	switch {
	case r1 > r2 && r1 > 0:
		result.Better = FirstAxis
	case r2 > r1 && r2 > 0:
		result.Better = SecondAxis
	default:
		return result
	}
	t := williams(r1, r2, zeroIfUnknown(correlation(ab, a, b)), float64(steps))
	result.Decided = math.Abs(t) >= twoSided(steps-3)
	return result
}

// williams returns the t of the difference of two correlations that share a
// variable, r12 and r13, where r23 is the third and n the number of
// observations; NaN below four observations.
func williams(r12, r13, r23, n float64) float64 {
	determinant := max(0, 1-r12*r12-r13*r13-r23*r23+2*r12*r13*r23)
	mean := (r12 + r13) / 2
	apart := 1 - r23
	spread := 2*determinant*(n-1)/(n-3) + mean*mean*apart*apart*apart
	if n <= 3 || !(spread > 0) {
		return unknown()
	}
	return (r12 - r13) * math.Sqrt((n-1)*(1+r23)/spread)
}

// moments is the running mean of the steps of a variable, the sum of squares
// about it, and the largest level between which they were taken.
type moments struct{ mean, squares, largest float64 }

// add takes the count-th step in and returns its distance from the mean of
// those before it.
func (m *moments) add(from, to, count float64) float64 {
	step := to - from
	distance := step - m.mean
	m.mean += distance / count
	m.squares += distance * (step - m.mean)
	m.largest = max(m.largest, math.Abs(from), math.Abs(to))
	return distance
}

// varies reports whether the steps differ by more than the rounding of the
// levels: hours since 1970 are good to 1e-10 only.
func (m moments) varies() bool {
	return math.Sqrt(m.squares) > 16*0x1p-52*m.largest
}

func correlation(product float64, a, b moments) float64 {
	if !a.varies() || !b.varies() {
		return unknown()
	}
	r := product / (math.Sqrt(a.squares) * math.Sqrt(b.squares))
	if !finite(r) {
		return unknown()
	}
	return max(-1, min(1, r))
}

func zeroIfUnknown(r float64) float64 {
	if math.IsNaN(r) {
		return 0
	}
	return r
}
