package processor

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/kernel"
	"lowtide/collector/oom"
	"lowtide/event"
)

const maxRepeats = 1000 // of one step

// step is what happens at one moment, or several times in a row. Exactly one of Event, Tick, Quiet, Oom, Kmsg and Unread is given.
type step struct {
	At    time.Duration
	Every time.Duration
	Count int
	Of    int // which of the case's workers

	Event  bodies // one event, as in a recording
	Tick   bodies // several of one moment
	Quiet  bodies // readings of a quiet point, between two moments at which something runs
	Oom    string // the text of a failed allocation
	Kmsg   string // a line of the kernel log
	Unread string // a line that no sensor reads
}

// bodies are the bodies of events by name, as in a recording. Sizes may have a unit; a list of two values is a line from the first
// to the last of the step's repetitions.
type bodies map[string]map[string]any

// player turns steps into events and gives them to a judge.
type player struct {
	*stage
	t       *testing.T
	origin  time.Time
	workers []*event.Worker
}

func (p *player) play(steps []step) {
	for i, s := range steps {
		if s.Count > maxRepeats || s.Of >= len(p.workers) {
			p.t.Fatalf("step %d: count %d of worker %d", i+1, s.Count, s.Of)
		}
		for n := range max(1, s.Count) {
			part := 0.0
			if s.Count > 1 {
				part = float64(n) / float64(s.Count-1)
			}
			p.at = p.origin.Add(s.At + time.Duration(n)*s.Every)
			p.once(i, &s, p.workers[s.Of], part)
		}
	}
	p.judge.Flush()
}

func (p *player) once(i int, s *step, who *event.Worker, part float64) {
	switch {
	case s.Event != nil:
		p.tick(i, who, s.Event, part)
	case s.Tick != nil:
		p.tick(i, who, s.Tick, part)
	case s.Quiet != nil:
		p.quiet(i, who, s.Quiet, part)
	case s.Oom != "":
		o, ok := oom.Parse(s.Oom)
		if !ok {
			p.t.Fatalf("step %d: %q is read as no failed allocation", i+1, s.Oom)
		}
		p.apply(who, &event.Event{Oom: o})
	case s.Kmsg != "":
		x := kernel.ParseXid(s.Kmsg)
		if x == nil {
			p.t.Fatalf("step %d: %q is read as no Xid", i+1, s.Kmsg)
		}
		x.Text, x.GpuUuid = s.Kmsg, who.GpuUuids[0] // the source knows the card of an address
		if x.Pid == nil {
			who = nil
		} else if *x.Pid != who.Pid {
			p.t.Fatalf("step %d: pid %d is not that of worker %d", i+1, *x.Pid, s.Of)
		}
		p.apply(who, &event.Event{Xid: x})
	case s.Unread != "":
		if o, ok := oom.Parse(s.Unread); ok {
			p.t.Errorf("step %d: %q is read now, as %v: give it to the judge", i+1, s.Unread, o)
		}
		if x := kernel.ParseXid(s.Unread); x != nil {
			p.t.Errorf("step %d: %q is read now, as %v: give it to the judge", i+1, s.Unread, x)
		}
	default:
		p.t.Fatalf("step %d is empty", i+1)
	}
}

// quiet gives two samples in which nothing runs, a minute apart, with one before them in which something does.
func (p *player) quiet(i int, who *event.Worker, readings bodies, part float64) {
	at := p.at
	p.at = at.Add(-time.Minute)
	p.tick(i, who, bodies{"engine": {"running": 1, "waiting": 0}}, part)
	readings = maps.Clone(readings)
	engine := maps.Clone(readings["engine"])
	if engine == nil {
		engine = map[string]any{}
	}
	engine["running"], engine["waiting"] = 0, 0
	readings["engine"] = engine
	for _, p.at = range []time.Time{at, at.Add(time.Minute)} {
		p.tick(i, who, readings, part)
	}
}

func (p *player) tick(i int, who *event.Worker, readings bodies, part float64) {
	for _, name := range slices.Sorted(maps.Keys(readings)) {
		fields := map[string]any{}
		for field, v := range readings[name] {
			fields[field] = p.value(i, v, part)
		}
		var of *event.Worker
		switch name {
		case "gpu":
			fields["uuid"] = who.GpuUuids[0]
		case "gpu_process":
			fields["gpu_uuid"], of = who.GpuUuids[0], who
		case "machine", "source":
		default:
			of = who
		}
		p.apply(of, p.event(i, name, fields))
	}
}

func (p *player) event(i int, name string, fields map[string]any) *event.Event {
	line := map[string]any{"time": timestamppb.New(p.at).AsTime(), "host": map[string]any{"cluster": "c", "name": "h"}, name: fields}
	if name != "gpu" && name != "machine" && name != "source" {
		line["worker"] = map[string]any{"pid": 1} // the stage knows better who it is
	}
	text, err := json.Marshal(line)
	if err != nil {
		p.t.Fatalf("step %d: %v", i+1, err)
	}
	e, warnings, err := event.UnmarshalEvent(text)
	if err != nil || len(warnings) > 0 {
		p.t.Fatalf("step %d: %s: %v %v", i+1, text, err, warnings)
	}
	return e
}

// value reads one value of a body: a line, a size with its unit, or what JSON has.
func (p *player) value(i int, v any, part float64) any {
	switch v := v.(type) {
	case []any:
		if len(v) == 2 {
			from, ok1 := quantityOf(v[0])
			to, ok2 := quantityOf(v[1])
			if ok1 && ok2 {
				at := from + (to-from)*part
				if from == math.Trunc(from) && to == math.Trunc(to) {
					at = math.Round(at)
				}
				return exact(at)
			}
		}
		var out []any
		for _, one := range v {
			out = append(out, p.value(i, one, part))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name, one := range v {
			out[name] = p.value(i, one, part)
		}
		return out
	case string:
		if size, ok := quantityOf(v); ok {
			return exact(size)
		}
	}
	return v
}

// exact writes whole numbers as such, since a count or a size takes no other.
func exact(v float64) any {
	if v >= 0 && v == math.Trunc(v) {
		return uint64(v)
	}
	return v
}

var sizes = map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 1e6, "GB": 1e9}

// quantityOf reads a number, or one with a unit of bytes.
func quantityOf(v any) (float64, bool) {
	switch v := v.(type) {
	case uint64:
		return float64(v), true
	case int64:
		return float64(v), true
	case int:
		return float64(v), true
	case float64:
		return v, true
	case string:
		number, unit, cut := strings.Cut(v, " ")
		size, known := sizes[unit]
		n, err := strconv.ParseFloat(number, 64)
		return math.Round(n * size), cut && known && err == nil
	}
	return 0, false
}

// workersOf makes the processes of a case, each with a card of its own unless it names one.
func workersOf(t *testing.T, given []map[string]any) (out []*event.Worker) {
	for _, fields := range given {
		all := map[string]any{"pid": 2211, "start_ticks": 1, "role": "worker", "unit": "port-8000", "release": "r1", "gpu_uuids": []string{"GPU-a"}}
		maps.Copy(all, fields)
		text, err := json.Marshal(map[string]any{"time": "2026-11-01T00:00:00Z", "host": map[string]any{"cluster": "c", "name": "h"}, "worker": all, "process": map[string]any{"threads": 1}})
		if err != nil {
			t.Fatal(err)
		}
		e, warnings, err := event.UnmarshalEvent(text)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v %v", text, err, warnings)
		}
		out = append(out, proto.CloneOf(e.Worker))
	}
	return out
}

// told writes a finding in a line.
func told(f *event.Finding, origin time.Time) string {
	return fmt.Sprintf("%v %s %s (%s): %s", f.Time.Sub(origin), f.Class, f.State, f.Severity, f.Summary)
}
