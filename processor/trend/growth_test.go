package trend

import (
	"math"
	"testing"
)

func TestMeasureFewPoints(t *testing.T) {
	x := []float64{0, 1, 2, 3, 4}
	y := []float64{1, 3, 2, 5, 9}
	got := Measure(x, y, 0.1)
	line := LeastSquares(x, y)
	if got.Robust || got.Points != 5 {
		t.Errorf("five points: %+v", got)
	}
	near(t, "Slope", got.Slope, 1.8, 1e-15) // Σ(x−2)y/10 = (−2−3+5+18)/10
	near(t, "Low", got.Low, line.Low, 0)
	near(t, "High", got.High, line.High, 0)
	near(t, "Z", got.Z, math.NaN(), 0)
	for n := range 2 {
		got := Measure(x[:n], y[:n], 0.1)
		near(t, "Slope", got.Slope, math.NaN(), 0)
		near(t, "Mean", got.Level.Mean, math.NaN(), 0)
	}
}

// From six points on spikes upward do not move the growth.
func TestMeasureRobust(t *testing.T) {
	var x, y []float64
	for i := range 30 {
		x, y = append(x, float64(i)/2), append(y, 100*float64(i)/2)
		if i%7 == 3 {
			y[i] += 3000
		}
	}
	got := Measure(x, y, 10)
	if !got.Robust || got.Points != 30 {
		t.Errorf("thirty points: %+v", got)
	}
	near(t, "Hours", got.Hours, 14.5, 0)
	near(t, "Slope", got.Slope, 100, 0.05)
	if !(got.Low <= got.Slope && got.Slope <= got.High && got.Low > 90 && got.High < 110) {
		t.Errorf("interval %g to %g", got.Low, got.High)
	}
	if !(got.Z > 3) || !got.Level.Rising() {
		t.Errorf("z %g, level %+v", got.Z, got.Level)
	}
}

// A straight rise has its slope for an interval, no serial correlation and a
// ratio of one, whatever the number of points.
func TestMeasureStraight(t *testing.T) {
	for n := 2; n < 40; n++ {
		var x, y []float64
		for i := range n {
			x, y = append(x, float64(i)), append(y, 40*gib+100*mib*float64(i))
		}
		got := Measure(x, y, 4*mib)
		near(t, "Slope", got.Slope, 100*mib, 1e-12)
		near(t, "Ratio", got.Level.Ratio, 1, 1e-12)
		if n >= 3 {
			near(t, "Low", got.Low, 100*mib, 1e-12)
			near(t, "High", got.High, 100*mib, 1e-12)
		}
		if n >= 6 {
			near(t, "Serial", got.Serial, 0, 0)
			windows := float64(n - 2)
			for windows >= manyMinima {
				windows = math.Ceil(windows / 2)
			}
			if n == 6 {
				windows = 6 // taken as they are
			}
			near(t, "Z", got.Z, (windows*(windows-1)/2-1)/math.Sqrt(windows*(windows-1)*(2*windows+5)/18), 1e-12)
		}
	}
}

// Correlated noise that stays within sigma is still corrected for: a short
// series of it is what passes for a trend.
func TestMeasureSerialWithinSigma(t *testing.T) {
	var x, y []float64
	for i := range 24 {
		x = append(x, float64(i))
		y = append(y, 2*float64(i)+6*math.Sin(float64(i)/3))
	}
	got := Measure(x, y, 16)
	uncorrected := MannKendall(RollingMinimum(nil, y, 3)[2:], 16).Z
	if !(got.Serial > 0.5) || !(got.Z < uncorrected/math.Sqrt(3)) {
		t.Errorf("serial %g, z %g of %g", got.Serial, got.Z, uncorrected)
	}
}

func TestSteady(t *testing.T) {
	nan := math.NaN()
	ramp := func(n int, step float64) (x, y []float64) {
		for i := range n {
			x, y = append(x, float64(i)*step), append(y, 100*float64(i)*step)
		}
		return
	}
	for _, test := range []struct {
		name                string
		n                   int
		step                float64
		sigma, floor, hours float64
		lacking             Condition
	}{
		{"none", 0, 1, 1, 5, 3, FewPoints},
		{"five", 5, 1, 1, 5, 3, FewPoints},
		// Six full windows: z = 14/√(6·5·17/18) = 2.63; seven: 20/√(7·6·19/18) = 3.004.
		{"eight reach no z of three", 8, 1, 1, 5, 3, WeakTrend},
		{"nine do", 9, 1, 1, 5, 3, Met},
		{"short", 20, 0.1, 1, 5, 3, ShortSpan},
		{"short, no wait", 20, 0.1, 1, 5, 0, Met},
		{"below the floor", 20, 1, 1, 150, 3, LowSlope},
		{"within the noise", 20, 1, 5000, 5, 3, WeakTrend},
		{"sigma unknown", 20, 1, nan, 5, 3, NoScale},
		{"sigma negative", 20, 1, -1, 5, 3, NoScale},
		{"floor unknown", 20, 1, 1, nan, 3, NoScale},
		{"hours unknown", 20, 1, 1, 5, nan, NoScale},
	} {
		t.Run(test.name, func(t *testing.T) {
			x, y := ramp(test.n, test.step)
			got := Steady(x, y, test.sigma, test.floor, test.hours)
			if got.Lacking != test.lacking || got.Called != (test.lacking == Met) {
				t.Errorf("called %v, lacking %q, want %q\n%+v", got.Called, got.Lacking, test.lacking, got)
			}
		})
	}
	x, y := ramp(20, 1)
	for i := range y {
		y[i] = min(y[i], 1300)
	}
	if got := Steady(x, y, 1, 5, 3); got.Called || got.Lacking != LevelsOff && got.Lacking != WeakTrend {
		t.Errorf("a cap: called %v, lacking %q", got.Called, got.Lacking)
	}
	x[3], x[4] = x[4], x[3]
	if got := Steady(x, y, 1, 5, 3); got.Lacking != Disorder {
		t.Errorf("out of order: lacking %q", got.Lacking)
	}
	x, y = ramp(10, 1)
	y[9] = nan
	if got := Steady(x, y, 1, 5, 3); !got.Called || got.Growth.Points != 9 {
		t.Errorf("a level not measured: %+v", got)
	}
}

// A line of 2 MiB an hour with a point 1 MiB above it: by hand, least squares over 0, 1, 2, 3 hours.
func TestStill(t *testing.T) {
	got := Still([]float64{0, 1, 2, 3}, []float64{0, 2 * mib, 5 * mib, 6 * mib})
	near(t, "Slope", got.Slope, 2.1*mib, 1e-12)
	near(t, "Hours", got.Hours, 3, 0)
	if got.Points != 4 || got.Robust || got.Z == got.Z || !(got.Low < 2.1*mib && got.High > 2.1*mib) {
		t.Errorf("got %+v", got)
	}
	if none := Still(nil, nil); none.Points != 0 || none.Slope == none.Slope || none.Hours == none.Hours {
		t.Errorf("of nothing: %+v", none)
	}
	near(t, "Moved", Moved([]float64{3, -1, 2}), 4, 0)
	near(t, "Moved of none", Moved(nil), 0, 0)
}
