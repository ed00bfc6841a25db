package collector

import (
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector/exporter"
	"lowtide/event"
)

// tee shows what is published to the exporter, too.
type tee struct {
	exporter *exporter.Exporter
	next     Outlet
}

// Publish implements Outlet.
func (t tee) Publish(source string, events []*event.Event) error {
	t.exporter.Observe(events)
	return t.next.Publish(source, events)
}

// Describe implements prometheus.Collector.
func (p *Publisher) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(p, out) }

// Collect implements prometheus.Collector: what was sent, and what waits or is lost because the broker is away; and the same of the spool.
func (p *Publisher) Collect(out chan<- prometheus.Metric) {
	s := p.Stats()
	away := 0.0
	if s.Away {
		away = 1
	}
	for _, m := range []struct {
		name, help string
		kind       prometheus.ValueType
		value      float64
	}{
		{"sent_messages_total", "Messages that the broker acknowledged.", prometheus.CounterValue, float64(s.Sent)},
		{"duplicate_messages_total", "Messages that the broker had already.", prometheus.CounterValue, float64(s.Duplicates)},
		{"dropped_messages_total", "Messages given up in memory, because it was full or they were too large.", prometheus.CounterValue, float64(s.Dropped)},
		{"pending_messages", "Messages that wait in memory for the broker.", prometheus.GaugeValue, float64(s.PendingMessages)},
		{"pending_bytes", "Bytes that wait in memory for the broker.", prometheus.GaugeValue, float64(s.PendingBytes)},
		{"broker_away", "1 while the last attempt to send failed.", prometheus.GaugeValue, away},
	} {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("lowtide_publisher_"+m.name, m.help, nil, nil), m.kind, m.value)
	}
	if p.o.Spool != nil {
		p.o.Spool.Collect(out)
	}
}
