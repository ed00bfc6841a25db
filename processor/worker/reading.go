package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/event"
)

// maxCards bounds the GPUs of one process; a host has sixteen at most, MIG instances included it may have more.
const maxCards = 64

// card is the newest word about one of the worker's GPUs.
type card struct {
	uuid      string // "" while nobody has named it
	allocator *event.Allocator
	process   *event.GpuProcess
	device    *event.Gpu
}

// reading is the newest word of every sensor. What a sensor did not say in this tick is not part of the tick's levels.
type reading struct {
	cards    []card
	engine   *event.Engine
	engineAt time.Time
	process  *event.Process

	freshAllocator, freshGPU, freshDevice, freshProcess, freshEngine bool
}

func (r *reading) takes(e *event.Event) bool {
	return e.Allocator != nil || e.GpuProcess != nil || e.Gpu != nil || e.Engine != nil || e.Process != nil
}

// has says that this tick holds the word of that sensor already, about any of the GPUs.
func (r *reading) has(e *event.Event) bool {
	switch {
	case e.Allocator != nil:
		return r.freshAllocator
	case e.GpuProcess != nil:
		return r.freshGPU
	case e.Gpu != nil:
		return r.freshDevice
	case e.Engine != nil:
		return r.freshEngine
	}
	return r.freshProcess
}

// card finds the GPU of a reading. One that does not say which is the worker's only one, or the unnamed one.
func (r *reading) card(uuid string, who *event.Worker) *card {
	if uuid == "" && len(who.GetGpuUuids()) == 1 {
		uuid = who.GpuUuids[0]
	}
	for i := range r.cards {
		if c := &r.cards[i]; c.uuid == uuid || c.uuid == "" && len(who.GetGpuUuids()) <= 1 {
			c.uuid = uuid // it was this one, before anybody knew its name
			return c
		}
	}
	if uuid == "" && len(r.cards) == 1 && who.GetGpuUuids() == nil {
		return &r.cards[0]
	}
	if len(r.cards) == maxCards {
		return &r.cards[maxCards-1]
	}
	r.cards = append(r.cards, card{uuid: uuid})
	return &r.cards[len(r.cards)-1]
}

// apply takes a sensor's word. Who is what is known of the worker by now, which may be more than the event says.
func (r *reading) apply(e *event.Event, who *event.Worker) {
	switch {
	case e.Allocator != nil:
		r.card(e.Allocator.GpuUuid, who).allocator = e.Allocator
		r.freshAllocator = true
	case e.GpuProcess != nil:
		r.card(e.GpuProcess.GpuUuid, who).process = e.GpuProcess
		r.freshGPU = true
	case e.Gpu != nil:
		r.card(e.Gpu.Uuid, who).device = e.Gpu
		r.freshDevice = true
	case e.Engine != nil:
		r.engine, r.engineAt, r.freshEngine = e.Engine, e.At(), true
	case e.Process != nil:
		r.process, r.freshProcess = e.Process, true
	}
}

func (r *reading) endTick() {
	r.freshAllocator, r.freshGPU, r.freshDevice, r.freshProcess, r.freshEngine = false, false, false, false, false
}

// levels writes the residuals of the memory identity, per GPU, into dst and returns it; NaN is what this tick did not read:
// process used = reserved + outside; reserved = active + cached; active = live + awaiting (vocabulary.md). dst is a column's value
// each and grows with the GPUs.
func (r *reading) levels(dst []float64, engine string) []float64 {
	dst = slices.Grow(dst[:0], columnsOf(len(r.cards)))[:columnsOf(len(r.cards))]
	for i := range dst {
		dst[i] = nan
	}
	for i := range r.cards {
		c, of := &r.cards[i], dst[column(0, i):]
		reserved := math.NaN()
		if engine == "llama.cpp" || engine == "ollama" {
			reserved = 0 // there is no PyTorch in it: all that the process holds is outside
		}
		if a := c.allocator; a != nil && r.freshAllocator {
			allocated, active := number(a.AllocatedBytes), number(a.ActiveBytes)
			reserved = number(a.ReservedBytes)
			of[live], of[awaiting], of[cached] = allocated, active-allocated, reserved-active
			if !a.GetExpandableSegments() {
				of[inactiveSplit] = number(a.InactiveSplitBytes)
			}
			of[graphs] = number(a.PrivatePoolBytes)
		}
		if p := c.process; p != nil && r.freshGPU {
			of[outside] = number(p.UsedBytes) - reserved
		}
	}
	if e := r.engine; e != nil && r.freshEngine && e.KvUsage != nil {
		dst[column(kv, 0)] = *e.KvUsage - e.GetKvEvictable()
	}
	pin := r.pinned()
	if pin == pin && r.freshAllocator {
		dst[column(pinned, 0)] = pin
	}
	if r.process != nil && r.freshProcess {
		r.host(dst, pin)
	}
	return dst
}

// pinned is what PyTorch's host allocator was last read to hold; NaN when it never told. It is one for the process: each GPU's line
// repeats it.
func (r *reading) pinned() float64 {
	most := nan
	for i := range r.cards {
		if a := r.cards[i].allocator; a != nil {
			if v := number(a.PinnedAllocatedBytes); !(v <= most) && v == v {
				most = v
			}
		}
	}
	return most
}

// host fills the series of the host process. Swap counts, since a swapped leak leaves RSS flat. What the kernel counts as pinned is not
// what PyTorch's host allocator does: where that has ever told, the series is its own and waits for its next word, rather than going to
// and fro between the two.
func (r *reading) host(dst []float64, pin float64) {
	p := r.process
	if math.IsNaN(pin) {
		pin = number(p.PinnedKernelBytes)
		dst[column(pinned, 0)] = pin
	}
	if math.IsNaN(pin) {
		pin = 0
	}
	switch {
	case p.AnonBytes != nil:
		dst[column(anon, 0)] = float64(*p.AnonBytes) + float64(p.GetSwapBytes()) - pin
	case p.RssBytes != nil:
		dst[column(anon, 0)] = float64(*p.RssBytes) - pin
	}
	dst[column(fds, 0)], dst[column(threads, 0)], dst[column(sockets, 0)] = number(p.Fds), number(p.Threads), number(p.SocketsCloseWait)
}

// oomsTotal is the allocator's own count over all GPUs, nil when no allocator keeps one.
func (r *reading) oomsTotal() *uint64 {
	var total *uint64
	for i := range r.cards {
		a := r.cards[i].allocator
		switch {
		case a == nil || a.OomsTotal == nil:
		case total == nil:
			total = a.OomsTotal
		default:
			total = event.Ptr(*total + *a.OomsTotal)
		}
	}
	return total
}

// utilization is that of the busiest of the worker's GPUs, NaN when none says.
func (r *reading) utilization() float64 {
	most := math.NaN()
	for i := range r.cards {
		if d := r.cards[i].device; d != nil && d.Utilization != nil && !(*d.Utilization <= most) {
			most = *d.Utilization
		}
	}
	return most
}

// allocated is what PyTorch holds live on all GPUs, NaN when no allocator says.
func (r *reading) allocated() float64 {
	sum := math.NaN()
	for i := range r.cards {
		if a := r.cards[i].allocator; a != nil && a.AllocatedBytes != nil {
			if math.IsNaN(sum) {
				sum = 0
			}
			sum += float64(*a.AllocatedBytes)
		}
	}
	return sum
}

// held changes when what PyTorch holds or has counted does, on any of the GPUs, or what the process uses there.
func (r *reading) held() (sum uint64) {
	weight := uint64(1) // of what comes next, beside its own of odds
	for i := range r.cards {
		c := &r.cards[i]
		if a := c.allocator; a != nil {
			s := orAbsent(a.AllocatedBytes)*odds[0] + orAbsent(a.ReservedBytes)*odds[1] + orAbsent(a.ActiveBytes)*odds[2] + orAbsent(a.RequestedBytes)*odds[3] +
				orAbsent(a.AllocatedPeakBytes)*odds[4] + orAbsent(a.ReservedPeakBytes)*odds[5] + orAbsent(a.InactiveSplitBytes)*odds[6] + orAbsent(a.PrivatePoolBytes)*odds[7]
			s += orAbsent(a.AllocRetriesTotal)*odds[8] + orAbsent(a.OomsTotal)*odds[9] + orAbsent(a.DeviceAllocsTotal)*odds[10] + orAbsent(a.DeviceFreesTotal)*odds[11]
			sum += weight * (s + orAbsent(a.PinnedAllocatedBytes)*odds[12] + orAbsent(a.PinnedActiveBytes)*odds[13] + orAbsent(a.CompilesTotal)*odds[14])
			weight *= odds[14]
		}
		if p := c.process; p != nil {
			weight *= odds[0]
			sum += orAbsent(p.UsedBytes) * weight
		}
	}
	return sum
}

func number(v *uint64) float64 {
	if v == nil {
		return math.NaN()
	}
	return float64(*v)
}
