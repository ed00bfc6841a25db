package sim

import (
	"fmt"
	"math"
	"time"

	"lowtide/event"
)

// profile is what a scenario asks of an instance beyond what chance gives it.
type profile struct {
	busy    bool    // never drains
	total   float64 // GiB of the card; 0 is what chance gives
	spare   float64 // GiB of the card that nobody needs; 0 is what chance gives, 5 to 12
	ranks   int     // 1 when zero
	load    float64 // running sequences as a part of what fits; 0 is what chance gives
	host    *host   // a new one when nil
	cards   []*card // new ones when nil
	release string
	model   string
	like    *instance // a replica: the same model and demand
}

// serve puts an instance on a host. It starts with the world, or is in the middle of its life.
func (w *world) serve(p profile) *instance {
	h := p.host
	if h == nil {
		h = w.newHost()
	}
	if p.ranks == 0 {
		p.ranks = 1
	}
	total := gib * []float64{80, 80, 141}[w.IntN(3)]
	if p.total > 0 {
		total = p.total * gib
	}
	for len(p.cards) < p.ranks {
		p.cards = append(p.cards, h.newCard(total))
	}
	i := &instance{host: h, unit: fmt.Sprintf("serve-%d", len(h.instances)), model: p.model, release: p.release, software: "vllm", version: "0.32.0", quantile: true,
		loadTime: time.Duration(w.between(1.5, 5) * float64(time.Minute)), pause: time.Duration(w.between(20, 90) * float64(time.Second))}
	if i.model == "" {
		i.model = fmt.Sprintf("model-%d", w.IntN(40))
	}
	if i.release == "" {
		i.release = fmt.Sprintf("build-%d", w.whole(10, 99))
	}
	i.failed = i.rejectRequest
	h.instances = append(h.instances, i)
	i.capture, i.captures = w.between(0.3, 1.6)*gib, time.Duration(w.between(0.7, 3)*float64(time.Minute))
	if w.happens(0.3) {
		i.capture = 0
	}
	i.drawEngine(p)
	for n := range p.ranks {
		i.addRank(p, p.cards[n])
	}
	return i
}

func (i *instance) drawEngine(p profile) {
	w, e := i.host.world, &i.engine
	if p.like != nil {
		i.model, i.software, i.version = p.like.model, p.like.software, p.like.version
		like := &p.like.engine
		e.maxSeqs, e.prompt, e.output, e.prefillRate, e.itl, e.itlPerSeq, e.maxBatch, e.tokens = like.maxSeqs, like.prompt, like.output, like.prefillRate, like.itl, like.itlPerSeq, like.maxBatch, like.tokens
		e.abortShare, e.slo, e.preempt = like.abortShare, like.slo, like.preempt
		i.arrivals = p.like.arrivals
		i.arrivals.rate *= w.between(0.85, 1.15)
		return
	}
	e.maxSeqs = []float64{32, 64, 128, 256}[w.IntN(4)]
	e.prompt, e.output = math.Floor(w.spread(200, 2500)), math.Floor(w.spread(60, 600))
	e.prefillRate = w.spread(15_000, 60_000)
	e.itl, e.itlPerSeq = w.between(0.012, 0.03), w.between(0.5, 2)*0.02/e.maxSeqs
	e.maxBatch = []float64{2048, 4096, 8192}[w.IntN(3)]
	e.abortShare, e.errorShare = w.between(0.005, 0.06), w.between(0, 0.002)
	e.tokens = math.Floor(e.maxSeqs*e.mean()*w.between(1.5, 4)/16) * 16
	e.preempt = w.between(0.01, 0.06)
	if w.happens(0.4) {
		e.slo = w.between(1, 4)
	}
	load := p.load
	if load == 0 {
		load = w.between(0.15, 0.5)
	}
	running := math.Max(3, load*e.maxSeqs)
	rate := math.Min(running/e.service(running), 0.6*e.prefillRate/e.prompt)
	if p.busy {
		i.arrivals = busyArrivals(w.chance, math.Max(8, running)/e.service(math.Max(8, running)))
	} else {
		i.arrivals = drainingArrivals(w.chance, rate)
	}
	i.arrivals.most = 0.8 * e.maxSeqs / e.service(e.maxSeqs)
}

func (i *instance) addRank(p profile, c *card) {
	w, e := i.host.world, &i.engine
	r := &rank{instance: i, card: c}
	c.ranks = append(c.ranks, r)
	i.ranks = append(i.ranks, r)
	r.context = math.Floor(w.between(180, 320)) * 2 * mib
	if p.ranks > 1 {
		r.context += math.Floor(w.between(100, 400)) * 2 * mib // NCCL
	}
	a := &r.allocator
	a.limit, a.segment = c.total, 20*mib
	a.maxBatch, a.perToken, a.perSeq = e.maxBatch, w.between(60, 250)*kib, w.between(0.2, 2)*mib
	a.weights = math.Floor(w.spread(5, math.Max(7, math.Min(0.4*c.total/gib, c.total/gib-p.spare-16)))*1024) * mib
	a.waste = w.between(0.02, 0.1)
	a.graphsLive = w.between(0, 0.02)
	a.pinned = math.Floor(w.between(8, 200)) * mib
	a.compiles = float64(w.whole(0, 4))
	if w.happens(0.5) {
		a.noise = wander{sigma: w.spread(0.3, 10) * mib, keeps: time.Duration(w.between(20, 90) * float64(time.Minute))}
	}
	a.splitPart = wander{sigma: 0.04, keeps: 40 * time.Minute}
	spare := p.spare * gib
	if spare == 0 {
		spare = w.between(5, 12) * gib
	}
	work := (1+a.waste)*(e.maxBatch*a.perToken+e.maxSeqs*a.perSeq) + 64*mib
	a.kvPool = math.Floor(math.Max(gib, c.total-c.driver-c.others(nil)-r.context-200*mib-a.weights-i.capture-work-spare)/mib) * mib
	i.addHeap(r)
	if n := len(i.ranks); n > 1 { // ranks are alike
		first := &i.ranks[0].allocator
		a.weights, a.perToken, a.perSeq, a.kvPool, a.waste, a.noise, a.pinned = first.weights, first.perToken, first.perSeq, math.Min(first.kvPool, a.kvPool), first.waste, first.noise, first.pinned
		for _, other := range i.ranks {
			other.allocator.kvPool = a.kvPool
		}
	}
}

func (i *instance) addHeap(r *rank) {
	w := i.host.world
	r.heap = heap{
		start: w.between(1.5, 9) * gib, warm: w.between(30, 300) * mib, warmTime: time.Duration(w.between(5, 25) * float64(time.Minute)),
		records: w.between(0, 1.2) * mib, saw: w.spread(2, 60) * mib, sawTime: time.Duration(w.between(4, 40) * float64(time.Minute)),
		perSeq: w.between(50, 700) * kib, noise: wander{sigma: w.spread(0.3, 12) * mib, keeps: time.Duration(w.between(10, 60) * float64(time.Minute))},
		shmem: math.Floor(w.between(50, 800)) * mib, baseFds: float64(w.whole(40, 160)), fdsLimit: []float64{1024, 65536, 1048576}[w.IntN(3)],
		threads: float64(w.whole(18, 120)), keepAlive: wander{sigma: w.between(0.5, 5), keeps: 20 * time.Minute},
	}
	if r.heap.fdsLimit < 2*(r.heap.baseFds+i.engine.maxSeqs) {
		r.heap.fdsLimit = 65536
	}
	if w.happens(0.5) {
		r.heap.limit = math.Ceil(w.between(1.5, 3)*(r.heap.start+r.heap.shmem+2*gib)/gib) * gib
		r.heap.others = w.between(0.1, 1) * gib
	}
}

// open starts the world's instances: with the world, or long before it.
func (w *world) open(instances ...*instance) {
	for _, i := range instances {
		w.at(0, func() {
			if w.happens(0.6) {
				i.start()
			} else {
				i.middle(time.Duration(w.between(2, 90) * float64(time.Hour)))
			}
		})
	}
}

// fresh starts them with the world.
func (w *world) fresh(instances ...*instance) {
	for _, i := range instances {
		w.at(0, i.start)
	}
}

// beside adds a healthy neighbour in one world of three: on the host, or a replica elsewhere.
func (w *world) beside(i *instance) {
	switch w.IntN(3) {
	case 0:
		w.open(w.serve(profile{host: i.host}))
	case 1:
		w.open(w.serve(profile{like: i, release: i.release}))
	}
}

// cardCache is the name of a cache that is on the card rather than in host memory.
const cardCache = "encoder_cache"

// declare says in the configuration that a cache may take as much.
func (i *instance) declare(name string, bytes float64) {
	i.config.DeclaredCaches = append(i.config.DeclaredCaches, &event.DeclaredCache{Name: name, CapBytes: event.Ptr(uint64(bytes))})
}

// requests is how many requests an instance finishes in an hour, about.
func (i *instance) requests() float64 {
	a := &i.arrivals
	duty := 1.0
	if a.burst > 0 {
		duty = float64(a.burst) / float64(a.burst+a.pause)
	}
	return a.rate * 3600 * duty * (1 - a.depth/2) * (1 - i.engine.abortShare)
}

// aborts is how many of them clients give up.
func (i *instance) aborts() float64 {
	return i.requests() / (1 - i.engine.abortShare) * i.engine.abortShare
}

// sick puts up an instance in which something is planted, perhaps beside a healthy one.
func (w *world) sick(p profile) *instance {
	i := w.serve(p)
	i.planted = true
	w.open(i)
	w.beside(i)
	return i
}

// calm puts up an instance in which nothing is.
func (w *world) calm(p profile) *instance {
	i := w.serve(p)
	w.open(i)
	return i
}

// new is calm, and starts with the world.
func (w *world) new(p profile) *instance {
	i := w.serve(p)
	w.fresh(i)
	return i
}

// plant lets something stay behind, and notes from when on.
func (w *world) plant(i *instance, g growth) *growth {
	w.at(g.from.Hours(), w.onset)
	return i.grow(g)
}

func hours(h float64) time.Duration { return time.Duration(h * float64(time.Hour)) }
