package sim

import (
	"math"
	"time"

	"lowtide/event"
)

// rank is one process of an instance, with its card.
type rank struct {
	instance  *instance
	who       *event.Worker
	card      *card
	alive     bool
	allocator allocator
	heap      heap
	context   float64 // CUDA context, NCCL and libraries: outside what PyTorch reserves, bytes
	steps     float64 // of it that came later, with first use
	left      [allPools]float64
}

// outside is what the process holds on the card that PyTorch does not know; the driver hands it out in pieces of 2 MiB.
func (r *rank) outside() float64 {
	if r.allocator.reserved == 0 {
		return 0
	}
	return math.Ceil((r.context+r.steps+r.left[inOutside])/(2*mib)) * 2 * mib
}

// used is the process's memory on the card.
func (r *rank) used() float64 {
	if !r.alive {
		return 0
	}
	return r.allocator.reserved + r.outside()
}

// room is what the allocator could still take from the card.
func (r *rank) room() float64 {
	c := r.card
	return math.Max(0, c.total-c.driver-c.others(r)-r.outside()-r.allocator.reserved)
}

func (r *rank) utilization() float64 {
	i := r.instance
	if !r.alive || i.engine.running == 0 && !i.worked {
		return 0
	}
	if i.engine.stopped {
		return 0
	}
	return math.Min(1, math.Max(0.03, 0.25+0.7*math.Max(i.engine.running, 1)/i.engine.maxSeqs+0.04*i.host.NormFloat64()))
}

// step moves memory on and returns what failed.
func (r *rank) step(w work, dt time.Duration) *failure {
	i, c := r.instance, r.instance.host.chance
	if w.finished > 0 && i.age() < 24*time.Hour && c.happens(0.25*dt.Hours()*math.Exp(-i.age().Hours()/2)) {
		r.steps += math.Min(float64(c.whole(1, 6))*2*mib, math.Floor(r.room()/(2*mib))*2*mib) // a library loads a kernel at its first use
	}
	failed := r.squeeze()
	if f := r.allocator.step(c, w, &r.left, i.engine.prompt, r.room(), dt); f != nil {
		failed = f
	}
	r.heap.step(c, w, &r.left, r.allocator.loaded, dt)
	return failed
}

// squeeze is what happens when memory outside PyTorch has taken all that the card had: PyTorch gives its cache back, and once that is
// gone too, something fails.
func (r *rank) squeeze() *failure {
	c, a := r.card, &r.allocator
	over := func() float64 { return c.others(nil) - (c.total - c.driver) }
	if r.left[inOutside] == 0 || over() <= 0 {
		return nil
	}
	a.retries++
	a.flush(&r.left)
	lacks := over()
	if lacks <= 0 {
		return nil
	}
	a.ooms++
	r.left[inOutside] = math.Max(0, r.left[inOutside]-math.Ceil(lacks/(2*mib)+1)*2*mib) // what does not fit is not there
	allocated := math.Min(a.base(&r.left), a.reserved)
	f := &failure{allocated: allocated, privateFree: a.graphs * (1 - a.graphsLive)}
	f.unallocated = math.Max(0, a.reserved-allocated-f.privateFree)
	f.requested = math.Ceil((f.unallocated+c.host.between(32, 400)*mib)/(2*mib)) * 2 * mib
	return f
}

// tell sends the process's tick.
func (r *rank) tell(first bool) {
	h := r.card.host
	s := newReading(h, r.who)
	if h.sees(fromNVML) && !r.card.gone && r.used() > 0 {
		s.process.GpuUuid, s.process.UsedBytes = r.card.uuid, s.count(r.used())
		s.events[0].GpuProcess = &s.process
		h.send(&s.events[0])
	}
	if h.sees(fromProbe) && r.allocator.reserved > 0 {
		r.tellAllocator(s)
		s.events[1].Allocator = &s.allocator
		h.send(&s.events[1])
	}
	if first && h.sees(fromEngine) && r.instance.serving() {
		r.instance.tellEngine(s)
		s.events[2].Engine = &s.engine
		h.send(&s.events[2])
	}
	if h.sees(fromProcess) {
		r.tellProcess(s)
		s.events[3].Process = &s.host
		h.send(&s.events[3])
	}
}

func (r *rank) tellAllocator(s *reading) {
	a, out := &r.allocator, &s.allocator
	out.GpuUuid, out.Backend = r.card.uuid, "native"
	out.AllocatedBytes, out.ReservedBytes = s.count(a.live), s.count(a.reserved)
	out.ActiveBytes = s.count(a.live + a.awaiting)
	out.AllocatedPeakBytes, out.ReservedPeakBytes = s.count(a.peak), s.count(a.peakReserved)
	pinned := a.pinned + r.left[inPinned]
	out.PinnedAllocatedBytes, out.PinnedActiveBytes = s.count(pinned), s.count(pinned*0.9)
	if a.async {
		out.Backend, out.ActiveBytes = "cudaMallocAsync", out.AllocatedBytes
		return
	}
	out.ExpandableSegments = s.truth(a.expandable)
	out.RequestedBytes, out.LimitBytes, out.InactiveSplitBytes = s.count(a.requested), s.count(a.limit), s.count(a.split)
	out.PrivatePoolBytes = s.count(a.graphs)
	out.GraphPools = s.count(math.Min(1, a.graphs) + math.Floor(r.left[inGraphs]/(24*mib)))
	out.AllocRetriesTotal, out.OomsTotal = s.count(a.retries), s.count(a.ooms)
	out.DeviceAllocsTotal, out.DeviceFreesTotal, out.Segments = s.count(a.allocs), s.count(a.frees), s.count(a.segments)
	out.CompilesTotal = s.count(a.compiles)
}

func (r *rank) tellProcess(s *reading) {
	h, out := &r.heap, &s.host
	pinned := r.allocator.pinned + r.left[inPinned]
	anon := h.anon + pinned
	out.RssBytes, out.AnonBytes, out.SwapBytes = s.count(anon+h.shmem+180*mib), s.count(anon), s.count(0)
	out.ShmemBytes, out.PinnedKernelBytes = s.count(h.shmem), s.count(pinned)
	out.Fds, out.FdsLimit, out.SocketsCloseWait, out.Threads = s.count(h.fds), s.count(h.fdsLimit), s.count(h.sockets), s.count(h.lively)
	out.CpuSecondsTotal = s.number(math.Round(h.cpu*100) / 100)
	if h.limit > 0 {
		out.CgroupBytes, out.CgroupLimitBytes = s.count(math.Min(h.limit, anon+h.shmem+h.others)), s.count(h.limit)
	}
}
