package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/event"
)

// maxMarks bounds the marks between two ticks; the probe joins those in quick succession.
const maxMarks = 64

// marks are what a worker without metrics says about itself: that it has work, that all of it is done.
type marks struct {
	Waiting []mark // of ticks that are not closed yet
	Said    bool
	Busy    bool
}

type mark struct {
	At   time.Time
	Busy bool
}

func (m *marks) note(moment time.Time, e *event.Mark) {
	if e.Kind != "busy" && e.Kind != "quiet" {
		return
	}
	if len(m.Waiting) == maxMarks {
		m.Waiting = slices.Delete(m.Waiting, 0, 1)
	}
	m.Waiting = append(m.Waiting, mark{moment, e.Kind == "busy"})
}

// until applies the marks up to the tick's moment. One that came later says nothing about it, though it has arrived before the
// tick was closed. It returns how often the worker became busy.
func (m *marks) until(tick time.Time) (cycles float64) {
	for len(m.Waiting) > 0 && !m.Waiting[0].At.After(tick) {
		next := m.Waiting[0]
		m.Waiting = slices.Delete(m.Waiting, 0, 1)
		if next.Busy && !m.Busy {
			cycles++
		}
		m.Said, m.Busy = true, next.Busy
	}
	return cycles
}

// inferred is quiet by its looks: a GPU that does nothing and memory that does not move, where nobody says what runs.
type inferred struct {
	Allocated float64 // at the last tick; NaN before
	Busy      bool
}

func (i *inferred) observe(allocated, utilization float64) (doing activity, became bool) {
	before := i.Allocated
	i.Allocated = allocated
	if math.IsNaN(utilization) || math.IsNaN(allocated) || math.IsNaN(before) {
		return unclear, false
	}
	was := i.Busy
	i.Busy = utilization > 0 || allocated != before
	if i.Busy {
		return working, !was
	}
	return idle, false
}
