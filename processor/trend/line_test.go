package trend

import (
	"math"
	"testing"
)

func TestLeastSquaresFewPoints(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, test := range []struct {
		name                   string
		x, y                   []float64
		points                 float64
		slope, intercept, low  float64
		stderr, determination2 float64
	}{
		{"none", nil, nil, 0, nan, nan, nan, nan, nan},
		{"one", []float64{1}, []float64{5}, 1, nan, nan, nan, nan, nan},
		{"two have no interval", []float64{1, 3}, []float64{5, 9}, 2, 2, 3, nan, nan, nan},
		{"one x", []float64{2, 2, 2}, []float64{1, 2, 3}, 3, nan, nan, nan, nan, nan},
		{"common prefix", []float64{1, 3, 9, 9}, []float64{5, 9}, 2, 2, 3, nan, nan, nan},
		{"left out", []float64{nan, 0, 1, inf, 2}, []float64{7, 1, nan, 3, 5}, 2, 2, 1, nan, nan, nan},
		{"straight", []float64{0, 1, 2, 3}, []float64{42, 44, 46, 48}, 4, 2, 42, 2, 0, 1},
		{"does not vary", []float64{0, 1, 2}, []float64{0.1, 0.1, 0.1}, 3, 0, 0.1, 0, 0, nan},
		{"overflow", []float64{0, 1, 2}, []float64{-1e308, 0, 1e308}, 3, nan, nan, nan, nan, nan},
	} {
		t.Run(test.name, func(t *testing.T) {
			line := LeastSquares(test.x, test.y)
			near(t, "Points", float64(line.Points), test.points, 0)
			near(t, "Slope", line.Slope, test.slope, 1e-15)
			near(t, "Intercept", line.Intercept, test.intercept, 1e-15)
			near(t, "StdErr", line.StdErr, test.stderr, 1e-15)
			near(t, "Low", line.Low, test.low, 1e-15)
			near(t, "R2", line.R2, test.determination2, 1e-15)
			if line.Known() != !math.IsNaN(test.low) {
				t.Errorf("Known() = %v", line.Known())
			}
		})
	}
}

// Three points off a line by hand: y = 0, 1, 1 has slope 1/2, residuals −1/6,
// 1/3, −1/6, SSE 1/6, StdErr √(1/6/1/2) = √(1/12), t(0.975, 1) = 12.7062047.
func TestLeastSquaresByHand(t *testing.T) {
	line := LeastSquares([]float64{0, 1, 2}, []float64{0, 1, 1})
	near(t, "Slope", line.Slope, 0.5, 1e-15)
	near(t, "StdErr", line.StdErr, math.Sqrt(1.0/12), 1e-15)
	near(t, "R2", line.R2, 0.75, 1e-15)
	near(t, "Low", line.Low, 0.5-12.7062047361747*math.Sqrt(1.0/12), 1e-12)
	near(t, "High", line.High, 0.5+12.7062047361747*math.Sqrt(1.0/12), 1e-12)
}

// Bytes of a full device at hours since 1970: the same slope and error as at
// the origin, to what such an x itself is good to.
func TestLeastSquaresCentred(t *testing.T) {
	x := []float64{0, 1, 2, 3, 4}
	y := []float64{0, 3 << 20, 3 << 20, 7 << 20, 8 << 20}
	origin := LeastSquares(x, y)
	for i := range x {
		x[i] += 495_000
		y[i] += 141 << 30
	}
	far := LeastSquares(x, y)
	near(t, "Slope", far.Slope, origin.Slope, 1e-12)
	near(t, "StdErr", far.StdErr, origin.StdErr, 1e-9)
	near(t, "slope by hand", origin.Slope, 2<<20, 1e-15) // Σ(x−2)(y) = 20 MiB over Sxx = 10
}

func TestStudentQuantileRefuses(t *testing.T) {
	for _, test := range [][2]float64{{0, 5}, {1, 5}, {-1, 5}, {2, 5}, {math.NaN(), 5}, {0.9, 0}, {0.9, -1}, {0.9, math.NaN()}} {
		if got := StudentQuantile(test[0], test[1]); !math.IsNaN(got) {
			t.Errorf("StudentQuantile(%g, %g) = %g, want NaN", test[0], test[1], got)
		}
	}
	near(t, "the median", StudentQuantile(0.5, 7), 0, 0)
}
