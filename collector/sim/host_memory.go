package sim

import "math"

// hostMemory plants what stays behind in the host: memory, page-locked memory, descriptors, threads.
func hostMemory() []script {
	return []script{
		{Scenario{Name: "host-memory-slow", Class: "host_memory", Hours: 28, Planted: "90 bytes a request at 150 requests a second, which never drains: 48 MiB an hour"}, func(w *world) {
			i := w.sick(profile{busy: true})
			e := &i.engine
			e.prompt, e.output, e.prefillRate, e.maxSeqs, e.slo = 180, 1, 60_000, 256, 0
			e.tokens = math.Max(e.tokens, 256*400)
			i.arrivals.rate, i.arrivals.depth, i.arrivals.most = w.between(120, 170), w.between(0, 0.2), 0
			i.quietHost()
			w.plant(i, growth{into: inAnon, perRequest: w.between(85, 110)})
		}},
		{Scenario{Name: "host-memory-request", Class: "host_memory", Hours: 14, Planted: "every finished request keeps host memory, 100 to 400 MiB an hour; drains"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.limit = 0
			w.plant(i, growth{into: inAnon, perRequest: w.between(100, 400) * mib / i.requests()})
		}},
		{Scenario{Name: "host-memory-fast", Class: "host_memory", Hours: 7, Planted: "a transfer library maps 300 to 420 MB a minute while it works; a terabyte is there"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.limit, i.host.memory = 1000*gib, 1024*gib
			w.plant(i, growth{into: inAnon, perRequest: w.between(300e6, 420e6) * 60 / i.requests(), from: hours(w.between(0, 0.6))})
		}},
		{Scenario{Name: "host-memory-kill", Class: "host_memory", Hours: 14, Planted: "2 to 4 GiB an hour up to the cgroup's limit; the cgroup's OOM killer ends it, and it grows again"}, func(w *world) {
			i := w.sick(profile{})
			h := &i.ranks[0].heap
			h.limit, h.others = math.Ceil((h.start+h.shmem+w.between(11, 16)*gib)/gib)*gib, 0.5*gib
			w.plant(i, growth{into: inAnon, perRequest: w.between(2, 4) * gib / i.requests()})
			w.every(i.killAtLimit)
		}},
		{Scenario{Name: "pinned-slow", Class: "pinned_memory", Hours: 16, Planted: "page-locked buffers of a transfer are not returned: 100 to 250 MiB an hour"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.limit = 0
			w.plant(i, growth{into: inPinned, perRequest: w.between(100, 250) * mib / i.requests(), lump: 8 * mib})
		}},
		{Scenario{Name: "pinned-fast", Class: "pinned_memory", Hours: 9, Planted: "the same in powers of two, 1 to 2.5 GiB an hour"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.limit = 0
			w.plant(i, growth{into: inPinned, perRequest: w.between(1, 2.5) * gib / i.requests(), lump: 64 * mib})
		}},
		{Scenario{Name: "fd-leak-files", Class: "fd_leak", Hours: 14, Planted: "30 to 120 descriptors an hour are not closed"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.fdsLimit = 65536
			w.plant(i, growth{into: inFds, perRequest: w.between(30, 120) / i.requests(), lump: 1})
		}},
		{Scenario{Name: "fd-leak-sockets", Class: "fd_leak", Hours: 12, Planted: "connections of clients that went away stay half closed, 60 to 300 an hour"}, func(w *world) {
			i := w.sick(profile{})
			i.ranks[0].heap.fdsLimit = 65536
			i.engine.abortShare = w.between(0.03, 0.1)
			w.plant(i, growth{into: inSockets, perAbort: w.between(60, 300) / i.aborts(), lump: 1})
		}},
		{Scenario{Name: "thread-leak-slow", Class: "thread_leak", Hours: 20, Planted: "a timer starts 5 to 12 threads an hour that never end"}, func(w *world) {
			i := w.sick(profile{})
			w.plant(i, growth{into: inThreads, perHour: w.between(5, 12), lump: 1})
		}},
		{Scenario{Name: "thread-leak-fast", Class: "thread_leak", Hours: 10, Planted: "30 to 90 threads an hour, by request"}, func(w *world) {
			i := w.sick(profile{})
			w.plant(i, growth{into: inThreads, perRequest: w.between(30, 90) / i.requests(), lump: 1})
		}},
	}
}

// quietHost makes the heap's own noise small, as that of a process that does one thing.
func (i *instance) quietHost() {
	h := &i.ranks[0].heap
	h.saw, h.noise.sigma, h.limit = math.Min(h.saw, 12*mib), math.Min(h.noise.sigma, 4*mib), 0
}

// killAtLimit is the cgroup's OOM killer.
func (i *instance) killAtLimit() {
	if i.phase == up && i.ranks[0].overLimit() {
		i.killed(0.4, "cgroup")
	}
}
