package trend

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestQuantile(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"none", nil, 0.5, nan},
		{"one", []float64{7}, 0.99, 7},
		{"odd", []float64{9, 1, 5}, 0.5, 5},
		{"even", []float64{4, 1, 3, 2}, 0.5, 2.5},
		{"lowest", []float64{4, 1, 3, 2}, 0, 1},
		{"highest", []float64{4, 1, 3, 2}, 1, 4},
		// Hyndman & Fan type 7: position 0.9·9 = 8.1, so 9 + 0.1.
		{"type 7", []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9, 9.1},
		{"first quartile", []float64{7, 15, 36, 39, 40, 41}, 0.25, 20.25},
		{"not measured", []float64{nan, 1, math.Inf(1), 3}, 0.5, 2},
		{"all not measured", []float64{nan, math.Inf(1)}, 0.5, nan},
		{"q below", []float64{1}, -0.1, nan},
		{"q above", []float64{1}, 1.1, nan},
		{"q unknown", []float64{1}, nan, nan},
		{"no overflow", []float64{-math.MaxFloat64, math.MaxFloat64}, 0.5, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := slices.Clone(test.values)
			near(t, "Quantile", Quantile(test.values, test.q), test.want, 1e-15)
			for i := range before {
				if math.Float64bits(before[i]) != math.Float64bits(test.values[i]) {
					t.Fatal("the values were reordered")
				}
			}
		})
	}
}

// Wikipedia's example of the median absolute deviation: 1, 1, 2, 2, 4, 6, 9
// has median 2 and deviations 1, 1, 0, 0, 2, 4, 7, whose median is 1.
func TestMAD(t *testing.T) {
	values := []float64{1, 1, 2, 2, 4, 6, 9}
	near(t, "Median", Median(values), 2, 0)
	near(t, "MAD", MAD(values), 1, 0)
	near(t, "Spread", Spread(values), 1.4826, 5e-6)
	near(t, "Spread of none", Spread(nil), math.NaN(), 0)
	near(t, "Spread of one", Spread([]float64{3}), 0, 0)
}

// The scale is that of a normal distribution.
func TestSpreadNormal(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	values := make([]float64, 20001)
	for i := range values {
		values[i] = 100 + 7*random.NormFloat64()
	}
	near(t, "Spread", Spread(values), 7, 0.02)
}

// Every rank of inputs that are hard on a partition, against a sort.
func TestSelectRank(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	shapes := map[string]func(i, n int) float64{
		"random":     func(int, int) float64 { return random.Float64() },
		"few values": func(int, int) float64 { return float64(random.IntN(3)) },
		"constant":   func(int, int) float64 { return 4 },
		"rising":     func(i, _ int) float64 { return float64(i) },
		"falling":    func(i, _ int) float64 { return float64(-i) },
		"organ pipe": func(i, n int) float64 { return float64(min(i, n-i)) },
		"saw":        func(i, _ int) float64 { return float64(i % 7) },
	}
	for name, shape := range shapes {
		for _, n := range []int{1, 2, 3, 4, 5, 17, 64, 101} {
			values := make([]float64, n)
			for i := range values {
				values[i] = shape(i, n)
			}
			sorted := slices.Sorted(slices.Values(values))
			for rank := range n {
				work := slices.Clone(values)
				if got := selectRank(work, rank); got != sorted[rank] {
					t.Fatalf("%s: rank %d of %d is %g, want %g", name, rank, n, got, sorted[rank])
				}
				if rank > 0 && slices.Max(work[:rank]) > work[rank] || slices.Min(work[rank:]) < work[rank] {
					t.Fatalf("%s: not partitioned about rank %d of %d", name, rank, n)
				}
			}
		}
	}
}
