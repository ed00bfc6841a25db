package sink

import (
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"lowtide/event"
)

func fields(kind kind, names ...string) []field {
	out := make([]field, len(names))
	for i, name := range names {
		out[i] = field{name: name, kind: kind}
	}
	return out
}

func optionals(kind kind, names ...string) []field {
	out := fields(kind, names...)
	for i := range out {
		out[i].optional = true
	}
	return out
}

var (
	hostFields   = slices.Concat(fields(kindTime, "time"), fields(kindName, "cluster", "host", "boot_id"))
	workerFields = slices.Concat(fields(kindText, "worker_key", "slot"), fields(kindInt, "pid"), optionals(kindTime, "start_time"), fields(kindName, "role"),
		optionals(kindInt, "rank"), fields(kindName, "engine"), optionals(kindInt, "engine_index"), fields(kindName, "unit", "model", "release", "pod", "container_id"))
	// originFields tell what a row of worker_samples was made of, so that an export can give the events back.
	originFields = slices.Concat(optionals(kindUint, "start_ticks"), fields(kindNames, "gpu_uuids"), fields(kindSmall, "bodies"))
	blockField   = field{name: "block", kind: kindUint}
	loadField    = field{name: "load", kind: kindUint, optional: true}
	eventFields  = slices.Concat(hostFields, workerFields, fields(kindUint, "sequence"),
		fields(kindName, "event", "gpu_uuid", "name", "kind", "state", "status", "signature"), optionals(kindUint, "code"), optionals(kindInt, "exit_code", "signal"),
		fields(kindName, "by"), optionals(kindUint, "requested_bytes", "free_bytes", "limit_bytes", "allocated_bytes", "reserved_unallocated_bytes"),
		fields(kindText, "text", "body"))
	findingFields = slices.Concat(fields(kindTime, "time"), fields(kindName, "cluster", "host"), fields(kindText, "id", "incident"),
		fields(kindName, "subject_kind"), fields(kindText, "subject_key", "slot"), optionals(kindInt, "pid"), fields(kindName, "rule", "class", "state", "severity"),
		fields(kindFloat, "confidence"), fields(kindText, "summary"), optionals(kindFloat, "growth", "growth_low", "growth_high"), fields(kindName, "growth_unit"),
		optionals(kindFloat, "per_request", "per_abort", "hours_to_limit_low", "hours_to_limit_high"), optionals(kindTime, "onset"),
		fields(kindName, "release", "config_hash", "engine_version", "torch_version", "alloc_conf"), fields(kindText, "labels", "evidence", "counter_evidence",
			"symptoms", "advice", "not_assessable", "body"), fields(kindUint, "version"), fields(kindText, "holders", "snapshot"), fields(kindBool, "shadow"))

	// The columns of a body are the fields of the vocabulary, taken from the generated types, so that a new field cannot be forgotten
	// here: a test compares them with the .sql files.
	gpuProcessFields = bodyFields[event.GpuProcess]("gpu_uuid")
	allocatorFields  = bodyFields[event.Allocator]("gpu_uuid")
	engineFields     = bodyFields[event.Engine]("")
	processFields    = bodyFields[event.Process]("")
	gpuFields        = bodyFields[event.Gpu]("uuid")
	machineFields    = bodyFields[event.Machine]("")
)

// The bits of the column `bodies`: with them an export gives back the events that came, neither leaving one out that only had nothing to
// say nor inventing one that never was.
const (
	bodyGpuProcess uint16 = 1 << iota
	bodyAllocator
	bodyEngine
	bodyProcess
	namedByAllocator  // the event itself named its card, rather than the worker's only one being meant
	namedByGpuProcess // the same
)

// tableFields are all columns that rows of a table may have, in the order of the table.
var tableFields = map[string][]field{
	TableWorkers: slices.Concat(hostFields, workerFields, fields(kindName, "gpu_uuid"), plain(gpuProcessFields), plain(allocatorFields), plain(engineFields),
		plain(processFields), originFields, []field{blockField, loadField}),
	TableGpus:   slices.Concat(hostFields, fields(kindName, "uuid"), plain(gpuFields), []field{blockField}),
	TableHosts:  slices.Concat(hostFields, plain(machineFields)),
	TableEvents: eventFields, TableFindings: findingFields, TableIncidents: findingFields,
}

func plain(of []bodyField) []field {
	out := make([]field, len(of))
	for i, f := range of {
		out[i] = f.field
	}
	return out
}

func columnNames(of []field) []string {
	out := make([]string, len(of))
	for i, f := range of {
		out[i] = f.name
	}
	return out
}

// bodyField is a column and where its value stands in the body's struct. Reading by offset rather than by reflection is what lets a
// block be joined several times faster.
type bodyField struct {
	field
	offset uintptr
}

// bodyFields lists the fields of a generated struct, which are optional numbers and plain strings; any other type is a defect here.
func bodyFields[B any](without string) []bodyField {
	t := reflect.TypeFor[B]()
	var out []bodyField
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == without {
			continue
		}
		b := bodyField{field: field{name: name, kind: kindName}, offset: f.Offset}
		if f.Type.Kind() == reflect.Pointer {
			b.optional = true
			known := map[reflect.Kind]kind{reflect.Uint64: kindUint, reflect.Int64: kindInt, reflect.Float64: kindFloat, reflect.Bool: kindBool}
			kind, ok := known[f.Type.Elem().Kind()]
			if !ok {
				panic("no column for " + t.Name() + "." + f.Name)
			}
			b.kind = kind
		} else if f.Type.Kind() != reflect.String {
			panic("no column for " + t.Name() + "." + f.Name)
		}
		out = append(out, b)
	}
	return out
}

// addBodies appends the columns of one body. bodies has, for each row, the body or nil.
func (r *Rows) addBodies(fields []bodyField, bodies []unsafe.Pointer) {
	if !slices.ContainsFunc(bodies, func(p unsafe.Pointer) bool { return p != nil }) {
		return
	}
	columns, found := make([]Column, len(fields)), make([]bool, len(fields))
	for i, f := range fields {
		columns[i] = newColumn(f.field, len(bodies))
	}
	// Some rows at a time, so that their bodies stay near while one field after the other is read.
	for from := 0; from < len(bodies); from += bodiesAtOnce {
		some := bodies[from:min(from+bodiesAtOnce, len(bodies))]
		for i := range fields {
			if columns[i].fill(from, some, fields[i].offset) {
				found[i] = true
			}
		}
	}
	for i := range columns {
		if found[i] {
			r.Columns = append(r.Columns, columns[i])
		}
	}
}

const bodiesAtOnce = 128

// fill reads one field of some bodies, whose first is of row from, and says whether any has a value.
func (c *Column) fill(from int, bodies []unsafe.Pointer, offset uintptr) (found bool) {
	switch c.kind {
	case kindName:
		for i, body := range bodies {
			if body != nil {
				c.text[from+i] = *(*string)(unsafe.Add(body, offset))
				found = found || c.text[from+i] != ""
			}
		}
	case kindBool:
		absent, flags := c.absent[from:from+len(bodies)], c.flags[from:from+len(bodies)]
		for i, body := range bodies {
			if body == nil {
				absent[i] = 1
			} else if v := *(**bool)(unsafe.Add(body, offset)); v == nil {
				absent[i] = 1
			} else {
				flags[i], found = bit(*v), true
			}
		}
	default: // 64 bits, whatever they mean
		absent, bits := c.absent[from:from+len(bodies)], c.bits[from:from+len(bodies)]
		for i, body := range bodies {
			if body == nil {
				absent[i] = 1
			} else if v := *(**uint64)(unsafe.Add(body, offset)); v == nil {
				absent[i] = 1
			} else {
				bits[i], found = *v, true
			}
		}
	}
	return found
}
