package rulebook

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lowtide/rules"
)

// state is what can be seen of a watcher from other goroutines.
type state struct {
	generation, newest uint64
	pack               *rules.Pack
	problems           int
}

type gauge struct {
	mu sync.Mutex
	state
	at time.Time
}

func (g *gauge) set(s state) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = s
}

func (g *gauge) loaded(at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = at
}

type metric struct {
	desc  *prometheus.Desc
	value func(state, time.Time) float64
}

var metrics = func() []metric {
	one := func(name, help string, value func(state, time.Time) float64) metric {
		return metric{prometheus.NewDesc("lowtide_rules_"+name, help, nil, nil), value}
	}
	return []metric{
		one("generation", "Generation of the pushed rules that are judged by; 0 when none were ever pushed.", func(s state, _ time.Time) float64 { return float64(s.generation) }),
		one("pushed_generation", "Generation of the rules that were pushed last. Where it is not lowtide_rules_generation, they are not judged by here.", func(s state, _ time.Time) float64 { return float64(s.newest) }),
		one("reload_ok", "1 when the newest rules are judged by, of the bucket and of local files; 0 when those of before are.", func(s state, _ time.Time) float64 {
			if s.problems > 0 {
				return 0
			}
			return 1
		}),
		one("loaded_timestamp_seconds", "When rules were last loaded, in seconds since 1970.", func(_ state, at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }),
		one("problems", "Mistakes in the rules that are not loaded because of them.", func(s state, _ time.Time) float64 { return float64(s.problems) }),
		one("count", "Rules that are judged by, those in shadow left out.", func(s state, _ time.Time) float64 { return float64(count(s.pack, false)) }),
		one("shadow_count", "Rules in shadow: judged by and recorded, never announced.", func(s state, _ time.Time) float64 { return float64(count(s.pack, true)) }),
	}
}()

func count(pack *rules.Pack, shadow bool) (n int) {
	for _, r := range pack.Rules {
		if r.Enabled && r.Shadow == shadow {
			n++
		}
	}
	return n
}

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(out chan<- prometheus.Metric) {
	w.gauge.mu.Lock()
	s, at := w.gauge.state, w.gauge.at
	w.gauge.mu.Unlock()
	for _, m := range metrics {
		out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value(s, at))
	}
}
