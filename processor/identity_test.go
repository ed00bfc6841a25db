package processor

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// The life of a process as a collector sees it: first a pid, then its unit, its GPU, its model. It stays one worker, and what
// comes for its instance and its GPU finds it.
func TestAWorkerIsKnownBetterOverTime(t *testing.T) {
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(pack, func(*event.Finding) {})
	host := &event.Host{Cluster: "c", Name: "h", BootId: "b"}
	origin := time.Unix(1_790_000_000, 0).UTC()
	tick := 0
	apply := func(w *event.Worker, body *event.Event) {
		body.Host, body.Time, body.Worker = host, timestamppb.New(origin.Add(time.Duration(tick)*5*time.Second)), w
		j.Apply(body)
	}
	process := func() *event.Event { return &event.Event{Process: &event.Process{Fds: event.Ptr(uint64(7))}} }
	who := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(99)), Role: "worker"}
	front := &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(90)), Role: "frontend", Unit: "port-8000", Engine: "vllm"}
	apply(who, process())
	only := j.workers[event.WorkerKey(host, who)]
	if only.Slot != "c/h/pid10/0/0" {
		t.Fatalf("slot of a bare pid: %s", only.Slot)
	}
	tick++
	better := proto.CloneOf(who)
	better.Unit, better.Engine, better.EngineIndex, better.Rank, better.GpuUuids = "port-8000", "vllm", event.Ptr(int64(1)), event.Ptr(int64(1)), []string{"GPU-a"}
	apply(better, process())
	apply(front, process())
	apply(who, process()) // what says less takes nothing away
	if len(j.workers) != 2 || only.Slot != "c/h/port-8000/1/1" {
		t.Fatalf("%d workers, slot %s", len(j.workers), only.Slot)
	}
	tick++
	engine := proto.CloneOf(front)
	engine.EngineIndex = event.Ptr(int64(1))
	apply(engine, &event.Event{Engine: &event.Engine{Running: event.Ptr(uint64(3)), Waiting: event.Ptr(uint64(0))}})
	apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", FreeBytes: event.Ptr(uint64(5))}})
	j.Flush()
	if v, known := only.Sample().Number(variable.Must("running.now")); !known || v != 3 {
		t.Errorf("the engine's event of index 1 did not reach its rank: %v %v", v, known)
	}
	if w := j.workers[event.WorkerKey(host, front)]; w.Slot != "c/h/port-8000/0/frontend" || w.Sample().Known(variable.Must("running.now")) {
		t.Errorf("the front end of slot %s took the event of index 1 for its own", w.Slot)
	}
	if got := len(j.hosts[hostName{"c", "h"}].cards["GPU-a"].users); got != 1 {
		t.Errorf("%d workers are found by their GPU", got)
	}
}
