package worker

import (
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

// spareReserve is the part of the limit that stays free when the KV pool is given more: peaks of activations come out of it.
const spareReserve = 0.1

// roomCard is what is kept of one of the worker's GPUs, in the order of reading.cards.
type roomCard struct {
	Peak, Retries counter
	Own, Others   float64 // memory of the process at the end of warm-up, and the least that others held on the device until then
	Based         bool
	Track         track
}

// room is what must be remembered to say how much memory is left.
type room struct {
	RoseAt            time.Time // when memory of a card that cannot be given back was last seen to rise in a line
	Cards             []roomCard
	Host              track
	Retries           hourly
	RetriesKnown      bool
	Prompt, Generated uint64  // tokens since the allocator was last read
	Prefill, Decode   float64 // largest rise of the peak in a tick
	Filled, Stepped   bool    // such ticks were seen
	Caps              caps
	Shown             [seriesCount]bool // series whose forecast is in the sample
	Imminent          bool              // so is one of imminent
}

// observe takes the readings of a tick.
func (r *room) observe(w *Worker, at time.Time) {
	if w.now.freshEngine {
		r.Prompt, r.Generated = r.Prompt+w.load.NewPrompt, r.Generated+w.load.NewGenerated
	}
	if len(r.Cards) < len(w.now.cards) {
		r.Cards = append(r.Cards, make([]roomCard, len(w.now.cards)-len(r.Cards))...)
	}
	for i := range w.now.cards {
		c, k := &w.now.cards[i], &r.Cards[i]
		if !k.Based || !reached(at, w.load.Warm) {
			if used, all := usedOf(c); all == all {
				if others := all - used; !k.Based || others < k.Others {
					k.Others = others
				}
				k.Based, k.Own = true, used
			}
		}
		if a := c.allocator; a != nil && w.now.freshAllocator {
			r.allocated(at, k, a)
			if v := given(c); v == v && w.now.freshGPU {
				k.Track.add(at, v, w.load.Warm)
			}
		}
	}
	if w.now.freshAllocator {
		r.Filled, r.Stepped = r.Filled || r.Prompt > 0, r.Stepped || r.Prompt == 0 && r.Generated > 0
		r.Prompt, r.Generated = 0, 0
	}
	if p := w.now.process; p != nil && w.now.freshProcess {
		if v := hostHeld(p); v == v {
			r.Host.add(at, v, w.load.Warm)
		}
	}
}

// allocated takes one allocator's peak. The probe never resets peaks, so a peak rises only where a tick needed more than any before;
// the largest rise in one tick that read prompts, and in one that only wrote tokens, is what one more such tick may want. It is a lower
// bound of what prefill and decode need: what was needed before the first reading is in no rise.
func (r *room) allocated(at time.Time, k *roomCard, a *event.Allocator) {
	rise := float64(k.Peak.step(a.AllocatedPeakBytes))
	switch {
	case !k.Peak.Known:
	case r.Prompt > 0:
		r.Prefill = max(r.Prefill, rise)
	case r.Generated > 0:
		r.Decode = max(r.Decode, rise)
	}
	if a.AllocRetriesTotal != nil {
		r.RetriesKnown = true
		if n := k.Retries.step(a.AllocRetriesTotal); n > 0 {
			r.Retries.add(at, n)
		}
	}
}

// usedOf is the memory of the process on a card and that of everybody; NaN, both, when one is not known.
func usedOf(c *card) (own, all float64) {
	if c.process == nil || c.device == nil || c.process.UsedBytes == nil || c.device.UsedBytes == nil {
		return nan, nan
	}
	return float64(*c.process.UsedBytes), float64(*c.device.UsedBytes)
}

// given is what cannot be given back of the memory of a process on a card: live, awaiting and outside, which is what it uses without
// what the allocator caches. NaN when one of them is not known.
func given(c *card) float64 {
	if c.process == nil || c.allocator == nil {
		return nan
	}
	return number(c.process.UsedBytes) - number(c.allocator.ReservedBytes) + number(c.allocator.ActiveBytes)
}

// hostHeld is anonymous memory with what of it was swapped out; NaN when it is not read.
func hostHeld(p *event.Process) float64 {
	if p.AnonBytes == nil {
		return number(p.RssBytes)
	}
	return float64(*p.AnonBytes) + float64(p.GetSwapBytes())
}

// limits are what ends one card's memory: the device, for all of the process, and a cap of the allocator, for what the allocator
// reserves (PyTorch compares the memory fraction with its own total; under cudaMallocAsync with what is live).
type limits struct{ device, cap float64 }

func (w *Worker) limits(c *card) (l limits) {
	l = limits{nan, nan}
	if c.process != nil && c.device != nil {
		l.device = number(c.process.UsedBytes) + number(c.device.FreeBytes)
	}
	if c.allocator != nil {
		l.cap = number(c.allocator.LimitBytes)
	}
	o := w.ooms.last
	if o == nil || o.Kind != "" && o.Kind != "cuda" || o.GpuUuid != "" && c.uuid != "" && o.GpuUuid != c.uuid {
		return l // a kill by the host's kernel says nothing about the card
	}
	if o.LimitBytes == nil && o.FreeBytes == nil {
		return limits{nan, nan} // an OOM of unknown size: the limit is not known, whatever is free
	}
	l.cap = smaller(l.cap, number(o.LimitBytes))
	return l
}

// left is the room beside some memory of the allocator and some outside it, by the limit that leaves least.
func (l limits) left(allocator, outside float64) (bytes, limit float64) {
	device, capped := l.device-(allocator+outside), l.cap-allocator
	if smaller(device, capped) == device && device == device {
		return device, l.device
	}
	return capped, l.cap
}

var headroomIDs = struct{ ratio, bytes, spare, limit, prefill, decode, retries, split variable.ID }{
	variable.Must("headroom.ratio"), variable.Must("headroom.bytes"), variable.Must("headroom.spare_bytes"), variable.Must("headroom.limit_bytes"),
	variable.Must("prefill.peak_bytes"), variable.Must("decode.peak_bytes"), variable.Must("retries.hour"), variable.Must("split.ratio"),
}

// pressure is how the allocator fares: how often it had to look for room, and how much lies unused in segments in use, on the worst card.
func (w *Worker) pressure() {
	s, r := w.sample, &w.load.Room
	split := nan
	for i := range w.now.cards {
		if a := w.now.cards[i].allocator; a != nil && !a.GetExpandableSegments() && a.GetReservedBytes() > 0 {
			if v := number(a.InactiveSplitBytes) / number(a.ReservedBytes); v > split || split != split {
				split = v
			}
		}
	}
	s.SetNumber(headroomIDs.split, split)
	if r.RetriesKnown {
		s.SetNumber(headroomIDs.retries, float64(r.Retries.total(w.Last)))
	}
}

// headroom is the limit without the peak of what is reserved and without what is outside, of the tightest card; and what peaks want of it.
func (w *Worker) headroom() {
	s, r := w.sample, &w.load.Room
	tightest, limit := nan, nan
	for i := range w.now.cards {
		c := &w.now.cards[i]
		if c.allocator == nil {
			continue
		}
		bytes, of := w.limits(c).left(reservedPeak(c.allocator), outsideOf(c))
		if bytes < tightest || tightest != tightest {
			tightest, limit = bytes, of
		}
	}
	s.SetNumber(headroomIDs.bytes, tightest)
	s.SetNumber(headroomIDs.limit, limit)
	s.SetNumber(headroomIDs.ratio, tightest/limit)
	s.SetNumber(headroomIDs.spare, max(0, tightest-spareReserve*limit))
	peaks := len(r.Cards) > 0 && r.Cards[0].Peak.Known
	if peaks && r.Filled {
		s.SetNumber(headroomIDs.prefill, r.Prefill)
	}
	if peaks && r.Stepped {
		s.SetNumber(headroomIDs.decode, r.Decode)
	}
}

// reservedPeak is what the allocator had at most of what its cap counts.
func reservedPeak(a *event.Allocator) float64 {
	peak, now := number(a.ReservedPeakBytes), number(a.ReservedBytes)
	if peak != peak {
		return now
	}
	return peak
}

func outsideOf(c *card) float64 {
	if c.process == nil {
		return nan
	}
	return number(c.process.UsedBytes) - number(c.allocator.ReservedBytes)
}

// slopes is whether anything grows, so that nobody looks at each series at each tick of a worker in which nothing does.
type slopes struct{ known, any bool }

func (w *Worker) grows() bool {
	if !w.slopes.known {
		w.slopes = slopes{known: true}
		for i := range w.calls {
			w.slopes.any = w.slopes.any || w.calls[i].Growth.Low > 0
		}
	}
	return w.slopes.any
}

// forecasts are intervals: the upper bound of growth against the room beside the highest peak of live memory, the lower bound against
// the room beside the quiet level. What is cached is given back before anything fails, so it is no part of what is in the way.
func (w *Worker) forecasts() {
	if !w.grows() && w.load.Room.Shown == [seriesCount]bool{} {
		return
	}
	for _, i := range [...]int{live, awaiting, outside, graphs} {
		at := w.leading(i)
		if at >= len(w.calls) || !(w.calls[at].Growth.Low > 0) {
			w.forget(i)
			continue
		}
		_, k := seriesOf(at)
		c := &w.now.cards[k]
		if c.allocator == nil {
			w.forget(i)
			continue
		}
		limits, active := w.limits(c), number(c.allocator.ActiveBytes)
		if matched, known := w.sample.Bool(pointIDs.matched); known && !matched {
			if col := column(live, k); col < len(w.calls) && w.calls[col].Points > 0 {
				active += w.calls[col].Level - number(c.allocator.AllocatedBytes)
			}
		}
		if i == outside {
			limits.cap = nan
		}
		room, _ := limits.left(active, outsideOf(c))
		least, _ := limits.left(max(active, zeroIfUnknown(number(c.allocator.AllocatedPeakBytes))), outsideOf(c))
		w.forecast(i, &w.calls[at].Growth, room, least)
	}
	p := w.now.process
	for _, i := range [...]int{anon, pinned, fds, sockets} {
		at := w.leading(i)
		if p == nil || at >= len(w.calls) || !(w.calls[at].Growth.Low > 0) {
			w.forget(i)
			continue
		}
		room := number(p.CgroupLimitBytes) - hostHeld(p)
		if i == fds || i == sockets {
			room = number(p.FdsLimit) - number(p.Fds)
		}
		w.forecast(i, &w.calls[at].Growth, room, room)
	}
}

func (w *Worker) forecast(series int, g *trend.Growth, room, least float64) {
	id := &ids[series]
	if !(room > 0) {
		w.forget(series)
		return
	}
	w.load.Room.Shown[series] = true
	w.sample.SetNumber(id.hours, room/g.Slope)
	w.sample.SetNumber(id.hoursLow, max(0, least)/g.High)
	w.sample.SetNumber(id.hoursHigh, room/g.Low)
}

func (w *Worker) forget(series int) {
	if !w.load.Room.Shown[series] {
		return
	}
	w.load.Room.Shown[series] = false
	id := &ids[series]
	w.sample.Unset(id.hours)
	w.sample.Unset(id.hoursLow)
	w.sample.Unset(id.hoursHigh)
}
