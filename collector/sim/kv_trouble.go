package sim

import "math"

// kvTrouble plants a KV pool that is too small for what is asked, and blocks that nobody frees.
func kvTrouble() []script {
	return []script{
		{Scenario{Name: "kv-pressure-demand", Class: "kv_pressure", Hours: 12, Planted: "demand rises over an hour or three to more than the pool can hold, and stays"}, func(w *world) {
			i := tight(w, 0.5, 0.03)
			from, over, to := w.between(2.5, 5), w.between(1, 3), w.between(1.15, 1.5)/0.5
			w.every(func() {
				if h := w.hour(); h > from {
					i.arrivals.factor = 1 + (to-1)*math.Min(1, (h-from)/over)
				}
				if 0.5*i.arrivals.factor > 0.9 { // from here on chance alone fills the pool for minutes
					w.onset()
				}
			})
		}},
		{Scenario{Name: "kv-pressure-preemption", Class: "kv_pressure", Hours: 10, Planted: "requests are admitted that the pool cannot carry to their end: one preemption or two for each that finishes"}, func(w *world) {
			i := tight(w, 0.6, 0.03)
			w.at(w.between(2, 5), func() {
				w.onset()
				i.engine.output *= 2
				i.engine.preempt = w.between(0.5, 2.2)
				i.arrivals.factor = w.between(1.15, 1.3) * i.engine.capacity() / i.engine.service(i.engine.capacity()) / i.arrivals.rate
			})
		}},
		{Scenario{Name: "kv-pressure-long", Class: "kv_pressure", Hours: 10, Planted: "contexts become three times as long or more at the same rate"}, func(w *world) {
			i := tight(w, 0.45, 0.08)
			w.at(w.between(2, 5), func() {
				w.onset()
				e := &i.engine
				e.prefillRate *= 4
				for e.prompt *= 3; i.arrivals.rate < 1.25*e.capacity()/e.service(e.capacity()); {
					e.prompt *= 1.1
				}
			})
		}},
		{Scenario{Name: "kv-leak-drains", Class: "kv_block_leak", Hours: 14, Planted: "one abort in so many keeps its blocks: 1.5 to 4 % of the pool an hour; it still drains"}, func(w *world) {
			i := w.sick(profile{load: w.between(0.15, 0.3)})
			i.engine.abortShare = w.between(0.03, 0.12)
			w.plant(i, growth{into: inKV, perAbort: w.between(0.015, 0.04) * i.engine.tokens / i.aborts(), lump: i.engine.mean()})
		}},
		{Scenario{Name: "kv-leak-stops", Class: "kv_block_leak", Hours: 10, Planted: "aborts keep 12 to 30 % of the pool an hour until nothing is admitted any more"}, func(w *world) {
			i := w.sick(profile{load: w.between(0.2, 0.35)})
			i.engine.abortShare = w.between(0.05, 0.15)
			i.engine.patience = w.between(120, 600)
			w.plant(i, growth{into: inKV, perAbort: w.between(0.12, 0.3) * i.engine.tokens / i.aborts(), lump: i.engine.mean()})
		}},
	}
}

// tight puts up an instance whose KV pool, not its number of sequences, is what runs out first; load is of what fits.
func tight(w *world, load, preempt float64) *instance {
	i := w.serve(profile{busy: true})
	i.planted = true
	w.open(i)
	e := &i.engine
	e.maxSeqs = math.Max(64, e.maxSeqs)
	e.tokens = math.Floor(e.maxSeqs*w.between(0.3, 0.6)*e.mean()/16) * 16
	e.preempt, e.patience = preempt, w.between(60, 400)
	fits := e.capacity()
	e.prefillRate = math.Max(e.prefillRate, 4*fits/e.service(fits)*e.prompt)
	fits = e.capacity()
	i.arrivals.rate = load * fits / e.service(fits)
	i.arrivals.depth, i.arrivals.swing.sigma, i.arrivals.most = 0.1, 0.08, 0
	return i
}
