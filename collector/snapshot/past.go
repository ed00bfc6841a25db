package snapshot

import (
	"slices"
	"time"
)

const (
	maxPoints = 512 // of a timeline
	maxOOMs   = 32  // the newest of a card
)

// past is what the history of a card tells, worked backwards from the blocks that the snapshot found, so that values are absolute.
type past struct {
	points        []point // in order of time
	ooms          []oom   // in order of time
	first, last   time.Time
	before        uint64 // live bytes before the oldest entry
	beforePending uint64 // pending bytes then
	odd           int    // entries that contradict the blocks; what lies before the newest of them is not exact
	older         int    // live blocks that have a stack although their allocation is not in the history: it was overwritten there
	olderBytes    uint64 // of them
}

// point is a piece of the time: what was there at its end, and the extremes within.
type point struct {
	at                            time.Time
	live, reserved, pending       uint64
	highest, lowest, highReserved uint64 // live, live, reserved
}

// oom is one failed request and the allocator at that moment.
type oom struct {
	at                    time.Time
	stream                int64
	requested, deviceFree uint64
	room
	live, pending, reserved uint64
	undone                  int  // entries that are newer
	known                   bool // nothing newer contradicts the blocks
	frames                  []string
}

// moment is a time of the history; one that no calendar has is its nearest.
func moment(micros int64) time.Time {
	const end = 253402300799999999 // of the year 9999
	return time.UnixMicro(min(max(micros, 0), end)).UTC()
}

// rewind plays the history of a card backwards.
func (c *card) rewind(s *Snapshot, places *places) {
	if len(c.trace) == 0 {
		return
	}
	p := &c.past
	low, high := c.trace[0].Micros, c.trace[0].Micros
	for _, e := range c.trace {
		low, high = min(low, e.Micros), max(high, e.Micros)
	}
	p.first, p.last = moment(low), moment(high)
	a := arenaOf(s, c)
	bucket := -1
	width := float64(high)/maxPoints - float64(low)/maxPoints
	for i, e := range slices.Backward(c.trace) {
		at := 0
		if width > 0 {
			at = min(maxPoints-1, int((float64(e.Micros)-float64(low))/width))
		}
		if bucket < 0 || at < bucket { // a clock that was set back stays in its bucket
			bucket = at
			p.points = append(p.points, point{at: moment(e.Micros), live: a.live, reserved: a.reserved, pending: a.pending, highest: a.live, lowest: a.live, highReserved: a.reserved})
		}
		now := &p.points[len(p.points)-1]
		now.highest, now.lowest, now.highReserved = max(now.highest, a.live), min(now.lowest, a.live), max(now.highReserved, a.reserved)
		if free, ok := e.DeviceFree(); ok && len(p.ooms) < maxOOMs {
			p.ooms = append(p.ooms, oom{at: moment(e.Micros), stream: e.Stream, requested: e.Size, deviceFree: free, room: a.room(e.Stream),
				live: a.live, pending: a.pending, reserved: a.reserved, undone: len(c.trace) - 1 - i, known: a.odd == 0, frames: split(places.key(e.Stack))})
		}
		a.undo(e)
	}
	slices.Reverse(p.points)
	slices.Reverse(p.ooms)
	p.before, p.beforePending, p.odd = a.live, a.pending, a.odd
}
