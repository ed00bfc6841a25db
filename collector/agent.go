package collector

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector/exporter"
	"lowtide/event"
	"lowtide/processor/broker"
)

// Agent is what `collect` and `up` run once they have a broker: the sources of this host, its /metrics and the loop.
type Agent struct {
	*Opened
	Host      *event.Host
	Publisher *Publisher
	Asks      *nats.Conn             // where evidence may be asked for; nil for nobody
	Metrics   string                 // where to serve /metrics and /readyz, host:port; empty or "off" for nowhere
	Gather    []prometheus.Collector // what else is in this process, and shown there
	Checks    exporter.Checks        // the same for /readyz
	Interval  time.Duration
	Shift     time.Duration // with Stretch: how far back the first event lies
	Stretch   float64       // event seconds per real second; 1 but in tests on hardware
	Log       *slog.Logger
}

// Run collects until the context ends. It closes neither the sources nor the publisher.
func (a *Agent) Run(ctx context.Context) (err error) {
	shown := exporter.New(nil)
	answers := newAsked(a.Opened.probes.Ask, a.Log)
	if a.Metrics != "" && a.Metrics != "off" {
		gauges := append(a.gauges(), shown, a.Publisher)
		gauges = append(gauges, a.Gather...)
		if a.Opened.probes != nil {
			gauges = append(gauges, a.Opened.probes, answers)
		}
		server, err := exporter.Listen(ctx, a.Metrics, append(exporter.Checks{{Name: "publisher", Well: a.Publisher.Well}}, a.Checks...), gauges...)
		if err != nil {
			return &broker.Failure{What: err.Error(), Remedy: "use HOST:PORT that is free, such as 127.0.0.1:9478, or 'off' for --metrics-listen", Err: err, Code: 2}
		}
		a.Log.Info("metrics are served", "address", "http://"+server.Addr()+"/metrics")
		defer func() {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
			defer cancel()
			err = errors.Join(err, server.Close(last))
		}()
	}
	var out Outlet = tee{shown, a.Publisher}
	if a.Stretch > 1 {
		now := time.Now()
		out = stretched{next: out, origin: now, start: now.Add(-a.Shift), factor: a.Stretch}
	}
	if a.Asks == nil || a.Opened.probes == nil {
		return a.Opened.run(ctx, a.Host, out, a.Interval, a.Log)
	}
	asking, stop := context.WithCancel(ctx)
	answered := make(chan error, 1)
	go func() { answered <- answers.run(asking, a.Asks, a.Host) }()
	err = a.Opened.run(ctx, a.Host, out, a.Interval, a.Log)
	stop()
	return errors.Join(err, <-answered)
}

// gauges are what sources count about themselves.
func (a *Agent) gauges() (all []prometheus.Collector) {
	for _, s := range a.Sources {
		if s, ok := s.(interface{ Probes() int }); ok {
			all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lowtide_probes", Help: "Workers whose probe is connected."},
				func() float64 { return float64(s.Probes()) }))
		}
	}
	return all
}
