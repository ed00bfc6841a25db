package trend

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
)

// near fails unless got is within a relative tolerance of want, NaN meeting
// NaN only.
func near(t *testing.T, name string, got, want, tolerance float64) {
	t.Helper()
	if math.IsNaN(want) != math.IsNaN(got) || math.Abs(got-want) > tolerance*max(1, math.Abs(want)) {
		t.Errorf("%s = %.15g, want %.15g", name, got, want)
	}
}

// TestReference compares with testdata/reference.json, which reference.py
// beside it works out from the definitions alone: every pair, every
// permutation, exact fractions.
func TestReference(t *testing.T) {
	type number = *float64 // null is unknown
	var reference struct {
		Series []struct {
			Name     string
			X, Y     []float64
			TheilSen struct{ Slope, Low, High number }
			Kendall  []struct{ Tolerance, S, Var, Z float64 }
			Line     *struct{ Slope, Intercept, StdErr, R2 float64 }
		}
		Student []struct{ P, Degrees, T float64 }
	}
	text, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &reference); err != nil {
		t.Fatal(err)
	}
	if len(reference.Series) < 12 || len(reference.Student) < 90 {
		t.Fatalf("reference.json holds %d series and %d quantiles", len(reference.Series), len(reference.Student))
	}
	value := func(v number) float64 {
		if v == nil {
			return math.NaN()
		}
		return *v
	}
	var scratch Scratch // one for all, so that a stale value would show
	for _, series := range reference.Series {
		t.Run(series.Name, func(t *testing.T) {
			slope, low, high := scratch.TheilSen(series.X, series.Y)
			near(t, "TheilSen slope", slope, value(series.TheilSen.Slope), 1e-14)
			near(t, "TheilSen low", low, value(series.TheilSen.Low), 1e-14)
			near(t, "TheilSen high", high, value(series.TheilSen.High), 1e-14)
			for _, want := range series.Kendall {
				got := scratch.MannKendall(series.Y, want.Tolerance)
				name := fmt.Sprintf("MannKendall(%g) ", want.Tolerance)
				near(t, name+"S", float64(got.S), want.S, 0)
				near(t, name+"Var", got.Var, want.Var, 1e-14)
				near(t, name+"Z", got.Z, want.Z, 1e-14)
			}
			if want := series.Line; want != nil {
				got := LeastSquares(series.X, series.Y)
				near(t, "Slope", got.Slope, want.Slope, 1e-13)
				near(t, "Intercept", got.Intercept, want.Intercept, 1e-12)
				near(t, "StdErr", got.StdErr, want.StdErr, 1e-13)
				near(t, "R2", got.R2, want.R2, 1e-13)
			}
		})
	}
	for _, want := range reference.Student {
		got := StudentQuantile(want.P, want.Degrees)
		near(t, fmt.Sprintf("StudentQuantile(%g, %g)", want.P, want.Degrees), got, want.T, 1e-10)
		near(t, fmt.Sprintf("StudentQuantile(%g, %g)", 1-want.P, want.Degrees), StudentQuantile(1-want.P, want.Degrees), -want.T, 1e-10)
	}
}
