package sink

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
	"lowtide/sink/engine"
)

// played are recordings of real workers, each put on a host of its own. What was planted in them is in the judge's own tests.
var played = []struct{ recording, host, model, release string }{
	{"leak", "h200-a", "chat", "build-b"},
	{"healthy", "h200-b", "chat", "build-a"},
	{"graphs", "h200-c", "chat", "build-a"},
	{"native_leak", "h200-d", "chat", "build-c"},
	{"kv_pressure", "h200-e", "code", "build-k"},
	{"kv_leak", "h200-f", "code", "build-l"},
	{"spike", "h200-g", "code", "build-k"},
}

// fleet is a store with an engine of its own in which the recordings and a scene were stored and judged.
type fleet struct {
	access   Access
	store    *ClickHouse
	findings []*event.Finding
}

// incident is the last transition of the only incident of a class.
func (f fleet) incident(t *testing.T, class string) *event.Finding {
	t.Helper()
	var last *event.Finding
	for _, one := range f.findings {
		if one.Class == class {
			if last != nil && last.Incident != one.Incident {
				t.Fatalf("two incidents of %s: %s and %s", class, last.Incident, one.Incident)
			}
			last = one
		}
	}
	if last == nil {
		t.Fatalf("no incident of %s", class)
	}
	return last
}

// rows are the answer to a query, with the types that JSON has.
func (f fleet) rows(t *testing.T, query string, parameters map[string]string) []map[string]any {
	t.Helper()
	var out strings.Builder
	if err := f.access.request(t.Context(), question{query: query, format: "JSONEachRow", parameters: parameters,
		settings: map[string]string{"output_format_json_quote_64bit_integers": "0"}}, &out); err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	var all []map[string]any
	for line := range strings.Lines(out.String()) {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, row)
	}
	return all
}

// testLibrary is the library that `make engine` fetched, which is not where a test's own executable looks; "" where there is none.
func testLibrary() string {
	path := filepath.Join("engine", "npm", "node_modules", "@chdb", "lib-linux-x64-gnu", "libchdb.so")
	if _, err := os.Stat(path); err != nil || os.Getenv(engine.LibraryVariable) != "" {
		return os.Getenv(engine.LibraryVariable)
	}
	return path
}

// startStore starts an engine whose tables do not forget, so that what is old can be asked for. Without the library it skips.
func startStore(t *testing.T) fleet {
	t.Helper()
	f := startEngine(t)
	if err := f.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, table := range slices.Concat(keptSamples, keptMinutes, keptHours, []string{TableFindings, TableIncidents}) {
		if err := f.store.exec(t.Context(), "ALTER TABLE lowtide."+table+" REMOVE TTL"); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// startEngine starts an engine without any table.
func startEngine(t *testing.T) fleet {
	t.Helper()
	data := t.TempDir()
	e, err := engine.Start(t.Context(), engine.Options{Library: testLibrary(), DataDir: filepath.Join(data, "engine")})
	if errors.Is(err, engine.ErrLibraryMissing) {
		t.Skip("SKIPPED: nothing of the schema, the rollups, the investigations, the dashboards or an export was tested against a real engine: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	store, err := Open(t.Context(), Options{Addr: e.Addr(), Password: e.Password(engine.RoleWriter)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := os.WriteFile(filepath.Join(data, "engine.json"), []byte(`{"addr":"`+e.Addr()+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return fleet{access: Access{DataDir: data, User: engine.RoleReader}, store: store}
}

// startFleet plays the recordings at their own time, so that the answers are the same every day.
func startFleet(t *testing.T) fleet {
	t.Helper()
	f := startStore(t)
	events := append(playedEvents(t), scene()...)
	slices.SortStableFunc(events, func(a, b *event.Event) int { return a.At().Compare(b.At()) })
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	judge := processor.NewJudge(pack, func(one *event.Finding) { f.findings = append(f.findings, one) })
	block := Block{Token: "fleet"}
	for chunk := range slices.Chunk(events, 2000) {
		for _, one := range chunk {
			judge.Apply(one)
		}
		block.Messages = append(block.Messages, Message{Sequence: uint64(len(block.Messages) + 1), Time: chunk[0].At(), Batch: &event.Batch{Host: chunk[0].Host, Events: chunk}})
	}
	judge.Flush()
	f.findings = append(f.findings, heldFinding())
	for _, one := range f.findings {
		block.Messages = append(block.Messages, Message{Sequence: uint64(len(block.Messages) + 1), Time: one.Time, Finding: one})
	}
	block.Messages = append(block.Messages, Message{Sequence: uint64(len(block.Messages) + 1), Time: sceneStart, Subject: "lowtide.p.3.lab.h200-x.nvml", Refused: "no body", Data: []byte("{}")})
	if err := f.store.Insert(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	return f
}

func playedEvents(t *testing.T) (out []*event.Event) {
	t.Helper()
	for _, one := range played {
		for _, e := range recorded(t, filepath.Join("..", "processor", "testdata", one.recording+".ndjson.gz")) {
			e.Host = &event.Host{Cluster: "lab", Name: one.host}
			if e.Worker != nil {
				e.Worker = proto.CloneOf(e.Worker)
				e.Worker.Unit, e.Worker.Model, e.Worker.Release = one.model, one.model, one.release
			}
			out = append(out, e)
		}
	}
	return out
}

// heldFinding is an incident of the scene whose card names who holds the memory.
func heldFinding() *event.Finding {
	return &event.Finding{ID: "held-1", Incident: "feed0000held", Time: sceneStart.Add(25 * time.Minute), Subject: event.Subject{Kind: "worker", Key: "k"},
		Slot: "lab/h200-x/first/0/0", Rule: "fragmentation", Class: "fragmentation", State: event.Confirmed, Severity: event.Page, Confidence: 0.9,
		Summary: "A request found no hole", Release: "build-x", Snapshot: "x.pickle", Holders: []event.Holder{
			{Frames: []string{"worker.py:153 serve", "model.py:20 forward"}, LiveBytes: 5 * gib, Blocks: 50, GrowthBytes: event.Ptr(int64(gib))},
			{Frames: []string{"cache.py:7 put"}, LiveBytes: 2 * gib, Blocks: 2}}}
}

const gib = 1 << 30

var sceneStart = time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)

// scene is half an hour of host h200-x, written by hand: two workers share a card of 100 GiB. At 10:09 worker 200 meets Xid 31 and 43,
// at 10:10 the kernel ends it, and its 20 GiB stay on the card. At 10:19 worker 100 fails to allocate 2 GiB; snapshots at 10:21
// and 10:25 name who holds its memory. Its probe is lost from 10:12 on.
func scene() (out []*event.Event) {
	host := &event.Host{Cluster: "lab", Name: "h200-x", BootId: "boot-1"}
	who := func(pid int64, unit string) *event.Worker {
		return &event.Worker{Pid: pid, StartTicks: event.Ptr(uint64(pid)), StartTime: timestamppb.New(sceneStart.Add(-24 * time.Hour)), Role: "worker",
			Engine: "vllm", EngineIndex: event.Ptr(int64(0)), Unit: unit, Model: "lab-x", Release: "build-x", GpuUuids: []string{"GPU-x"}}
	}
	alive, dead := who(100, "first"), who(200, "second")
	add := func(minute float64, w *event.Worker, e *event.Event) {
		e.Time, e.Host, e.Worker = timestamppb.New(sceneStart.Add(time.Duration(minute*float64(time.Minute)))), host, w
		out = append(out, e)
	}
	bytes := func(g float64) *uint64 { return event.Ptr(uint64(g * gib)) }
	for minute := range 31 {
		at := float64(minute)
		add(at, nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-x", Index: event.Ptr(int64(0)), TotalBytes: bytes(100), UsedBytes: bytes(50), FreeBytes: bytes(49),
			DriverReservedBytes: bytes(1), ProcessesComplete: event.Ptr(true), Utilization: event.Ptr(0.5)}})
		add(at, nil, &event.Event{Machine: &event.Machine{MemoryTotalBytes: bytes(512), MemoryAvailableBytes: bytes(400)}})
		for _, w := range []*event.Worker{alive, dead} {
			used, live := 30.0, 20.0
			if w == dead {
				used, live = 20, 10
				if minute >= 10 {
					continue
				}
			}
			add(at, w, &event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-x", UsedBytes: bytes(used)}})
			add(at, w, &event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-x", AllocatedBytes: bytes(live), ActiveBytes: bytes(live + 1), ReservedBytes: bytes(live + 5)}})
			add(at, w, &event.Event{Engine: &event.Engine{KvUsage: event.Ptr(0.5), Running: event.Ptr(uint64(3)), Waiting: event.Ptr(uint64(0)), FinishedTotal: event.Ptr(uint64(minute))}})
		}
	}
	for _, x := range []struct {
		minute float64
		code   uint64
		text   string
	}{{9, 31, "MMU fault: ENGINE GRAPHICS"}, {9.5, 43, "Reset channel verification error"}, {9.6, 43, "Reset channel verification error"}} {
		add(x.minute, nil, &event.Event{Xid: &event.Xid{GpuUuid: "GPU-x", Code: event.Ptr(x.code), Pid: event.Ptr(int64(200)), Text: x.text, Source: "kmsg"}})
	}
	add(10, dead, &event.Event{Lifecycle: &event.Lifecycle{State: "exited", Signal: event.Ptr(int64(9)), By: "kernel"}})
	add(0, alive, &event.Event{Config: &event.Config{Origin: "declared", WeightsBytes: bytes(12), KvPoolBytes: bytes(6)}})
	add(19, alive, &event.Event{Oom: &event.Oom{GpuUuid: "GPU-x", Kind: "cuda", RequestedBytes: bytes(2), FreeBytes: bytes(1), Text: "CUDA out of memory. Tried to allocate 2.00 GiB."}})
	for _, s := range []struct{ minute, kept, cache float64 }{{21, 4, 2}, {25, 5, 2}} {
		add(s.minute, alive, &event.Event{Snapshot: &event.Snapshot{GpuUuid: "GPU-x", Reason: "oom", File: "x.pickle", LiveBytes: bytes(20), Stacks: []*event.SnapshotStack{
			{Frames: []string{"worker.py:153 serve", "model.py:20 forward"}, LiveBytes: bytes(s.kept), Blocks: event.Ptr(uint64(s.kept * 10))},
			{Frames: []string{"cache.py:7 put"}, LiveBytes: bytes(s.cache), Blocks: event.Ptr(uint64(2))}}}})
	}
	add(1, nil, &event.Event{Source: &event.SourceStatus{Name: "nvml", Status: "ok", TookSeconds: event.Ptr(0.002)}})
	add(1, alive, &event.Event{Source: &event.SourceStatus{Name: "allocator", Status: "ok"}})
	add(12, alive, &event.Event{Source: &event.SourceStatus{Name: "allocator", Status: "lost", Error: "connection refused"}})
	return out
}
