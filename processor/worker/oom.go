package worker

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// sameOOM is how far apart two accounts of one failed allocation may come.
const sameOOM = 10 * time.Second

// ooms counts failed allocations from all sides that report them: the observer in the worker, which has numbers and no text; the
// text of the exception, from the worker or its log; and the allocator's counter.
type ooms struct {
	times   []time.Time
	last    *event.Oom
	lastAt  time.Time
	joined  bool // last has both numbers and text
	pending int  // events that the counter has not shown yet
	total   *uint64
	grew    bool
}

// event takes one account in. It returns false for another account of the failure that came last.
func (o *ooms) event(at time.Time, e *event.Oom) bool {
	if o.last != nil && at.Sub(o.lastAt) < sameOOM && o.last.Kind == e.Kind && o.same(e) {
		merged := proto.CloneOf(o.last)
		if merged.Text == "" {
			proto.Merge(merged, e)
			o.joined = e.Text != ""
		}
		o.last = merged
		return false
	}
	o.note(at)
	o.last, o.lastAt, o.joined = e, at, false
	if e.Kind == "" || e.Kind == "cuda" { // the allocator counts no others
		o.pending++
	}
	return true
}

func (o *ooms) same(e *event.Oom) bool {
	if o.last.Text == "" && o.last.RequestedBytes == nil {
		return true // a step of the counter, of which this is the account
	}
	if (o.last.Text == "") != (e.Text == "") {
		return !o.joined && near(o.last.RequestedBytes, e.RequestedBytes)
	}
	number := func(a, b *uint64) bool { return a != nil && b != nil && *a == *b }
	return e.Text != "" && number(o.last.RequestedBytes, e.RequestedBytes) && number(o.last.AllocatedBytes, e.AllocatedBytes)
}

// near compares a size with the same one printed to two decimals; one that is not known contradicts nothing.
func near(a, b *uint64) bool {
	if a == nil || b == nil {
		return true
	}
	x, y := float64(*a), float64(*b)
	return max(x, y)-min(x, y) <= 0.01*max(x, y)
}

// counter takes the allocator's ooms_total. A step beyond the events seen is an OOM of unknown size.
func (o *ooms) counter(at time.Time, now *uint64) (stepped bool) {
	if now == nil {
		return false
	}
	before := o.total
	o.total = now
	if before == nil {
		o.pending = 0 // it has counted what was seen before it was read
		return false
	}
	if *now <= *before {
		return false
	}
	step := int(min(*now-*before, maxSymptoms)) - o.pending
	o.pending = max(0, -step)
	for range max(0, step) {
		o.note(at)
		o.last, o.lastAt, o.joined = &event.Oom{Kind: "cuda"}, at, false
	}
	return step > 0
}

func (o *ooms) note(at time.Time) {
	if len(o.times) == maxSymptoms {
		o.times = slices.Delete(o.times, 1, 2) // the first one ends the wait of the early call
	}
	o.times = append(o.times, at)
}

func (o *ooms) within(at time.Time, window time.Duration) (n int) {
	for _, t := range o.times {
		if at.Sub(t) < window {
			n++
		}
	}
	return n
}
