package worker

import (
	"time"

	"lowtide/event"
)

// faults are the device errors of one process life. The first one counts: an illegal access tears down channels and so causes
// others, and so does a device that fails.
type faults struct {
	first *event.Xid
	at    time.Time // of the newest
}

func (f *faults) observe(at time.Time, x *event.Xid) {
	if x.Code == nil {
		return
	}
	if f.first == nil {
		f.first = x
	}
	f.at = at
}

func (w *Worker) faultFeatures(at time.Time) {
	first := w.faults.first
	if first == nil {
		for _, g := range w.now.cards {
			if g.device != nil { // where the device is read, its errors are heard: without that no incident would ever end
				w.flag("xid.application", false)
				return
			}
		}
		return
	}
	w.set("xid.first", float64(*first.Code))
	w.flag("xid.application", event.ApplicationXid(*first.Code))
	w.flag("symptom.device", !event.ApplicationXid(*first.Code) && at.Sub(w.faults.at) < symptomWindow)
}
