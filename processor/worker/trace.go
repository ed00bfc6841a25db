package worker

import (
	"math"
	"time"
)

// maxDots bounds a trace; then two stretches become one.
const maxDots = 96

// trace is the life of all series so far, coarsely: the lowest value in each of equal stretches of time. It is for people's eyes.
type trace struct {
	Start  time.Time
	Length time.Duration
	Low    [][]float32 // by stretch, then by column
}

func (t *trace) observe(moment time.Time, values []float64) {
	if t.Start.IsZero() {
		t.Start, t.Length = moment, time.Minute
	}
	for moment.Sub(t.Start) >= maxDots*t.Length {
		t.halve()
	}
	i := int(moment.Sub(t.Start) / t.Length)
	for len(t.Low) <= i {
		t.Low = append(t.Low, nil)
	}
	low := t.Low[i]
	for len(low) < len(values) {
		low = append(low, float32(math.NaN()))
	}
	for c, v := range values {
		if v := float32(v); v == v && !(low[c] <= v) {
			low[c] = v
		}
	}
	t.Low[i] = low
}

func (t *trace) halve() {
	for i := 0; i < len(t.Low); i += 2 {
		low := t.Low[i]
		if i+1 < len(t.Low) {
			for c, v := range t.Low[i+1] {
				if c == len(low) {
					low = append(low, v)
				} else if v == v && !(low[c] <= v) {
					low[c] = v
				}
			}
		}
		t.Low[i/2] = low
		if i > 0 {
			t.Low[i] = nil
		}
	}
	t.Low = t.Low[:(len(t.Low)+1)/2]
	t.Length *= 2
}

// dots returns the trace of one column.
func (t *trace) dots(column int) (out []Dot) {
	for i, low := range t.Low {
		if v := at(low, column); !math.IsNaN(v) {
			out = append(out, Dot{At: t.Start.Add(time.Duration(i) * t.Length), Value: v})
		}
	}
	return out
}
