package trend

import (
	"math"
	"testing"
)

// sampled returns a curve at n points from 0 to span.
func sampled(n int, span float64, curve func(float64) float64) (x, y []float64) {
	for i := range n {
		at := span * float64(i) / float64(n-1)
		x, y = append(x, at), append(y, curve(at))
	}
	return x, y
}

// A cache that fills with time constant τ: the halves are in the ratio
// exp(−span/2τ), and a ratio ρ is refused once the span is 2τ ln(1/ρ).
func TestLevelSaturating(t *testing.T) {
	const tau = 6.0
	curve := func(h float64) float64 { return 8e9 * (1 - math.Exp(-h/tau)) }
	for _, span := range []float64{3, 6, 12, 24} {
		x, y := sampled(25, span, curve)
		near(t, "Halves", Level(x, y).Halves, math.Exp(-span/2/tau), 1e-6)
	}
	x, y := sampled(25, 2*tau*math.Log(1/LevelRatio), curve)
	near(t, "Halves at the limit", Level(x, y).Halves, LevelRatio, 1e-6)
	for _, test := range []struct {
		span  float64
		level bool
	}{{tau / 2, false}, {2 * tau, true}, {4 * tau, true}} {
		x, y := sampled(25, test.span, curve)
		if got := Level(x, y); got.Level() != test.level || got.Rising() == test.level {
			t.Errorf("span %g: ratio %g, level %v", test.span, got.Ratio, got.Level())
		}
	}
}

func TestLevel(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name                      string
		x, y                      []float64
		mean, last, ratio, halves float64
		level, rising             bool
	}{
		{"none", nil, nil, nan, nan, nan, nan, false, false},
		{"one", []float64{1}, []float64{1}, nan, nan, nan, nan, false, false},
		{"one time", []float64{1, 1}, []float64{1, 2}, nan, nan, nan, nan, false, false},
		{"out of order", []float64{0, 2, 1}, []float64{0, 1, 2}, nan, nan, nan, nan, false, false},
		{"two", []float64{0, 2}, []float64{0, 1}, 0.5, 0.5, 1, 1, false, true},
		{"straight", []float64{0, 1, 2, 3}, []float64{42, 44, 46, 48}, 2, 2, 1, 1, false, true},
		{"flat", []float64{0, 1, 2, 3}, []float64{5, 5, 5, 5}, 0, 0, nan, nan, true, false},
		{"falling", []float64{0, 1, 2, 3}, []float64{4, 3, 2, 1}, -1, -1, nan, nan, true, false},
		// Mean: Σ(x−3)y/28 with y = 0 1 2 3 3 3 3. Last: from 4 on and the 3 before.
		{"growth that ended", []float64{0, 1, 2, 3, 4, 5, 6}, []float64{0, 1, 2, 3, 3, 3, 3}, 14.0 / 28, 0, 0, 0, true, false},
		// By time, not by points: many early points do not stretch the last third.
		{"uneven", []float64{0, 0.25, 0.5, 0.75, 1, 6}, []float64{0, 1, 2, 3, 4, 24}, 4, 4, 1, 1, false, true},
		{"not measured", []float64{0, nan, 1, 2, 3}, []float64{42, 1, 44, 46, math.Inf(1)}, 2, 2, 1, 1, false, true},
		{"falls, then rises", []float64{0, 1, 2, 3, 4}, []float64{2, 1, 0, 3, 6}, 1, 3, 3, nan, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Level(test.x, test.y)
			near(t, "Mean", got.Mean, test.mean, 1e-2)
			near(t, "Last", got.Last, test.last, 1e-2)
			near(t, "Ratio", got.Ratio, test.ratio, 1e-2)
			near(t, "Halves", got.Halves, test.halves, 1e-2)
			if got.Level() != test.level || got.Rising() != test.rising {
				t.Errorf("Level() = %v, Rising() = %v", got.Level(), got.Rising())
			}
		})
	}
}

// A point exactly on the boundary belongs to the last third however its time
// was rounded: 0.1 steps are not exact in binary.
func TestLevelBoundary(t *testing.T) {
	y := []float64{0, 5, 10, 11, 12, 19, 26}
	for _, step := range []float64{1, 0.1, 1.0 / 3, 0.7} {
		for _, start := range []float64{0, 0.3, 495123.1} {
			var x []float64
			for i := range y {
				x = append(x, start+float64(i)*step)
			}
			// Points 4, 5, 6 and the one before: 11 12 19 26, Σ(−1.5 −0.5 0.5 1.5)y/5 = 5.2.
			near(t, "Last", Level(x, y).Last*step, 5.2, 1e-6)
		}
	}
}
