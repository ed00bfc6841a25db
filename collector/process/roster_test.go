package process

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

func complete(s *Source, e *event.Event) *event.Event {
	if e.Time == nil {
		e.Time = stampOf(tick)
	}
	s.Roster().Complete(e)
	return e
}

func TestCompleteFillsTheWholeIdentity(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	collectAt(t, s, tick)
	e := complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, GpuProcess: &event.GpuProcess{GpuUuid: "GPU-b"}})
	complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, Allocator: &event.Allocator{GpuUuid: "GPU-a"}})
	want := &event.Worker{
		Pid: 101, StartTicks: event.Ptr(uint64(6000)), StartTime: stampOf(time.Unix(1_790_000_060, 0)), Role: "worker", Rank: event.Ptr(int64(1)), GpuUuids: []string{"GPU-b"},
		Engine: "vllm", Unit: "port-8000", Model: "org/model-7b", Pod: testPod, ContainerId: testContainer,
	}
	same(t, "first event", e.Worker, want)
	want.GpuUuids = []string{"GPU-a", "GPU-b"}
	e = complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, Log: &event.Log{Signature: "x"}})
	same(t, "later event", e.Worker, want)
	// The event is its owner's: what happens to it must not come back.
	*e.Worker.StartTicks, *e.Worker.Rank, e.Worker.StartTime.Seconds, e.Worker.GpuUuids[0] = 1, 1, 1, "x"
	*e.Worker.Rank = 77
	same(t, "the next event", complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, Log: &event.Log{Signature: "x"}}).Worker, want)
	// What a source says itself stays.
	e = complete(s, &event.Event{Worker: &event.Worker{Pid: 100, EngineIndex: event.Ptr(int64(3)), Model: "served"}, Engine: &event.Engine{Running: event.Ptr(uint64(1))}})
	if e.Worker.GetEngineIndex() != 3 || e.Worker.Model != "served" || e.Worker.Role != "frontend" {
		t.Errorf("an engine's event became %s", prototext.Format(e.Worker))
	}
	// The engine knows best what it serves, and its ranks are told so.
	if e = complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, Log: &event.Log{Signature: "x"}}); e.Worker.Model != "served" {
		t.Errorf("model %q", e.Worker.Model)
	}
}

// A program of one's own says nothing of an engine; its metrics do, and so they do for its other events.
func TestEngineIsLearnedFromItsMetrics(t *testing.T) {
	f := bareTree(t)
	f.process(100, 1, 5000, []string{"python3", "server.py"}, "0::/\n", fullStatus)
	s := open(t, f.options())
	collectAt(t, s, tick)
	holds(s, tick, "GPU-a", 100)
	complete(s, &event.Event{Worker: &event.Worker{Pid: 100, Engine: "vllm", Model: "m"}, Engine: &event.Engine{Running: event.Ptr(uint64(1))}})
	if w := workers(collectAt(t, s, tick.Add(5*time.Second)))[100]; w.GetEngine() != "vllm" || w.GetModel() != "m" || w.GetRole() != "worker" {
		t.Errorf("worker %s", prototext.Format(w))
	}
}

func TestGPUIsForgotten(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	collectAt(t, s, tick)
	holds(s, tick, "GPU-a", 101)
	holds(s, tick.Add(30*time.Second), "GPU-b", 101)
	if got := workers(collectAt(t, s, tick.Add(time.Minute)))[101].GpuUuids; fmt.Sprint(got) != "[GPU-a GPU-b]" {
		t.Errorf("after 60 s %v", got)
	}
	if got := workers(collectAt(t, s, tick.Add(65*time.Second)))[101].GpuUuids; fmt.Sprint(got) != "[GPU-b]" {
		t.Errorf("after 65 s %v", got)
	}
	if w := workers(collectAt(t, s, tick.Add(95*time.Second)))[101]; len(w.GpuUuids) != 0 || w.Role != "worker" {
		t.Errorf("after 95 s %s", prototext.Format(w))
	}
}

// What is not known yet is read at once, with the front end above it.
func TestCompleteBeforeTheFirstTick(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	e := complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, Allocator: &event.Allocator{GpuUuid: "GPU-a"}})
	if got := short(e.Worker); got != "worker 1 vllm - org/model-7b port-8000" || *e.Worker.StartTicks != 6000 {
		t.Errorf("unknown so far: %q", got)
	}
	// A shell is nobody's worker, but an event that names it gets its identity.
	e = complete(s, &event.Event{Worker: &event.Worker{Pid: 300}, Config: &event.Config{TorchVersion: "2"}})
	if e.Worker.GetStartTicks() != 8000 || e.Worker.Role != "other" {
		t.Errorf("a shell: %s", prototext.Format(e.Worker))
	}
	if found := workers(collectAt(t, s, tick)); len(found) != 3 {
		t.Errorf("%d watched, want 3", len(found))
	}
	complete(s, &event.Event{Worker: &event.Worker{Pid: 300}, GpuProcess: &event.GpuProcess{GpuUuid: "GPU-c"}})
	if w := workers(collectAt(t, s, tick.Add(5*time.Second)))[300]; w.GetRole() != "worker" {
		t.Errorf("with a GPU: %s", prototext.Format(w))
	}
}

func TestEventsAboutNobody(t *testing.T) {
	s := open(t, newTree(t).options())
	collectAt(t, s, tick)
	for name, c := range map[string]struct {
		event *event.Event
		want  bool // keeps its worker
	}{
		"xid of a pid that is gone":        {&event.Event{Worker: &event.Worker{Pid: 9999}, Xid: &event.Xid{Code: event.Ptr(uint64(31))}}, false},
		"oom of a pid that is gone":        {&event.Event{Worker: &event.Worker{Pid: 9999}, Oom: &event.Oom{Kind: "cuda"}}, false},
		"kernel oom of a shell":            {&event.Event{Worker: &event.Worker{Pid: 300}, Oom: &event.Oom{Kind: "kernel", VictimPid: event.Ptr(int64(300))}}, false},
		"a GPU's process that is not seen": {&event.Event{Worker: &event.Worker{Pid: 9999}, GpuProcess: &event.GpuProcess{GpuUuid: "GPU-a"}}, true},
		"a log of a unit nobody runs":      {&event.Event{Worker: &event.Worker{Unit: "x.service"}, Log: &event.Log{Signature: "x"}}, false},
		"an oom whose source knows who":    {&event.Event{Worker: &event.Worker{Pid: 9999, StartTime: stampOf(tick)}, Oom: &event.Oom{Kind: "cuda"}}, true},
		"a mark of no worker":              {&event.Event{Mark: &event.Mark{Name: "x"}}, false},
	} {
		if got := complete(s, c.event).Worker; (got != nil) != c.want {
			t.Errorf("%s: %s", name, prototext.Format(got))
		} else if got != nil && got.StartTicks != nil {
			t.Errorf("%s: made up %s", name, prototext.Format(got))
		}
	}
}

func TestUnitWithoutPid(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	collectAt(t, s, tick)
	holds(s, tick, "GPU-a", 101)
	ask := func(w *event.Worker, e *event.Event) int64 {
		e.Worker = w
		return complete(s, e).Worker.GetPid()
	}
	if pid := ask(&event.Worker{Unit: "llama.service"}, &event.Event{Log: &event.Log{Signature: "x"}}); pid != 200 {
		t.Errorf("the only process of a service: %d", pid)
	}
	if pid := ask(&event.Worker{Unit: "port-8000"}, &event.Event{Engine: &event.Engine{Running: event.Ptr(uint64(1))}}); pid != 100 {
		t.Errorf("an engine's instance is its front end's: %d", pid)
	}
	if pid := ask(&event.Worker{Unit: "port-8000"}, &event.Event{Oom: &event.Oom{Kind: "cuda"}}); pid != 101 {
		t.Errorf("a failed allocation is the one worker's: %d", pid)
	}
	f.process(201, 1, 7001, []string{"/opt/llama-server", "--port", "8081"}, "0::/system.slice/llama.service\n", fullStatus)
	collectAt(t, s, tick.Add(time.Minute))
	if pid := ask(&event.Worker{Unit: "llama.service#2"}, &event.Event{Log: &event.Log{Signature: "x"}}); pid != 201 {
		t.Errorf("the second of a service: %d", pid)
	}
}

// A pid that is used again: events about the time before are the old process's.
func TestEndedProcessesAreKnown(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	collectAt(t, s, tick)
	f.remove(101)
	collectAt(t, s, tick.Add(5*time.Second))
	ticks := func(at time.Time) uint64 {
		e := &event.Event{Time: stampOf(at), Worker: &event.Worker{Pid: 101}, Xid: &event.Xid{Code: event.Ptr(uint64(31))}}
		s.Roster().Complete(e)
		return e.Worker.GetStartTicks()
	}
	if got := ticks(tick.Add(4 * time.Second)); got != 6000 {
		t.Errorf("just ended: %d", got)
	}
	f.process(101, 1, 102_000, []string{"python3", "x.py"}, "0::/\n", fullStatus)
	collectAt(t, s, tick.Add(25*time.Second))
	if before, after := ticks(tick.Add(4*time.Second)), ticks(tick.Add(25*time.Second)); before != 6000 || after != 102_000 {
		t.Errorf("before %d and after %d", before, after)
	}
	f.remove(101)
	collectAt(t, s, tick.Add(30*time.Second))
	collectAt(t, s, tick.Add(17*time.Minute))
	if got := ticks(tick.Add(4 * time.Second)); got != 0 {
		t.Errorf("after a quarter of an hour: %d", got)
	}
	if len(s.roster.ended) != 0 || len(s.roster.queue) != 0 {
		t.Error("the ended are kept for ever")
	}
}

// The roster is asked by the loop while its source reads.
func TestRosterIsSafe(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	var asking sync.WaitGroup
	for n := range 4 {
		asking.Go(func() {
			for i := range 200 {
				e := &event.Event{Time: stampOf(tick), Worker: &event.Worker{Pid: int64(100 + i%2)}, GpuProcess: &event.GpuProcess{GpuUuid: fmt.Sprint("GPU-", n)}}
				s.Roster().Complete(e)
				e.Worker.GpuUuids = append(e.Worker.GpuUuids, "mine")
				s.Roster().Endpoints()
			}
		})
	}
	for i := range 10 {
		for _, e := range collectAt(t, s, tick.Add(time.Duration(i)*5*time.Second)) {
			if e.Worker != nil {
				e.Worker.Pid = -1
			}
		}
	}
	asking.Wait()
	e := complete(s, &event.Event{Worker: &event.Worker{Pid: 101}, Log: &event.Log{Signature: "x"}})
	if kept := proto.CloneOf(e.Worker); kept.Pid != 101 || len(kept.GpuUuids) != 4 {
		t.Errorf("in the end %s", prototext.Format(kept))
	}
}

func BenchmarkComplete(b *testing.B) {
	s, err := New(newTree(b).options())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Collect(b.Context(), tick); err != nil {
		b.Fatal(err)
	}
	at := stampOf(tick)
	body := &event.GpuProcess{GpuUuid: "GPU-a", UsedBytes: event.Ptr(uint64(1))}
	b.ReportAllocs()
	for b.Loop() {
		s.Roster().Complete(&event.Event{Time: at, Worker: &event.Worker{Pid: 101}, GpuProcess: body})
	}
}

// 1000 processes of other people and 10 that are watched: what a tick costs on a busy host.
func BenchmarkThousandProcesses(b *testing.B) {
	f := newTree(b)
	for pid := 1000; pid < 2000; pid++ {
		f.process(pid, 1, 4000, []string{"/usr/bin/some-daemon", "--with", "an ordinary command line", "--config=/etc/some/daemon.conf"}, "0::/system.slice/some.service\n", fullStatus)
	}
	for pid := 110; pid < 117; pid++ {
		f.process(pid, 100, 6000, []string{"VLLM::Worker_TP1"}, "0::/\n", fullStatus)
	}
	s, err := New(f.options())
	if err != nil {
		b.Fatal(err)
	}
	at := tick
	if _, err := s.Collect(b.Context(), at); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(5 * time.Second)
		if _, err := s.Collect(b.Context(), at); err != nil {
			b.Fatal(err)
		}
	}
}
