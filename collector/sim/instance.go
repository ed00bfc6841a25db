package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// phase is where an instance is in its life.
type phase uint8

const (
	down    phase = iota // until it is started
	loading              // weights, profile run
	up                   // serves, or drains
)

// instance is one serving engine: the process tree behind an endpoint, one rank a card, all in step.
type instance struct {
	host     *host
	unit     string
	model    string
	release  string
	software string // vllm, sglang
	version  string
	config   event.Config
	engine   engine
	arrivals arrivals
	ranks    []*rank
	growths  []*growth
	loadTime time.Duration
	capture  float64       // bytes of CUDA graphs that start-up captures
	captures time.Duration // for how long
	planted  bool          // what is found about it is right
	early    bool          // the configuration is known from the start, by its log
	quantile bool          // reports quantiles of latency
	pause    time.Duration // between an end and the next start
	failed   func(r *rank, f *failure)

	phase    phase
	draining bool
	until    time.Duration
	born     time.Duration // since the world's start; before it when negative
	readyAt  time.Duration
	lives    int
	sleeping bool
	worked   bool // in this tick
	frozen   *engine
}

// age is how long the process has lived.
func (i *instance) age() time.Duration { return i.host.since - i.born }

// serving says whether the endpoint answers.
func (i *instance) serving() bool { return i.phase == up }

// grow plants something that stays behind.
func (i *instance) grow(g growth) *growth {
	i.growths = append(i.growths, &g)
	return &g
}

// begin makes the processes of a new life; one that began before the world says nothing about its start.
func (i *instance) begin() {
	h := i.host
	i.lives++
	i.born, i.draining, i.sleeping, i.frozen = h.since, false, false, nil
	i.engine.restart()
	for n, r := range i.ranks {
		pid := h.nextPid()
		r.alive, r.left, r.steps = true, [allPools]float64{}, 0
		r.allocator.restart()
		r.heap.restart()
		r.who = &event.Worker{
			Pid: pid, StartTicks: event.Ptr(uint64(1e6 + h.since.Seconds()*100)), StartTime: timestamppb.New(h.clock().Add(h.shift - h.step*4/5)), Role: "worker", Rank: event.Ptr(int64(n)),
			GpuUuids: []string{r.card.uuid}, Engine: i.software, EngineIndex: event.Ptr(int64(0)), Unit: i.unit, Model: i.model, Release: i.release,
		}
		if i.planted {
			h.record.Pids = append(h.record.Pids, pid)
		}
		r.allocator.reserved, r.allocator.peakReserved = 20*mib, 20*mib // its first tensors
	}
	for _, g := range i.growths {
		g.kept = 0
	}
	i.phase, i.until = loading, h.since+time.Duration(float64(i.loadTime)*h.between(0.8, 1.2))
}

// start is begin with what a collector sees of it.
func (i *instance) start() {
	i.begin()
	for _, r := range i.ranks {
		i.host.tell(0.2, &event.Event{Worker: r.who, Lifecycle: &event.Lifecycle{State: "started"}})
	}
	if i.early {
		i.tellConfig()
	}
}

// middle puts the instance into the middle of a life that began so long ago.
func (i *instance) middle(ago time.Duration) {
	i.begin()
	h := i.host
	i.born = h.since - ago
	i.readyAt = i.born + i.loadTime
	i.phase = up
	for _, r := range i.ranks {
		r.who.StartTime = timestamppb.New(h.clock().Add(-ago))
		r.who.StartTicks = event.Ptr(uint64(1e6))
		r.allocator.loaded, r.allocator.graphs = 1, i.capture
		r.heap.warmed = r.heap.warm
		r.heap.handled = 3000
		r.steps = math.Floor(h.between(0, 20)) * 2 * mib
	}
	i.engine.finished = math.Floor(i.arrivals.rate * ago.Seconds() * 0.5)
	i.engine.outputTokens, i.engine.promptTokens = i.engine.finished*i.engine.output, i.engine.finished*i.engine.prompt
	i.tellConfig()
}

func (i *instance) step(dt time.Duration) {
	h := i.host
	switch i.phase {
	case down:
		if h.since >= i.until {
			i.start()
		}
	case loading:
		i.load(dt)
	case up:
		i.serve(dt)
	}
}

// load brings the weights in; profile run and KV pool come at its end.
func (i *instance) load(dt time.Duration) {
	h := i.host
	done := h.since >= i.until
	for _, r := range i.ranks {
		r.allocator.loaded = math.Min(0.98, r.allocator.loaded+float64(dt)/float64(i.loadTime))
		if done {
			r.allocator.loaded = 1
		}
		if f := r.step(work{}, dt); f != nil && i.failed != nil {
			if i.failed(r, f); i.phase != loading {
				return
			}
		}
	}
	if !done {
		return
	}
	i.phase, i.readyAt = up, h.since
	if h.sees(fromEngine) {
		h.tell(0.8, &event.Event{Worker: i.ranks[0].who, Lifecycle: &event.Lifecycle{State: "ready"}})
		i.tellConfig()
	}
}

func (i *instance) serve(dt time.Duration) {
	h := i.host
	if i.capture > 0 && i.ranks[0].allocator.graphs < i.capture && !i.sleeping {
		for _, r := range i.ranks {
			r.allocator.graphs = math.Min(i.capture, r.allocator.graphs+math.Ceil(i.capture*float64(dt)/float64(i.captures)/(2*mib))*2*mib)
			r.allocator.compiles += float64(h.whole(0, 1))
		}
	}
	rate := 0.0
	if !i.draining && !i.sleeping {
		rate = i.arrivals.now(h.chance, h.since, math.Mod(h.clock().Sub(h.clock().Truncate(24*time.Hour)).Hours(), 24), dt)
	}
	w := i.engine.step(h.chance, rate, dt)
	i.worked = w.finished+w.prompt > 0
	for _, g := range i.growths {
		i.stay(g, g.step(h.chance, w, h.since, dt))
	}
	for _, r := range i.ranks {
		if f := r.step(w, dt); f != nil && i.failed != nil {
			if i.failed(r, f); i.phase != up {
				return
			}
		}
	}
}

// stay adds what stayed behind: on the device in every rank, in host memory in the first.
func (i *instance) stay(g *growth, amount float64) {
	if amount == 0 {
		return
	}
	switch g.into {
	case inKV:
		i.engine.held = math.Min(i.engine.tokens, i.engine.held+amount)
	case inLive, inAwaiting, inOutside, inUnfit:
		for _, r := range i.ranks {
			r.left[g.into] += amount
		}
	case inGraphs:
		for _, r := range i.ranks {
			r.left[g.into] += amount
			r.allocator.graphs += math.Ceil(amount/(2*mib)) * 2 * mib
		}
	default:
		i.ranks[0].left[g.into] += amount
	}
}

// exit ends all processes at a part of the tick; the fields of the end are the scenario's. They start again after the pause.
func (i *instance) exit(part float64, end *event.Lifecycle) {
	h := i.host
	for n, r := range i.ranks {
		l := &event.Lifecycle{State: "exited", ExitCode: end.ExitCode, Signal: end.Signal, By: end.By, SaidBye: end.SaidBye}
		h.tell(math.Min(0.99, part+0.005*float64(n)), &event.Event{Worker: r.who, Lifecycle: l})
		r.alive = false
		r.allocator.restart()
	}
	i.engine.running, i.engine.waiting, i.worked = 0, 0, false
	i.phase, i.until = down, h.since+i.pause
}

// replace is a rollout as a deployment does it: announced, drained, ended with SIGTERM, started with the next release.
func (i *instance) replace(release string, marked bool) {
	h := i.host
	if marked {
		h.tell(0.1, &event.Event{Mark: &event.Mark{Name: i.unit, Kind: "deploy", Note: release}})
	}
	for _, r := range i.ranks {
		h.tell(0.2, &event.Event{Worker: r.who, Lifecycle: &event.Lifecycle{State: "draining"}})
	}
	i.draining = true
	deadline := h.since + 10*time.Minute
	left := false
	h.every(func() {
		if left || i.engine.running > 0 && h.since < deadline {
			return
		}
		left = true
		end := &event.Lifecycle{ExitCode: event.Ptr(int64(0)), By: "self", SaidBye: event.Ptr(true)}
		if h.happens(0.5) {
			end = &event.Lifecycle{Signal: event.Ptr(int64(15)), By: "parent", SaidBye: event.Ptr(true)}
		}
		i.exit(0.5, end)
		i.release = release
	})
}

func (i *instance) tell() {
	if i.phase != loading && i.phase != up {
		return
	}
	for n, r := range i.ranks {
		r.tell(n == 0)
	}
}

func (i *instance) tellEngine(s *reading) {
	e, out := &i.engine, &s.engine
	if i.frozen != nil {
		e = i.frozen
	}
	usage := e.usage
	if e.evictable > 0 {
		usage = math.Min(1, usage+e.cachedPrefix/e.tokens)
		out.KvEvictable = s.number(round6(e.cachedPrefix / e.tokens))
		out.KvTokensTotal = s.count(e.tokens)
	} else {
		out.KvBlocksTotal = s.count(e.tokens / 16)
	}
	out.KvUsage = s.number(round6(usage))
	out.Running, out.Waiting = s.count(e.running), s.count(e.waiting)
	out.PreemptionsTotal = s.count(e.preempted)
	out.FinishedTotal, out.AbortedTotal, out.ErrorsTotal = s.count(e.finished), s.count(e.aborted), s.count(e.errors)
	out.PromptTokensTotal, out.GenerationTokensTotal = s.count(e.promptTokens), s.count(e.outputTokens)
	if i.quantile && e.told {
		out.TtftP50Seconds, out.TtftP95Seconds, out.TtftP99Seconds = s.number(round6(e.ttft*0.55)), s.number(round6(e.ttft)), s.number(round6(e.ttft*1.3))
		out.ItlP50Seconds, out.ItlP95Seconds, out.ItlP99Seconds = s.number(round6(e.itlP95*0.8)), s.number(round6(e.itlP95)), s.number(round6(e.itlP95*1.4))
		out.E2EP95Seconds = s.number(round6(e.e2e))
		out.PromptTokensP95, out.OutputTokensP95 = s.number(math.Round(e.promptP95)), s.number(math.Round(e.outputP95))
		out.PrefixCacheHitRatio = s.number(round6(math.Max(0, e.hits)))
	}
	if e.slo > 0 {
		out.SloOkTotal, out.SloTotal = s.count(e.sloOK), s.count(e.sloAll)
	}
	out.Sleeping = s.truth(i.sleeping)
	out.LoadedAdapters = s.count(i.ranks[0].allocator.adapters)
}

// utilization is the part of the card that the engine was given: all it needs, in whole percents.
func (i *instance) utilization() float64 {
	a, e := &i.ranks[0].allocator, &i.engine
	needs := a.weights + a.kvPool + i.capture + i.ranks[0].context + (1+a.waste)*(e.maxBatch*a.perToken+e.maxSeqs*a.perSeq)
	for _, cache := range i.config.DeclaredCaches {
		if cache.Name == cardCache {
			needs += float64(cache.GetCapBytes())
		}
	}
	return math.Min(0.99, math.Ceil(100*needs/i.ranks[0].card.total)/100)
}

// tellConfig says what the engine was started with.
func (i *instance) tellConfig() {
	h, a := i.host, &i.ranks[0].allocator
	c := &event.Config{
		Origin: "info metric", GpuMemoryUtilization: event.Ptr(i.utilization()),
		MaxModelLen: event.Ptr(uint64(32768)), MaxNumSeqs: event.Ptr(uint64(i.engine.maxSeqs)), MaxNumBatchedTokens: event.Ptr(uint64(i.engine.maxBatch)),
		BlockSize: event.Ptr(uint64(16)), CudaGraphs: event.Ptr(i.capture > 0), EngineVersion: i.version, TorchVersion: "2.11.0", CudaVersion: "13.0",
		TensorParallel: event.Ptr(uint64(len(i.ranks))), WeightsBytes: event.Ptr(uint64(a.weights)), KvPoolBytes: event.Ptr(uint64(a.kvPool)),
		ConfigHash: fmt.Sprintf("%016x", h.seed*0x9e3779b97f4a7c15+uint64(len(i.release))), DeclaredCaches: slices.Clone(i.config.DeclaredCaches),
	}
	if i.config.GpuMemoryUtilization != nil {
		c.GpuMemoryUtilization = i.config.GpuMemoryUtilization
	}
	if i.config.GraphPoolBytes != nil {
		c.GraphPoolBytes = i.config.GraphPoolBytes
	}
	if a.expandable {
		c.AllocConf = "expandable_segments:True"
	} else if a.async {
		c.AllocConf = "backend:cudaMallocAsync"
	}
	h.tell(0.85, &event.Event{Worker: i.ranks[0].who, Config: c})
}

func round6(v float64) float64 { return math.Round(v*1e6) / 1e6 }
