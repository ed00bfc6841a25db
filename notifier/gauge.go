package notifier

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge is what a notifier tells of itself on /metrics, and whether it can announce. The zero value is that of one that does not run, as
// on a processor beside the one that announces.
type Gauge struct {
	mu      sync.Mutex
	running bool
	waiting int       // incidents of which somebody has still to be told
	oldest  time.Time // since when the first of them waits
	paused  time.Time // a medium asked to wait until then
	told    map[[2]string]float64
	failed  map[string]float64
	broken  map[string]string // sender → its last error, until it works again
	listens map[string]bool   // sender → whether it hears buttons
}

var (
	runningMetric = prometheus.NewDesc("lowtide_notifier_running", "1 on the one processor that announces.", nil, nil)
	waitingMetric = prometheus.NewDesc("lowtide_notifier_waiting_incidents", "Incidents of which somebody has still to be told.", nil, nil)
	oldestMetric  = prometheus.NewDesc("lowtide_notifier_oldest_seconds", "How long the first of the incidents waits of which somebody has still to be told.", nil, nil)
	pausedMetric  = prometheus.NewDesc("lowtide_notifier_paused_seconds", "How long a medium asked to wait with the next call, from now (Retry-After).", nil, nil)
	toldMetric    = prometheus.NewDesc("lowtide_notifier_told_total", "Messages that a medium took, by what was done: post, update, reply or remind.", []string{"sender", "action"}, nil)
	listenMetric  = prometheus.NewDesc("lowtide_notifier_listening", "1 while the buttons of the cards are heard, over Socket Mode.", []string{"sender"}, nil)
	failedMetric  = prometheus.NewDesc("lowtide_notifier_failures_total", "Calls that a medium did not take, rate limits included.", []string{"sender"}, nil)
)

func (g *Gauge) start(running bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running, g.waiting, g.oldest, g.paused, g.broken, g.listens = running, 0, time.Time{}, time.Time{}, nil, nil
}

// see takes what waits on the desk now.
func (g *Gauge) see(d *desk) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting, g.oldest = len(d.pending), time.Time{}
	for _, e := range d.pending {
		if g.oldest.IsZero() || e.since.Before(g.oldest) {
			g.oldest = e.since
		}
	}
}

// listen notes whether the buttons of a sender are heard.
func (g *Gauge) listen(sender string, hears bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listens == nil {
		g.listens = map[string]bool{}
	}
	g.listens[sender] = hears
}

func (g *Gauge) tell(sender string, step Step) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.told == nil {
		g.told = map[[2]string]float64{}
	}
	g.told[[2]string{sender, step.String()}]++
	delete(g.broken, sender)
}

func (g *Gauge) fail(sender string, err error, until time.Time) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.failed = map[string]float64{}
	}
	if g.broken == nil {
		g.broken = map[string]string{}
	}
	g.failed[sender]++
	g.broken[sender] = err.Error()
	if until.After(g.paused) {
		g.paused = until
	}
}

// Well returns why people are not told now: a medium refuses, and something has waited for a minute.
func (g *Gauge) Well() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == 0 || time.Since(g.oldest) < time.Minute {
		return nil
	}
	for sender, cause := range g.broken {
		return fmt.Errorf("%d incidents wait, the first for %s: %s: %s", g.waiting, time.Since(g.oldest).Round(time.Second), sender, cause)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (g *Gauge) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningMetric, waitingMetric, oldestMetric, pausedMetric, toldMetric, failedMetric, listenMetric} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *Gauge) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	running, oldest := 0.0, 0.0
	if g.running {
		running = 1
	}
	if !g.oldest.IsZero() {
		oldest = now.Sub(g.oldest).Seconds()
	}
	gauge(runningMetric, running)
	gauge(waitingMetric, float64(g.waiting))
	gauge(oldestMetric, max(0, oldest))
	gauge(pausedMetric, max(0, g.paused.Sub(now).Seconds()))
	for key, n := range g.told {
		out <- prometheus.MustNewConstMetric(toldMetric, prometheus.CounterValue, n, key[0], key[1])
	}
	for sender, hears := range g.listens {
		value := 0.0
		if hears {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(listenMetric, prometheus.GaugeValue, value, sender)
	}
	for sender, n := range g.failed {
		out <- prometheus.MustNewConstMetric(failedMetric, prometheus.CounterValue, n, sender)
	}
}
