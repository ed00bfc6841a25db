package notifier

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	senders []string           // of the one that runs
	broken  map[string]trouble // sender → what it has said since it last took a message
	listens map[string]bool    // sender → whether it hears buttons
	unkept  int                // incidents whose findings the outbox does not take
	outbox  trouble            // of the outbox, while it does not
}

// trouble is since when something refuses, and what it said last.
type trouble struct {
	since time.Time
	cause string
}

// patience is for how long something may refuse before the notifier is unwell.
const patience = time.Minute

var (
	runningMetric = prometheus.NewDesc("lowtide_notifier_running", "1 on the one processor that announces.", nil, nil)
	waitingMetric = prometheus.NewDesc("lowtide_notifier_waiting_incidents", "Incidents of which somebody has still to be told.", nil, nil)
	oldestMetric  = prometheus.NewDesc("lowtide_notifier_oldest_seconds", "How long the first of the incidents waits of which somebody has still to be told.", nil, nil)
	pausedMetric  = prometheus.NewDesc("lowtide_notifier_paused_seconds", "How long a medium asked to wait with the next call, from now (Retry-After).", nil, nil)
	toldMetric    = prometheus.NewDesc("lowtide_notifier_told_total", "Messages that a medium took, by what was done: post, update, reply or remind.", []string{"sender", "action"}, nil)
	listenMetric  = prometheus.NewDesc("lowtide_notifier_listening", "1 while the buttons of the cards are heard, over Socket Mode.", []string{"sender"}, nil)
	brokenMetric  = prometheus.NewDesc("lowtide_notifier_broken_seconds", "For how long a medium has taken nothing that it was called with; 0 while it works.", []string{"sender"}, nil)
	unkeptMetric  = prometheus.NewDesc("lowtide_notifier_unkept_incidents", "Incidents whose findings the outbox does not take, so that nobody is told of them.", nil, nil)
	refuseMetric  = prometheus.NewDesc("lowtide_notifier_unkept_seconds", "For how long the outbox has refused the first of these findings; 0 while it takes all.", nil, nil)
	failedMetric  = prometheus.NewDesc("lowtide_notifier_failures_total", "Calls that a medium did not take, rate limits included.", []string{"sender"}, nil)
)

// start notes the senders of a notifier that begins to run; none for one that has ended.
func (g *Gauge) start(senders []Sender) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running, g.waiting, g.oldest, g.paused, g.broken, g.listens = len(senders) > 0, 0, time.Time{}, time.Time{}, nil, nil
	g.unkept, g.outbox, g.senders = 0, trouble{}, nil
	for _, s := range senders {
		g.senders = append(g.senders, s.Name())
	}
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
	since, n, err := d.failing()
	if g.unkept, g.outbox = n, (trouble{since: since}); err != nil {
		g.outbox.cause = err.Error()
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

// answered notes that a sender works, though it was told nothing.
func (g *Gauge) answered(sender string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.broken, sender)
}

// fail notes a call that a sender did not take at a time, and until when it asked to wait; zero for no wish.
func (g *Gauge) fail(sender string, err error, at, until time.Time) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.failed = map[string]float64{}
	}
	if g.broken == nil {
		g.broken = map[string]trouble{}
	}
	g.failed[sender]++
	if errors.Is(err, ErrGone) { // it works, and says so of one message; there may be nothing left to tell it
		delete(g.broken, sender)
		return
	}
	one, known := g.broken[sender]
	if !known {
		one.since = at
	}
	one.cause = err.Error()
	g.broken[sender] = one
	if until.After(g.paused) {
		g.paused = until
	}
}

// Well returns why people are not told now: the outbox refuses, or an output does while something waits, for longer than a minute.
func (g *Gauge) Well() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var wrong []string
	if g.unkept > 0 && time.Since(g.outbox.since) >= patience {
		wrong = append(wrong, fmt.Sprintf("the outbox %s does not take the findings of %s since %s: %s", Bucket, counted(g.unkept, "incident"), clock(g.outbox.since), g.outbox.cause))
	}
	if g.waiting > 0 && len(g.broken) > 0 && time.Since(g.oldest) >= patience {
		for _, sender := range slices.Sorted(maps.Keys(g.broken)) {
			one := g.broken[sender]
			wrong = append(wrong, fmt.Sprintf("output %s takes nothing since %s: %s", sender, clock(one.since), one.cause))
		}
		wrong = append(wrong, fmt.Sprintf("%s since %s", waits(g.waiting), clock(g.oldest)))
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

func waits(n int) string {
	if n == 1 {
		return "1 incident waits"
	}
	return fmt.Sprintf("%d incidents wait", n)
}

// Describe implements prometheus.Collector.
func (g *Gauge) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningMetric, waitingMetric, oldestMetric, pausedMetric, toldMetric, failedMetric, listenMetric,
		brokenMetric, unkeptMetric, refuseMetric} {
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
	gauge(unkeptMetric, float64(g.unkept))
	refused := 0.0
	if g.unkept > 0 {
		refused = now.Sub(g.outbox.since).Seconds()
	}
	gauge(refuseMetric, max(0, refused))
	for _, sender := range g.senders {
		since := 0.0
		if one, is := g.broken[sender]; is {
			since = now.Sub(one.since).Seconds()
		}
		out <- prometheus.MustNewConstMetric(brokenMetric, prometheus.GaugeValue, max(0, since), sender)
	}
	for sender, n := range g.failed {
		out <- prometheus.MustNewConstMetric(failedMetric, prometheus.CounterValue, n, sender)
	}
}
