package worker

import (
	"strconv"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

var oomIDs = struct {
	count, happened, grew, kind, beforeReady, fits                                 variable.ID
	ofDevice, roomInTotal, deduced, part, size, age                                variable.ID
	requested, free, limit, allocated, reservedUnallocated, privatePoolFree, other variable.ID
}{
	variable.Must("oom.count"), variable.Must("symptom.oom"), variable.Must("grew.before_oom"), variable.Must("oom.kind"), variable.Must("oom.before_ready"),
	variable.Must("oom.fits_without_others"), variable.Must("oom.of_device"), variable.Must("oom.room_in_total"),
	variable.Must("oom.room_deduced"), variable.Must("oom.part"), variable.Must("oom.size"), variable.Must("oom.age_seconds"),
	variable.Must("oom.requested_bytes"), variable.Must("oom.free_bytes"), variable.Must("oom.limit_bytes"),
	variable.Must("oom.allocated_bytes"), variable.Must("oom.reserved_unallocated_bytes"), variable.Must("oom.private_pool_free_bytes"),
	variable.Must("oom.other_processes_bytes"),
}

func (w *Worker) oomFeatures(at time.Time) {
	o, s := &w.ooms, w.sample
	o.pid = w.Who.GetPid()
	if o.total == nil && len(o.times) == 0 {
		return // nothing that would report an OOM has been heard yet
	}
	n := o.within(at, symptomWindow)
	s.SetNumber(oomIDs.count, float64(n))
	s.SetBool(oomIDs.happened, n > 0)
	if len(o.times) == 0 {
		return
	}
	s.SetNumber(oomIDs.age, max(0, event.Ago(at, o.lastAt)).Truncate(ageStep).Seconds())
	s.SetBool(oomIDs.grew, o.grew && fills(o.last))
	s.SetBool(oomIDs.beforeReady, w.beforeReady())
	if o.last == nil {
		return
	}
	read := w.now.allocated() // also of a tick that is not closed yet
	if v, known := s.Number(ids[live].now); known && read != read {
		read = v
	}
	s.SetNumber(oomIDs.size, sizeOf(o.last, read)) // at each tick: an OOM may come before the first reading
	if o.told {
		return
	}
	o.told = true
	if o.last.Kind != "" {
		s.SetString(oomIDs.kind, o.last.Kind)
	} else {
		s.Unset(oomIDs.kind)
	}
	// NaN is unknown.
	s.SetNumber(oomIDs.requested, number(o.last.RequestedBytes))
	s.SetNumber(oomIDs.free, number(o.last.FreeBytes))
	s.SetNumber(oomIDs.limit, number(o.last.LimitBytes))
	s.SetNumber(oomIDs.allocated, number(o.last.AllocatedBytes))
	s.SetNumber(oomIDs.reservedUnallocated, number(o.last.ReservedUnallocatedBytes))
	s.SetNumber(oomIDs.privatePoolFree, number(o.last.PrivatePoolFreeBytes))
	s.SetNumber(oomIDs.other, number(o.last.OtherProcessesBytes))
	s.SetBool(oomIDs.ofDevice, ofDevice(o.last))
	s.SetNumber(oomIDs.part, partOf(o.last))
	last, deduced := withLoose(o.last)
	s.SetBool(oomIDs.deduced, deduced)
	if room, known := roomInTotal(last); known {
		s.SetBool(oomIDs.roomInTotal, room)
	} else {
		s.Unset(oomIDs.roomInTotal)
	}
	if fits, known := w.fitsWithoutOthers(o.last); known {
		s.SetBool(oomIDs.fits, fits)
	} else {
		s.Unset(oomIDs.fits)
	}
}

// Symptoms lists what was seen within a pair's length, with the lag from the onset of the trouble: seen together, not caused by.
func (w *Worker) Symptoms(onset time.Time) (out []event.Symptom) {
	add := func(name string, at time.Time, text string) {
		out = append(out, event.Symptom{Name: name, Time: at.UTC(), LagSeconds: at.Sub(onset).Seconds(), Text: text})
	}
	if n := len(w.ooms.times); n > 0 && within(w.Last, w.ooms.times[n-1]) {
		text := "an allocation failed, size not reported"
		switch o := w.ooms.last; {
		case o.GetKind() == "kernel", o.GetKind() == "cgroup":
			text = "ended by the " + o.Kind + " for want of host memory"
		case o.GetRequestedBytes() > 0:
			text = "an allocation of " + event.FormatQuantity(float64(*o.RequestedBytes), "bytes") + " failed"
		}
		add("oom", w.ooms.times[n-1], text)
	}
	if f := &w.faults; f.Any && within(w.Last, later(f.First.At, f.Last.At)) {
		text := "Xid " + strconv.FormatUint(f.First.Code, 10)
		if f.First.Text != "" {
			text += ": " + f.First.Text
		}
		add("xid", later(f.First.At, f.Last.At), text)
	}
	if f := &w.faults; within(w.Last, f.ECCAt) {
		add("ecc", f.ECCAt, strconv.FormatUint(f.Uncorrected, 10)+" uncorrected memory errors of the device")
	}
	l := &w.load
	if t := &l.Latency; within(w.Last, t.SlowAt) {
		text := "p95 time to first token above the worker's own baseline without a queue"
		if within(w.Last, t.SlowITLAt) {
			text = "p95 time between tokens above the worker's own baseline at the same load"
		}
		add("latency", t.SlowAt, text)
	}
	if o := &l.Latency.Objective; within(w.Last, o.MissedAt) {
		add("slo", o.MissedAt, "fewer requests inside the objective than is usual for this worker")
	}
	if within(w.Last, l.Storm.At) {
		per, _ := l.preemptionsPerRequest()
		add("preemption", l.Storm.At, strconv.FormatFloat(per, 'f', 2, 64)+" preemptions for each finished request")
	}
	if p := &l.Progress; within(w.Last, p.StalledAt) {
		add("stalled", p.StalledAt, "no token for "+p.StalledFor.Round(time.Second).String()+" while work was accepted")
	}
	return out
}
