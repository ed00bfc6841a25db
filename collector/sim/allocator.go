package sim

import (
	"math"
	"time"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// allocator is PyTorch's caching allocator in one process on one card, in bytes: live is what is handed out, reserved follows the
// peaks and falls only when a failed request flushes the cache.
type allocator struct {
	weights, kvPool  float64
	loaded           float64 // part of the weights that is there already
	perToken         float64 // of activations, for a token of a step
	maxBatch         float64 // tokens of a step
	perSeq           float64 // workspaces of a running sequence
	limit            float64 // what the process may reserve
	adapterBytes     float64 // of each resident adapter
	adapters         float64
	graphs           float64 // private pools; of them graphsLive is handed out
	graphsLive       float64 // part
	segment          float64 // by which reserved grows
	expandable       bool
	async            bool // backend cudaMallocAsync: half of the statistics do not exist
	waste            float64
	noise            wander
	splitPart        wander
	pinned           float64
	compiles         float64
	asleep           bool    // weights are in host memory, the KV pool is gone
	spikeShare       float64 // of ticks in which a prompt much longer than usual comes
	spikeTokens      float64
	live, awaiting   float64
	reserved         float64
	peak             float64
	peakReserved     float64
	split, requested float64
	retries, ooms    float64
	allocs, frees    float64
	segments         float64
}

// failure is an allocation that failed.
type failure struct {
	requested, free, allocated, unallocated, privateFree float64
}

// base is what is live at rest.
func (a *allocator) base(left *[allPools]float64) float64 {
	if a.asleep {
		return 0.02*a.weights + left[inLive]
	}
	return a.weights*a.loaded + a.pool() + a.adapters*a.adapterBytes + a.graphs*a.graphsLive + left[inLive] + math.Max(0, a.noise.value+2*a.noise.sigma)
}

func (a *allocator) pool() float64 {
	if a.loaded < 1 {
		return 0
	}
	return a.kvPool
}

// step moves the allocator on. Room is what the card has free beside what this process reserves already. It returns the failure of
// the largest allocation of the tick, where that did not fit.
func (a *allocator) step(c chance, w work, left *[allPools]float64, prompt, room float64, dt time.Duration) *failure {
	if w.running+w.finished > 0 {
		a.noise.step(c, dt) // an idle allocator does not move at all
	}
	base := a.base(left)
	batch, share := math.Min(a.maxBatch, w.most), c.between(0.15, 0.5)
	if w.prompt > 0 {
		batch = math.Min(a.maxBatch, math.Max(batch, prompt*math.Exp(0.45*math.Abs(c.NormFloat64())+0.3)))
	}
	if a.spikeShare > 0 && w.prompt > 0 && c.happens(a.spikeShare) {
		batch, share = a.spikeTokens*c.between(0.8, 1.2), c.between(0.6, 0.95)
	}
	work := batch*a.perToken + w.most*a.perSeq
	a.live, a.awaiting = base, left[inAwaiting]
	if w.running > 0 {
		if c.happens(0.6) { // the sample falls into a step
			a.live += w.running*a.perSeq + math.Min(batch, w.running)*a.perToken*c.between(0.2, 1)
		}
		if c.happens(0.2) {
			a.awaiting += c.between(0, 24) * mib
		}
	}
	a.live = math.Floor(a.live/512) * 512
	a.awaiting = math.Floor(a.awaiting/512) * 512
	failed := a.hold(c, base, math.Max(work, a.live-base), share, left, room)
	if failed == nil {
		a.peak = math.Max(a.peak, math.Max(a.live, base+work))
	}
	if a.reserved < a.live+a.awaiting {
		a.awaiting = math.Max(math.Floor(math.Min(left[inAwaiting], a.reserved)/512)*512, a.reserved-a.live)
		a.live = math.Min(a.live, a.reserved-a.awaiting) // what failed is not live
	}
	a.peak = math.Max(a.peak, a.live)
	a.peakReserved = math.Max(a.peakReserved, a.reserved)
	a.requested = a.live * (1 - 0.0004)
	part := math.Min(0.6, math.Max(0.01, 0.12+a.splitPart.step(c, dt)))
	cached := a.reserved - a.live - a.awaiting
	a.split = math.Min(cached, left[inUnfit]+part*math.Max(0, cached-left[inUnfit]-a.graphs*(1-a.graphsLive)))
	if a.expandable {
		a.split = 0
	}
	return failed
}

// hold makes the reserve large enough for work on top of base, or fails at its largest tensor, which is a share of the work.
func (a *allocator) hold(c chance, base, work, share float64, left *[allPools]float64, room float64) *failure {
	beside := left[inUnfit] + a.graphs*(1-a.graphsLive) + left[inAwaiting]
	need := base + beside + work*(1+a.waste)
	if need <= a.reserved {
		return nil
	}
	had, step := a.reserved, math.Ceil((need-a.reserved)/a.segment)*a.segment
	limit := math.Min(a.limit, a.reserved+room)
	if a.reserved+step <= limit {
		a.grow(step)
		return nil
	}
	// The device has no more: the cache is flushed, and the request tried again.
	a.retries++
	flushed := math.Min(a.reserved, math.Ceil((base+beside+0.3*a.waste*work)/(2*mib))*2*mib)
	if gone := math.Floor((a.reserved - flushed) / a.segment); gone > 0 {
		a.frees += gone
		a.segments = math.Max(1, a.segments-gone)
	}
	a.reserved = flushed
	if step = math.Ceil((need-a.reserved)/(2*mib)) * 2 * mib; a.reserved+step <= limit {
		a.grow(step)
		return nil
	}
	a.ooms++
	f := &failure{requested: math.Ceil(share*work/(2*mib)) * 2 * mib, privateFree: a.graphs * (1 - a.graphsLive)}
	f.allocated = base + c.between(0.6, 0.9)*math.Max(0, work-f.requested)
	a.reserved = math.Max(a.reserved, math.Floor(math.Min(limit, f.allocated+beside+2*mib)/(2*mib))*2*mib)
	f.allocated = math.Floor(math.Max(0, math.Min(f.allocated, a.reserved-beside))/512) * 512
	f.free = math.Max(0, had+room-a.reserved)
	f.requested = math.Max(f.requested, math.Ceil((limit-a.reserved)/(2*mib)+1)*2*mib) // it did not fit
	f.unallocated = math.Max(0, a.reserved-f.allocated-f.privateFree)
	return f
}

func (a *allocator) grow(by float64) {
	a.reserved += by
	n := math.Max(1, math.Floor(by/a.segment))
	a.allocs += n
	a.segments += n
}

// flush is empty_cache: whole segments go back to the driver.
func (a *allocator) flush(left *[allPools]float64) {
	kept := math.Ceil((a.base(left)+left[inUnfit]+left[inAwaiting]+a.graphs*(1-a.graphsLive))/(2*mib)) * 2 * mib
	if kept < a.reserved {
		a.frees += math.Ceil((a.reserved - kept) / a.segment)
		a.reserved = kept
	}
}

// restart is a new process.
func (a *allocator) restart() {
	a.loaded, a.adapters, a.graphs, a.asleep = 0, 0, 0, false
	a.live, a.awaiting, a.reserved, a.peak, a.peakReserved, a.split, a.requested = 0, 0, 0, 0, 0, 0, 0
	a.retries, a.ooms, a.allocs, a.frees, a.segments, a.compiles = 0, 0, 0, 0, 0, 0
}
