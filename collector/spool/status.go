package spool

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector/status"
	"lowtide/event"
)

// LaneStats are what waits in one lane, and what became of it since the spool was opened.
type LaneStats struct {
	Messages, Events uint64    // that wait
	Bytes            int64     // of them, with their frames
	Oldest           time.Time // when the oldest of them came here, by the wall clock; zero where nothing waits
	Full             Amount    // dropped to make room
	Damaged          Amount    // known to be there and not readable any more
	Torn             uint64    // records cut off by the end of their writer
	DamagedSegments  uint64    // left before their end; what they held at the opening of the spool nobody knows
	Fault            error     // why the last write failed; nil when it went well
}

// Stats return what waits in a lane.
func (l *Lane) Stats() LaneStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts
	s := LaneStats{Oldest: l.oldest, Full: c.full, Damaged: c.damaged, Torn: c.torn, DamagedSegments: c.faulty, Fault: c.fault}
	for i, one := range l.segments {
		s.Messages += one.left.Messages
		s.Events += one.left.Events
		if s.Bytes += one.size - headerBytes; i == 0 {
			s.Bytes -= max(l.offset, headerBytes) - headerBytes
		}
	}
	return s
}

// Age is for how long the oldest message waits at a moment, by the wall clock: never below zero, whatever that clock did.
func (s LaneStats) Age(now time.Time) time.Duration {
	if s.Messages == 0 || s.Oldest.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Oldest))
}

// Describe implements prometheus.Collector.
func (s *Spool) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, out) }

// Collect implements prometheus.Collector: what waits on disk, by lane, for how long, and what was lost there.
func (s *Spool) Collect(out chan<- prometheus.Metric) {
	now := s.o.now()
	send := func(name, help string, kind prometheus.ValueType, value float64, labels ...string) {
		var names []string
		if len(labels) > 0 {
			names = []string{"lane", "reason"}[:len(labels)]
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("lowtide_spool_"+name, help, names, nil), kind, value, labels...)
	}
	broken := 0.0
	for _, name := range laneNames() {
		l := s.Lane(name).Stats()
		send("messages", "Messages that wait on disk for the broker.", prometheus.GaugeValue, float64(l.Messages), name)
		send("events", "Events that wait on disk for the broker.", prometheus.GaugeValue, float64(l.Events), name)
		send("bytes", "Bytes that wait on disk for the broker.", prometheus.GaugeValue, float64(l.Bytes), name)
		send("oldest_seconds", "For how long the oldest message has waited on disk, by the wall clock; 0 when none waits.", prometheus.GaugeValue, l.Age(now).Seconds(), name)
		for reason, lost := range map[string]Amount{"full": l.Full, "damaged": l.Damaged} {
			send("dropped_messages_total", "Messages given up on disk: to make room, or because they could not be read any more.", prometheus.CounterValue, float64(lost.Messages), name, reason)
			send("dropped_events_total", "Events given up on disk: to make room, or because they could not be read any more.", prometheus.CounterValue, float64(lost.Events), name, reason)
		}
		send("torn_records_total", "Records that a killed collector or a crash of the host left incomplete.", prometheus.CounterValue, float64(l.Torn), name)
		send("damaged_segments_total", "Segments that could not be read to their end.", prometheus.CounterValue, float64(l.DamagedSegments), name)
		if l.Fault != nil {
			broken = 1
		}
	}
	send("disk_bytes", "Bytes of all segments on disk, sent or not.", prometheus.GaugeValue, float64(s.used.Load()))
	send("limit_bytes", "The bound of disk_bytes.", prometheus.GaugeValue, float64(s.o.MaxBytes))
	send("write_failed", "1 while the last write failed, as on a full disk.", prometheus.GaugeValue, broken)
}

// SensorName is the name of the `source` event that tells how the spool is.
const SensorName = "spool"

// Sensor is the spool as a source of the collector: it sees nothing of the host and tells how the spool is, like every other source.
type Sensor struct {
	spool *Spool
	err   error

	mu     sync.Mutex
	before [2]LaneStats // at the last call, by lane
}

// NewSensor tells of a spool, or of the error for which there is none.
func NewSensor(s *Spool, err error) *Sensor { return &Sensor{spool: s, err: err} }

// Name implements collector.Source.
func (*Sensor) Name() string { return SensorName }

// Collect implements collector.Source. The error wraps status.ErrLost while the disk takes nothing, and from the first message that was
// dropped until the spool is empty again; it gives the numbers.
func (n *Sensor) Collect(context.Context, time.Time) ([]*event.Event, error) {
	if n.spool == nil {
		return nil, n.err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var faults []error
	for i, name := range laneNames() {
		l := n.spool.Lane(name)
		now, before := l.Stats(), n.before[i]
		n.before[i] = now
		l.mu.Lock()
		since, at := l.counts.since, l.counts.lastAt
		l.mu.Unlock()
		if now.Fault != nil {
			faults = append(faults, fmt.Errorf("lane %s: nothing is written: %w", name, now.Fault))
		}
		lost := since.Messages
		if lost == 0 {
			lost = now.Full.Messages - before.Full.Messages + now.Damaged.Messages - before.Damaged.Messages // and what was left has been sent meanwhile
		}
		if lost > 0 {
			faults = append(faults, fmt.Errorf("lane %s: %d messages dropped, at %s the last of them; the oldest that waits is of %s", name, lost,
				at.UTC().Format(time.RFC3339), when(now.Oldest)))
		}
		if torn, segments := now.Torn-before.Torn, now.DamagedSegments-before.DamagedSegments; torn+segments > 0 {
			faults = append(faults, fmt.Errorf("lane %s: %d torn records and %d damaged segments", name, torn, segments))
		}
	}
	n.spool.mu.Lock()
	if n.spool.unsafe != nil {
		faults = append(faults, fmt.Errorf("not forced to disk: %w", n.spool.unsafe))
	}
	n.spool.mu.Unlock()
	if len(faults) == 0 {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: %w", status.ErrLost, joined(faults))
}

func when(t time.Time) string {
	if t.IsZero() {
		return "now"
	}
	return t.UTC().Format(time.RFC3339)
}

// joined stands on one line, as a status does.
type joined []error

func (j joined) Error() string {
	var text []string
	for _, err := range j {
		text = append(text, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return strings.Join(text, "; ")
}

func (j joined) Unwrap() []error { return j }
