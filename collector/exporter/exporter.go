// Package exporter owns the collector's own /metrics: the last value of every sensor of every worker under the names of
// vocabulary.md, and what the collector itself costs. It refuses to aggregate: sums and rates are Prometheus' to make.
package exporter

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lowtide/event"
)

const (
	stale       = 5 * time.Minute  // a series that nothing refreshes is not shown any longer
	staleConfig = 25 * time.Minute // a config is told every ten minutes
	maxSeries   = 20_000           // last values; more are counted and left out
	maxCounts   = 4_096            // label sets of counted events
)

// Exporter remembers the last values and serves them as a prometheus.Collector. It is safe for concurrent use.
type Exporter struct {
	now func() time.Time

	mu     sync.Mutex
	last   map[string]*sample
	ended  map[string]time.Time // processes whose end was told, by worker: what is told of them afterwards is late
	counts map[count]uint64
	over   uint64 // values that found no room
	swept  time.Time
}

// sample is the newest event of one body of one worker, device or source. Nobody changes an event after it was observed.
type sample struct {
	event *event.Event
	seen  time.Time
}

// count is an event that is counted rather than kept.
type count struct{ name, subject, kind string }

// New returns an empty exporter. The clock, time.Now when nil, decides what is stale.
func New(now func() time.Time) *Exporter {
	if now == nil {
		now = time.Now
	}
	return &Exporter{now: now, last: make(map[string]*sample), ended: make(map[string]time.Time), counts: make(map[count]uint64)}
}

// Observe takes note of events that are being published. It keeps references to them.
func (x *Exporter) Observe(events []*event.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now()
	if now.Sub(x.swept) > stale { // perhaps nobody scrapes
		x.sweep(now)
	}
	for _, e := range events {
		switch {
		case e.Oom != nil:
			x.count(count{"oom", "", e.Oom.Kind})
		case e.Xid != nil:
			x.count(count{"xid", e.Xid.GpuUuid, strconv.FormatUint(e.Xid.GetCode(), 10)})
		case e.Lifecycle != nil:
			x.count(count{"lifecycle", "", e.Lifecycle.State})
			if e.Lifecycle.State == "exited" {
				x.forget(e, now)
			}
		case e.Log != nil:
			x.count(count{"log", "", e.Log.Signature})
		default:
			x.keep(e, now)
		}
	}
}

func (x *Exporter) count(c count) {
	if _, known := x.counts[c]; known || len(x.counts) < maxCounts {
		x.counts[c]++
	}
}

func (x *Exporter) keep(e *event.Event, now time.Time) {
	body := bodyOf(e)
	if body == nil {
		return
	}
	key := event.HostKey(e.Host) + " " + body.name + " " + body.gpu
	if e.Worker != nil {
		// By pid, as the series are: a process that was given the pid of another takes its place.
		if _, over := x.ended[event.WorkerKey(e.Host, e.Worker)]; over {
			return
		}
		key = processKey(e) + body.name + " " + body.gpu
		if body.name == "engine" || body.name == "config" { // one front end may speak for several engines
			key += strconv.FormatInt(e.Worker.GetEngineIndex(), 10)
		}
	}
	if s := x.last[key]; s != nil {
		s.event, s.seen = e, now
		return
	}
	if len(x.last) >= maxSeries {
		x.sweep(now)
	}
	if len(x.last) >= maxSeries {
		x.over++
		return
	}
	x.last[key] = &sample{e, now}
}

func processKey(e *event.Event) string {
	return event.HostKey(e.Host) + " " + strconv.FormatInt(e.Worker.GetPid(), 10) + " "
}

// forget drops what an ended process had to say.
func (x *Exporter) forget(e *event.Event, now time.Time) {
	if e.Worker == nil {
		return
	}
	prefix, ended := processKey(e), event.WorkerKey(e.Host, e.Worker)
	for key, s := range x.last {
		if strings.HasPrefix(key, prefix) && event.WorkerKey(s.event.Host, s.event.Worker) == ended {
			delete(x.last, key)
		}
	}
	if len(x.ended) < maxCounts {
		x.ended[ended] = now
	}
}

func (x *Exporter) sweep(now time.Time) {
	x.swept = now
	for key, at := range x.ended {
		if now.Sub(at) > stale {
			delete(x.ended, key)
		}
	}
	for key, s := range x.last {
		limit := stale
		if s.event.Config != nil {
			limit = staleConfig
		}
		if now.Sub(s.seen) > limit {
			delete(x.last, key)
		}
	}
}

// Describe implements prometheus.Collector. What there is to see depends on the workers, so nothing is promised.
func (x *Exporter) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (x *Exporter) Collect(out chan<- prometheus.Metric) {
	x.mu.Lock()
	x.sweep(x.now())
	samples := make([]*event.Event, 0, len(x.last))
	for _, s := range x.last {
		samples = append(samples, s.event)
	}
	counts := make(map[count]uint64, len(x.counts))
	for c, n := range x.counts {
		counts[c] = n
	}
	over := x.over
	x.mu.Unlock()
	for _, e := range samples {
		export(out, e)
	}
	for c, n := range counts {
		exportCount(out, c, n)
	}
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc("lowtide_exporter_left_out_total", "Values that found no room here; they are published all the same.", nil, nil),
		prometheus.CounterValue, float64(over))
}

// body is the part of an event that has values.
type body struct {
	name, gpu string
	message   protoreflect.Message
	labels    []string // beyond the worker's or the host's
	values    []string
}

func bodyOf(e *event.Event) *body {
	switch {
	case e.Gpu != nil:
		return &body{"gpu", e.Gpu.Uuid, e.Gpu.ProtoReflect(), []string{"gpu_uuid", "gpu_index", "mig"}, []string{e.Gpu.Uuid, integer(e.Gpu.Index), e.Gpu.Mig}}
	case e.GpuProcess != nil:
		return &body{"gpu_process", e.GpuProcess.GpuUuid, e.GpuProcess.ProtoReflect(), []string{"gpu_uuid"}, []string{e.GpuProcess.GpuUuid}}
	case e.Allocator != nil:
		return &body{"allocator", e.Allocator.GpuUuid, e.Allocator.ProtoReflect(), []string{"gpu_uuid"}, []string{e.Allocator.GpuUuid}}
	case e.Engine != nil:
		return &body{name: "engine", message: e.Engine.ProtoReflect()}
	case e.Process != nil:
		return &body{name: "process", message: e.Process.ProtoReflect()}
	case e.Machine != nil:
		return &body{name: "machine", message: e.Machine.ProtoReflect()}
	case e.Config != nil:
		return &body{name: "config", gpu: e.Config.Origin, message: e.Config.ProtoReflect()}
	case e.Source != nil:
		return &body{name: "source", gpu: e.Source.Name}
	}
	return nil
}

func integer(v *int64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatInt(*v, 10)
}
