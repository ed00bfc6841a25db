package exporter

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lowtide/event"
)

// Labels that every series of a worker carries: the slot's parts and the pid. What describes a worker further stands in
// lowtide_worker_info, to be joined on these.
var (
	hostLabels   = []string{"cluster", "host"}
	workerLabels = []string{"cluster", "host", "unit", "engine_index", "rank", "role", "pid"}
	infoLabels   = []string{"engine", "model", "release", "pod", "container_id", "gpu_uuids"}
)

func hostValues(h *event.Host) []string { return []string{h.GetCluster(), h.GetName()} }

func workerValues(e *event.Event) []string {
	w := e.Worker
	return append(hostValues(e.Host), w.GetUnit(), integer(w.EngineIndex), integer(w.Rank), w.GetRole(), strconv.FormatInt(w.GetPid(), 10))
}

// export writes one event's values: lowtide_<body>_<field>, absent where the sensor said nothing.
func export(out chan<- prometheus.Metric, e *event.Event) {
	b := bodyOf(e)
	names, values := hostLabels, hostValues(e.Host)
	if e.Worker != nil {
		names, values = workerLabels, workerValues(e)
	}
	names, values = append(names[:len(names):len(names)], b.labels...), append(values, b.values...)
	switch b.name {
	case "source":
		exportSource(out, e)
		return
	case "config":
		exportConfig(out, e, b)
		return
	case "process":
		info := append(workerValues(e), e.Worker.GetEngine(), e.Worker.GetModel(), e.Worker.GetRelease(), e.Worker.GetPod(), e.Worker.GetContainerId(),
			strings.Join(e.Worker.GetGpuUuids(), ","))
		send(out, "lowtide_worker_info", "Who a worker is; the value is always 1.", append(workerLabels[:len(workerLabels):len(workerLabels)], infoLabels...), prometheus.GaugeValue, 1, info)
	}
	fields := b.message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !field.HasPresence() || !b.message.Has(field) {
			continue
		}
		value, ok := float(field.Kind(), b.message.Get(field))
		if !ok {
			continue
		}
		name := string(field.Name())
		kind := prometheus.GaugeValue
		// The sizes of the pool are no counters, for all their names (vocabulary.md).
		if strings.HasSuffix(name, "_total") && name != "kv_blocks_total" && name != "kv_tokens_total" {
			kind = prometheus.CounterValue
		}
		send(out, "lowtide_"+b.name+"_"+name, "Last value of the field "+name+" of the event body "+b.name+".", names, kind, value, values)
	}
}

func float(kind protoreflect.Kind, v protoreflect.Value) (float64, bool) {
	switch kind {
	case protoreflect.Uint64Kind:
		return float64(v.Uint()), true
	case protoreflect.Int64Kind:
		return float64(v.Int()), true
	case protoreflect.DoubleKind:
		return v.Float(), true
	case protoreflect.BoolKind:
		if v.Bool() {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func exportSource(out chan<- prometheus.Metric, e *event.Event) {
	s := e.Source
	up := 0.0
	if s.Status == "ok" {
		up = 1
	}
	names := append(hostLabels[:len(hostLabels):len(hostLabels)], "source")
	values := append(hostValues(e.Host), s.Name)
	send(out, "lowtide_source_up", "1 when the source is read in full.", names, prometheus.GaugeValue, up, values)
	send(out, "lowtide_source_status", "Status of the source; the value is always 1.", append(names[:len(names):len(names)], "status"), prometheus.GaugeValue, 1, append(values[:len(values):len(values)], s.Status))
	if s.TookSeconds != nil {
		send(out, "lowtide_source_took_seconds", "How long the last reading took.", names, prometheus.GaugeValue, *s.TookSeconds, values)
	}
}

// exportConfig writes what the worker was started with as labels of one info series.
func exportConfig(out chan<- prometheus.Metric, e *event.Event, b *body) {
	names, values := hostLabels, hostValues(e.Host)
	if e.Worker != nil {
		names, values = workerLabels, workerValues(e)
	}
	names = names[:len(names):len(names)]
	fields := b.message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.IsList() {
			continue
		}
		text := ""
		if b.message.Has(field) {
			text = b.message.Get(field).String()
		}
		names, values = append(names, string(field.Name())), append(values, text)
	}
	send(out, "lowtide_config_info", "What the worker was started with; the value is always 1.", names, prometheus.GaugeValue, 1, values)
}

func exportCount(out chan<- prometheus.Metric, c count, n uint64) {
	switch c.name {
	case "xid":
		send(out, "lowtide_xids_total", "Device errors seen since the collector started.", []string{"gpu_uuid", "code"}, prometheus.CounterValue, float64(n), []string{c.subject, c.kind})
	case "oom":
		send(out, "lowtide_ooms_total", "Failed allocations and kills for memory seen since the collector started.", []string{"kind"}, prometheus.CounterValue, float64(n), []string{c.kind})
	case "lifecycle":
		send(out, "lowtide_lifecycle_total", "Processes that came, were ready or went since the collector started.", []string{"state"}, prometheus.CounterValue, float64(n), []string{c.kind})
	case "log":
		send(out, "lowtide_log_lines_total", "Recognised lines of engine logs since the collector started.", []string{"signature"}, prometheus.CounterValue, float64(n), []string{c.kind})
	}
}

// send hands over one value, or an error metric where a label is no UTF-8, which is then the scrape's to report.
func send(out chan<- prometheus.Metric, name, help string, names []string, kind prometheus.ValueType, value float64, values []string) {
	desc := prometheus.NewDesc(name, help, names, nil)
	metric, err := prometheus.NewConstMetric(desc, kind, value, values...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(desc, err)
	}
	out <- metric
}
