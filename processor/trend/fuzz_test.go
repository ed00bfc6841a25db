package trend

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// FuzzStatistics feeds raw bits as points, NaN, infinities and denormals
// among them: nothing panics, no input is changed, no result is infinite, an
// interval holds its slope, a call has all its numbers, and points that were
// not measured count for nothing.
func FuzzStatistics(f *testing.F) {
	seed := func(values ...float64) {
		var text []byte
		for _, value := range values {
			text = binary.LittleEndian.AppendUint64(text, math.Float64bits(value))
		}
		f.Add(text, 4.0, 3.0)
	}
	nan, inf := math.NaN(), math.Inf(1)
	seed()
	seed(0, 42, 1, 44, 2, 46, 3, 48)
	seed(0, 1, nan, 2, 1, inf, 2, -inf, 3, 4, 4, 5, 5, 6, inf, 7)
	seed(0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6)
	seed(0, math.MaxFloat64, 1, -math.MaxFloat64, 2, math.MaxFloat64, 3, 0, 4, 1, 5, 2)
	seed(-math.MaxFloat64, 0, math.MaxFloat64, 1, 0, 5, 1, 1, 2, 2, 3, 3)
	seed(0, 5e-324, 5e-324, 1, 1e-323, 2, 2e-323, 3, 3e-323, 4, 4e-323, 5)
	f.Fuzz(func(t *testing.T, text []byte, sigma, hours float64) {
		var x, y []float64
		for len(text) >= 16 && len(x) < 200 {
			x = append(x, math.Float64frombits(binary.LittleEndian.Uint64(text)))
			y = append(y, math.Float64frombits(binary.LittleEndian.Uint64(text[8:])))
			text = text[16:]
		}
		beforeX, beforeY := slices.Clone(x), slices.Clone(y)
		var cleanX, cleanY []float64
		for i := range x {
			if finite(x[i]) && finite(y[i]) {
				cleanX, cleanY = append(cleanX, x[i]), append(cleanY, y[i])
			}
		}
		noInf := func(name string, values ...float64) {
			t.Helper()
			for i, value := range values {
				if math.IsInf(value, 0) {
					t.Fatalf("%s: number %d is infinite", name, i)
				}
			}
		}
		same := func(name string, a, b float64) {
			t.Helper()
			if a != b && !(math.IsNaN(a) && math.IsNaN(b)) {
				t.Fatalf("%s is %g, %g without what was not measured", name, a, b)
			}
		}
		var scratch Scratch

		slope, low, high := scratch.TheilSen(x, y)
		noInf("TheilSen", slope, low, high)
		if low > slope || slope > high || math.IsNaN(low) != math.IsNaN(high) {
			t.Fatalf("TheilSen: %g outside of %g to %g", slope, low, high)
		}
		s, _, _ := TheilSen(cleanX, cleanY)
		same("TheilSen", slope, s)

		line := LeastSquares(x, y)
		noInf("LeastSquares", line.Slope, line.Intercept, line.StdErr, line.Low, line.High, line.R2)
		if line.Low > line.Slope || line.Slope > line.High || line.StdErr < 0 || line.R2 < 0 || line.R2 > 1 {
			t.Fatalf("LeastSquares: %+v", line)
		}
		same("LeastSquares", line.Slope, LeastSquares(cleanX, cleanY).Slope)

		kendall := scratch.MannKendall(y, sigma)
		noInf("MannKendall", kendall.Var, kendall.Z, kendall.Tau)
		if pairs := kendall.Points * (kendall.Points - 1) / 2; kendall.S > pairs || -kendall.S > pairs || kendall.Var < 0 {
			t.Fatalf("MannKendall: %+v", kendall)
		}
		if kendall.Points >= 4 && math.IsNaN(kendall.Z) {
			t.Fatalf("MannKendall: no z of %d points", kendall.Points)
		}
		r := Autocorrelation(x, y, slope)
		if !math.IsNaN(r) && !(r > -1 && r < 1) {
			t.Fatalf("Autocorrelation: %g", r)
		}
		if corrected := kendall.Corrected(r); math.Abs(corrected) > math.Abs(kendall.Z) {
			t.Fatalf("Corrected: %g beyond %g", corrected, kendall.Z)
		}

		level := Level(x, y)
		noInf("Level", level.Mean, level.Last, level.Ratio, level.Halves)
		if level.Known() != (level.Level() || level.Rising()) || level.Level() && level.Rising() {
			t.Fatalf("Level: %+v", level)
		}
		early := Early(x, y, sigma, hours)
		noInf("Early", early.Hours, early.Rise, early.Level.Ratio)
		if early.Called && (early.Lacking != Met || early.Points < 4 || !(early.Rise >= 8*sigma) || !early.Level.Rising()) {
			t.Fatalf("Early: %+v", early)
		}
		if again := Early(cleanX, cleanY, sigma, hours); again.Lacking != early.Lacking {
			t.Fatalf("Early: %q, %q without what was not measured", early.Lacking, again.Lacking)
		}
		steady := scratch.Steady(x, y, sigma, 5, hours)
		noInf("Steady", steady.Growth.Slope, steady.Growth.Low, steady.Growth.High, steady.Growth.Z, steady.Growth.Hours)
		if steady.Called && (!(steady.Growth.Low > 5) || !(steady.Growth.Z >= 3) || !steady.Growth.Level.Rising()) {
			t.Fatalf("Steady: %+v", steady)
		}
		if again := Steady(cleanX, cleanY, sigma, 5, hours); again.Lacking != steady.Lacking {
			t.Fatalf("Steady: %q, %q without what was not measured", steady.Lacking, again.Lacking)
		}

		regression := Regress(x, y)
		if regression.Significant && !regression.Known() {
			t.Fatalf("Regress: %+v", regression)
		}
		comparison := Compare(x, y, y)
		for _, r := range []float64{comparison.First, comparison.Second} {
			if r < -1 || r > 1 {
				t.Fatalf("Compare: %+v", comparison)
			}
		}
		if change := Onset(y, 0, sigma); change.Found != (change.Alarm >= 0) || change.Onset > change.Alarm || change.Alarm >= len(y) {
			t.Fatalf("Onset: %+v", change)
		}
		minima := RollingMinimum(nil, y, 3)
		noInf("RollingMinimum", minima...)
		for i, value := range minima {
			if value > y[i] && finite(y[i]) {
				t.Fatalf("RollingMinimum: %g above %g", value, y[i])
			}
		}
		noInf("quantiles", Median(y), MAD(y), Spread(y), Quantile(y, 0.05))
		if median := Median(y); len(cleanY) > 0 && len(cleanY) == len(y) && !(slices.Min(y) <= median && median <= slices.Max(y)) {
			t.Fatalf("Median: %g", median)
		}
		for i := range x {
			if math.Float64bits(x[i]) != math.Float64bits(beforeX[i]) || math.Float64bits(y[i]) != math.Float64bits(beforeY[i]) {
				t.Fatal("the input was changed")
			}
		}
	})
}

// FuzzStudentQuantile goes from a probability to t and back.
func FuzzStudentQuantile(f *testing.F) {
	f.Add(0.975, 4.0)
	f.Add(0.5, 1.5)
	f.Add(1e-12, 94.0)
	f.Add(0.999999, 1e6)
	f.Fuzz(func(t *testing.T, p, degrees float64) {
		got := StudentQuantile(p, degrees)
		if math.IsInf(got, 0) {
			t.Fatalf("StudentQuantile(%g, %g) is infinite", p, degrees)
		}
		if !(p > 1e-12 && p < 1-1e-12 && degrees >= 1 && degrees < 1e6) {
			return
		}
		back := studentTail(math.Abs(got), degrees)
		if want := min(p, 1-p); math.Abs(back-want) > 1e-9*want {
			t.Fatalf("StudentQuantile(%g, %g) = %g, whose tail is %g", p, degrees, got, back)
		}
	})
}
