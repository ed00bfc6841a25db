package worker

import (
	"math"
	"strconv"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

func (w *Worker) loadFeatures(at time.Time) {
	e := w.now.engine
	if e == nil {
		return
	}
	l := &w.load
	if e.Running != nil {
		w.set("running.now", float64(*e.Running))
	}
	if e.Waiting != nil {
		w.set("waiting.now", float64(*e.Waiting))
	}
	if e.KvUsage != nil {
		w.set("kv.busy", *e.KvUsage-e.GetKvEvictable())
		if e.KvEvictable != nil || w.Who.GetEngine() == "vllm" { // vLLM counts unreferenced blocks as free (engine-metrics.md, 2)
			w.flag("kv.may_evict", false)
		}
		if part, ok := l.share(func(s loadSample) bool { return s.full }); ok {
			w.flag("kv.full", part >= 0.5)
		}
	}
	if part, ok := l.share(func(s loadSample) bool { return s.queue }); ok {
		w.flag("queue.held", part >= 0.5)
	}
	if n := len(l.recent); n > 0 && !math.IsNaN(l.recent[n-1].preemptions) {
		w.set("preemptions.hour", max(0, l.recent[n-1].preemptions-l.recent[0].preemptions))
	}
	if e.TtftP95Seconds != nil {
		w.flag("symptom.latency", !l.slowAt.IsZero() && at.Sub(l.slowAt) < symptomWindow)
	}
	w.set("progress.seconds", at.Sub(l.movedAt).Seconds())
}

func (w *Worker) oomFeatures(at time.Time) {
	if w.ooms.total == nil && len(w.ooms.times) == 0 {
		return // nothing that would report an OOM has been heard yet
	}
	n := w.ooms.within(at, symptomWindow)
	w.set("oom.count", float64(n))
	w.flag("symptom.oom", n > 0)
	if len(w.ooms.times) > 0 {
		w.flag("grew.before_oom", w.ooms.grew)
	}
	o := w.ooms.last
	if o == nil {
		return
	}
	if o.Kind != "" {
		w.sample.SetString(variable.Must("oom.kind"), o.Kind)
	}
	for _, f := range []struct {
		name  string
		value *uint64
	}{
		{"requested_bytes", o.RequestedBytes}, {"free_bytes", o.FreeBytes}, {"limit_bytes", o.LimitBytes}, {"allocated_bytes", o.AllocatedBytes},
		{"reserved_unallocated_bytes", o.ReservedUnallocatedBytes}, {"private_pool_free_bytes", o.PrivatePoolFreeBytes}, {"other_processes_bytes", o.OtherProcessesBytes},
	} {
		w.set("oom."+f.name, number(f.value)) // NaN is unknown
	}
}

// headroom is limit − (reserved peak + outside), and the forecast that follows from it, as an interval.
func (w *Worker) headroom() {
	var used, free, limit, peak total
	for _, g := range w.now.cards {
		if g.process != nil {
			used.add(g.process.UsedBytes)
		}
		if g.device != nil {
			free.add(g.device.FreeBytes)
		}
		if g.allocator != nil {
			limit.add(g.allocator.LimitBytes)
			peak.add(g.allocator.ReservedPeakBytes)
			if g.allocator.ReservedPeakBytes == nil {
				peak.add(g.allocator.ReservedBytes)
			}
		}
	}
	smallest := math.NaN()
	take := func(v float64) {
		if !math.IsNaN(v) && !(smallest <= v) {
			smallest = v
		}
	}
	take(used.value() + free.value())
	take(limit.value())
	if o := w.ooms.last; o != nil && (o.Kind == "" || o.Kind == "cuda") { // a kill of the host's kernel says nothing about the card
		if o.LimitBytes == nil && o.FreeBytes == nil {
			smallest = math.NaN() // an OOM of unknown size: the limit is not known, whatever is free
		} else {
			take(number(o.LimitBytes))
		}
	}
	room := smallest - (peak.value() + w.beside)
	w.set("headroom.bytes", room)
	w.set("headroom.ratio", room/smallest)
	for _, i := range []int{live, outside} {
		if w.leading(i) >= len(w.calls) {
			continue
		}
		c, id := w.calls[w.leading(i)].Growth, ids[i]
		if !(c.Low > 0) || !(room > 0) {
			w.sample.Unset(id.hours)
			w.sample.Unset(id.hoursLow)
			w.sample.Unset(id.hoursHigh)
			continue
		}
		w.sample.SetNumber(id.hours, room/c.Slope)
		w.sample.SetNumber(id.hoursLow, room/c.High)
		w.sample.SetNumber(id.hoursHigh, room/c.Low)
	}
}

// Symptoms lists what was seen within a pair's length, with the lag from the onset of the trouble: seen together, not caused by.
func (w *Worker) Symptoms(onset time.Time) (out []event.Symptom) {
	add := func(name string, at time.Time, text string) {
		out = append(out, event.Symptom{Name: name, Time: at.UTC(), LagSeconds: at.Sub(onset).Seconds(), Text: text})
	}
	if n := len(w.ooms.times); n > 0 {
		text := "an allocation failed, size not reported"
		if o := w.ooms.last; o.GetRequestedBytes() > 0 {
			text = "an allocation of " + event.FormatQuantity(float64(*o.RequestedBytes), "bytes") + " failed"
		}
		add("oom", w.ooms.times[n-1], text)
	}
	if x := w.faults.first; x != nil {
		text := "Xid " + strconv.FormatUint(x.GetCode(), 10)
		if x.Text != "" {
			text += ": " + x.Text
		}
		add("xid", w.faults.at, text)
	}
	if !w.load.slowAt.IsZero() && w.Last.Sub(w.load.slowAt) < symptomWindow {
		add("latency", w.load.slowAt, "p95 time to first token above the worker's own baseline without a queue")
	}
	return out
}
