package trend

import (
	"math"
	"math/bits"
	"slices"
)

// normalMAD turns a median absolute deviation into the standard deviation of
// a normal distribution: 1 / Φ⁻¹(3/4) (Rousseeuw & Croux, JASA 88, 1993).
const normalMAD = 1.482602218505602

// Quantile returns the q-quantile, 0..1, of the measured values by linear
// interpolation between order statistics (Hyndman & Fan's type 7, the default
// of R and numpy). It is NaN for no values and for q outside 0..1. The values
// keep their order.
func Quantile(values []float64, q float64) float64 {
	if len(values) > 32 {
		var fixed [128]float64
		return quantile(appendMeasured(fixed[:0], values), q)
	}
	var fixed [32]float64
	return quantile(appendMeasured(fixed[:0], values), q)
}

// Median returns the middle of the measured values, the mean of the two middle
// ones for an even number, NaN for none.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// MedianOf is Median of measured values, which it reorders.
func MedianOf(values []float64) float64 { return quantile(values, 0.5) }

// MAD returns the median absolute deviation from the median, not scaled; NaN
// for no measured values.
func MAD(values []float64) float64 {
	var fixed [128]float64
	work := appendMeasured(fixed[:0], values)
	middle := quantile(work, 0.5)
	for i, value := range work {
		work[i] = math.Abs(value - middle)
	}
	return known(quantile(work, 0.5))
}

// Spread returns a robust standard deviation, 1.4826 · MAD, in the unit of the
// values; NaN for no measured values. Half of the values may be outliers.
func Spread(values []float64) float64 { return known(normalMAD * MAD(values)) }

func appendMeasured(dst, values []float64) []float64 {
	for _, value := range values {
		if finite(value) {
			dst = append(dst, value)
		}
	}
	return dst
}

// quantile is Quantile on finite values that it may reorder.
func quantile(values []float64, q float64) float64 {
	n := len(values)
	if n == 0 || !(q >= 0 && q <= 1) {
		return unknown()
	}
	position := q * float64(n-1)
	rank := int(position)
	low := selectRank(values, rank)
	weight := position - float64(rank)
	if weight == 0 || rank+1 >= n {
		return low
	}
	// After the selection all that is above the rank lies behind it.
	high := slices.Min(values[rank+1:])
	if low == high {
		return low
	}
	// Two products instead of low + weight·(high−low), which may overflow.
	return low*(1-weight) + high*weight
}

// selectRank returns the value that would stand at the rank if values, all
// finite, were sorted, and reorders them so that nothing before the rank is
// above it and nothing behind is below it. Many values are parted without
// branches, which noise would make the processor guess wrong, about a pivot
// that a sample puts near the rank (Floyd & Rivest, CACM 18, 1975); a few by
// find. When the parts keep failing to halve, it sorts what is left, so that
// no input takes quadratic time.
func selectRank(values []float64, rank int) float64 {
	for budget := 2 * bits.Len(uint(len(values))); len(values) > many; budget-- {
		if budget == 0 {
			slices.Sort(values)
			return values[rank]
		}
		pivot := beyond(values, rank)
		below := part(values, pivot)
		if rank < below {
			values = values[:below]
			continue
		}
		values, rank = values[below:], rank-below
		if below > len(values)/8 {
			continue
		}
		same := partEqual(values, pivot)
		if rank < same {
			return pivot
		}
		values, rank = values[same:], rank-same
	}
	if len(values) <= short {
		slices.Sort(values) // by insertion
		return values[rank]
	}
	return find(values, rank)
}

// short are as many values as are put in order sooner than parted.
const short = 12

// many is from how many values on a sample of them is worth its cost.
const many = 96

// beyond returns a value that probably is a little beyond the rank, on the side
// of more values, so that few are left.
func beyond(values []float64, rank int) float64 {
	var fixed [31]float64
	size := 11 // sorting more than that costs as much as it saves
	if len(values) > 1024 {
		size = len(fixed)
	}
	sample := fixed[:size]
	for i := range sample {
		sample[i] = values[i*(len(values)-1)/(size-1)]
	}
	slices.Sort(sample)
	place := rank * size / len(values)
	aside := size / 11 // a sample's rank is that unsure
	if 2*rank < len(values) {
		place += aside
	} else {
		place -= aside - 1
	}
	return sample[max(1, min(place, size-2))]
}

// part moves the values below a pivot to the front and returns their number.
func part(values []float64, pivot float64) int {
	below := 0
	for i, value := range values {
		values[i], values[below] = values[below], value
		below += int(one(value < pivot))
	}
	return below
}

// partEqual is part for values that are the pivot, where none is below it.
func partEqual(values []float64, pivot float64) int {
	same := 0
	for i, value := range values {
		values[i], values[same] = values[same], value
		same += int(one(value <= pivot))
	}
	return same
}

// find is Hoare's FIND (CACM 4, 1961) with the median of three as pivot.
func find(values []float64, rank int) float64 {
	low, high := 0, len(values)-1
	for budget := 2 * bits.Len(uint(len(values))); low < high; budget-- {
		if budget == 0 {
			slices.Sort(values[low : high+1])
			break
		}
		middle := low + (high-low)/2
		if values[middle] < values[low] {
			values[middle], values[low] = values[low], values[middle]
		}
		if values[high] < values[low] {
			values[high], values[low] = values[low], values[high]
		}
		if values[high] < values[middle] {
			values[high], values[middle] = values[middle], values[high]
		}
		pivot := values[middle]
		i, j := low, high
		for i <= j {
			for values[i] < pivot {
				i++
			}
			for pivot < values[j] {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i++
				j--
			}
		}
		switch {
		case rank <= j:
			high = j
		case rank >= i:
			low = i
		default:
			return values[rank]
		}
	}
	return values[rank]
}
