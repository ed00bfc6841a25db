package sim

import "lowtide/event"

// cardReading is the event of one card and tick, and reading those of one process and tick, each with all values in one piece of
// memory: optional fields are pointers, and a thousand days of workers would otherwise be made of small garbage.
type cardReading struct {
	event event.Event
	gpu   event.Gpu

	index    int64
	counts   [7]uint64
	numbers  [3]float64
	complete bool
	pending  bool
}

type reading struct {
	events    [4]event.Event
	process   event.GpuProcess
	allocator event.Allocator
	engine    event.Engine
	host      event.Process

	counts  [42]uint64
	numbers [13]float64
	n, m, b int
	truths  [2]bool
}

// whole leaves a value below zero, which rounding can make, at zero.
func whole(v float64) uint64 { return uint64(max(0, v)) }

func newReading(h *host, who *event.Worker) *reading {
	s := new(reading)
	for i := range s.events {
		e := &s.events[i]
		e.Time, e.Host, e.Worker = h.stamp, h.identity, who
	}
	return s
}

func (s *reading) count(v float64) *uint64 {
	p := &s.counts[s.n]
	s.n++
	*p = whole(v)
	return p
}

func (s *reading) number(v float64) *float64 {
	p := &s.numbers[s.m]
	s.m++
	*p = v
	return p
}

func (s *reading) truth(v bool) *bool {
	p := &s.truths[s.b]
	s.b++
	*p = v
	return p
}
