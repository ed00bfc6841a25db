package trend

import (
	"math"
	"testing"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// The product's own example: 42, 44, 46, 48 GiB at hourly points is called at
// the fourth and not before.
func TestEarlyFourth(t *testing.T) {
	x := []float64{0, 1, 2, 3}
	y := []float64{42 * gib, 44 * gib, 46 * gib, 48 * gib}
	for n := range 4 {
		if got := Early(x[:n], y[:n], 4*mib, CallHours); got.Called || got.Lacking != FewPoints {
			t.Errorf("%d points: called %v, lacking %q", n, got.Called, got.Lacking)
		}
	}
	got := Early(x, y, 4*mib, CallHours)
	if !got.Called || got.Lacking != Met {
		t.Fatalf("four points: called %v, lacking %q", got.Called, got.Lacking)
	}
	near(t, "Hours", got.Hours, 3, 0)
	near(t, "Rise", got.Rise, 6*gib, 0)
	near(t, "Step", got.Step, 2*gib, 0)
	near(t, "StepAt", float64(got.StepAt), 1, 0)
	near(t, "Fall", got.Fall, 0, 0)
	near(t, "Ratio", got.Level.Ratio, 1, 1e-15)
}

func TestEarly(t *testing.T) {
	nan := math.NaN()
	hourly := []float64{0, 1, 2, 3}
	for _, test := range []struct {
		name         string
		x, y         []float64
		sigma, hours float64
		lacking      Condition
	}{
		{"none", nil, nil, 1, 3, FewPoints},
		{"three points, no wait", []float64{0, 2, 4}, []float64{0, 50, 99}, 1, 0, FewPoints},
		{"2 h 54 min", []float64{0, 1, 2, 2.9}, []float64{0, 10, 20, 30}, 1, 3, ShortSpan},
		{"2 h 55 min", []float64{0, 1, 2, 2 + 55.0/60}, []float64{0, 10, 20, 30}, 1, 3, Met},
		{"2 h 55 min of day 20,000", []float64{480000.35, 480001, 480002, 480000.35 + 2 + 55.0/60}, []float64{0, 10, 20, 30}, 1, 3, Met},
		{"an OOM ends the wait", []float64{0, 0.1, 0.2, 0.3}, []float64{0, 10, 20, 30}, 1, 0, Met},
		{"falls by sigma", []float64{0, 1, 2, 3, 4}, []float64{0, 20, 19, 39, 59}, 1, 3, Met},
		{"falls by more", hourly, []float64{0, 20, 18.9, 39}, 1, 3, Falls},
		{"flat", hourly, []float64{5, 5, 5, 5}, 1, 3, SmallRise},
		{"falling slowly", hourly, []float64{5, 4.5, 4, 3.5}, 1, 3, SmallRise},
		{"eight sigma without the step", hourly, []float64{0, 4, 8, 12}, 1, 3, Met},
		{"less than eight", hourly, []float64{0, 3.9, 7.9, 11.9}, 1, 3, SmallRise},
		{"one jump", hourly, []float64{0, 0, 1000, 1001}, 1, 3, SmallRise},
		{"two jumps", hourly, []float64{0, 500, 500, 1003}, 1, 3, SmallRise},
		{"levels off", hourly, []float64{0, 100, 101, 102}, 0.1, 3, LevelsOff},
		{"a cache that fills", []float64{0, 1, 2, 3, 4, 5, 6}, []float64{0, 39, 63, 78, 86, 92, 95}, 1, 3, LevelsOff},
		{"out of order", []float64{0, 2, 1, 3}, []float64{0, 10, 20, 30}, 1, 3, Disorder},
		{"a point not measured", []float64{0, 1, nan, 2, 3}, []float64{0, 10, 15, 20, 30}, 1, 3, Met},
		{"a level not measured", hourly, []float64{0, 10, nan, 30}, 1, 3, FewPoints},
		{"sigma zero", hourly, []float64{0, 10, 20, 30}, 0, 3, NoScale},
		{"sigma unknown", hourly, []float64{0, 10, 20, 30}, nan, 3, NoScale},
		{"sigma infinite", hourly, []float64{0, 10, 20, 30}, math.Inf(1), 3, NoScale},
		{"hours unknown", hourly, []float64{0, 10, 20, 30}, 1, nan, NoScale},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Early(test.x, test.y, test.sigma, test.hours)
			if got.Lacking != test.lacking || got.Called != (test.lacking == Met) {
				t.Errorf("called %v, lacking %q, want %q\n%+v", got.Called, got.Lacking, test.lacking, got)
			}
		})
	}
}

func TestConditionString(t *testing.T) {
	seen := map[string]bool{}
	for c := Met; c <= LevelsOff; c++ {
		seen[c.String()] = true
	}
	if len(seen) != int(LevelsOff)+1 || seen[""] {
		t.Errorf("%d different texts for %d conditions: %v", len(seen), LevelsOff+1, seen)
	}
	if got := Condition(200).String(); got != "condition 200" {
		t.Errorf("an unknown condition reads %q", got)
	}
}
