package worker

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

const (
	sameOOM    = 10 * time.Second // how far apart two accounts of one failed allocation may come
	firstStart = 10 * time.Minute // of a process without an engine: what fails here fails while it starts

	// segment is what PyTorch asks the driver for at least when a large request, one of 1 MiB or more, needs room and is below 10 MiB
	// (kLargeBuffer, by default large_segment_size_mb; above that the request itself, rounded up to 2 MiB). That much free may still be
	// too little.
	segment = 20 << 20

	// filled is the part of the limit that live memory has at least where its growth explains an OOM. Below it what was missing lies in
	// what is loose, in a request that is as large, or elsewhere on the card.
	filled = 2.0 / 3
)

// ooms counts failed allocations from all sides that report them: the observer in the worker, which has numbers and no text; the
// text of the exception, from the worker or its log; and the allocator's counter.
type ooms struct {
	pid     int64 // of the worker; 0 while it is not known
	times   []time.Time
	last    *event.Oom
	lastAt  time.Time
	joined  bool // last has both numbers and text
	told    bool // last was put into the sample
	pending int  // events that the counter has not shown yet
	total   *uint64
	grew    bool
}

// ofDevice says that the device or its allocator ran out, not the host. An OOM that does not say is the allocator's.
func ofDevice(e *event.Oom) bool { return e.Kind != "kernel" && e.Kind != "cgroup" }

// foreign says that the kernel ended somebody else: that is news of the host, no failure of this worker.
func (o *ooms) foreign(e *event.Oom) bool {
	return !ofDevice(e) && e.VictimPid != nil && o.pid != 0 && *e.VictimPid != o.pid
}

// event takes one account in. It returns false for another account of the failure that came last, and for one of another process.
func (o *ooms) event(at time.Time, e *event.Oom) bool {
	if o.foreign(e) {
		return false
	}
	o.told = false
	if o.last != nil && at.Sub(o.lastAt).Abs() < sameOOM && o.last.Kind == e.Kind && o.same(e) {
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

// postMortem completes the last account by a snapshot that was written at that failure: an observer, or a step of the counter, tells less
// than the allocator knows. What was told stands.
func (o *ooms) postMortem(at time.Time, s *event.Snapshot) {
	if o.last == nil || !ofDevice(o.last) || o.last.GpuUuid != "" && s.GpuUuid != "" && o.last.GpuUuid != s.GpuUuid {
		return
	}
	if t := s.GetLastOom().GetTime(); t != nil {
		at = t.AsTime()
	} else if s.Reason != "oom" {
		return // of another moment
	}
	if at.Sub(o.lastAt).Abs() >= sameOOM {
		return
	}
	told := &event.Oom{AllocatedBytes: s.LiveBytes, PrivatePoolFreeBytes: s.PrivateFreeBytes}
	if s.FreeBytes != nil {
		told.ReservedUnallocatedBytes = event.Ptr(*s.FreeBytes - min(*s.FreeBytes, s.GetPrivateFreeBytes()))
	}
	if f := s.LastOom; f != nil {
		told.RequestedBytes, told.FreeBytes = f.RequestedBytes, f.FreeBytes
	}
	if s.Reason != "oom" { // taken later: only the failure itself is of that moment
		told.AllocatedBytes, told.PrivatePoolFreeBytes, told.ReservedUnallocatedBytes = nil, nil, nil
	}
	if !near(o.last.RequestedBytes, told.RequestedBytes) {
		return // another failure of these seconds
	}
	proto.Merge(told, o.last)
	o.last, o.told = told, false
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
		o.last, o.lastAt, o.joined, o.told = &event.Oom{Kind: "cuda"}, at, false, false
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

// recallGrowth remembers, at an OOM, whether memory had been growing at quiet points until then. One step between two levels is no growth:
// without the largest of them it must still have risen.
func (w *Worker) recallGrowth(moment time.Time) {
	if w.ooms.grew = within(moment, w.load.Room.RoseAt); w.ooms.grew {
		return
	}
	points := w.points(nil)
	for len(points) > 0 && !points[len(points)-1].at().Before(moment) {
		points = points[:len(points)-1]
	}
	hours := hoursOf(nil, points)
	for c := range w.calls {
		series, _ := seriesOf(c)
		if series != live && series != outside && series != anon {
			continue
		}
		if w.calls[c].called() {
			w.ooms.grew = true
			return
		}
		if series == anon {
			continue
		}
		var s sight
		s.take(series, c, points, hours, make([]float64, 0, len(points)))
		w.ooms.grew = w.ooms.grew || rising(s.Level, s.Sigma)
	}
}

// rising says that levels rose by more than one step, and did not stop half-way.
func rising(level []float64, sigma float64) bool {
	n := len(level)
	if n < 3 {
		return false
	}
	rise, step := level[n-1]-level[0], 0.0
	for i := 1; i < n; i++ {
		step = max(step, level[i]-level[i-1])
	}
	return rise > 8*sigma && rise-step > 4*sigma && level[n-1] >= level[n/2]+4*sigma
}

// beforeReady says that the last OOM came before the engine could serve: before it said ready, else before its first work; of a process
// without an engine, in its first ten minutes.
func (w *Worker) beforeReady() bool {
	at := w.ooms.lastAt
	if w.said {
		return at.Before(w.ready)
	}
	served := w.load.Progress.Work
	if !w.ready.IsZero() && (served.IsZero() || w.ready.Before(served)) {
		served = w.ready
	}
	if !served.IsZero() {
		return at.Before(served)
	}
	start := w.First
	if s := w.Who.GetStartTime(); s != nil {
		start = s.AsTime()
	}
	return w.now.engine != nil || at.Sub(start) < firstStart
}

// fitsWithoutOthers says whether the memory of other processes is why an allocation failed. Not where the allocator's own cap ended it.
// Of what was missing theirs must be the larger part: they have taken it since this process warmed up, and more than it has itself;
// neighbours who always held what they hold are how the card was shared out. Where that was never seen, because the process failed while it
// started or its card is not read, they must hold more than it does. Unknown where the OOM does not say what it asked for and what was free.
func (w *Worker) fitsWithoutOthers(o *event.Oom) (fits, known bool) {
	if o.Kind != "" && o.Kind != "cuda" || o.RequestedBytes == nil || o.FreeBytes == nil {
		return false, false
	}
	requested, free, own := number(o.RequestedBytes), number(o.FreeBytes), number(o.AllocatedBytes)+zeroIfUnknown(number(o.ReservedUnallocatedBytes))
	if own+requested > number(o.LimitBytes) || capped(o) {
		return false, true
	}
	others, grown, more := number(o.OtherProcessesBytes), nan, nan
	for i := range w.now.cards {
		c := &w.now.cards[i]
		if o.GpuUuid != "" && c.uuid != o.GpuUuid || o.GpuUuid == "" && len(w.now.cards) > 1 {
			continue
		}
		used, all := usedOf(c)
		if own != own {
			own = used
		}
		// The text names processes that live and are seen; the device knows what is held by nobody, too.
		if held := all - used; held > others || others != others {
			others = held
		}
		if i < len(w.load.Room.Cards) && w.load.Room.Cards[i].Based && w.Ready() {
			more, grown = others-w.load.Room.Cards[i].Others, used-w.load.Room.Cards[i].Own
		}
	}
	if others != others || own != own {
		return false, false
	}
	if requested > free+others {
		return false, true
	}
	if named := number(o.OtherProcessesBytes); others-named > own {
		return true, true // what no living process holds was never shared out
	}
	if more == more && grown == grown {
		return more > requested-free && more > grown, true
	}
	return others > own, true
}

// fills says that live memory was so much of what the allocator may hold that its growth can be why an allocation failed; also where
// that is not known. The smaller of the cap and what there was at all is the limit.
func fills(o *event.Oom) bool {
	if o == nil || o.AllocatedBytes == nil {
		return true
	}
	of := smaller(number(o.LimitBytes), number(o.AllocatedBytes)+zeroIfUnknown(number(o.ReservedUnallocatedBytes))+number(o.FreeBytes))
	return !(number(o.AllocatedBytes) < filled*of)
}

// capped says that a cap of the process's own was hit, of an OOM that does not tell what was loose: the card had the request free in one
// piece, and would have given more than the cap allows. The card's own size, which an observer gives as the limit, is none.
func capped(o *event.Oom) bool {
	return o.ReservedUnallocatedBytes == nil && number(o.RequestedBytes) <= number(o.FreeBytes)-segment &&
		number(o.LimitBytes) < number(o.AllocatedBytes)+number(o.FreeBytes)
}

// withLoose adds how much was loose at least, where an OOM does not tell and what was live stayed under the cap that it hit: all else that
// the cap counts.
func withLoose(o *event.Oom) (completed *event.Oom, deduced bool) {
	if !capped(o) || *o.LimitBytes < *o.AllocatedBytes || *o.LimitBytes-*o.AllocatedBytes < *o.RequestedBytes {
		return o, false
	}
	completed = proto.CloneOf(o)
	completed.ReservedUnallocatedBytes = event.Ptr(*o.LimitBytes - *o.AllocatedBytes - *o.RequestedBytes + 1)
	return completed, true
}

// roomInTotal says whether what failed was there, though not in one piece: no more was asked for than was free and loose together; with
// what was live, and what private pools keep for themselves, it stayed under the limit; and either no segment of the size could be had
// from the device, or the limit forbade another one. What the OOM does not say is no room (free), no cap (limit), nothing kept (pools).
// Unknown without what was asked for, what was live and what was loose.
func roomInTotal(o *event.Oom) (room, known bool) {
	requested, allocated, loose := number(o.RequestedBytes), number(o.AllocatedBytes), number(o.ReservedUnallocatedBytes)
	if requested != requested || allocated != allocated || loose != loose {
		return false, false
	}
	free, limit := number(o.FreeBytes), number(o.LimitBytes) // a comparison with NaN is false
	inTotal := requested <= loose+zeroIfUnknown(free)
	overLimit := allocated+requested+zeroIfUnknown(number(o.PrivatePoolFreeBytes)) > limit
	inOnePiece := requested <= free-segment && !(allocated+loose+requested > limit)
	return inTotal && !overLimit && !inOnePiece, true
}

// partOf is what was asked for, of the limit; without one, of all that PyTorch held and the device had free. NaN is unknown.
func partOf(o *event.Oom) float64 {
	of := number(o.LimitBytes)
	if of != of {
		of = number(o.AllocatedBytes) + number(o.ReservedUnallocatedBytes) + zeroIfUnknown(number(o.FreeBytes))
	}
	return number(o.RequestedBytes) / atLeastOne(of)
}

// sizeOf is what was asked for, of what was live: by the OOM's own account, else as it was read. NaN is unknown.
func sizeOf(o *event.Oom, live float64) float64 {
	if o.AllocatedBytes != nil {
		live = number(o.AllocatedBytes)
	}
	return number(o.RequestedBytes) / atLeastOne(live)
}

// atLeastOne counts nothing at all as one byte, so that a ratio is finite; NaN stays.
func atLeastOne(bytes float64) float64 { return max(bytes, 1) }
