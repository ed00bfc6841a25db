package worker

import (
	"math"
	"time"

	"lowtide/event"
)

// The series of vocabulary.md, in the order of the arrays that hold them.
const (
	live = iota
	awaiting
	cached
	inactiveSplit
	outside
	orphan
	kv
	anon
	pinned
	fds
	threads
	sockets
	seriesCount
)

var seriesNames = [seriesCount]string{"live", "awaiting", "cached", "inactive_split", "outside", "orphan", "kv", "anon", "pinned", "fds", "threads", "sockets"}

// floors are the smallest noise that is believed: 4 MiB (two quanta of the driver), 4 handles, 1 % of the KV pool.
var floors = [seriesCount]float64{live: 4 << 20, awaiting: 4 << 20, cached: 4 << 20, inactiveSplit: 4 << 20, outside: 4 << 20, orphan: 4 << 20,
	kv: 0.01, anon: 4 << 20, pinned: 4 << 20, fds: 4, threads: 4, sockets: 4}

// levels are the values of all series at one moment; NaN is not read.
type levels [seriesCount]float64

func unknownLevels() (l levels) {
	for i := range l {
		l[i] = math.NaN()
	}
	return l
}

type gpuReading struct {
	allocator *event.Allocator
	process   *event.GpuProcess
	device    *event.Gpu
}

// reading is the newest word of every sensor. What a sensor did not say in this tick is not part of the tick's levels.
type reading struct {
	gpus     map[string]*gpuReading
	engine   *event.Engine
	engineAt time.Time
	process  *event.Process

	freshAllocator, freshGPU, freshProcess, freshEngine bool
}

func (r *reading) takes(e *event.Event) bool {
	return e.Allocator != nil || e.GpuProcess != nil || e.Gpu != nil || e.Engine != nil || e.Process != nil
}

func (r *reading) gpu(uuid string, who *event.Worker) *gpuReading {
	if uuid == "" && len(who.GetGpuUuids()) == 1 {
		uuid = who.GpuUuids[0]
	}
	g := r.gpus[uuid]
	if g == nil {
		g = new(gpuReading)
		r.gpus[uuid] = g
	}
	if unnamed := r.gpus[""]; unnamed != nil && uuid != "" && len(who.GetGpuUuids()) == 1 {
		delete(r.gpus, "") // it was this one, before anybody knew its name
		if g.allocator == nil {
			g.allocator = unnamed.allocator
		}
	}
	return g
}

// apply takes a sensor's word. Who is what is known of the worker by now, which may be more than the event says.
func (r *reading) apply(e *event.Event, who *event.Worker) {
	switch {
	case e.Allocator != nil:
		r.gpu(e.Allocator.GpuUuid, who).allocator = e.Allocator
		r.freshAllocator = true
	case e.GpuProcess != nil:
		r.gpu(e.GpuProcess.GpuUuid, who).process = e.GpuProcess
		r.freshGPU = true
	case e.Gpu != nil:
		r.gpu(e.Gpu.Uuid, nil).device = e.Gpu
	case e.Engine != nil:
		r.engine, r.engineAt, r.freshEngine = e.Engine, e.At(), true
	case e.Process != nil:
		r.process, r.freshProcess = e.Process, true
	}
}

func (r *reading) endTick() {
	r.freshAllocator, r.freshGPU, r.freshProcess, r.freshEngine = false, false, false, false
}

// levels computes the residuals of the memory identity, summed over the worker's GPUs:
// process used = reserved + outside; reserved = active + cached; active = live + awaiting (vocabulary.md).
func (r *reading) levels() levels {
	l := unknownLevels()
	var allocated, active, reserved, split, used, pin total
	for _, g := range r.gpus {
		if a := g.allocator; a != nil && r.freshAllocator {
			allocated.add(a.AllocatedBytes)
			active.add(a.ActiveBytes)
			reserved.add(a.ReservedBytes)
			if !a.GetExpandableSegments() {
				split.add(a.InactiveSplitBytes)
			}
			pin.add(a.PinnedAllocatedBytes)
		}
		if p := g.process; p != nil && r.freshGPU {
			used.add(p.UsedBytes)
		}
	}
	l[live] = allocated.value()
	l[awaiting] = active.value() - allocated.value()
	l[cached] = reserved.value() - active.value()
	l[inactiveSplit] = split.value()
	l[outside] = used.value() - reserved.value()
	if e := r.engine; e != nil && r.freshEngine && e.KvUsage != nil {
		l[kv] = *e.KvUsage - e.GetKvEvictable()
	}
	if p := r.process; p != nil && r.freshProcess {
		r.host(&l, p, pin.value())
	} else {
		l[pinned] = pin.value()
	}
	return l
}

// host fills the series of the host process. Swap counts, since a swapped leak leaves RSS flat.
func (r *reading) host(l *levels, p *event.Process, pin float64) {
	l[pinned] = pin
	if math.IsNaN(pin) {
		l[pinned] = number(p.PinnedKernelBytes)
	}
	locked := l[pinned]
	if math.IsNaN(locked) {
		locked = 0
	}
	switch {
	case p.AnonBytes != nil:
		l[anon] = float64(*p.AnonBytes) + float64(p.GetSwapBytes()) - locked
	case p.RssBytes != nil:
		l[anon] = float64(*p.RssBytes) - locked
	}
	l[fds], l[threads], l[sockets] = number(p.Fds), number(p.Threads), number(p.SocketsCloseWait)
}

// oomsTotal is the allocator's own count over all GPUs, nil when no allocator keeps one.
func (r *reading) oomsTotal() *uint64 {
	var sum uint64
	var known bool
	for _, g := range r.gpus {
		if g.allocator != nil && g.allocator.OomsTotal != nil {
			sum += *g.allocator.OomsTotal
			known = true
		}
	}
	if !known {
		return nil
	}
	return &sum
}

type total struct {
	sum   float64
	known bool
}

func (t *total) add(v *uint64) {
	if v != nil {
		t.sum += float64(*v)
		t.known = true
	}
}

func (t total) value() float64 {
	if !t.known {
		return math.NaN()
	}
	return t.sum
}

func number(v *uint64) float64 {
	if v == nil {
		return math.NaN()
	}
	return float64(*v)
}
