package processor

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gauge is what can be seen of a partition from other goroutines.
type gauge struct {
	mu sync.Mutex
	measures
	far far
}

// measures are what the partition itself counts.
type measures struct {
	applied, through, missing, trimmed uint64
	acknowledged                       uint64
	refused, redelivered, gaps, stalls int
	published, lost, unanswered        int
	checkpoints, bytes                 int
	took                               time.Duration
	fresh                              time.Time // when nothing was unsaved last
	oldest                             time.Time // broker's time of the oldest event that is not saved
	caught                             bool
	workers                            int
	swaps                              int
	swapped                            time.Duration
}

// far is what the broker says of the partition's durable consumer.
type far struct {
	asked   time.Time
	pending uint64    // not acknowledged, delivered or not
	floor   uint64    // everything up to here is
	first   uint64    // the stream begins here
	oldest  time.Time // broker's time of the oldest event that is not
}

// measure makes what the partition counts visible. It is called by the partition's own goroutine.
func (p *partition) measure() {
	m := measures{applied: p.applied, acknowledged: p.acknowledged(), oldest: p.saving.oldest, through: p.reading.through, missing: p.missing, trimmed: p.trimmed, refused: p.refused, redelivered: p.reading.redelivered, gaps: p.reading.gaps,
		stalls: p.reading.stalls, published: p.published, lost: p.lost, checkpoints: p.saving.count, bytes: p.saving.bytes, took: p.saving.took, fresh: p.saving.fresh,
		caught: p.reading.caught, workers: len(p.judge.workers), swaps: p.ruling.swaps, swapped: p.ruling.took}
	g := &p.gauge
	g.mu.Lock()
	defer g.mu.Unlock()
	m.unanswered = g.unanswered
	if m.checkpoints != g.checkpoints {
		m.unanswered = p.judge.unanswered() // with each checkpoint: it looks at every worker
	}
	g.measures = m
}

func (g *gauge) see(f far) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.far = f
}

func (g *gauge) read() measures {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.measures
}

func (g *gauge) both() (measures, far) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.measures, g.far
}

// A metric of each partition that is judged here. A value that is not known is left out.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(m *measures, f *far, now time.Time) (v float64, known bool)
}

func counted64[T int | uint64](pick func(*measures) T) func(*measures, *far, time.Time) (float64, bool) {
	return func(m *measures, _ *far, _ time.Time) (float64, bool) { return float64(pick(m)), true }
}

var metrics = func() []metric {
	one := func(name, help string, kind prometheus.ValueType, value func(*measures, *far, time.Time) (float64, bool)) metric {
		return metric{prometheus.NewDesc("lowtide_judge_"+name, help, []string{"partition"}, nil), kind, value}
	}
	counter, gauge := prometheus.CounterValue, prometheus.GaugeValue
	return []metric{
		one("applied_sequence", "Stream sequence of the newest event that was judged.", gauge, counted64(func(m *measures) uint64 { return m.applied })),
		one("pending_messages", "Messages that are not acknowledged, delivered or not, at the last look.", gauge, func(_ *measures, f *far, _ time.Time) (float64, bool) { return float64(f.pending), !f.asked.IsZero() }),
		one("oldest_unacknowledged_seconds", "Age of the oldest message that is not acknowledged; 0 when all are. It is up to a minute with a judge that keeps up, since it acknowledges with a checkpoint.", gauge, func(m *measures, f *far, now time.Time) (float64, bool) {
			oldest := f.oldest
			switch {
			case !m.oldest.IsZero():
				oldest = m.oldest
			case f.floor < m.acknowledged: // it was looked at before the last checkpoint
				return 0, !f.asked.IsZero()
			case oldest.IsZero():
				return 0, !f.asked.IsZero() && f.pending == 0
			}
			return max(0, now.Sub(oldest).Seconds()), true
		}),
		one("retention_margin_messages", "How many messages, of all partitions, the stream can still drop before it drops one that is not acknowledged; below 0 some may be lost. Absent while nothing is pending.", gauge, func(_ *measures, f *far, _ time.Time) (float64, bool) {
			return float64(f.floor+1) - float64(f.first), f.pending > 0 && f.first > 0
		}),
		one("trimmed_messages_total", "Messages, of all partitions, that the stream dropped before the state of this one held what was among them: an upper bound of its loss.", counter, counted64(func(m *measures) uint64 { return m.trimmed })),
		one("missing_messages_total", "Messages of collectors that never came, by the sequences of their lanes.", counter, counted64(func(m *measures) uint64 { return m.missing })),
		one("state_age_seconds", "Seconds since nothing was unsaved.", gauge, func(m *measures, _ *far, now time.Time) (float64, bool) {
			return max(0, now.Sub(m.fresh).Seconds()), !m.fresh.IsZero()
		}),
		one("checkpoints_total", "Checkpoints that won.", counter, counted64(func(m *measures) int { return m.checkpoints })),
		one("checkpoint_seconds", "How long the last checkpoint took to upload and to win.", gauge, func(m *measures, _ *far, _ time.Time) (float64, bool) { return m.took.Seconds(), m.checkpoints > 0 }),
		one("checkpoint_bytes", "Size of the last checkpoint.", gauge, func(m *measures, _ *far, _ time.Time) (float64, bool) { return float64(m.bytes), m.checkpoints > 0 }),
		one("refused_messages_total", "Messages that are no batch, or whose host is not their subject's.", counter, counted64(func(m *measures) int { return m.refused })),
		one("redelivered_messages_total", "Messages that came again and were dropped by sequence.", counter, counted64(func(m *measures) int { return m.redelivered })),
		one("gaps_total", "How often something that the consumer did not deliver in order was read from the stream.", counter, counted64(func(m *measures) int { return m.gaps })),
		one("stalls_total", "How often the consumer delivered nothing although there was something.", counter, counted64(func(m *measures) int { return m.stalls })),
		one("published_findings_total", "Findings that were stored.", counter, counted64(func(m *measures) int { return m.published })),
		one("dropped_findings_total", "Findings that no broker takes.", counter, counted64(func(m *measures) int { return m.lost })),
		one("rule_errors", "Answers of rules that could not be worked out at the last checkpoint, by worker and rule.", gauge, counted64(func(m *measures) int { return m.unanswered })),
		one("rule_swaps_total", "How often other rules were taken over since the partition came here.", counter, counted64(func(m *measures) int { return m.swaps })),
		one("rule_swap_seconds", "How long events waited the last time that other rules were taken over. Absent until then.", gauge, func(m *measures, _ *far, _ time.Time) (float64, bool) { return m.swapped.Seconds(), m.swaps > 0 }),
		one("workers", "Process lives that are known.", gauge, counted64(func(m *measures) int { return m.workers })),
		one("catching_up", "1 until everything was judged that was there when the partition came here.", gauge, func(m *measures, _ *far, _ time.Time) (float64, bool) {
			if m.caught {
				return 0, true
			}
			return 1, true
		}),
	}
}()

// Describe implements prometheus.Collector.
func (all *Judges) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector. It asks nobody: what it tells is at most some seconds old.
func (all *Judges) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	for _, p := range all.partitions() {
		counted, far := p.gauge.both()
		for _, m := range metrics {
			if v, known := m.value(&counted, &far, now); known {
				out <- prometheus.MustNewConstMetric(m.desc, m.kind, v, strconv.Itoa(p.number))
			}
		}
	}
}
