package trend

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// BenchmarkStatistics runs at the sizes of a young epoch, a day and a full
// ring, on a noisy leak. "full" is Theil–Sen and Mann–Kendall together, whose
// target is 250 µs at 96 points.
func BenchmarkStatistics(b *testing.B) {
	for _, n := range []int{6, 24, 96} {
		random := rand.New(rand.NewPCG(17, 18))
		x, y := make([]float64, n), make([]float64, n)
		for i := range x {
			x[i] = float64(i) / 3
			y[i] = 40*gib + 20*mib*x[i] + 16*mib*random.NormFloat64()
		}
		var scratch Scratch
		var sink float64
		for _, bench := range []struct {
			name string
			run  func()
		}{
			{"LeastSquares", func() { sink = LeastSquares(x, y).Low }},
			{"TheilSen", func() { sink, _, _ = scratch.TheilSen(x, y) }},
			{"MannKendall", func() { sink = scratch.MannKendall(y, 4*mib).Z }},
			{"full", func() {
				sink, _, _ = scratch.TheilSen(x, y)
				sink = scratch.MannKendall(y, 4*mib).Z
			}},
			{"Level", func() { sink = Level(x, y).Ratio }},
			{"Early", func() { sink = Early(x, y, 4*mib, CallHours).Rise }},
			{"Steady", func() { sink = scratch.Steady(x, y, 4*mib, 5*mib, CallHours).Growth.Low }},
			{"RollingMinimum", func() { scratch.minima = RollingMinimum(scratch.minima[:0], y, 3) }},
			{"Spread", func() { sink = Spread(y) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					bench.run()
				}
			})
		}
		if math.IsInf(sink, 0) {
			b.Fatal("infinite")
		}
	}
}
