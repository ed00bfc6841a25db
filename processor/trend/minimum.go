package trend

// RollingMinimum appends to dst, for each value of y, the lowest of it and the
// window−1 values before it, and returns dst. The first window−1 results look
// at what there is. A value that was not measured is passed over; where a
// window holds none that was, the result is NaN. A window below one counts as
// one. RollingMinimum(y[:0], y, w) works in place.
//
// A leak lifts the floor, a checkpoint that was not really quiet only adds a
// spike: the minimum keeps the first and drops the second. The candidates are
// kept in a monotone queue (Lemire, Nordic J. Computing 13, 2006), amortised
// O(1) a value and without allocation for windows up to 64.
func RollingMinimum(dst, y []float64, window int) []float64 {
	type candidate struct {
		index int
		value float64
	}
	window = max(1, min(window, len(y)))
	if window <= few {
		return fewMinimum(dst, y, window)
	}
	var fixed [64]candidate
	queue := fixed[:]
	if window > len(fixed) {
		queue = make([]candidate, window)
	}
	// The queue is a ring: values ascend from head, each is the minimum once
	// those before it have left the window.
	head, size := 0, 0
	place := func(i int) int {
		if i += head; i >= len(queue) {
			i -= len(queue)
		}
		return i
	}
	for i, value := range y {
		if size > 0 && queue[head].index <= i-window {
			head = place(1)
			size--
		}
		if finite(value) {
			for size > 0 && queue[place(size-1)].value >= value {
				size--
			}
			queue[place(size)] = candidate{i, value}
			size++
		}
		low := unknown()
		if size > 0 {
			low = queue[head].value
		}
		dst = append(dst, low)
	}
	return dst
}

// few is up to how many values of a window it is quicker to look at all of them.
const few = 4

// fewMinimum is RollingMinimum without a queue.
func fewMinimum(dst, y []float64, window int) []float64 {
	var newest [few]float64 // dst may be y
	for i, value := range y {
		newest[i%few] = value
		low := unknown()
		for j := i; j > i-window && j >= 0; j-- {
			if v := newest[j%few]; finite(v) && !(v >= low) {
				low = v
			}
		}
		dst = append(dst, low)
	}
	return dst
}

// fullMinima appends the rolling minima of three measured values, without the two that look at fewer, and the place of each.
func fullMinima(dst, places, y, x []float64) (minima, at []float64) {
	x = x[:len(y)]
	for i := minimumWindow - 1; i < len(y); i++ {
		low, at := y[i], x[i]
		if v := y[i-1]; v < low { // of equal ones the last
			low, at = v, x[i-1]
		}
		if v := y[i-2]; v < low {
			low, at = v, x[i-2]
		}
		dst, places = append(dst, low), append(places, at)
	}
	return dst, places
}
