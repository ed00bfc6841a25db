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
	dst, _ = rollingMinimum(dst, nil, y, nil, window)
	return dst
}

// few is up to how many values of a window it is quicker to look at all of them.
const few = 4

// fewMinimum is rollingMinimum without a queue.
func fewMinimum(dst, places, y, x []float64, window int) (minima, at []float64) {
	var newest [few]float64 // dst may be y
	for i, value := range y {
		newest[i%few] = value
		low, at := unknown(), i
		for j := i; j > i-window && j >= 0; j-- { // of equal ones the last
			if v := newest[j%few]; finite(v) && !(v >= low) {
				low, at = v, j
			}
		}
		dst = append(dst, low)
		if x != nil {
			places = append(places, x[at])
		}
	}
	return dst, places
}

// rollingMinimum also appends, where x is given, the place at which each
// minimum was measured.
func rollingMinimum(dst, places, y, x []float64, window int) (minima, at []float64) {
	type candidate struct {
		index int
		value float64
	}
	window = max(1, min(window, len(y)))
	if window <= few {
		return fewMinimum(dst, places, y, x, window)
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
		low, at := unknown(), i
		if size > 0 {
			low, at = queue[head].value, queue[head].index
		}
		dst = append(dst, low)
		if x != nil {
			places = append(places, x[at])
		}
	}
	return dst, places
}
