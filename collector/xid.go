package collector

import (
	"slices"
	"time"

	"lowtide/event"
)

const (
	nvmlSource   = "nvml"           // the source that reads the cards
	kernelSource = "kernel"         // the source that reads the kernel log
	xidPatience  = time.Second      // how long an Xid of NVML waits for the kernel log's account of it
	xidMemory    = 10 * time.Second // the kernel source tells repeats of an error once in this time
	xidsHeld     = 64               // more at a time are a storm, of which each next one only repeats the first
)

// xids makes one event of the two accounts of a device error. The kernel log's is the better one, since it names the process, so
// NVML's waits a moment for it; it passes alone where the kernel log is not read or missed the error (facts: either misses some).
type xids struct {
	kmsg bool       // the kernel log is being read
	seen []sighting // by the kernel log, oldest first
	held []sighting // by NVML, oldest first
}

type sighting struct {
	at    time.Time
	event *event.Event
}

// filter returns the urgent events that leave now.
func (x *xids) filter(events []*event.Event, now time.Time) []*event.Event {
	x.seen = slices.DeleteFunc(x.seen, func(s sighting) bool { return now.Sub(s.at) > xidMemory })
	return slices.DeleteFunc(events, func(e *event.Event) bool {
		switch {
		case e.Xid == nil:
			return false
		case e.Xid.Source != "nvml":
			x.held = slices.DeleteFunc(x.held, func(s sighting) bool { return sameError(s.event.Xid, e.Xid) })
			if len(x.seen) < xidsHeld {
				x.seen = append(x.seen, sighting{now, e})
			}
			return false
		case slices.ContainsFunc(x.seen, func(s sighting) bool { return sameError(s.event.Xid, e.Xid) }):
			return true
		case !x.kmsg || len(x.held) >= xidsHeld:
			return false
		default:
			x.held = append(x.held, sighting{now, e})
			return true
		}
	})
}

// due is when the first held event has waited long enough; zero when none is held.
func (x *xids) due() time.Time {
	if len(x.held) == 0 {
		return time.Time{}
	}
	return x.held[0].at.Add(xidPatience)
}

// release returns the events that have waited long enough.
func (x *xids) release(now time.Time) []*event.Event {
	var out []*event.Event
	for len(x.held) > 0 && now.Sub(x.held[0].at) >= xidPatience {
		out = append(out, x.held[0].event)
		x.held = x.held[1:]
	}
	return out
}

func sameError(a, b *event.Xid) bool {
	return a.GetCode() == b.GetCode() && (a.GpuUuid != "" && a.GpuUuid == b.GpuUuid || a.Pci != "" && a.Pci == b.Pci)
}
