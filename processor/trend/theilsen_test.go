package trend

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestTheilSenEdges(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name             string
		x, y             []float64
		slope, low, high float64
	}{
		{"none", nil, nil, nan, nan, nan},
		{"one", []float64{1}, []float64{1}, nan, nan, nan},
		{"two", []float64{1, 3}, []float64{1, 2}, 0.5, nan, nan},
		{"scipy's smallest test", []float64{0, 1, 2}, []float64{0, 1, 1}, 0.5, nan, nan},
		{"scipy's masked test", []float64{0, 1, 2, 3}, []float64{0, 1, nan, 1}, 1.0 / 3, nan, nan},
		{"one x", []float64{2, 2, 2}, []float64{1, 2, 3}, nan, nan, nan},
	} {
		t.Run(test.name, func(t *testing.T) {
			slope, low, high := TheilSen(test.x, test.y)
			near(t, "slope", slope, test.slope, 1e-15)
			near(t, "low", low, test.low, 1e-15)
			near(t, "high", high, test.high, 1e-15)
		})
	}
}

// A quarter of the points may be anywhere (breakdown 1 − 1/√2 = 29 %).
func TestTheilSenBreakdown(t *testing.T) {
	x := make([]float64, 40)
	y := make([]float64, 40)
	for i := range x {
		x[i], y[i] = float64(i), 3*float64(i)
		if i%4 == 1 {
			y[i] += 1e6 + 1e3*float64(i*i)
		}
	}
	slope, _, _ := TheilSen(x, y)
	least := LeastSquares(x, y).Slope
	if math.Abs(slope-3) > 1 || math.Abs(least-3) < 100 {
		t.Errorf("Theil–Sen %g, want 3 but for little; least squares %g, want it carried away", slope, least)
	}
}

// A 95 % interval covers the true slope in 95 of 100 series of independent
// noise; scipy's rounding makes it a little wide at few points.
func TestTheilSenCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{8, 24, 48} {
		x, y := make([]float64, n), make([]float64, n)
		covered := 0
		const series = 2000
		var scratch Scratch
		for range series {
			for i := range x {
				x[i] = float64(i)
				y[i] = 5*x[i] + 30*random.NormFloat64()
			}
			if _, low, high := scratch.TheilSen(x, y); low <= 5 && 5 <= high {
				covered++
			}
		}
		if share := float64(covered) / series; share < 0.94 || share > 0.985 {
			t.Errorf("n = %d: covered in %.3f of series", n, share)
		}
	}
}

func TestTheilSenBound(t *testing.T) {
	x := make([]float64, maxPoints+1)
	for i := range x {
		x[i] = float64(i)
	}
	if slope, _, _ := TheilSen(x, x); !math.IsNaN(slope) {
		t.Errorf("slope of %d points is %g, want NaN", len(x), slope)
	}
	if slope, _, _ := TheilSen(x[1:], x[1:]); slope != 1 {
		t.Errorf("slope of %d points is %g, want 1", maxPoints, slope)
	}
}

func TestScratchAllocates(t *testing.T) {
	x, y := make([]float64, 96), make([]float64, 96)
	for i := range x {
		x[i], y[i] = float64(i), float64(i*i%17)
	}
	var scratch Scratch
	scratch.Measure(x, y, 1)
	if n := testing.AllocsPerRun(10, func() { scratch.Steady(x, y, 1, 0, CallHours) }); n != 0 {
		t.Errorf("%g allocations, want none", n)
	}
	if n := testing.AllocsPerRun(10, func() { Early(x, y, 1, CallHours) }); n != 0 {
		t.Errorf("Early: %g allocations, want none", n)
	}
}
