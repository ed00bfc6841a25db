// Package trend owns the statistics of slow growth: pure functions on slices
// of float64 that say how fast a series rises, how sure that is, whether it
// levels off and when it began. It refuses to know what is measured: it has
// no units but hours on the x axis, no thresholds in bytes, no clock, no state
// and no I/O.
//
// Three conventions hold in every function.
//
// Absent input: a point with a coordinate that is NaN or infinite was not
// measured and is left out; of two slices of different length only the common
// prefix counts. No input makes a function panic, an empty slice neither.
//
// Absent output: what cannot be known is NaN, never zero. All comparisons with
// NaN are false, so that an unknown number never leads to a call.
//
// Order: the functions that speak of time (Level, Early, Steady, Measure)
// want x in ascending order and call nothing when it is not.
package trend

import "math"

// unknown is the number that stands for "cannot be known".
func unknown() float64 { return math.NaN() }

// finite reports whether v is a measured number.
func finite(v float64) bool { return v-v == 0 }

// known returns v, or NaN where an overflow made it infinite.
func known(v float64) float64 {
	if finite(v) {
		return v
	}
	return unknown()
}

// common cuts x and y to their common prefix.
func common(x, y []float64) ([]float64, []float64) {
	n := min(len(x), len(y))
	return x[:n], y[:n]
}

// measured reports whether every value of v is a measured number.
func measured(v []float64) bool {
	for _, value := range v {
		if !finite(value) {
			return false
		}
	}
	return true
}

// ascending reports whether no value of x is below the one before it.
func ascending(x []float64) bool {
	for i := 1; i < len(x); i++ {
		if x[i] < x[i-1] {
			return false
		}
	}
	return true
}

// Scratch is memory that the quadratic statistics use again from call to call.
// The zero value is ready; one Scratch serves one goroutine at a time. At 96
// points it holds 40 KiB. The functions of the same names without a Scratch
// allocate one per call.
type Scratch struct {
	slopes []float64 // one per pair of points
	rows   []int32   // row sums of the matrix of signs
	x, y   []float64 // the measured points, where some were not
	minima []float64
	places []float64 // of the minima
	ends   []float64 // of their windows, where some were left out
	sorted []float64
}

// points returns the measured points of x and y: the slices themselves where
// all are, else copies in the scratch memory.
func (s *Scratch) points(x, y []float64) ([]float64, []float64) {
	x, y = common(x, y)
	if measured(x) && measured(y) {
		return x, y
	}
	s.x, s.y = s.x[:0], s.y[:0]
	for i := range x {
		if finite(x[i]) && finite(y[i]) {
			s.x = append(s.x, x[i])
			s.y = append(s.y, y[i])
		}
	}
	return s.x, s.y
}
