package sim

import (
	"math"
	"time"

	"lowtide/event"
)

// ends plants workers that are ended from outside, that hang, that run out of memory faster than a cause can be told, and that do
// not stay up.
func ends() []script {
	return []script{
		{Scenario{Name: "kill-cgroup", Class: "external_kill", Hours: 8, Planted: "something else in the container takes its memory within minutes; the cgroup's OOM killer picks the worker"}, func(w *world) {
			i := w.sick(profile{})
			h := &i.ranks[0].heap
			h.limit, h.others = math.Ceil((h.start+h.shmem+w.between(6, 12)*gib)/gib)*gib, 0.5*gib
			from, minutes := w.between(2.5, 6), w.between(2, 8)
			w.at(from, w.onset)
			killed := false
			w.every(func() {
				if killed || w.hour() < from {
					return
				}
				h.others += (h.limit - h.start) / minutes * w.step.Minutes()
				if i.phase == up && i.ranks[0].overLimit() {
					i.killed(0.5, "cgroup")
					h.others, killed = 0.5*gib, true
				}
			})
		}},
		{Scenario{Name: "kill-kernel", Class: "external_kill", Hours: 8, Planted: "the host runs out of memory because of somebody else; the kernel picks the worker"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.limit = 0
			w.at(w.between(2, 6), func() { w.onset(); i.killed(0.5, "kernel") })
		}},
		{Scenario{Name: "kill-parent", Class: "external_kill", Hours: 8, Planted: "the parent sends SIGKILL on a sentinel of its own"}, func(w *world) {
			i := w.sick(profile{})
			w.at(w.between(2, 6), func() { w.onset(); i.exit(0.5, bySignal(9, "parent")) })
		}},
		{Scenario{Name: "kill-term", Class: "external_kill", Hours: 8, Planted: "SIGTERM out of nowhere: no drain, no bye, no deployment, the same release again"}, func(w *world) {
			i := w.sick(profile{})
			w.at(w.between(2, 6), func() { w.onset(); i.exit(0.5, bySignal(15, "unknown")) })
		}},
		{Scenario{Name: "stall-queue", Class: "stall", Hours: 7, Planted: "a step never ends: nothing comes out, what comes waits, the device is idle"}, func(w *world) {
			i := w.sick(profile{})
			i.engine.patience = 0
			i.hangs(w.between(2, 4), false)
		}},
		{Scenario{Name: "stall-collective", Class: "stall", Hours: 7, Planted: "ranks wait for each other: every gauge stands still and the devices spin"}, func(w *world) {
			i := w.serve(profile{ranks: 2})
			i.planted = true
			w.open(i)
			i.engine.patience = w.between(120, 600)
			i.hangs(w.between(2, 4), true)
		}},
		{Scenario{Name: "exhaustion-device", Class: "exhaustion", Hours: 6, Planted: "in a worker that never drains live memory and memory outside PyTorch rise together and take all there is within half an hour or three quarters"}, func(w *world) {
			i := w.sick(profile{spare: w.between(14, 22), busy: true})
			i.failed = i.die
			from, all := w.between(2, 4), i.spareBytes()/w.between(0.45, 0.75)
			part := w.between(0.4, 0.6)
			w.plant(i, growth{into: inLive, perHour: part * all, from: hours(from), until: hours(from + 1)})
			i.grow(growth{into: inOutside, perHour: (1 - part) * all, from: hours(from), until: hours(from + 1)})
		}},
		{Scenario{Name: "exhaustion-host", Class: "exhaustion", Hours: 6, Planted: "in a worker that never drains host memory rises to the cgroup's limit within half an hour or three quarters"}, func(w *world) {
			i := w.sick(profile{busy: true})
			h := &i.ranks[0].heap
			h.limit, h.others = math.Ceil((h.start+h.shmem+w.between(15, 40)*gib)/gib)*gib, 0.3*gib
			from := w.between(2, 4)
			w.plant(i, growth{into: inAnon, perHour: (h.limit - h.start - h.shmem) / w.between(0.45, 0.75), from: hours(from), until: hours(from + 1)})
			w.every(i.killAtLimit)
		}},
		{Scenario{Name: "crash-loop-start", Class: "crash_loop", Hours: 7, Planted: "after a restart the engine ends with code 1 before it is ready, again and again"}, func(w *world) {
			i := w.sick(profile{})
			from := w.between(2, 4)
			w.at(from, func() { w.onset(); i.exit(0.5, errorExit()) })
			w.every(func() {
				if w.hour() > from && i.phase == loading && i.age() >= i.loadTime/2 {
					i.exit(0.5, errorExit())
				}
			})
		}},
		{Scenario{Name: "crash-loop-served", Class: "crash_loop", Hours: 7, Planted: "it serves for 3 to 12 minutes and dies of a segmentation fault, again and again"}, func(w *world) {
			i := w.sick(profile{})
			from := w.between(2, 4)
			w.at(from, func() { w.onset(); i.exit(0.5, bySignal(11, "self")) })
			lasts := time.Duration(w.between(3, 12) * float64(time.Minute))
			w.every(func() {
				if w.hour() > from && i.phase == up && w.since-i.readyAt >= lasts {
					i.exit(0.5, bySignal(11, "self"))
					lasts = time.Duration(w.between(3, 12) * float64(time.Minute))
				}
			})
		}},
	}
}

// hangs stops the engine for the rest of the recording, from the first tick after that hour at which something runs.
func (i *instance) hangs(from float64, collective bool) {
	w := i.host.world
	w.every(func() {
		if w.hour() < from || i.engine.stopped || i.phase != up || i.engine.running == 0 {
			return
		}
		w.onset()
		i.engine.stopped = true
		i.arrivals.burst = 0
		i.arrivals.factor = 0.1 // a router that balances sends less
		if collective {
			shown := i.engine
			i.frozen = &shown
			for _, r := range i.ranks {
				r.card.spinning = true
			}
		}
	})
}

// spareBytes is what the card has left once the first rank works, about.
func (i *instance) spareBytes() float64 {
	r, e := i.ranks[0], &i.engine
	a := &r.allocator
	return r.card.total - r.card.driver - r.context - a.weights - a.kvPool - i.capture - (1+a.waste)*(e.maxBatch*a.perToken+e.maxSeqs*a.perSeq)
}

// configured plants settings and neighbours that leave too little, and sensors that are gone.
func configured() []script {
	return []script{
		{Scenario{Name: "cotenant-grab", Class: "cotenant", Hours: 9, Planted: "another process takes nearly all that the card has left; prompts fail that would have fitted"}, func(w *world) {
			i := w.serve(profile{spare: w.between(14, 24)})
			i.planted = true
			w.open(i)
			a, c := &i.ranks[0].allocator, i.ranks[0].card
			spare, from := i.spareBytes(), w.between(1.5, 4)
			w.at(from, func() { w.onset(); c.tenant(math.Floor(w.between(0.86, 0.95)*c.room()/(2*mib)) * 2 * mib) })
			w.at(from+0.1, func() { a.spikeShare, a.spikeTokens = w.between(0.03, 0.08), w.between(0.45, 0.6)*spare/a.perToken })
		}},
		{Scenario{Name: "cotenant-orphan", Class: "cotenant", Hours: 8, Planted: "after a rollout the old process's memory stays on the card without a process; the new one cannot start until it is gone"}, func(w *world) {
			i := w.serve(profile{})
			i.planted = true
			w.open(i)
			i.failed = i.die
			c, from := i.ranks[0].card, w.between(1.5, 4)
			until := from + w.between(1, 2.5)
			w.at(from, func() {
				w.onset()
				held := i.ranks[0].used()
				i.host.tell(0.1, &event.Event{Mark: &event.Mark{Name: i.unit, Kind: "deploy", Note: "build-next"}})
				i.host.tell(0.2, &event.Event{Worker: i.ranks[0].who, Lifecycle: &event.Lifecycle{State: "draining"}})
				i.exit(0.5, &event.Lifecycle{ExitCode: event.Ptr(int64(0)), By: "self", SaidBye: event.Ptr(true)})
				i.release = "build-next"
				c.orphan = math.Floor(w.between(0.7, 0.95)*held/(2*mib)) * 2 * mib
			})
			w.at(until, func() { c.orphan = 0 })
		}},
		{Scenario{Name: "capacity-device", Class: "capacity", Hours: 4, Planted: "weights, KV pool and graphs as configured are more than the card; it dies while it starts, again and again"}, func(w *world) {
			i := w.serve(profile{spare: w.between(4, 8)})
			i.planted = true
			w.fresh(i)
			r := i.ranks[0]
			r.allocator.kvPool += math.Floor((i.spareBytes()+w.between(4, 10)*gib)/mib*1) * mib
			i.capture = w.between(0.8, 2) * gib
			i.config.GraphPoolBytes = event.Ptr(uint64(i.capture))
			i.config.GpuMemoryUtilization = event.Ptr(math.Round(100*w.between(0.95, 0.98)) / 100)
			w.at(0, w.onset)
			i.early = true
			i.failed = i.die
		}},
		{Scenario{Name: "capacity-host", Class: "capacity", Hours: 14, Planted: "declared host caches add up to more than the cgroup's limit; they fill, and the cgroup's OOM killer ends the worker"}, func(w *world) {
			i := w.serve(profile{})
			i.planted = true
			w.fresh(i)
			h := &i.ranks[0].heap
			h.start = w.between(1.5, 3) * gib
			h.limit, h.others = math.Ceil((h.start+h.shmem+w.between(5, 9)*gib)/gib)*gib, 0.3*gib
			caches := float64(w.whole(2, 4)) * 8 * gib
			for range int(caches / (8 * gib)) {
				i.declare("prompt_cache", 8*gib)
			}
			w.at(0, w.onset)
			i.grow(growth{into: inAnon, perRequest: (h.limit - h.start - h.shmem) / w.between(3, 7) / i.requests(), cap: caches})
			w.every(i.killAtLimit)
		}},
		{Scenario{Name: "blind-nvml", Class: "blind", Hours: 8, Planted: "NVML stops answering for hours: lost"}, func(w *world) {
			i := w.sick(profile{})
			w.at(w.between(2, 4), func() { w.onset(); i.host.status[fromNVML] = "lost" })
		}},
		{Scenario{Name: "blind-timeout", Class: "blind", Hours: 8, Planted: "the engine's metrics or the probe do not answer in time for hours"}, func(w *world) {
			i := w.sick(profile{})
			source := fromProbe + w.IntN(2)
			w.at(w.between(2, 4), func() { w.onset(); i.host.status[source] = "timeout" })
			w.at(w.between(7, 7.8), func() { i.host.status[source] = "" })
		}},
	}
}
