package trend

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRegress(t *testing.T) {
	for _, test := range []struct {
		name        string
		work, y     []float64
		slope       float64
		significant bool
	}{
		{"17 MiB a request", []float64{0, 100, 250, 600, 900}, []float64{3, 1703, 4253, 10203, 15303}, 17, true},
		{"three points are too few", []float64{0, 100, 250}, []float64{0, 100, 250}, 1, false},
		{"no work", []float64{5, 5, 5, 5}, []float64{1, 2, 3, 4}, math.NaN(), false},
		{"no growth", []float64{0, 1, 2, 3}, []float64{7, 7, 7, 7}, 0, false},
		{"falling", []float64{0, 1, 2, 3, 4}, []float64{0, -2, -4, -6, -8}, -2, true},
		// r = 0.9 at four points: below the 0.950 that Fisher's table asks for.
		{"r 0.9 at four points", []float64{0, 1, 2, 3}, []float64{0, 1, 0.5, 2}, 0.55, false},
		{"none", nil, nil, math.NaN(), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Regress(test.work, test.y)
			near(t, "Slope", got.Slope, test.slope, 1e-12)
			if got.Significant != test.significant {
				t.Errorf("Significant = %v: %+v", got.Significant, got)
			}
		})
	}
}

// With many points an interval that excludes zero is not enough.
func TestRegressExplains(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	work, y := make([]float64, 400), make([]float64, 400)
	for i := range work {
		work[i] = float64(i)
		y[i] = 0.01*work[i] + 3*random.NormFloat64()
	}
	got := Regress(work, y)
	if !(got.Low > 0) || got.R2 > 0.3 || got.Significant {
		t.Errorf("want an interval above zero, a small R² and no significance: %+v", got)
	}
}

// Requests and aborts grow together, correlation of the totals above 0.99;
// memory follows the aborts.
func TestCompare(t *testing.T) {
	requests := []float64{0, 1000, 2050, 2900, 4000, 4980, 6010, 6950}
	aborts := []float64{0, 12, 19, 33, 38, 52, 60, 70}
	memory := make([]float64, len(aborts))
	for i := range memory {
		memory[i] = 40e9 + 18e6*aborts[i]
	}
	if r := LeastSquares(requests, aborts).R2; r < 0.98 {
		t.Fatalf("the axes are not collinear: R² %g", r)
	}
	if !Regress(requests, memory).Significant || !Regress(aborts, memory).Significant {
		t.Fatal("both axes should fit the levels")
	}
	got := Compare(requests, aborts, memory)
	if got.Better != SecondAxis || !got.Decided || got.Differences != 7 {
		t.Errorf("%+v", got)
	}
	near(t, "Second", got.Second, 1, 1e-12)
	mirrored := Compare(aborts, requests, memory)
	if mirrored.Better != FirstAxis || !mirrored.Decided {
		t.Errorf("mirrored: %+v", mirrored)
	}
	near(t, "mirrored", mirrored.First, got.Second, 1e-12)
	near(t, "mirrored", mirrored.Second, got.First, 1e-12)
}

func TestCompareEdges(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name             string
		first, second, y []float64
		r1, r2           float64
		better           Axis
		decided          bool
	}{
		{"none", nil, nil, nil, nan, nan, NoAxis, false},
		{"two steps", []float64{0, 1, 3}, []float64{0, 2, 3}, []float64{0, 1, 3}, nan, nan, NoAxis, false},
		{"the same axis twice", []float64{0, 1, 3, 4, 7}, []float64{0, 1, 3, 4, 7}, []float64{0, 1, 3, 4, 7}, 1, 1, NoAxis, false},
		{"y takes equal steps", []float64{0, 1, 3, 4}, []float64{0, 2, 3, 7}, []float64{0, 1, 2, 3}, nan, nan, NoAxis, false},
		// Hours since 1970 that differ by the rounding of their storage only.
		{"time against work", []float64{495000.1, 495001.1, 495002.1, 495003.1, 495004.1, 495005.1, 495006.1}, []float64{0, 5, 6, 14, 16, 20, 29}, []float64{0, 50, 60, 140, 160, 200, 290}, nan, 1, SecondAxis, true},
		{"against both", []float64{0, 3, 4, 9, 10}, []float64{0, 6, 8, 18, 20}, []float64{0, -3, -4, -9, -10}, -1, -1, NoAxis, false},
		// t = 1·√(3·1/0.25) = 3.46 on one degree of freedom, where 12.7 is asked.
		{"a point not measured", []float64{0, 1, nan, 3, 4, 7}, []float64{0, 0, 1, 0, 0, 0}, []float64{0, 1, 2, 3, 4, 7}, 1, nan, FirstAxis, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Compare(test.first, test.second, test.y)
			near(t, "First", got.First, test.r1, 1e-12)
			near(t, "Second", got.Second, test.r2, 1e-12)
			if got.Better != test.better || got.Decided != test.decided {
				t.Errorf("better %v, decided %v", got.Better, got.Decided)
			}
		})
	}
	for axis, want := range map[Axis]string{NoAxis: "neither", FirstAxis: "first", SecondAxis: "second"} {
		if got := axis.String(); got != want {
			t.Errorf("axis %d reads %q, want %q", axis, got, want)
		}
	}
}
