package trend

import (
	"fmt"
	"math"
	"testing"
)

// Student's t as printed in tables (NIST/SEMATECH e-Handbook of Statistical
// Methods, 1.3.6.7.2).
func TestStudentTable(t *testing.T) {
	for _, row := range []struct{ degrees, t90, t95, t975, t99, t995, t999 float64 }{
		{1, 3.078, 6.314, 12.706, 31.821, 63.657, 318.309},
		{2, 1.886, 2.920, 4.303, 6.965, 9.925, 22.327},
		{3, 1.638, 2.353, 3.182, 4.541, 5.841, 10.215},
		{4, 1.533, 2.132, 2.776, 3.747, 4.604, 7.173},
		{5, 1.476, 2.015, 2.571, 3.365, 4.032, 5.893},
		{10, 1.372, 1.812, 2.228, 2.764, 3.169, 4.144},
		{30, 1.310, 1.697, 2.042, 2.457, 2.750, 3.385},
		{100, 1.290, 1.660, 1.984, 2.364, 2.626, 3.174},
		{math.Inf(1), 1.282, 1.645, 1.960, 2.326, 2.576, 3.090},
	} {
		for p, want := range map[float64]float64{0.9: row.t90, 0.95: row.t95, 0.975: row.t975, 0.99: row.t99, 0.995: row.t995, 0.999: row.t999} {
			if got := StudentQuantile(p, row.degrees); math.Abs(got-want) > 0.00051 {
				t.Errorf("StudentQuantile(%g, %g) = %.6f, the table has %.3f", p, row.degrees, got, want)
			}
		}
	}
}

// Norris, NIST Statistical Reference Datasets, linear regression: certified
// values.
func TestLeastSquaresNorris(t *testing.T) {
	y := []float64{0.1, 338.8, 118.1, 888.0, 9.2, 228.1, 668.5, 998.5, 449.1, 778.9, 559.2, 0.3, 0.1, 778.1, 668.8, 339.3, 448.9, 10.8, 557.7, 228.3, 998.0, 888.8, 119.6, 0.3, 0.6, 557.6, 339.3, 888.0, 998.5, 778.9, 10.2, 117.6, 228.9, 668.4, 449.2, 0.2}
	x := []float64{0.2, 337.4, 118.2, 884.6, 10.1, 226.5, 666.3, 996.3, 448.6, 777.0, 558.2, 0.4, 0.6, 775.5, 666.9, 338.0, 447.5, 11.6, 556.0, 228.1, 995.8, 887.6, 120.2, 0.3, 0.3, 556.8, 339.1, 887.2, 999.0, 779.0, 11.1, 118.3, 229.2, 669.1, 448.9, 0.5}
	line := LeastSquares(x, y)
	near(t, "Points", float64(line.Points), 36, 0)
	near(t, "Slope", line.Slope, 1.00211681802045, 1e-13)
	near(t, "Intercept", line.Intercept, -0.262323073774029, 1e-12)
	near(t, "StdErr", line.StdErr, 0.429796848199937e-03, 1e-13)
	near(t, "R2", line.R2, 0.999993745883712, 1e-14)
	// t(0.975, 34) = 2.032245, a common table value.
	near(t, "Low", line.Low, 1.00211681802045-2.032245*0.429796848199937e-03, 1e-9)
	near(t, "High", line.High, 1.00211681802045+2.032245*0.429796848199937e-03, 1e-9)
}

// Anscombe's quartet (American Statistician 27, 1973): four shapes, one line,
// printed there as y = 3 + 0.5 x, standard error 0.118, R² 0.667.
func TestLeastSquaresAnscombe(t *testing.T) {
	x := []float64{10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5}
	for i, set := range [][2][]float64{
		{x, {8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68}},
		{x, {9.14, 8.14, 8.74, 8.77, 9.26, 8.10, 6.13, 3.10, 9.13, 7.26, 4.74}},
		{x, {7.46, 6.77, 12.74, 7.11, 7.81, 8.84, 6.08, 5.39, 8.15, 6.42, 5.73}},
		{{8, 8, 8, 8, 8, 8, 8, 19, 8, 8, 8}, {6.58, 5.76, 7.71, 8.84, 8.47, 7.04, 5.25, 12.50, 5.56, 7.91, 6.89}},
	} {
		line := LeastSquares(set[0], set[1])
		name := fmt.Sprintf("set %d ", i+1)
		near(t, name+"Slope", line.Slope, 0.5, 5e-4)
		near(t, name+"Intercept", line.Intercept, 3.0, 1e-3)
		near(t, name+"StdErr", line.StdErr, 0.118, 5e-4)
		near(t, name+"R2", line.R2, 0.667, 1e-3)
	}
}

// Sen's own example (JASA 63, 1968, section 6), as scipy's tests of
// theilslopes print it: slope 4 with a 93 % interval of 3.71 to 4.38.
func TestTheilSenSen(t *testing.T) {
	x := []float64{1, 2, 3, 4, 10, 12, 18}
	y := []float64{9, 15, 19, 20, 45, 55, 78}
	var scratch Scratch
	slope, low, high := scratch.theilSen(x, y, math.Sqrt2*math.Erfinv(0.93))
	near(t, "slope", slope, 4, 1e-15)
	near(t, "low", low, 26.0/7, 1e-15)
	near(t, "high", high, 35.0/8, 1e-15)
}

// J. Little's example by hand (College of the Holy Cross,
// mathcs.holycross.edu/~little/Montserrat/MannKendallByHand.txt): 72 pairs
// rise, 18 fall, one is tied; Z = 2.9058.
func TestMannKendallByHand(t *testing.T) {
	y := []float64{12.9, 14.8, 13.2, 15.7, 13.8, 15.6, 12.9, 11.0, 17.3, 15.9, 19.0, 18.3, 20.1, 21.7}
	got := MannKendall(y, 0)
	near(t, "S", float64(got.S), 54, 0)
	near(t, "Var", got.Var, (14.0*13*33-2*1*9)/18, 1e-15)
	near(t, "Z", got.Z, 2.9058, 5e-5)
	near(t, "Tau", got.Tau, 54.0/91, 1e-15)
}

// Montgomery, Introduction to Statistical Quality Control, example 9.1: mean
// 10, σ 1, k 0.5, h 5; the cusum is 5.28 at observation 29 and has been above
// zero for seven, so that the shift came between 22 and 23. With h = 8 nothing
// is certain by observation 30.
func TestOnsetMontgomery(t *testing.T) {
	y := []float64{9.45, 7.99, 9.29, 11.66, 12.16, 10.18, 8.04, 11.46, 9.20, 10.34, 9.03, 11.47, 10.51, 9.40, 10.08, 9.37, 10.62, 10.31, 8.52, 10.84, 10.90, 9.33, 12.29, 11.50, 10.60, 11.08, 10.38, 11.62, 11.31, 10.52}
	if got, want := cusum(y, 10, 1, 0.5, 5), (Change{Found: true, Onset: 22, Alarm: 28}); got != want {
		t.Errorf("h = 5: %+v, want %+v (observations 23 and 29)", got, want)
	}
	if got := Onset(y, 10, 1); got.Found {
		t.Errorf("h = 8: found %+v", got)
	}
}

// The examples of r.test in the R package psych: t = −0.89 for Steiger's case
// A, and p = 0.1000759 in the one that shows the digits.
func TestWilliams(t *testing.T) {
	near(t, "case A", williams(0.4, 0.5, 0.1, 103), -0.89, 5e-3)
	statistic := williams(0.693458895410494, 0.695966022434845, 0.988475791500198, 5105)
	near(t, "p", 2*studentTail(math.Abs(statistic), 5102), 0.1000759, 5e-8)
}
