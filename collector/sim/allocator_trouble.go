package sim

// allocatorTrouble plants what goes wrong inside PyTorch's allocator without tensors being kept, and requests that are too large.
func allocatorTrouble() []script {
	return []script{
		{Scenario{Name: "stream-backlog-slow", Class: "stream_backlog", Hours: 14, Planted: "a copy stream is never synchronised: 100 to 250 MiB an hour of freed blocks stay pending"}, func(w *world) {
			i := w.sick(profile{spare: w.between(8, 12)})
			w.plant(i, growth{into: inAwaiting, perRequest: w.between(100, 250) * mib / i.requests()})
		}},
		{Scenario{Name: "stream-backlog-fast", Class: "stream_backlog", Hours: 9, Planted: "the same, 0.8 to 1.6 GiB an hour"}, func(w *world) {
			i := w.sick(profile{spare: w.between(18, 24)})
			w.plant(i, growth{into: inAwaiting, perRequest: w.between(0.8, 1.6) * gib / i.requests()})
		}},
		{Scenario{Name: "fragmentation-oom", Class: "fragmentation", Hours: 12, Planted: "segments are cut up by small blocks until a request fails that would fit in total; live memory is level"}, func(w *world) {
			fragment(w, true)
		}},
		{Scenario{Name: "fragmentation-counters", Class: "fragmentation", Hours: 12, Planted: "the same where nobody reads the message: only the counters say so"}, func(w *world) {
			fragment(w, false)
		}},
		{Scenario{Name: "graph-pools-shapes", Class: "graph_pools", Hours: 12, Planted: "a CUDA graph for each new prompt length, each with a private pool: 0.2 to 0.6 GiB an hour"}, func(w *world) {
			i := w.sick(profile{spare: w.between(14, 18)})
			w.plant(i, growth{into: inGraphs, perRequest: w.between(0.2, 0.6) * gib / i.requests(), lump: w.between(16, 60) * mib})
		}},
		{Scenario{Name: "graph-pools-oom", Class: "graph_pools", Hours: 12, Planted: "the same, 1.2 to 2 GiB an hour, until a capture fails and the engine dies"}, func(w *world) {
			i := w.sick(profile{spare: w.between(7, 10)})
			i.failed = i.die
			w.plant(i, growth{into: inGraphs, perRequest: w.between(1.2, 2) * gib / i.requests(), lump: w.between(24, 90) * mib})
		}},
		{Scenario{Name: "oversize-requests", Class: "oversize_request", Hours: 10, Planted: "one to three times an hour a prompt that needs more than all headroom; the engine goes on"}, func(w *world) {
			i := w.sick(profile{spare: w.between(4, 8)})
			i.oversize(w.between(1.2, 3))
		}},
		{Scenario{Name: "oversize-crash", Class: "oversize_request", Hours: 10, Planted: "the same, and each ends the engine"}, func(w *world) {
			i := w.sick(profile{spare: w.between(4, 8)})
			i.oversize(w.between(1.2, 2))
			reject := i.failed
			i.failed = func(r *rank, f *failure) {
				reject(r, f)
				i.exit(0.95, errorExit())
			}
		}},
		{Scenario{Name: "oversize-reserve", Class: "oversize_request", Hours: 8, Planted: "after heavy calls that fit and leave a large reserve, two calls that could fit nowhere"}, func(w *world) {
			i := w.sick(profile{spare: w.between(30, 36), busy: true})
			a, from := &i.ranks[0].allocator, w.between(1, 4)
			call := func(at, spareShare float64) {
				w.at(at, func() { a.spikeShare, a.spikeTokens = 1, spareShare*36*gib/a.perToken })
				w.at(at+0.03, func() { a.spikeShare = 0 })
			}
			call(from, 0.45)
			w.at(from+0.05, func() { i.stay(&growth{into: inUnfit}, w.between(6, 12)*gib) }) // its segments stay in use, in part
			call(from+w.between(0.2, 0.5), 2.2)
			call(from+w.between(0.6, 0.9), 2.2)
			i.failed = i.rejected()
		}},
	}
}

// oversize lets prompts come, so many times an hour, that need more than what the card has left.
func (i *instance) oversize(perHour float64) {
	a := &i.ranks[0].allocator
	a.spikeTokens = i.host.between(20, 30) * gib / a.perToken
	i.host.at(i.host.between(1, 3), func() { a.spikeShare = 1.3 * perHour / 60 }) // none comes while it is quiet
	i.failed = i.rejected()
}

// rejected is rejectRequest that notes the first as the onset.
func (i *instance) rejected() func(*rank, *failure) {
	return func(r *rank, f *failure) {
		i.host.onset()
		i.rejectRequest(r, f)
	}
}

func fragment(w *world, text bool) {
	spare, total := w.between(6, 12), 0.0
	if !text {
		spare, total = w.between(22, 28), 80 // a large part of the card, or counters say nothing
	}
	i := w.sick(profile{spare: spare, total: total})
	a := &i.ranks[0].allocator
	g := i.grow(growth{into: inUnfit, perRequest: spare * gib / w.between(3, 6) / i.requests(), from: hours(w.between(0, 2))})
	w.at(g.from.Hours(), w.onset)
	i.failed = func(r *rank, f *failure) {
		if g.cap == 0 { // from here on it depends on the size of the request
			g.cap = g.kept
			r.left[inUnfit] *= w.between(0.98, 0.998)
		}
		if text {
			i.rejectRequest(r, f)
		} else {
			i.engine.errors++
		}
	}
	a.noise.sigma = 0
}
