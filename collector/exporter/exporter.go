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
	stale     = 5 * time.Minute // a series that nothing refreshes is not shown any longer
	maxSeries = 20_000          // last values; more are counted and left out
	maxCounts = 4_096           // label sets of counted events
)

// Exporter remembers the last values and serves them as a prometheus.Collector. It is safe for concurrent use.
type Exporter struct {
	now func() time.Time

	mu     sync.Mutex
	last   map[string]*sample
	counts map[count]uint64
	over   uint64 // values that found no room
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
	return &Exporter{now: now, last: make(map[string]*sample), counts: make(map[count]uint64)}
}

// Observe takes note of events that are being published. It keeps references to them.
func (x *Exporter) Observe(events []*event.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.now()
	for _, e := range events {
		switch {
		case e.Oom != nil:
			x.count(count{"oom", "", e.Oom.Kind})
		case e.Xid != nil:
			x.count(count{"xid", e.Xid.GpuUuid, strconv.FormatUint(e.Xid.GetCode(), 10)})
		case e.Lifecycle != nil:
			x.count(count{"lifecycle", "", e.Lifecycle.State})
			if e.Lifecycle.State == "exited" {
				x.forget(e)
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
		key = event.WorkerKey(e.Host, e.Worker) + " " + body.name + " " + body.gpu
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

// forget drops what an ended process had to say.
func (x *Exporter) forget(e *event.Event) {
	if e.Worker == nil {
		return
	}
	prefix := event.WorkerKey(e.Host, e.Worker) + " "
	for key := range x.last {
		if strings.HasPrefix(key, prefix) {
			delete(x.last, key)
		}
	}
}

func (x *Exporter) sweep(now time.Time) {
	for key, s := range x.last {
		if now.Sub(s.seen) > stale {
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
