package sim

// deviceMemory plants what stays behind on the device: retention and native growth.
func deviceMemory() []script {
	return []script{
		{Scenario{Name: "retention-20mib", Class: "retention", Hours: 30, Planted: "a timer keeps 16 to 26 MiB of tensors an hour; drains"}, func(w *world) {
			i := w.sick(profile{})
			w.plant(i, growth{into: inLive, perHour: w.between(16, 26) * mib, lump: w.spread(0.1, 3) * mib})
		}},
		{Scenario{Name: "retention-200mib", Class: "retention", Hours: 14, Planted: "every finished request keeps tensors, 150 to 260 MiB an hour; drains"}, func(w *world) {
			i := w.sick(profile{spare: w.between(8, 14)})
			w.plant(i, growth{into: inLive, perRequest: w.between(150, 260) * mib / i.requests()})
		}},
		{Scenario{Name: "retention-2gib", Class: "retention", Hours: 8, Planted: "every finished request keeps tensors, 1.6 to 2.4 GiB an hour; drains"}, func(w *world) {
			i := w.sick(profile{spare: w.between(28, 34)})
			w.plant(i, growth{into: inLive, perRequest: w.between(1.6, 2.4) * gib / i.requests()})
		}},
		{Scenario{Name: "retention-lumps", Class: "retention", Hours: 24, Planted: "a buffer of 40 to 100 MiB is kept two to three times an hour, whatever is served; drains"}, func(w *world) {
			i := w.sick(profile{spare: w.between(12, 16)})
			lump := w.between(40, 100) * mib
			w.plant(i, growth{into: inLive, perHour: w.between(2, 3) * lump, lump: lump})
		}},
		{Scenario{Name: "retention-abort", Class: "retention", Hours: 12, Planted: "aborted streams keep their tensors, 0.3 to 1.2 GiB an hour; drains"}, func(w *world) {
			i := w.sick(profile{spare: w.between(18, 24)})
			i.engine.abortShare = w.between(0.02, 0.15)
			rate := w.between(0.3, 1.2) * gib
			w.plant(i, growth{into: inLive, perAbort: rate / i.aborts(), lump: rate / i.aborts()})
		}},
		{Scenario{Name: "retention-busy", Class: "retention", Hours: 22, Planted: "every finished request keeps tensors, 0.4 to 1.2 GiB an hour; never drains"}, func(w *world) {
			i := w.sick(profile{spare: w.between(30, 36), busy: true})
			w.plant(i, growth{into: inLive, perRequest: w.between(0.4, 1.2) * gib / i.requests()})
		}},
		{Scenario{Name: "retention-oom", Class: "retention", Hours: 11, Planted: "aborted streams keep 1.2 to 2.2 GiB an hour until requests fail; the engine goes on"}, func(w *world) {
			i := w.sick(profile{spare: w.between(7, 11)})
			i.engine.abortShare = w.between(0.03, 0.12)
			rate := w.between(1.2, 2.2) * gib
			g := w.plant(i, growth{into: inLive, perAbort: rate / i.aborts(), lump: rate / i.aborts() / 2})
			i.failed = func(r *rank, f *failure) {
				g.cap = max(g.kept, 1) // what fails keeps nothing
				i.rejectRequest(r, f)
			}
		}},
		{Scenario{Name: "retention-restarts", Class: "retention", Hours: 18, Planted: "requests keep 1.8 to 2.8 GiB an hour; the engine dies of the failed allocation, is started again and grows again"}, func(w *world) {
			i := w.sick(profile{spare: w.between(9, 13)})
			i.failed = i.die
			w.plant(i, growth{into: inLive, perRequest: w.between(1.8, 2.8) * gib / i.requests()})
		}},
		{Scenario{Name: "retention-release", Class: "retention", Hours: 14, Planted: "the new release keeps 200 to 500 MiB an hour, its peer of the old release at the same load nothing"}, func(w *world) {
			i := w.serve(profile{spare: w.between(10, 16), release: "build-new"})
			i.planted = true
			peer := w.serve(profile{spare: 10, release: "build-old", like: i})
			w.fresh(i, peer)
			w.plant(i, growth{into: inLive, perRequest: w.between(200, 500) * mib / i.requests()})
		}},
		{Scenario{Name: "retention-ranks", Class: "retention", Hours: 12, Planted: "two tensor-parallel ranks keep 0.2 to 0.8 GiB an hour each"}, func(w *world) {
			i := w.serve(profile{spare: w.between(12, 18), ranks: 2})
			i.planted = true
			w.open(i)
			w.plant(i, growth{into: inLive, perRequest: w.between(0.2, 0.8) * gib / i.requests()})
		}},
		{Scenario{Name: "retention-late", Class: "retention", Hours: 26, Planted: "after 6 to 10 good hours a feature is switched on that keeps 0.3 to 0.9 GiB an hour; hours later decoding slows down"}, func(w *world) {
			i := w.sick(profile{spare: w.between(18, 26)})
			from := w.between(6, 10)
			w.plant(i, growth{into: inLive, perRequest: w.between(0.3, 0.9) * gib / i.requests(), from: hours(from)})
			w.at(from+w.between(6, 9), func() {
				i.engine.itl *= 2.2
				i.engine.itlPerSeq *= 2.2
				i.engine.prefillRate /= 2.5
				i.arrivals.rate /= 2.2
			})
		}},
		{Scenario{Name: "retention-no-engine", Class: "retention", Hours: 16, Sensors: "no-engine", Planted: "as retention-200mib, and nobody says what runs"}, func(w *world) {
			i := w.sick(profile{spare: w.between(10, 16)})
			w.plant(i, growth{into: inLive, perRequest: w.between(150, 400) * mib / i.requests()})
		}},
		{Scenario{Name: "native-slow", Class: "native_growth", Hours: 26, Planted: "a timer of a library keeps 30 to 80 MiB of device memory an hour outside PyTorch"}, func(w *world) {
			i := w.sick(profile{})
			w.plant(i, growth{into: inOutside, perHour: w.between(30, 80) * mib, lump: 2 * mib})
		}},
		{Scenario{Name: "native-request", Class: "native_growth", Hours: 12, Planted: "entries of a graph map are never evicted: 200 to 700 MiB an hour by request, outside PyTorch"}, func(w *world) {
			i := w.sick(profile{spare: w.between(12, 18)})
			w.plant(i, growth{into: inOutside, perRequest: w.between(200, 700) * mib / i.requests()})
		}},
		{Scenario{Name: "native-oom", Class: "native_growth", Hours: 12, Planted: "1.2 to 2.2 GiB an hour outside PyTorch until the engine dies, again and again"}, func(w *world) {
			i := w.sick(profile{spare: w.between(7, 11)})
			i.failed = i.die
			w.plant(i, growth{into: inOutside, perRequest: w.between(1.2, 2.2) * gib / i.requests()})
		}},
		{Scenario{Name: "native-busy", Class: "native_growth", Hours: 20, Planted: "0.3 to 0.9 GiB an hour outside PyTorch in a worker that never drains"}, func(w *world) {
			i := w.sick(profile{spare: w.between(22, 28), busy: true})
			w.plant(i, growth{into: inOutside, perRequest: w.between(0.3, 0.9) * gib / i.requests()})
		}},
	}
}
