package trend

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMannKendallEdges(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name      string
		y         []float64
		tolerance float64
		s         float64
		variance  float64
		z, tau    float64
	}{
		{"none", nil, 0, 0, 0, nan, nan},
		{"one", []float64{1}, 0, 0, 0, nan, nan},
		{"three have no z", []float64{1, 2, 3}, 0, 3, 11.0 / 3, nan, 1},
		{"constant", []float64{4, 4, 4, 4}, 0, 0, 0, 0, 0},
		{"all within the tolerance", []float64{4, 5, 4, 5}, 2, 0, 0, 0, 0},
		{"seven rising reach three", []float64{1, 2, 3, 4, 5, 6, 7}, 0, 21, 133.0 / 3, 20 / math.Sqrt(133.0/3), 1},
		{"seven falling", []float64{7, 6, 5, 4, 3, 2, 1}, 0, -21, 133.0 / 3, -20 / math.Sqrt(133.0/3), -1},
		{"not measured", []float64{1, nan, 2, math.Inf(1), 3, 4}, 0, 6, 26.0 / 3, 5 / math.Sqrt(26.0/3), 1},
		{"tolerance unknown", []float64{1, 2, 3, 4}, nan, 6, 26.0 / 3, 5 / math.Sqrt(26.0/3), 1},
		{"tolerance negative", []float64{1, 2, 3, 4}, -9, 6, 26.0 / 3, 5 / math.Sqrt(26.0/3), 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := MannKendall(test.y, test.tolerance)
			near(t, "S", float64(got.S), test.s, 0)
			near(t, "Var", got.Var, test.variance, 1e-15)
			near(t, "Z", got.Z, test.z, 1e-15)
			near(t, "Tau", got.Tau, test.tau, 1e-15)
		})
	}
}

func TestCorrected(t *testing.T) {
	result := MannKendall([]float64{1, 2, 3, 4, 5, 6, 7}, 0)
	z := 20 / math.Sqrt(133.0/3)
	for _, test := range []struct{ r, want float64 }{
		{0, z},
		{0.5, z / math.Sqrt(3)}, // (1 + ½)/(1 − ½) = 3
		{0.6, z / 2},
		{-0.9, z}, // never deflates the variance
		{1, 0},
		{math.Inf(1), 0},
		{math.NaN(), math.NaN()},
	} {
		near(t, "Corrected", result.Corrected(test.r), test.want, 1e-15)
	}
	near(t, "too few", MannKendall([]float64{1, 2, 3}, 0).Corrected(0), math.NaN(), 0)
}

func TestAutocorrelation(t *testing.T) {
	nan := math.NaN()
	hours := func(n int, y func(float64) float64) (x, v []float64) {
		for i := range n {
			x = append(x, float64(i))
			v = append(v, y(float64(i)))
		}
		return
	}
	t.Run("a straight line", func(t *testing.T) {
		for _, slope := range []float64{1, 0.1, 1.0 / 3, 1e9 / 7, -math.Pi} {
			x, y := hours(50, func(h float64) float64 { return 7e10 + slope*h })
			near(t, "r", Autocorrelation(x, y, slope), 0, 0)
			fitted := LeastSquares(x, y).Slope
			near(t, "r of the fit", Autocorrelation(x, y, fitted), 0, 0)
		}
	})
	t.Run("by hand", func(t *testing.T) {
		// e = 1, −1, 1, −1: three products of −1 over four squares.
		near(t, "alternating", Autocorrelation([]float64{0, 1, 2, 3}, []float64{1, -1, 1, -1}, 0), -0.75, 1e-15)
		// e = 1, 1, −1, −1 beside a slope of two: 1 − 1 + 1 over four.
		near(t, "blocks", Autocorrelation([]float64{0, 1, 2, 3}, []float64{1, 3, 3, 5}, 2), 0.25, 1e-15)
		near(t, "with a gap", Autocorrelation([]float64{0, 1, 1.5, 2, 3}, []float64{1, 3, nan, 3, 5}, 2), 0.25, 1e-15)
	})
	t.Run("steps of two beside slope one", func(t *testing.T) {
		// e = ½, −½, ½ …: 39 products of −¼ over 40 squares of ¼.
		x, y := hours(40, func(h float64) float64 { return 2 * math.Floor(h/2) })
		near(t, "r", Autocorrelation(x, y, 1), -39.0/40, 1e-12)
	})
	t.Run("a curve beside its chord", func(t *testing.T) {
		x, y := hours(24, func(h float64) float64 { return 1 - math.Exp(-h/6) })
		slope, _, _ := TheilSen(x, y)
		if r := Autocorrelation(x, y, slope); !(r > 0.7) {
			t.Errorf("r = %g, want above 0.7", r)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		near(t, "two points", Autocorrelation([]float64{0, 1}, []float64{0, 1}, 1), nan, 0)
		near(t, "no slope", Autocorrelation([]float64{0, 1, 2}, []float64{0, 1, 5}, nan), nan, 0)
	})
}

// A first-order autoregression is recovered.
func TestAutocorrelationRegression(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	x, y := make([]float64, 20000), make([]float64, 20000)
	noise := 0.0
	for i := range x {
		noise = 0.5*noise + random.NormFloat64()
		x[i], y[i] = float64(i), 3*float64(i)+noise
	}
	near(t, "r", Autocorrelation(x, y, 3), 0.5, 0.02)
}

// Independent noise exceeds z = 1.96 in one of twenty series, and with a
// tolerance as large as the noise, where equality is far from transitive,
// the variance still holds.
func TestMannKendallSize(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	var scratch Scratch
	for _, tolerance := range []float64{0, 0.5, 1} {
		y := make([]float64, 24)
		var squares float64
		significant := 0
		const series = 5000
		for range series {
			for i := range y {
				y[i] = random.NormFloat64()
			}
			result := scratch.MannKendall(y, tolerance)
			squares += float64(result.S) * float64(result.S) / result.Var
			if math.Abs(result.Z) > normal975 {
				significant++
			}
		}
		near(t, "S²/Var", squares/series, 1, 0.06)
		near(t, "size", float64(significant)/series, 0.05, 0.012)
	}
}
