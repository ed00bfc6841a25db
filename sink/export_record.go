package sink

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

// What is asked for at once: it bounds the memory, and keeps an answer within what a reader may get.
const (
	exportStep = 10 * time.Minute
	exportRows = 20_000 // unless one step has more
)

// record writes the events of the scope in the order of their times.
func (a Access) record(ctx context.Context, s scope, out *event.Writer) (n int, err error) {
	parts, err := a.parts(ctx, s)
	if err != nil {
		return 0, err
	}
	for _, part := range parts {
		lines, err := a.slice(ctx, part)
		if err != nil {
			return n, err
		}
		if err := writeLines(lines, out); err != nil {
			return n, err
		}
		n += len(lines)
	}
	return n, out.Flush()
}

// parts cuts the time of a scope where there are rows, so that each has about exportRows of them.
func (a Access) parts(ctx context.Context, s scope) (parts []scope, err error) {
	var tables []string
	for _, table := range []string{TableWorkers, TableGpus, TableHosts, TableEvents} {
		tables = append(tables, "SELECT time FROM "+table+exportWhere)
	}
	var steps []struct {
		Step int64
		Rows int
	}
	if err := a.rows(ctx, "SELECT intDiv(toUnixTimestamp(time), "+strconv.Itoa(int(exportStep.Seconds()))+") AS Step, count() AS Rows FROM ("+strings.Join(tables, " UNION ALL ")+") GROUP BY Step ORDER BY Step",
		s.bound(), &steps); err != nil {
		return nil, err
	}
	rows := 0
	for _, step := range steps {
		from := time.Unix(step.Step*int64(exportStep.Seconds()), 0).UTC()
		if rows += step.Rows; len(parts) == 0 || rows > exportRows {
			parts, rows = append(parts, scope{hosts: s.hosts, from: later(from, s.from)}), step.Rows
		}
		parts[len(parts)-1].until = earlier(from.Add(exportStep), s.until)
	}
	return parts, nil
}

// exportWhere finds the rows of a scope. The columns of the key are compared one by one, so that the store finds them by it.
const exportWhere = ` WHERE host IN arrayMap(h -> splitByChar('/', h)[2], {hosts:Array(String)}) AND concat(cluster, '/', host) IN {hosts:Array(String)}
	AND time >= {from:DateTime64(9, 'UTC')} AND time < {until:DateTime64(9, 'UTC')}`

func (s scope) bound() map[string]string {
	const form = "2006-01-02 15:04:05.000000000"
	return map[string]string{"hosts": textList(s.hosts), "from": s.from.UTC().Format(form), "until": s.until.UTC().Format(form)}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// recordLine is one event as JSON and its place among those of its slice.
type recordLine struct {
	time string // in a form that sorts
	rank int    // among the bodies of a tick
	text []byte
}

func writeLines(lines []recordLine, out *event.Writer) error { return eachEvent(lines, out.Write) }

// The order in which the bodies of a tick stand in a recording: the devices, what begins, the readings, what happens.
const (
	rankDevice = iota
	rankBegin
	rankReading
	rankHappening = rankReading + 4
)

// slice reads all events of a part of the time.
func (a Access) slice(ctx context.Context, s scope) (lines []recordLine, err error) {
	for _, table := range []struct {
		name  string
		order string
		lines func(row) ([]recordLine, error)
	}{
		{TableGpus, "cluster, host, uuid, time", row.gpu}, {TableHosts, "cluster, host, time", row.machine},
		{TableWorkers, "cluster, host, worker_key, gpu_uuid, time", row.worker}, {TableEvents, "cluster, host, time, sequence, worker_key", row.happening},
	} {
		query := "SELECT * FROM " + table.name + exportWhere
		if table.name == TableEvents {
			query += ` AND event != 'refused' AND NOT startsWith(body, '{"unreadable"')`
		}
		var text bytes.Buffer
		if err := a.request(ctx, question{query: query + " ORDER BY " + table.order, format: "JSONEachRow", parameters: s.bound(), settings: exportSettings}, &text); err != nil {
			return nil, err
		}
		for line := range bytes.Lines(text.Bytes()) {
			var r row
			if err := json.Unmarshal(line, &r); err != nil {
				return nil, fmt.Errorf("read row of %s: %w", table.name, err)
			}
			more, err := table.lines(r)
			if err != nil {
				return nil, fmt.Errorf("read row of %s: %w", table.name, err)
			}
			lines = append(lines, more...)
		}
	}
	return lines, nil
}

// row is a row of the store; its columns are named like the fields of the vocabulary.
type row map[string]jsontext.Value

// given says whether the column has a value: null, an empty text and an empty list are none.
func (r row) given(column string) bool {
	switch string(r[column]) {
	case "", "null", `""`, "[]":
		return false
	}
	return true
}

func (r row) text(column string) (out string) {
	if json.Unmarshal(r[column], &out) != nil {
		return ""
	}
	return out
}

// object collects the columns that have a value, under the names of fields.
func (r row) object(fields map[string]string, order []string) jsontext.Value {
	out := []byte{'{'}
	for _, column := range order {
		if !r.given(column) {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		name := column
		if other, ok := fields[column]; ok {
			name = other
		}
		out = append(append(append(append(out, '"'), name...), `":`...), r[column]...)
	}
	return append(out, '}')
}

var (
	exportedHost   = []string{"cluster", "host", "boot_id"}
	hostNames      = map[string]string{"host": "name"}
	exportedWorker = []string{"pid", "start_ticks", "start_time", "role", "rank", "gpu_uuids", "engine", "engine_index", "unit", "model", "release", "pod", "container_id"}
)

// line is one event of the row.
func (r row) line(rank int, worker bool, name string, body jsontext.Value) recordLine {
	text := append([]byte(`{"time":`), r["time"]...)
	text = append(append(text, `,"host":`...), r.object(hostNames, exportedHost)...)
	if worker {
		text = append(append(text, `,"worker":`...), r.object(nil, exportedWorker)...)
	}
	text = append(append(append(append(text, `,"`...), name...), `":`...), body...)
	return recordLine{time: r.text("time"), rank: rank, text: append(text, '}')}
}

func (r row) gpu() ([]recordLine, error) {
	return []recordLine{r.line(rankDevice, false, "gpu", r.object(nil, slices.Concat([]string{"uuid"}, columnNames(plain(gpuFields)))))}, nil
}

func (r row) machine() ([]recordLine, error) {
	return []recordLine{r.line(rankDevice, false, "machine", r.object(nil, columnNames(plain(machineFields))))}, nil
}

// workerBodies are the events that a row of worker_samples may have been made of.
var workerBodies = []struct {
	bit, named uint16
	name       string
	fields     []bodyField
}{{bodyGpuProcess, namedByGpuProcess, "gpu_process", gpuProcessFields}, {bodyAllocator, namedByAllocator, "allocator", allocatorFields},
	{bodyEngine, 0, "engine", engineFields}, {bodyProcess, 0, "process", processFields}}

// worker takes a row apart into the events that it was made of. A row that was stored before that was kept tells by what it has.
func (r row) worker() (lines []recordLine, err error) {
	var bodies uint16
	if err := json.Unmarshal(r["bodies"], &bodies); err != nil {
		return nil, fmt.Errorf("bodies: %w", err)
	}
	for rank, b := range workerBodies {
		fields := columnNames(plain(b.fields))
		if bodies&b.bit == 0 && (bodies != 0 || !slices.ContainsFunc(fields, r.given)) {
			continue
		}
		if bodies&b.named != 0 || bodies == 0 && b.named != 0 {
			fields = slices.Concat([]string{"gpu_uuid"}, fields)
		}
		lines = append(lines, r.line(rankReading+rank, true, b.name, r.object(nil, fields)))
	}
	return lines, nil
}

// happening is an event that is kept whole.
func (r row) happening() ([]recordLine, error) {
	rank := rankHappening
	if name := r.text("event"); name == "config" || name == "mark" || name == "lifecycle" && (r.text("state") == "started" || r.text("state") == "ready") {
		rank = rankBegin
	}
	return []recordLine{{time: r.text("time"), rank: rank, text: []byte(r.text("body"))}}, nil
}
