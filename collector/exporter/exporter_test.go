package exporter

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lowtide/event"
)

func worker(pid int64) *event.Worker {
	return &event.Worker{Pid: pid, StartTicks: event.Ptr(uint64(7)), Unit: "port-8000", EngineIndex: event.Ptr(int64(0)), Rank: event.Ptr(int64(1)), Role: "worker",
		Engine: "vllm", Model: "m", GpuUuids: []string{"GPU-a"}}
}

func events(pid int64) []*event.Event {
	host := &event.Host{Cluster: "c", Name: "h", BootId: "b"}
	all := []*event.Event{
		{Allocator: &event.Allocator{GpuUuid: "GPU-a", Backend: "native", AllocatedBytes: event.Ptr(uint64(100)), ReservedBytes: event.Ptr(uint64(200)), OomsTotal: event.Ptr(uint64(0))}},
		{Engine: &event.Engine{KvUsage: event.Ptr(0.5), KvBlocksTotal: event.Ptr(uint64(9271)), PreemptionsTotal: event.Ptr(uint64(12)), Sleeping: event.Ptr(false)}},
		{Process: &event.Process{RssBytes: event.Ptr(uint64(5))}},
		{Oom: &event.Oom{Kind: "cuda"}},
		{Config: &event.Config{Origin: "info metric", EngineVersion: "0.30.1", MaxModelLen: event.Ptr(uint64(8192))}},
	}
	for _, e := range all {
		e.Host, e.Worker = host, worker(pid)
	}
	return append(all, &event.Event{Host: host, Gpu: &event.Gpu{Uuid: "GPU-a", Index: event.Ptr(int64(0)), Name: "H200", FreeBytes: event.Ptr(uint64(3))}},
		&event.Event{Host: host, Xid: &event.Xid{GpuUuid: "GPU-a", Code: event.Ptr(uint64(31))}},
		&event.Event{Host: host, Source: &event.SourceStatus{Name: "kernel", Status: "denied"}})
}

func TestLastValuesUnderTheWordsOfTheVocabulary(t *testing.T) {
	x := New(nil)
	x.Observe(events(42))
	const of = `{cluster="c",engine_index="0",`
	const who = `host="h",pid="42",rank="1",role="worker",unit="port-8000"} `
	want := `# HELP lowtide_allocator_allocated_bytes Last value of the field allocated_bytes of the event body allocator.
# TYPE lowtide_allocator_allocated_bytes gauge
lowtide_allocator_allocated_bytes` + of + `gpu_uuid="GPU-a",` + who + `100
# HELP lowtide_allocator_ooms_total Last value of the field ooms_total of the event body allocator.
# TYPE lowtide_allocator_ooms_total counter
lowtide_allocator_ooms_total` + of + `gpu_uuid="GPU-a",` + who + `0
# HELP lowtide_engine_kv_blocks_total Last value of the field kv_blocks_total of the event body engine.
# TYPE lowtide_engine_kv_blocks_total gauge
lowtide_engine_kv_blocks_total` + of + who + `9271
# HELP lowtide_engine_preemptions_total Last value of the field preemptions_total of the event body engine.
# TYPE lowtide_engine_preemptions_total counter
lowtide_engine_preemptions_total` + of + who + `12
# HELP lowtide_gpu_free_bytes Last value of the field free_bytes of the event body gpu.
# TYPE lowtide_gpu_free_bytes gauge
lowtide_gpu_free_bytes{cluster="c",gpu_index="0",gpu_uuid="GPU-a",host="h",mig=""} 3
# HELP lowtide_source_up 1 when the source is read in full.
# TYPE lowtide_source_up gauge
lowtide_source_up{cluster="c",host="h",source="kernel"} 0
# HELP lowtide_xids_total Device errors seen since the collector started.
# TYPE lowtide_xids_total counter
lowtide_xids_total{code="31",gpu_uuid="GPU-a"} 1
`
	if err := testutil.CollectAndCompare(x, strings.NewReader(want), "lowtide_allocator_allocated_bytes", "lowtide_allocator_ooms_total", "lowtide_engine_kv_blocks_total",
		"lowtide_engine_preemptions_total", "lowtide_gpu_free_bytes", "lowtide_source_up", "lowtide_xids_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(x, "lowtide_engine_waiting"); n != 0 {
		t.Error("a field that was not read is shown")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(x)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		// The pool's size keeps the vocabulary's name, which looks like a counter's.
		if p.Metric != "lowtide_engine_kv_blocks_total" {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestWhatHasGoneIsForgotten(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	x := New(func() time.Time { return now })
	x.Observe(events(1))
	x.Observe(events(2))
	count := func() int { return testutil.CollectAndCount(x, "lowtide_process_rss_bytes") }
	if n := count(); n != 2 {
		t.Fatalf("%d workers, want 2", n)
	}
	x.Observe([]*event.Event{{Host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}, Worker: worker(1), Lifecycle: &event.Lifecycle{State: "exited"}}})
	if n := count(); n != 1 {
		t.Errorf("%d workers after one exited, want 1", n)
	}
	now = now.Add(stale + time.Second)
	if n := count(); n != 0 {
		t.Errorf("%d workers after five silent minutes, want none", n)
	}
}

func TestServerAnswersScrapes(t *testing.T) {
	x := New(nil)
	x.Observe(events(42))
	s, err := Listen(t.Context(), "127.0.0.1:0", nil, x)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	answer, err := http.Get("http://" + s.Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"lowtide_engine_kv_usage{", "lowtide_worker_info{", "lowtide_config_info{", "process_cpu_seconds_total ", "process_resident_memory_bytes "} {
		if !strings.Contains(string(text), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if _, err := Listen(t.Context(), s.Addr(), nil, x); err == nil || !strings.Contains(err.Error(), s.Addr()) {
		t.Errorf("a taken port: %v", err)
	}
}

// Observing stands in the path of every event.
func BenchmarkObserve(b *testing.B) {
	x := New(nil)
	all := events(42)
	b.ReportAllocs()
	for b.Loop() {
		x.Observe(all)
	}
}

// A pid is given to another process before anybody saw the first one end. Two series of the same labels would cost the scrape
// its sense: the newer one stands, and the late end of the older one does not take it away.
func TestAPidThatIsGivenAgainIsOneSeries(t *testing.T) {
	x := New(nil)
	x.Observe(events(42))
	next := events(42)
	for _, e := range next {
		if e.Worker != nil {
			e.Worker.StartTicks = event.Ptr(uint64(8))
		}
		if e.Process != nil {
			e.Process.RssBytes = event.Ptr(uint64(6))
		}
	}
	x.Observe(next)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(x)
	if _, err := registry.Gather(); err != nil {
		t.Fatal(err)
	}
	old := worker(42)
	x.Observe([]*event.Event{{Host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}, Worker: old, Lifecycle: &event.Lifecycle{State: "exited"}}})
	const want = `# HELP lowtide_process_rss_bytes Last value of the field rss_bytes of the event body process.
# TYPE lowtide_process_rss_bytes gauge
lowtide_process_rss_bytes{cluster="c",engine_index="0",host="h",pid="42",rank="1",role="worker",unit="port-8000"} 6
`
	if err := testutil.CollectAndCompare(x, strings.NewReader(want), "lowtide_process_rss_bytes"); err != nil {
		t.Error(err)
	}
}

// What a worker was started with is told every ten minutes. Between, it is not stale.
func TestConfigIsShownUntilItIsToldAgain(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	x := New(func() time.Time { return now })
	x.Observe(events(1))
	for range 9 {
		now = now.Add(time.Minute)
		if n := testutil.CollectAndCount(x, "lowtide_config_info"); n != 1 {
			t.Fatalf("%d configurations %v after it was told, want 1", n, now.Sub(time.Unix(1_790_000_000, 0)))
		}
	}
}

// Samples that waited for a slow source leave after the end of their process was told. They do not bring it back.
func TestLateSamplesOfAnEndedProcessAreNotShown(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	x := New(func() time.Time { return now })
	x.Observe([]*event.Event{{Host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}, Worker: worker(1), Lifecycle: &event.Lifecycle{State: "exited"}}})
	x.Observe(events(1))
	if n := testutil.CollectAndCount(x, "lowtide_process_rss_bytes", "lowtide_worker_info"); n != 0 {
		t.Errorf("%d series of a process that has ended", n)
	}
	now = now.Add(stale + time.Second)
	if testutil.CollectAndCount(x); len(x.ended) != 0 {
		t.Errorf("%d ended processes are remembered for longer than anybody tells of them", len(x.ended))
	}
}

// Where nobody scrapes, what has gone is forgotten all the same.
func TestNothingIsHeldForAScrapeThatNeverComes(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	x := New(func() time.Time { return now })
	for pid := range int64(500) {
		x.Observe(events(pid + 1))
		now = now.Add(time.Minute)
	}
	if n := len(x.last); n > 200 {
		t.Errorf("%d last values are held of 500 processes, of which one was seen in each minute", n)
	}
}
