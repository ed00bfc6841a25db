package sink

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

var tick = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// tickBatch is one tick of one worker on one card, as four sources tell it.
func tickBatch(sequence uint64, at time.Time) Message {
	host := &event.Host{Cluster: "prod", Name: "gpu-1", BootId: "b1"}
	worker := &event.Worker{Pid: 42, StartTicks: event.Ptr(uint64(7)), Role: "worker", Unit: "vllm", Model: "m", GpuUuids: []string{"GPU-a"}}
	stamp := timestamppb.New(at)
	return Message{Sequence: sequence, Time: at, Subject: "lowtide.p.3.prod.gpu-1.sim", Batch: &event.Batch{Schema: event.Schema, Host: host, Source: "sim",
		Producer: "p", Lane: event.LaneSamples, Sequence: sequence, Events: []*event.Event{
			{Time: stamp, Host: host, Worker: worker, Process: &event.Process{RssBytes: event.Ptr(uint64(900)), Fds: event.Ptr(uint64(64))}},
			{Time: stamp, Host: host, Worker: worker, Allocator: &event.Allocator{Backend: "native", AllocatedBytes: event.Ptr(uint64(500)), ReservedBytes: event.Ptr(uint64(600))}},
			{Time: stamp, Host: host, Worker: worker, Engine: &event.Engine{KvUsage: event.Ptr(0.25), Running: event.Ptr(uint64(0)), Sleeping: event.Ptr(false)}},
			{Time: stamp, Host: host, Worker: worker, GpuProcess: &event.GpuProcess{GpuUuid: "GPU-a", UsedBytes: event.Ptr(uint64(700))}},
			{Time: stamp, Host: host, Gpu: &event.Gpu{Uuid: "GPU-a", TotalBytes: event.Ptr(uint64(1000))}},
			{Time: stamp, Host: host, Machine: &event.Machine{MemoryTotalBytes: event.Ptr(uint64(2000))}},
		}}}
}

func oomMessage(sequence uint64) Message {
	m := tickBatch(sequence, tick)
	m.Batch.Events = []*event.Event{{Time: timestamppb.New(tick), Host: m.Batch.Host, Worker: m.Batch.Events[0].Worker,
		Oom: &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(128)), Text: "out of memory"}}}
	return m
}

func findingMessage(sequence uint64, state string) Message {
	return Message{Sequence: sequence, Time: tick, Subject: "lowtide.finding.i1", Finding: &event.Finding{ID: "f-" + state, Incident: "i1", Time: tick,
		Subject: event.Subject{Kind: "worker", Key: "k"}, Slot: "prod/gpu-1/vllm/0/0", Rule: "retention", Class: "retention", State: state, Severity: event.Ticket,
		Confidence: 0.7, Growth: &event.Growth{Value: 2, Low: 1, High: 3, Unit: "bytes"}}}
}

func table(t *testing.T, all []Rows, name string) Rows {
	t.Helper()
	for _, r := range all {
		if r.Table == name {
			return r
		}
	}
	t.Fatalf("no rows of %s", name)
	return Rows{}
}

func value(t *testing.T, r Rows, row int, column string) any {
	t.Helper()
	for _, want := range tableFields[r.Table] {
		if want.name == column {
			if v := r.Value(row, column); v != nil || want.optional {
				return v
			}
			return "" // of a column that is left out
		}
	}
	t.Fatalf("%s has no column %s", r.Table, column)
	return nil
}

func TestJoinPutsATickInOneRow(t *testing.T) {
	all := Join(Block{Messages: []Message{tickBatch(1, tick), tickBatch(2, tick.Add(time.Second)), oomMessage(3)}})
	workers := table(t, all, TableWorkers)
	if workers.Count != 2 {
		t.Fatalf("%d rows, want 2: one a tick", workers.Count)
	}
	for column, want := range map[string]any{"worker_key": "prod/gpu-1/b1/42/7", "slot": "prod/gpu-1/vllm/0/0", "gpu_uuid": "GPU-a",
		"rss_bytes": uint64(900), "allocated_bytes": uint64(500), "kv_usage": 0.25, "running": uint64(0), "sleeping": false, "used_bytes": uint64(700),
		"backend": "native", "waiting": nil, "active_bytes": nil, "rank": nil} {
		if got := value(t, workers, 0, column); got != want {
			t.Errorf("%s = %v, want %v", column, got, want)
		}
	}
	events := table(t, all, TableEvents)
	for column, want := range map[string]any{"event": "oom", "kind": "cuda", "requested_bytes": uint64(128), "free_bytes": nil, "sequence": uint64(3), "text": "out of memory"} {
		if got := value(t, events, 0, column); got != want {
			t.Errorf("%s = %v, want %v", column, got, want)
		}
	}
}

// What a rule that is tried out finds is recorded, and is no incident.
func TestJoinKeepsShadowsOutOfIncidents(t *testing.T) {
	tried := findingMessage(2, event.Suspected)
	tried.Finding.ID, tried.Finding.Incident, tried.Finding.Shadow = "tried", "i2", true
	all := Join(Block{Messages: []Message{findingMessage(1, event.Suspected), tried}})
	findings, incidents := table(t, all, TableFindings), table(t, all, TableIncidents)
	if findings.Count != 2 || value(t, findings, 0, "shadow") != false || value(t, findings, 1, "shadow") != true {
		t.Errorf("%d findings, want one of each kind", findings.Count)
	}
	if incidents.Count != 1 || value(t, incidents, 0, "incident") != "i1" {
		t.Errorf("%d incidents, want i1 alone", incidents.Count)
	}
}

func TestJoinKeepsWhatItRefuses(t *testing.T) {
	far := tickBatch(1, time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC))
	far.Time = tick
	poison := messageReader{batches: event.NewBatchReader()}.decode(false, "lowtide.p.3.prod.gpu-1.sim", "application/json", []byte("{"))
	poison.Sequence, poison.Time = 2, tick
	events := table(t, Join(Block{Messages: []Message{far, poison}}), TableEvents)
	if events.Count != 7 { // six events of the far tick and the poison
		t.Fatalf("%d refused, want 7", events.Count)
	}
	if got := value(t, events, 6, "event"); got != "refused" {
		t.Errorf("event = %v, want refused", got)
	}
	if got := value(t, events, 6, "body"); got != "{" {
		t.Errorf("body = %v, want what was sent", got)
	}
}

func TestDecodeRefusesAnotherHost(t *testing.T) {
	reading := messageReader{batches: event.NewBatchReader()}
	data, err := event.EncodeBatch(tickBatch(1, tick).Batch)
	if err != nil {
		t.Fatal(err)
	}
	if m := reading.decode(false, "lowtide.p.3.prod.gpu-2.sim", "", data); !strings.Contains(m.Refused, "prod/gpu-1") {
		t.Errorf("refused = %q, want the host named", m.Refused)
	}
	if m := reading.decode(false, "lowtide.p.3.prod.gpu-1.sim", "", data); m.Refused != "" || len(m.Batch.Events) != 6 {
		t.Errorf("refused = %q with %d events, want 6 events", m.Refused, len(m.Batch.GetEvents()))
	}
}

func FuzzBlock(f *testing.F) {
	data, err := event.EncodeBatch(tickBatch(1, tick).Batch)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(false, "", data)
	f.Add(false, "application/json", []byte(`{"host":{"cluster":"prod","name":"gpu-1"},"lane":"samples","source":"x","events":[{"time":"2026-01-01T00:00:00Z","mark":{"name":"a"}}]}`))
	f.Add(true, "", []byte(`{"id":"a","time":"2026-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, finding bool, contentType string, data []byte) {
		m := messageReader{batches: event.NewBatchReader()}.decode(finding, "lowtide.p.3.prod.gpu-1.sim", contentType, data)
		m.Time = tick
		all := Join(Block{Messages: []Message{m}})
		for _, r := range all {
			if err := r.check(); err != nil {
				t.Fatal(err)
			}
			if block := r.appendNative(nil); len(block) == 0 {
				t.Fatalf("%s: no block", r.Table)
			}
		}
		if m.Refused != "" && len(all) != 1 {
			t.Fatalf("a refused message made %d tables", len(all))
		}
	})
}

func BenchmarkJoin(b *testing.B) {
	var block Block
	for i := range 1000 {
		block.Messages = append(block.Messages, tickBatch(uint64(i), tick.Add(time.Duration(i)*time.Second)))
	}
	for b.Loop() {
		Join(block)
	}
	b.ReportMetric(float64(b.N*1000)/b.Elapsed().Seconds(), "worker-samples/s")
}

// What a snapshot names stands in columns of its own, and is empty where there is none.
func TestFindingsKeepTheirHolders(t *testing.T) {
	with, without := findingMessage(1, event.Suspected), findingMessage(2, event.Confirmed)
	with.Finding.Snapshot = "f.pickle"
	with.Finding.Holders = []event.Holder{{Frames: []string{"worker.py:153 serve"}, LiveBytes: 5, Blocks: 2, GrowthBytes: event.Ptr(int64(-1))}}
	all := table(t, Join(Block{Messages: []Message{with, without}}), TableFindings)
	for row, want := range [][2]string{{`[{"frames":["worker.py:153 serve"],"live_bytes":5,"blocks":2,"growth_bytes":-1}]`, "f.pickle"}, {"", ""}} {
		if got := [2]string{value(t, all, row, "holders").(string), value(t, all, row, "snapshot").(string)}; got != want {
			t.Errorf("row %d: %q, want %q", row, got, want)
		}
	}
	batch := tickBatch(3, tick)
	batch.Batch.Events = []*event.Event{{Time: timestamppb.New(tick), Host: batch.Batch.Host, Worker: batch.Batch.Events[0].Worker,
		Snapshot: &event.Snapshot{GpuUuid: "GPU-a", Reason: "oom", File: "f.pickle", LiveBytes: event.Ptr(uint64(7)), FreeBytes: event.Ptr(uint64(3))}}}
	events := table(t, Join(Block{Messages: []Message{batch}}), TableEvents)
	for column, want := range map[string]any{"gpu_uuid": "GPU-a", "kind": "oom", "name": "f.pickle", "allocated_bytes": uint64(7), "free_bytes": uint64(3)} {
		if got := value(t, events, 0, column); got != want {
			t.Errorf("%s is %v, want %v", column, got, want)
		}
	}
}
