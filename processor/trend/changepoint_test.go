package trend

import (
	"math"
	"testing"
)

func TestOnset(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name             string
		y                []float64
		reference, sigma float64
		onset, alarm     int
	}{
		{"none", nil, 0, 1, -1, -1},
		{"flat", []float64{5, 5, 5, 5}, 5, 1, -1, -1},
		// g: 0, 0, 2.5, 5, 7.5, 10.
		{"a shift of three", []float64{5, 5, 8, 8, 8, 8}, 5, 1, 2, 5},
		{"one step far up", []float64{5, 5, 50}, 5, 1, 2, 2},
		{"a shift of half a sigma is noise", []float64{5.5, 5.5, 5.5, 5.5}, 5, 1, -1, -1},
		// g: 0.5, 0 (start over), 1.5, 4, 7.5, 12.
		{"a ramp", []float64{6, 5, 7, 8, 9, 10}, 5, 1, 2, 5},
		{"in units of sigma", []float64{500, 500, 800, 800, 800, 800}, 500, 100, 2, 5},
		{"downwards", []float64{1, 1, 1, 1}, 5, 1, -1, -1},
		{"not measured", []float64{5, nan, 8, math.Inf(1), 8, 8, 8}, 5, 1, 2, 6},
		{"no reference", []float64{5, 50}, nan, 1, -1, -1},
		{"no sigma", []float64{5, 50}, 5, 0, -1, -1},
		{"sigma unknown", []float64{5, 50}, 5, nan, -1, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := Change{Found: test.alarm >= 0, Onset: test.onset, Alarm: test.alarm}
			if got := Onset(test.y, test.reference, test.sigma); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
