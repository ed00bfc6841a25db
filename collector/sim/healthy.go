package sim

import (
	"math"
	"time"
)

// healthy is what looks like trouble and is none: load, caches, garbage collection, start-up.
func healthy() []script {
	return []script{
		{Scenario{Name: "healthy-steady", Hours: 24, Planted: "nothing; drains"}, func(w *world) { w.beside(w.calm(profile{})) }},
		{Scenario{Name: "healthy-busy", Hours: 24, Planted: "nothing; never drains, and load swings"}, func(w *world) {
			i := w.calm(profile{busy: true, load: w.between(0.25, 0.5)})
			i.arrivals.swing.sigma = w.between(0.2, 0.35)
		}},
		{Scenario{Name: "healthy-diurnal", Hours: 48, Planted: "load falls to a fifth at night and rises by day; never drains at the peak"}, func(w *world) {
			i := w.calm(profile{load: w.between(0.35, 0.6), busy: w.happens(0.5)})
			i.arrivals.depth = w.between(0.7, 0.9)
			w.beside(i)
		}},
		{Scenario{Name: "healthy-nights", Hours: 48, Planted: "no request at all at night"}, func(w *world) {
			i := w.calm(profile{})
			i.arrivals.nights, i.arrivals.depth = true, 0.5
		}},
		{Scenario{Name: "healthy-cache-declared", Hours: 30, Planted: "a cache on the card fills to its declared cap over 5 to 20 hours"}, func(w *world) {
			i := w.new(profile{spare: w.between(14, 18)})
			size := w.between(1, 7) * gib
			i.declare(cardCache, size)
			i.fill(inLive, size, w.between(5, 20))
		}},
		{Scenario{Name: "healthy-host-cache-declared", Hours: 30, Planted: "a prompt cache in host memory fills to its declared cap over 4 to 20 hours"}, func(w *world) {
			i := w.new(profile{})
			size := w.between(2, 8) * gib
			i.ranks[0].heap.limit = 0
			i.declare("prompt_cache", size)
			i.fill(inAnon, size, w.between(4, 20))
		}},
		{Scenario{Name: "healthy-cache-capped", Hours: 24, Planted: "an undeclared cache reaches its cap within 20 minutes to 2.5 hours of its start"}, func(w *world) {
			i := w.new(profile{spare: w.between(14, 18)})
			into := []pool{inLive, inAnon}[w.IntN(2)]
			i.ranks[0].heap.limit = 0
			i.fill(into, w.between(0.3, 6)*gib, w.between(0.3, 2.2))
		}},
		{Scenario{Name: "healthy-cache-undeclared", Undeclared: true, Hours: 36, Planted: "an undeclared cache fills over 5 to 20 hours"}, func(w *world) {
			i := w.new(profile{spare: w.between(14, 18)})
			into := []pool{inLive, inAnon}[w.IntN(2)]
			i.ranks[0].heap.limit = 0
			i.fill(into, w.between(0.5, 6)*gib, w.between(5, 20))
		}},
		{Scenario{Name: "healthy-records", Hours: 30, Planted: "ever longer prompts raise the reserve and the heap a little, ever more rarely"}, func(w *world) {
			i := w.calm(profile{spare: w.between(12, 16)})
			a := &i.ranks[0].allocator
			i.ranks[0].heap.records = w.between(2, 8) * mib
			a.spikeShare = 0.02
			w.every(func() { a.spikeTokens = a.maxBatch * (1 + 0.2*math.Log1p(w.hour())) })
		}},
		{Scenario{Name: "healthy-native-steps", Hours: 24, Planted: "once or twice a library takes 20 to 400 MiB at its first use, outside PyTorch"}, func(w *world) {
			i := w.calm(profile{spare: w.between(8, 12)})
			for range w.whole(1, 2) {
				w.at(w.between(0.5, 20), func() { i.stay(&growth{into: inOutside}, w.spread(20, 400)*mib) })
			}
		}},
		{Scenario{Name: "healthy-gc", Hours: 24, Planted: "a garbage collector lets host memory rise by 0.2 to 1.5 GiB over 20 to 110 minutes, and takes it back"}, func(w *world) {
			i := w.calm(profile{})
			h := &i.ranks[0].heap
			h.saw, h.sawTime, h.limit = w.between(0.2, 1.5)*gib, time.Duration(w.between(20, 110)*float64(time.Minute)), 0
		}},
		{Scenario{Name: "healthy-graphs", Hours: 12, Planted: "CUDA graphs are captured for 5 to 18 minutes after the start, and compilations end with them"}, func(w *world) {
			i := w.serve(profile{})
			w.fresh(i)
			i.capture, i.captures = w.between(0.8, 3)*gib, time.Duration(w.between(5, 18)*float64(time.Minute))
		}},
		{Scenario{Name: "healthy-reserve", Hours: 24, Planted: "long prompts made the reserve high; it stays high and level, most of it unused"}, func(w *world) {
			i := w.calm(profile{spare: w.between(14, 24)})
			a := &i.ranks[0].allocator
			a.spikeShare, a.spikeTokens = w.between(0.005, 0.03), w.between(0.5, 0.75)*i.spareBytes()/a.perToken
			a.splitPart.sigma = 0.12
		}},
		{Scenario{Name: "healthy-prompts", Hours: 24, Planted: "prompts grow to twice their length over the day and fall back"}, func(w *world) {
			i := w.calm(profile{load: w.between(0.15, 0.3)})
			usual, peak := i.engine.prompt, w.between(0, 24)
			w.every(func() {
				i.engine.prompt = math.Floor(usual * (1.5 + 0.5*math.Cos((w.hour()-peak)/24*2*math.Pi)))
			})
		}},
		{Scenario{Name: "healthy-saturated", Hours: 24, Planted: "the KV pool is nearly full at all times: now and then one of 20 requests is preempted, none waits for long"}, func(w *world) {
			i := tight(w, w.between(0.78, 0.86), w.between(0.02, 0.06))
			i.planted = false
			i.arrivals.swing.sigma, i.arrivals.depth = 0.04, 0.05
			// Chance fills a small pool sooner: of 20 sequences three quarters may be in use, of 100 nearly nine tenths.
			fits := i.engine.capacity()
			i.arrivals.rate = math.Min(i.arrivals.rate, (1-1.2/math.Sqrt(fits))*fits/i.engine.service(fits))
		}},
		{Scenario{Name: "healthy-peaks", Hours: 24, Planted: "bursts of a few minutes are more than fits: a queue forms and is gone again"}, func(w *world) {
			i := w.calm(profile{load: w.between(0.3, 0.45)})
			i.arrivals.most = 0
			usual := i.arrivals.rate
			until := 0.0
			w.every(func() {
				if w.hour() > until {
					i.arrivals.rate = usual
					if w.happens(0.012 * w.step.Minutes()) {
						i.arrivals.rate, until = w.between(1.2, 2)*i.engine.capacity()/i.engine.service(i.engine.capacity()), w.hour()+w.between(2, 6)/60
					}
				}
			})
		}},
		{Scenario{Name: "healthy-prefix-cache", Hours: 24, Planted: "the gauge of the pool counts an idle prefix cache that can be evicted, and says how much"}, func(w *world) {
			i := w.calm(profile{})
			i.software, i.version, i.engine.evictable = "sglang", "0.5.20", w.between(0.5, 0.98)
		}},
		{Scenario{Name: "healthy-expandable", Hours: 24, Planted: "nothing, under expandable segments"}, func(w *world) {
			a := &w.calm(profile{}).ranks[0].allocator
			a.expandable, a.segment = true, 2*mib
		}},
		{Scenario{Name: "healthy-async", Hours: 24, Planted: "nothing, under cudaMallocAsync, which keeps few statistics"}, func(w *world) {
			i := w.calm(profile{})
			i.capture = 0
			a := &i.ranks[0].allocator
			a.async, a.segment, a.waste = true, 2*mib, w.between(0.1, 0.6)
		}},
		{Scenario{Name: "healthy-ranks", Hours: 24, Planted: "nothing, in two to four tensor-parallel ranks"}, func(w *world) { w.calm(profile{ranks: w.whole(2, 4)}) }},
		{Scenario{Name: "healthy-replicas", Hours: 24, Planted: "nothing, in three replicas, one of them of another release"}, func(w *world) {
			i := w.calm(profile{release: "build-a"})
			w.calm(profile{like: i, release: "build-a"})
			w.calm(profile{like: i, release: "build-b"})
		}},
	}
}

// fill plants a cache: it fills by the hours evenly, or ever more slowly.
func (i *instance) fill(into pool, size, over float64) {
	if i.host.happens(0.5) {
		busy := float64(i.arrivals.burst) / float64(i.arrivals.burst+i.arrivals.pause) // it fills only then
		i.grow(growth{into: into, cap: size, tau: hours(over * busy / 4.3)})
		return
	}
	i.grow(growth{into: into, cap: size, perRequest: size / over / i.requests()})
}
