package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"lowtide/event"
)

// reading is one value that must stand in the store once: a field of a sample, or an event as a whole.
type reading struct{ table, key, column, value string }

func (r reading) String() string {
	return fmt.Sprintf("%s %s %s = %s", r.table, r.key, r.column, r.value[:min(len(r.value), 200)])
}

// storedTime is how ClickHouse writes a DateTime64(9).
const storedTime = "2006-01-02 15:04:05.000000000"

// expected visits all that the ledger says must be stored.
func (l *ledger) expected(visit func(reading)) error {
	for _, one := range l.events {
		if one.repeat {
			continue
		}
		for _, e := range one.batch.Events {
			if err := expectedOf(one.sequence, e, visit); err != nil {
				return err
			}
		}
	}
	for i, f := range l.findings {
		visit(reading{"findings", f.ID, "version", strconv.FormatUint(l.places[i], 10) + " " + f.Incident + " " + f.Class + " " + f.State + " " + f.Severity})
	}
	l.expectedRollups(visit)
	last := map[string]string{}
	for _, f := range l.findings {
		last[f.Incident] = f.ID + " " + f.State + " " + f.Severity
	}
	for incident, text := range last {
		visit(reading{"incidents", incident, "last", text})
	}
	return nil
}

func expectedOf(sequence uint64, e *event.Event, visit func(reading)) error {
	at, host := e.At().Format(storedTime), event.HostKey(e.Host)
	fields := func(table, key, without string, m protoreflect.Message) {
		m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if name := string(field.Name()); name != without && !field.IsList() && !field.IsMap() && field.Message() == nil {
				visit(reading{table, at + " " + host + " " + key, name, plain(v.Interface())})
			}
			return true
		})
	}
	worker := ""
	if e.Worker != nil {
		worker = event.WorkerKey(e.Host, e.Worker)
	}
	switch {
	case e.GpuProcess != nil:
		fields("worker_samples", worker, "gpu_uuid", e.GpuProcess.ProtoReflect())
	case e.Allocator != nil:
		fields("worker_samples", worker, "gpu_uuid", e.Allocator.ProtoReflect())
	case e.Engine != nil:
		fields("worker_samples", worker, "", e.Engine.ProtoReflect())
	case e.Process != nil:
		fields("worker_samples", worker, "", e.Process.ProtoReflect())
	case e.Gpu != nil:
		fields("gpu_samples", e.Gpu.Uuid, "uuid", e.Gpu.ProtoReflect())
	case e.Machine != nil:
		fields("host_samples", "", "", e.Machine.ProtoReflect())
	default:
		body, err := event.MarshalEvent(e)
		if err != nil {
			return fmt.Errorf("event of message %d: %w", sequence, err)
		}
		visit(reading{"events", at + " " + host + " " + worker, strconv.FormatUint(sequence, 10) + " " + e.Body(), string(body)})
	}
	return nil
}

// plain writes a value as both sides are compared.
func plain(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// sampleTable is a wide table: the column that its key has after time, cluster and host, and those that hold readings.
type sampleTable struct {
	name, key string
	readings  func() []string
}

var sampleTables = []sampleTable{
	{"worker_samples", "worker_key", func() []string {
		return slices.Concat(names((&event.GpuProcess{}).ProtoReflect(), "gpu_uuid"), names((&event.Allocator{}).ProtoReflect(), "gpu_uuid"),
			names((&event.Engine{}).ProtoReflect(), ""), names((&event.Process{}).ProtoReflect(), ""))
	}},
	{"gpu_samples", "uuid", func() []string { return names((&event.Gpu{}).ProtoReflect(), "uuid") }},
	{"host_samples", "''", func() []string { return names((&event.Machine{}).ProtoReflect(), "") }},
}

func names(m protoreflect.Message, without string) (out []string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); string(f.Name()) != without && !f.IsList() && !f.IsMap() && f.Message() == nil {
			out = append(out, string(f.Name()))
		}
	}
	return out
}

// stored visits all that the store holds.
func (w *world) stored(ctx context.Context, visit func(reading)) error {
	for _, t := range sampleTables {
		columns := t.readings()
		text, err := w.query(ctx, "SELECT time, concat(cluster, '/', host), toString("+t.key+"), `"+strings.Join(columns, "`, `")+"` FROM lowtide."+t.name+" FORMAT TabSeparated")
		if err != nil {
			return err
		}
		err = lines(text, len(columns)+3, func(cells []string) {
			key := cells[0] + " " + cells[1] + " " + cells[2]
			for i, cell := range cells[3:] {
				if cell == `\N` || cell == "" {
					continue
				}
				visit(reading{t.name, key, columns[i], number(unescape(cell))})
			}
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", t.name, err)
		}
	}
	for _, q := range []struct {
		table, query string
		columns      int
	}{
		{"events", "SELECT concat(toString(time), ' ', cluster, '/', host, ' ', worker_key), concat(toString(sequence), ' ', event), body FROM lowtide.events FORMAT TabSeparated", 3},
		{"findings", "SELECT id, 'version', concat(toString(version), ' ', incident, ' ', class, ' ', state, ' ', severity) FROM lowtide.findings FORMAT TabSeparated", 3},
		{"incidents", "SELECT incident, 'last', concat(id, ' ', state, ' ', severity) FROM lowtide.incidents FINAL FORMAT TabSeparated", 3},
	} {
		text, err := w.query(ctx, q.query)
		if err != nil {
			return err
		}
		if err := lines(text, q.columns, func(c []string) { visit(reading{q.table, unescape(c[0]), unescape(c[1]), unescape(c[2])}) }); err != nil {
			return fmt.Errorf("read %s: %w", q.table, err)
		}
	}
	return w.storedRollups(ctx, visit)
}

func lines(text string, columns int, visit func([]string)) error {
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if line == "" {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != columns {
			return fmt.Errorf("a row of %d columns, want %d: %s", len(cells), columns, line[:min(len(line), 200)])
		}
		visit(cells)
	}
	return nil
}

var unescaper = strings.NewReplacer(`\\`, `\`, `\t`, "\t", `\n`, "\n", `\'`, `'`, `\r`, "\r", `\0`, "\x00", `\b`, "\b", `\f`, "\f")

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return unescaper.Replace(s)
}

// number brings a number of the store into the form of plain; what is no fraction stays as it is.
func number(s string) string {
	if !strings.ContainsAny(s, ".e") {
		return s
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return s
}

// difference is what two sets of readings do not agree about.
type difference struct {
	Missing, Twice, Strange int // readings that are not stored, that are stored too often, that nobody sent
	Rows                    int // readings that were compared
	Examples                []string
}

func (d difference) ok() bool { return d.Missing == 0 && d.Twice == 0 && d.Strange == 0 }

// examples bounds what a report lists of one sort.
const examples = 5

// compareRows compares every reading by its table, key, column and value.
func compareRows(expected, stored func(func(reading)) error) (difference, error) {
	seed := maphash.MakeSeed()
	sum := func(r reading) uint64 { return maphash.Comparable(seed, r) }
	want, have := map[uint64]int32{}, map[uint64]int32{}
	var d difference
	if err := expected(func(r reading) { want[sum(r)]++; d.Rows++ }); err != nil {
		return d, err
	}
	if err := stored(func(r reading) { have[sum(r)]++ }); err != nil {
		return d, err
	}
	missing, twice, strange := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
	for key, n := range want {
		switch {
		case have[key] < n:
			missing[key] = true
			d.Missing += int(n - have[key])
		case have[key] > n:
			twice[key] = true
			d.Twice += int(have[key] - n)
		}
	}
	for key, n := range have {
		if want[key] == 0 {
			strange[key] = true
			d.Strange += int(n)
		}
	}
	if d.ok() {
		return d, nil
	}
	say := func(what string, bad map[uint64]bool) func(reading) {
		left := examples
		return func(r reading) {
			if key := sum(r); bad[key] && left > 0 {
				left--
				delete(bad, key)
				d.Examples = append(d.Examples, what+": "+r.String())
			}
		}
	}
	missed, doubled := say("missing", missing), say("stored twice", twice)
	if err := expected(func(r reading) { missed(r); doubled(r) }); err != nil {
		return d, err
	}
	return d, stored(say("stored, but never sent", strange))
}
