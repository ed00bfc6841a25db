package trend

import (
	"math"
	"slices"
)

// Kendall is the outcome of a Mann–Kendall test (Mann, Econometrica 13, 1945;
// Kendall, Rank Correlation Methods, 1975).
type Kendall struct {
	Points int // measured values that were used
	S      int // pairs that rise minus pairs that fall
	Var    float64
	// Z is (S ∓ 1)/√Var, with the continuity correction; 0 where nothing rises
	// or falls, NaN below four points.
	Z float64
	// Tau is tau-a, S over all pairs; NaN below two points. Tau-b is left out
	// on purpose: where nearly all pairs are tied its denominator collapses and
	// an almost flat series looks strongly trended.
	Tau float64
}

// Corrected returns z with the variance inflated by (1+r)/(1−r), where r is
// the lag-one autocorrelation of the residuals: the factor by which a
// first-order autoregression lowers the number of independent points (Bayley &
// Hammersley, J. R. Stat. Soc. Suppl. 8, 1946; for this test Hamed & Rao,
// J. Hydrology 204, 1998, and Yue & Wang, Water Resour. Manage. 18, 2004). A
// negative r never deflates it. An r of one or more leaves no evidence, z = 0;
// a NaN is unknown.
func (k Kendall) Corrected(r float64) float64 {
	switch {
	case math.IsNaN(r):
		return unknown()
	case r <= 0:
		return k.Z
	case r >= 1:
		return 0 * k.Z
	}
	return k.Z / math.Sqrt((1+r)/(1-r))
}

// MannKendall tests y, in its order, for a monotone trend; see
// Scratch.MannKendall.
func MannKendall(y []float64, tolerance float64) Kendall {
	var scratch Scratch
	return scratch.MannKendall(y, tolerance)
}

// MannKendall tests y, in its order, for a monotone trend. Two values within
// the tolerance, in the unit of y, count as equal; a tolerance that is NaN or
// negative counts as zero. It takes n²/2 comparisons.
//
// Equality within a tolerance is not transitive, so there are no groups for
// the usual tie correction. Var is the exact variance of S over all orders of
// y, from Daniels' theorem on generalised correlation (Biometrika 33, 1944;
// Kendall 1975, ch. 5), which for signs a(i,j) against time reduces to
// (Σᵢ(Σⱼ a(i,j))² + Σ_{i<j} a(i,j)²)/3. With tolerance zero that is the usual
// (n(n−1)(2n+5) − Σ t(t−1)(2t+5))/18.
func (s *Scratch) MannKendall(y []float64, tolerance float64) Kendall {
	_, y = s.points(y, y)
	if !(tolerance > 0) {
		tolerance = 0
	}
	n := len(y)
	rows := slices.Grow(s.rows[:0], n)[:n]
	clear(rows)
	s.rows = rows
	untied := 0
	total := 0
	for i := 1; i < n; i++ {
		yi := y[i]
		var row, pairs int32
		for j, yj := range y[:i] {
			// Two half signs instead of a branch: noise is not predictable.
			up, down := one(yi-yj > tolerance), one(yj-yi > tolerance)
			row += up - down
			pairs += up + down
			rows[j] -= up - down
		}
		rows[i] += row
		total += int(row)
		untied += int(pairs)
	}
	var squares float64
	for _, row := range rows {
		squares += float64(row) * float64(row)
	}
	result := Kendall{Points: n, S: total, Var: (squares + float64(untied)) / 3, Z: unknown(), Tau: unknown()}
	if n >= 2 {
		result.Tau = float64(total) / (float64(n) * float64(n-1) / 2)
	}
	if n >= 4 {
		switch {
		case total > 0:
			result.Z = float64(total-1) / math.Sqrt(result.Var)
		case total < 0:
			result.Z = float64(total+1) / math.Sqrt(result.Var)
		default:
			result.Z = 0
		}
	}
	return result
}

// one is 1 where the condition holds, else 0; it compiles to no branch.
func one(condition bool) int32 {
	if condition {
		return 1
	}
	return 0
}

// Autocorrelation returns the lag-one autocorrelation of what y leaves over
// beside a line of the given slope, Σeᵢeᵢ₊₁/Σeᵢ² with e about its mean (Box &
// Jenkins), between −1 and 1. It is 0 where no residual is beyond rounding: a
// line that is exactly straight has no noise to correlate. Residuals within
// the noise of a point do count: a short series of correlated noise stays
// within it, and is what passes for a trend. It is NaN for fewer than three
// points and for an unknown slope. Short series read low, by (2+4r)/n on
// average.
func Autocorrelation(x, y []float64, slope float64) float64 {
	x, y = common(x, y)
	if !finite(slope) {
		return unknown()
	}
	n := 0
	var x0, y0, mean, magnitude float64
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			continue
		}
		if n == 0 {
			x0, y0 = x[i], y[i]
		}
		n++
		rise := slope * (x[i] - x0)
		mean += y[i] - y0 - rise
		magnitude = max(magnitude, math.Abs(y[i]), math.Abs(rise))
	}
	if n < 3 {
		return unknown()
	}
	mean /= float64(n)
	// Each residual carries a handful of roundings of numbers this large.
	rounding := 16 * 0x1p-52 * magnitude
	var previous, largest, product, square float64
	first := true
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			continue
		}
		residual := y[i] - y0 - slope*(x[i]-x0) - mean
		if !first {
			product += residual * previous
		}
		square += residual * residual
		largest = max(largest, math.Abs(residual))
		previous, first = residual, false
	}
	if largest <= rounding {
		return 0
	}
	return known(product / square)
}
