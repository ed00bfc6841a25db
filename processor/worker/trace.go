package worker

import (
	"math"
	"time"

	"lowtide/event"
)

// maxDots bounds a trace, to about what a plot is wide; then two stretches become one.
const maxDots = 64

// trace is the life of all series so far, coarsely: the lowest value in each of equal stretches of time. It is for people's eyes.
type trace struct {
	Start  time.Time
	Length time.Duration
	Low    matrix[float32] // a row for each stretch
}

func (t *trace) observe(moment time.Time, values []float64) {
	if t.Start.IsZero() {
		t.Start, t.Length = moment, time.Minute
	}
	age := event.Ago(moment, t.Start)
	for age >= maxDots*t.Length {
		t.halve()
	}
	i := stretch(age, t.Length, t.Low.rows()-1)
	t.Low.widen(len(values))
	for t.Low.rows() <= i {
		t.Low.add()
	}
	low := t.Low.row(i)[:len(values)]
	for c, v := range values {
		if v := float32(v); v == v && !(low[c] <= v) {
			low[c] = v
		}
	}
}

// stretch is the number of the stretch of a length that an age lies in, which is nearly always the newest one: a division takes longer than
// all else of a look.
func stretch(age, length time.Duration, newest int) int {
	if since := age - time.Duration(newest)*length; since >= 0 && since < length {
		return newest
	}
	return int(age / length)
}

func (t *trace) halve() {
	rows := t.Low.rows()
	for i := 0; i < rows; i += 2 {
		copy(t.Low.row(i/2), t.Low.row(i))
		if i+1 < rows {
			lower(t.Low.row(i/2), t.Low.row(i+1))
		}
	}
	t.Low.cut((rows + 1) / 2)
	t.Length *= 2
}

// dots returns the trace of one column.
func (t *trace) dots(column int) (out []Dot) {
	for i := range t.Low.rows() {
		if v := at(t.Low.row(i), column); !math.IsNaN(v) {
			out = append(out, Dot{At: t.Start.Add(time.Duration(i) * t.Length), Value: v})
		}
	}
	return out
}
