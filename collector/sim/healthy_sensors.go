package sim

import "time"

// healthySensors are healthy workers that are badly seen.
func healthySensors() []script {
	return []script{
		{Scenario{Name: "healthy-gaps", Hours: 24, Planted: "for minutes to an hour nothing, or one source, is heard"}, func(w *world) {
			i := w.calm(profile{})
			h, at := i.host, w.between(1, 3)
			for at < 23 {
				length, source := w.between(3, 60)/60, w.IntN(allSources+1)
				if source == allSources {
					w.at(at, func() { h.silent = true })
					w.at(at+length, func() { h.silent = false })
				} else { // shorter: a sensor that is gone for long is a finding
					w.at(at, func() { h.status[source] = "timeout" })
					w.at(at+length/20, func() { h.status[source] = "" })
				}
				at += length + w.between(1, 5)
			}
		}},
		{Scenario{Name: "healthy-clock", Hours: 24, Planted: "the host's clock is set forward or back, by seconds to hours"}, func(w *world) {
			i := w.calm(profile{})
			at := w.between(3, 8)
			for range w.whole(1, 3) {
				by := time.Duration(w.spread(2, 3*3600) * float64(time.Second))
				if w.happens(0.5) {
					by = -by
				}
				w.at(at, func() { i.host.shift += by })
				at += w.between(3, 6)
			}
		}},
		{Scenario{Name: "healthy-counter-reset", Hours: 24, Planted: "the metrics endpoint starts anew now and then, its process stays"}, func(w *world) {
			i := w.calm(profile{busy: w.happens(0.4)})
			at := w.between(2, 6)
			for range w.whole(2, 5) {
				w.at(at, i.engine.resetCounters)
				at += w.between(2, 5)
			}
		}},
		{Scenario{Name: "healthy-late", Hours: 24, Planted: "one event in fifty comes up to three ticks late, one in a hundred twice"}, func(w *world) {
			w.beside(w.calm(profile{}))
			w.disturb(0.02, 0.01, 3)
		}},
		{Scenario{Name: "healthy-frozen", Hours: 24, Planted: "the metrics endpoint repeats its last values for minutes while the worker works"}, func(w *world) {
			i := w.calm(profile{})
			at := w.between(2, 5)
			for range w.whole(2, 5) {
				length := w.between(3, 25) / 60
				w.at(at, func() { shown := i.engine; i.frozen = &shown })
				w.at(at+length, func() { i.frozen = nil })
				at += length + w.between(2, 5)
			}
		}},
		{Scenario{Name: "healthy-no-probe", Hours: 24, Sensors: "no-probe", Planted: "nothing; no probe"}, func(w *world) { w.calm(profile{}) }},
		{Scenario{Name: "healthy-no-engine", Hours: 24, Sensors: "no-engine", Planted: "nothing; no engine metrics"}, func(w *world) { w.calm(profile{}) }},
		{Scenario{Name: "healthy-no-process", Hours: 24, Sensors: "no-process", Planted: "nothing; nothing of /proc"}, func(w *world) { w.calm(profile{}) }},
		{Scenario{Name: "healthy-no-quantiles", Hours: 24, Planted: "nothing; the engine tells no latency"}, func(w *world) {
			i := w.calm(profile{busy: w.happens(0.5)})
			i.quantile, i.engine.slo = false, 0
		}},
	}
}
