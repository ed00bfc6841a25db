package trend

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestProperties changes series in ways whose effect on every statistic is
// known. Shifts and scales are powers of two, so that results must agree to
// the last digits.
func TestProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(15, 16))
	for range 300 {
		n := 2 + random.IntN(40)
		x, y := make([]float64, n), make([]float64, n)
		at := float64(random.IntN(100))
		for i := range x {
			at += float64(1+random.IntN(64)) / 32
			x[i] = at
			y[i] = float64(random.IntN(400)-200) + 16*x[i]*float64(random.IntN(2))
		}
		const tolerance, sigma = 12, 8
		slope, low, high := TheilSen(x, y)
		line, kendall, level := LeastSquares(x, y), MannKendall(y, tolerance), Level(x, y)
		early, steady := Early(x, y, sigma, CallHours), Steady(x, y, sigma, 5, CallHours)
		change := Onset(y, 0, sigma)
		if !(line.Low <= line.Slope && line.Slope <= line.High) && n > 2 {
			t.Fatalf("slope %g outside of %g to %g", line.Slope, line.Low, line.High)
		}
		if !math.IsNaN(low) && !(low <= slope && slope <= high) {
			t.Fatalf("Theil–Sen %g outside of %g to %g", slope, low, high)
		}

		t.Run("shift and scale", func(t *testing.T) {
			// x → x/2 + 64, y → 4y − 1024.
			u, v := make([]float64, n), make([]float64, n)
			for i := range x {
				u[i], v[i] = x[i]/2+64, 4*y[i]-1024
			}
			s, l, h := TheilSen(u, v)
			near(t, "slope", s, 8*slope, 1e-12)
			near(t, "low", l, 8*low, 1e-12)
			near(t, "high", h, 8*high, 1e-12)
			near(t, "least squares", LeastSquares(u, v).Slope, 8*line.Slope, 1e-9)
			near(t, "standard error", LeastSquares(u, v).StdErr, 8*line.StdErr, 1e-9)
			near(t, "R2", LeastSquares(u, v).R2, line.R2, 1e-9)
			if got := MannKendall(v, 4*tolerance); got != kendall && !math.IsNaN(kendall.Z) {
				t.Errorf("MannKendall %+v, want %+v", got, kendall)
			}
			if got := Level(u, v); got.Level() != level.Level() {
				t.Errorf("Level %+v, want as %+v", got, level)
			}
			near(t, "spread", Spread(v), 4*Spread(y), 1e-12)
			if got := Onset(v, -1024, 4*sigma); got != change {
				t.Errorf("Onset %+v, want %+v", got, change)
			}
			// The hours of the calls are absolute: y only.
			if got := Early(x, v, 4*sigma, CallHours); got.Lacking != early.Lacking {
				t.Errorf("Early %q, want %q", got.Lacking, early.Lacking)
			}
			if got := Steady(x, v, 4*sigma, 20, CallHours); got.Lacking != steady.Lacking {
				t.Errorf("Steady %q, want %q", got.Lacking, steady.Lacking)
			}
		})

		t.Run("upside down", func(t *testing.T) {
			v := make([]float64, n)
			for i := range y {
				v[i] = -y[i]
			}
			s, l, h := TheilSen(x, v)
			near(t, "slope", s, -slope, 1e-12)
			near(t, "low", l, -high, 1e-12)
			near(t, "high", h, -low, 1e-12)
			near(t, "least squares", LeastSquares(x, v).Slope, -line.Slope, 1e-12)
			got := MannKendall(v, tolerance)
			if got.S != -kendall.S || got.Var != kendall.Var {
				t.Errorf("MannKendall %+v, want the negative of %+v", got, kendall)
			}
			if got := Early(x, v, sigma, CallHours); got.Called && early.Called {
				t.Error("called both ways")
			}
		})

		t.Run("backwards", func(t *testing.T) {
			u, v := slices.Clone(x), slices.Clone(y)
			slices.Reverse(v)
			if got := MannKendall(v, tolerance); got.S != -kendall.S || got.Var != kendall.Var {
				t.Errorf("MannKendall %+v, want the negative of %+v", got, kendall)
			}
			for i := range u {
				u[i] = -x[n-1-i]
			}
			s, l, h := TheilSen(u, v)
			near(t, "slope", s, -slope, 1e-12)
			near(t, "low", l, -high, 1e-12)
			near(t, "high", h, -low, 1e-12)
			near(t, "autocorrelation", Autocorrelation(u, v, -3), Autocorrelation(x, y, 3), 1e-9)
		})

		t.Run("permuted", func(t *testing.T) {
			u, v := make([]float64, n), make([]float64, n)
			for to, from := range random.Perm(n) {
				u[to], v[to] = x[from], y[from]
			}
			s, l, h := TheilSen(u, v)
			near(t, "slope", s, slope, 0)
			near(t, "low", l, low, 0)
			near(t, "high", h, high, 0)
			near(t, "least squares", LeastSquares(u, v).Slope, line.Slope, 1e-11)
			near(t, "median", Median(v), Median(y), 0)
			near(t, "mad", MAD(v), MAD(y), 0)
			if got := MannKendall(v, tolerance); got.Var != kendall.Var {
				t.Errorf("variance %g, want %g: it must not depend on the order", got.Var, kendall.Var)
			}
		})

		t.Run("added line", func(t *testing.T) {
			v := make([]float64, n)
			for i := range y {
				v[i] = y[i] + 8*x[i]
			}
			s, l, h := TheilSen(x, v)
			near(t, "slope", s, slope+8, 1e-12)
			// The ties of y change with the line, and the ranks with them.
			if len(slices.Compact(slices.Sorted(slices.Values(y)))) == n && len(slices.Compact(slices.Sorted(slices.Values(v)))) == n {
				near(t, "low", l, low+8, 1e-12)
				near(t, "high", h, high+8, 1e-12)
			}
			near(t, "least squares", LeastSquares(x, v).Slope, line.Slope+8, 1e-10)
			near(t, "standard error", LeastSquares(x, v).StdErr, line.StdErr, 1e-9)
			near(t, "autocorrelation", Autocorrelation(x, v, 11), Autocorrelation(x, y, 3), 1e-9)
		})
		if t.Failed() {
			t.Fatalf("x = %v\ny = %v", x, y)
		}
	}
}
