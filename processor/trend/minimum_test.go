package trend

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRollingMinimum(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name   string
		y      []float64
		window int
		want   []float64
	}{
		{"empty", nil, 3, nil},
		{"three", []float64{5, 3, 4, 9, 8, 2, 7}, 3, []float64{5, 3, 3, 3, 4, 2, 2}},
		{"a spike leaves no trace", []float64{1, 2, 90, 3, 4}, 3, []float64{1, 1, 1, 2, 3}},
		{"one is a copy", []float64{5, 3, 4}, 1, []float64{5, 3, 4}},
		{"below one counts as one", []float64{5, 3, 4}, -2, []float64{5, 3, 4}},
		{"longer than the series", []float64{5, 3, 4}, 99, []float64{5, 3, 3}},
		{"equal values", []float64{2, 2, 2, 2}, 2, []float64{2, 2, 2, 2}},
		{"not measured", []float64{nan, 5, math.Inf(-1), nan, nan, 7}, 3, []float64{nan, 5, 5, 5, nan, 7}},
	} {
		t.Run(test.name, func(t *testing.T) {
			same := func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
			if got := RollingMinimum(nil, test.y, test.window); !slices.EqualFunc(got, test.want, same) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			inPlace := slices.Clone(test.y)
			if got := RollingMinimum(inPlace[:0], inPlace, test.window); !slices.EqualFunc(got, test.want, same) {
				t.Errorf("in place: got %v, want %v", got, test.want)
			}
		})
	}
}

// The queue against the definition, for windows in and beyond its fixed ring.
func TestRollingMinimumDefinition(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, window := range []int{1, 2, 3, 7, 63, 64, 65, 200} {
		y := make([]float64, 300)
		for i := range y {
			y[i] = float64(random.IntN(50)) - float64(i)/20
		}
		got := RollingMinimum(nil, y, window)
		for i := range y {
			if want := slices.Min(y[max(0, i-window+1) : i+1]); got[i] != want {
				t.Fatalf("window %d: minimum %d is %g, want %g", window, i, got[i], want)
			}
		}
	}
}

func TestRollingMinimumAllocates(t *testing.T) {
	y := make([]float64, 96)
	dst := make([]float64, 0, 96)
	if n := testing.AllocsPerRun(10, func() { dst = RollingMinimum(dst[:0], y, 3) }); n != 0 {
		t.Errorf("%g allocations, want none", n)
	}
}
