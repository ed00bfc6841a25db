package worker

import (
	"slices"
	"time"

	"lowtide/event"
)

// maxMarks bounds the marks between two ticks; the probe joins those in quick succession.
const maxMarks = 64

// marks are what a worker without metrics says about itself: that it has work, that all of it is done.
type marks struct {
	waiting []mark // of ticks that are not closed yet
	said    bool
	busy    bool
	cycles  uint64 // times that it became busy: the only progress that such a worker shows
}

type mark struct {
	at   time.Time
	busy bool
}

func (m *marks) note(at time.Time, e *event.Mark) {
	if e.Kind != "busy" && e.Kind != "quiet" {
		return
	}
	if len(m.waiting) == maxMarks {
		m.waiting = slices.Delete(m.waiting, 0, 1)
	}
	m.waiting = append(m.waiting, mark{at, e.Kind == "busy"})
}

// until applies the marks up to the tick's moment. One that came later says nothing about it, though it has arrived before the
// tick was closed.
func (m *marks) until(tick time.Time) {
	for len(m.waiting) > 0 && !m.waiting[0].at.After(tick) {
		next := m.waiting[0]
		m.waiting = m.waiting[1:]
		if next.busy && !m.busy {
			m.cycles++
		}
		m.said, m.busy = true, next.busy
	}
}

// reading stands in for an engine's numbers where no engine gives any: something runs, or nothing does. It is nil when nothing
// was marked, or an engine knows better, or this tick holds no memory to compare.
func (m *marks) reading(tick time.Time, r *reading) *reading {
	m.until(tick)
	if !m.said || r.engine != nil || !r.freshAllocator && !r.freshProcess {
		return nil
	}
	marked := *r
	running, cycles := uint64(0), m.cycles
	if m.busy {
		running = 1
	}
	marked.engine = &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: &cycles}
	return &marked
}
