package sink

import (
	"reflect"
	"slices"
	"strings"

	"lowtide/event"
)

// The tables of the store.
const (
	TableWorkers   = "worker_samples" // one row per worker, gpu and tick
	TableGpus      = "gpu_samples"
	TableHosts     = "host_samples"
	TableEvents    = "events"    // whatever happens rather than is sampled
	TableFindings  = "findings"  // every transition
	TableIncidents = "incidents" // the last transition of each incident; read with FINAL
)

// Rows are rows of one table, values in the order of Columns; nil is a sensor that was not read.
type Rows struct {
	Table   string
	Columns []string
	Values  [][]any
}

var (
	hostColumns   = []string{"time", "cluster", "host", "boot_id"}
	workerColumns = []string{"worker_key", "slot", "pid", "start_time", "role", "rank", "engine", "engine_index", "unit", "model", "release",
		"pod", "container_id"}
	eventColumns = slices.Concat(hostColumns, workerColumns, []string{"sequence", "event", "gpu_uuid", "name", "kind", "state", "status",
		"signature", "code", "exit_code", "signal", "by", "requested_bytes", "free_bytes", "limit_bytes", "allocated_bytes",
		"reserved_unallocated_bytes", "text", "body"})
	findingColumns = []string{"time", "cluster", "host", "id", "incident", "subject_kind", "subject_key", "slot", "pid", "rule", "class",
		"state", "severity", "confidence", "summary", "growth", "growth_low", "growth_high", "growth_unit", "per_request", "per_abort",
		"hours_to_limit_low", "hours_to_limit_high", "onset", "release", "config_hash", "engine_version", "torch_version", "alloc_conf",
		"labels", "evidence", "counter_evidence", "symptoms", "advice", "not_assessable", "body", "version", "holders", "snapshot"}

	workerLayout = newLayout(slices.Concat(hostColumns, workerColumns, []string{"gpu_uuid"}), "gpu_uuid",
		event.GpuProcess{}, event.Allocator{}, event.Engine{}, event.Process{})
	gpuLayout  = newLayout(slices.Concat(hostColumns, []string{"uuid"}), "uuid", event.Gpu{})
	hostLayout = newLayout(hostColumns, "", event.Machine{})
)

// layout says where the fields of the bodies stand in a wide row. The columns are the fields of the vocabulary, taken from the
// generated types, so that a new field cannot be forgotten here: a test compares them with the .sql files.
type layout struct {
	columns []string
	key     int // columns before the first field of a body
	bodies  map[reflect.Type]bodyLayout
}

type bodyLayout struct {
	first  int
	fields []int
	text   []bool // strings are "" when absent, never null
}

func newLayout(key []string, without string, bodies ...any) layout {
	l := layout{columns: slices.Clone(key), key: len(key), bodies: make(map[reflect.Type]bodyLayout)}
	for _, body := range bodies {
		t := reflect.TypeOf(body)
		b := bodyLayout{first: len(l.columns)}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if !t.Field(i).IsExported() || name == "" || name == without {
				continue
			}
			b.fields = append(b.fields, i)
			b.text = append(b.text, t.Field(i).Type.Kind() == reflect.String)
			l.columns = append(l.columns, name)
		}
		l.bodies[t] = b
	}
	return l
}

// blank returns a row without any reading.
func (l layout) blank() []any {
	row := make([]any, len(l.columns))
	for _, b := range l.bodies {
		for i, text := range b.text {
			if text {
				row[b.first+i] = ""
			}
		}
	}
	return row
}

// fill puts the fields of a body, a pointer to a generated struct, into the row.
func (l layout) fill(row []any, body any) {
	v := reflect.ValueOf(body).Elem()
	b := l.bodies[v.Type()]
	for i, field := range b.fields {
		f := v.Field(field)
		switch {
		case f.Kind() != reflect.Pointer:
			row[b.first+i] = f.Interface()
		case !f.IsNil():
			row[b.first+i] = f.Elem().Interface()
		}
	}
}
