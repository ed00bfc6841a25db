package trend

import (
	"math"
	"math/rand/v2"
	"testing"
)

// quiet is a simulated series of quiet levels: a curve and first-order
// autoregressive noise with coefficient one half, kept in a ring of 96 that
// halves itself when full.
type quiet struct {
	perHour, sigma float64
	curve          func(hours float64) float64
}

// calls returns the hours of the first early and the first steady call within
// 72 hours, NaN for none, asking at every point.
func (q quiet) calls(random *rand.Rand, scratch *Scratch) (early, steady float64) {
	early, steady = math.NaN(), math.NaN()
	var x, y []float64
	noise, every := 0.0, 1
	for i := 0; float64(i) < 72*q.perHour; i++ {
		noise = 0.5*noise + math.Sqrt(0.75)*random.NormFloat64()
		if i%every != 0 {
			continue
		}
		hours := float64(i) / q.perHour
		x, y = append(x, hours), append(y, 40*gib+q.curve(hours)+q.sigma*noise)
		if math.IsNaN(early) && Early(x, y, q.sigma, CallHours).Called {
			early = hours
		}
		if math.IsNaN(steady) && scratch.Steady(x, y, q.sigma, 5*mib, CallHours).Called {
			steady = hours
		}
		if len(x) == 96 {
			for j := range 48 {
				x[j], y[j] = x[2*j], y[2*j]
			}
			x, y = x[:48], y[:48]
			every *= 2
		}
	}
	return early, steady
}

// The two kinds of series and the curves on which the detector was chosen:
// plain Mann–Kendall alarms on 28 to 80 % of flat noise within 72 h; the
// detector must not, and still find a leak of 20 MiB/h within 15 h at 16 MiB
// of noise and 25 h at 64 MiB, one of 200 MiB/h within 15 h. The bound on flat
// noise is twice what 1500 other series show, 1.1 % with a steady call at 64
// MiB (0.5 % at 16): asking at every point for three days, some pass by chance.
func TestCalibration(t *testing.T) {
	line := func(perHour float64) func(*rand.Rand) func(float64) float64 {
		return func(*rand.Rand) func(float64) float64 {
			return func(hours float64) float64 { return perHour * hours }
		}
	}
	step := func(random *rand.Rand) func(float64) float64 {
		at := 72 * random.Float64()
		return func(hours float64) float64 {
			if hours < at {
				return 0
			}
			return gib
		}
	}
	for _, test := range []struct {
		name           string
		series         int
		perHour, sigma float64
		curve          func(*rand.Rand) func(float64) float64
		early          [2]float64 // least and largest share of series that are called
		steady         [2]float64
		within         float64 // hours, median of the first call of either kind
	}{
		{"flat, 16 MiB", 50, 3, 16 * mib, line(0), [2]float64{0, 0}, [2]float64{0, 0.02}, math.NaN()},
		{"flat, 64 MiB", 100, 2, 64 * mib, line(0), [2]float64{0, 0}, [2]float64{0, 0.02}, math.NaN()},
		{"one step of 1 GiB", 50, 3, 16 * mib, step, [2]float64{0, 0}, [2]float64{0, 0.06}, math.NaN()},
		{"20 MiB/h, 16 MiB", 50, 3, 16 * mib, line(20 * mib), [2]float64{0, 1}, [2]float64{1, 1}, 15},
		{"20 MiB/h, 64 MiB", 50, 2, 64 * mib, line(20 * mib), [2]float64{0, 1}, [2]float64{1, 1}, 25},
		{"200 MiB/h, 16 MiB", 50, 3, 16 * mib, line(200 * mib), [2]float64{1, 1}, [2]float64{1, 1}, 4},
		{"200 MiB/h, 64 MiB", 50, 2, 64 * mib, line(200 * mib), [2]float64{1, 1}, [2]float64{1, 1}, 15},
	} {
		t.Run(test.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var scratch Scratch
			var firsts []float64
			var early, steady float64
			for range test.series {
				q := quiet{test.perHour, test.sigma, test.curve(random)}
				e, s := q.calls(random, &scratch)
				if !math.IsNaN(e) {
					early++
				}
				if !math.IsNaN(s) {
					steady++
				}
				switch {
				case e < s || math.IsNaN(s):
					firsts = append(firsts, e)
				default:
					firsts = append(firsts, s)
				}
			}
			early, steady = early/float64(test.series), steady/float64(test.series)
			if early < test.early[0] || early > test.early[1] || steady < test.steady[0] || steady > test.steady[1] {
				t.Errorf("called early %.2f, steady %.2f of series", early, steady)
			}
			if first := Median(firsts); test.within > 0 && !(first <= test.within) {
				t.Errorf("first call after %.1f h, want within %g", first, test.within)
			}
		})
	}
}
