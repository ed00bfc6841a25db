package trend

import (
	"math"
	"slices"
)

// maxPoints bounds the memory of the pairwise slopes: 2048 points have 2.1
// million of them, 16 MiB.
const maxPoints = 2048

// intervalPoints is the fewest points whose pairs hold a 95 % interval: of
// four even the outermost slopes span less.
const intervalPoints = 5

// normal975 is Φ⁻¹(0.975), the z of a 95 % interval.
const normal975 = 1.959963984540054

// TheilSen returns the median of the slopes of all pairs of points, in y per
// x, and its 95 % interval; see Scratch.TheilSen.
func TheilSen(x, y []float64) (slope, low, high float64) {
	var scratch Scratch
	return scratch.TheilSen(x, y)
}

// TheilSen returns the median of the slopes of all pairs of points, in y per x
// (Theil 1950; Sen, JASA 63, 1968), which 29 % of outliers cannot carry away,
// and its 95 % interval. Pairs of equal x have no slope and are skipped. The
// order of the points does not matter.
//
// The interval takes the slopes at the ranks (N ± z·√Var(S))/2 of all N, with
// Var(S) of Mann and Kendall corrected for ties (Gilbert, Statistical Methods
// for Environmental Pollution Monitoring, 1987, 16.4), ranks rounded as
// scipy.stats.theilslopes does. Unlike scipy it does not clamp a rank that
// lies outside, because the widest interval there is would then pass for a
// 95 % one: the bounds are NaN, as they are below five points. Serial
// correlation is not in it; test with MannKendall beside it.
//
// All three are NaN for fewer than two different x, and for more than 2048
// points, whose pairs would need more than 16 MiB.
func (s *Scratch) TheilSen(x, y []float64) (slope, low, high float64) {
	return s.theilSen(x, y, normal975)
}

func (s *Scratch) theilSen(x, y []float64, z float64) (slope, low, high float64) {
	slope, low, high = unknown(), unknown(), unknown()
	x, y = s.points(x, y)
	if len(x) > maxPoints {
		return
	}
	pairs := len(x) * (len(x) - 1) / 2
	slopes := slices.Grow(s.slopes[:0], pairs)[:pairs]
	n := 0
	for i := 1; i < len(x); i++ {
		xi, yi := x[i], y[i]
		before := y[:i]
		for j, xj := range x[:i] {
			v := (yi - before[j]) / (xi - xj) // of equal x it is not finite
			slopes[n] = v
			if finite(v) {
				n++
			}
		}
	}
	slopes = slopes[:n]
	s.slopes = slopes
	if n == 0 {
		return
	}
	slope = quantile(slopes, 0.5)

	if len(x) < intervalPoints {
		return
	}
	points := float64(len(x))
	variance := (points*(points-1)*(2*points+5) - s.ties(x) - s.ties(y)) / 18
	if !(variance >= 0) {
		return
	}
	width := z * math.Sqrt(variance)
	below := int(math.RoundToEven((float64(n)-width)/2)) - 1
	above := int(math.RoundToEven((float64(n) + width) / 2))
	if below < 0 || above >= n {
		return
	}
	// The median left the slopes partitioned about the middle.
	middle := (n - 1) / 2
	low = selectRank(slopes[:middle+1], below)
	high = selectRank(slopes[middle:], above-middle)
	return
}

// distinct reports whether values ascend throughout, as times do.
func distinct(values []float64) bool {
	for i := 1; i < len(values); i++ {
		if !(values[i] > values[i-1]) {
			return false
		}
	}
	return true
}

// ties returns Σ k(k−1)(2k+5) over the groups of k equal values.
func (s *Scratch) ties(values []float64) float64 {
	if distinct(values) {
		return 0
	}
	s.sorted = append(s.sorted[:0], values...)
	slices.Sort(s.sorted)
	var sum float64
	for from := 0; from < len(values); {
		to := from + 1
		for to < len(values) && s.sorted[to] == s.sorted[from] {
			to++
		}
		same := float64(to - from)
		sum += same * (same - 1) * (2*same + 5)
		from = to
	}
	return sum
}
