package worker

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

const gib = 1 << 30

var (
	start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	host  = &event.Host{Cluster: "lab", Name: "a"}
	who   = &event.Worker{Pid: 7, StartTime: timestamppb.New(start), Engine: "vllm", GpuUuids: []string{"GPU-1"}}
)

// tick gives one minute of a worker: what is live, what runs and how much has finished.
func tick(w *Worker, at time.Duration, live, running, finished uint64) {
	when := timestamppb.New(start.Add(at))
	w.Apply(&event.Event{Time: when, Host: host, Worker: who, Allocator: &event.Allocator{AllocatedBytes: &live, ActiveBytes: &live, ReservedBytes: event.Ptr(live + gib), OomsTotal: event.Ptr(uint64(0))}})
	w.Apply(&event.Event{Time: when, Host: host, Worker: who, Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: &finished, KvUsage: event.Ptr(0.0)}})
}

// The lesson's own numbers: 42, 44, 46, 48 GiB at hourly quiet points are suspicious at the fourth, and not before.
func TestTheLessonsExampleIsCalledAtItsFourthPoint(t *testing.T) {
	w := New("w", host, who, start)
	w.Apply(&event.Event{Time: timestamppb.New(start), Host: host, Worker: who, Lifecycle: &event.Lifecycle{State: "ready"}})
	early := variable.Must("live.early")
	for hour := range uint64(4) {
		base := time.Duration(hour+1) * time.Hour
		for minute := range 60 {
			running := uint64(3)
			if minute < 3 {
				running = 0
			}
			tick(w, base+time.Duration(minute)*time.Minute, (42+2*hour)*gib+running*gib/4, running, 1+hour*100+uint64(minute))
		}
		w.Close()
		called, known := w.Sample().Bool(early)
		if want := hour == 3; called != want || !known {
			t.Errorf("after quiet point %d: early is %v (known %v), want %v", hour+1, called, known, want)
		}
	}
	if n, _ := w.Sample().Number(variable.Must("quiet.count")); n != 4 {
		t.Errorf("%v quiet points, want 4", n)
	}
	// Two GiB an hour by construction.
	if growth, _ := w.Sample().Number(variable.Must("live.growth")); growth < 1.99*gib || growth > 2.01*gib {
		t.Errorf("growth is %v GiB/h, want 2", growth/gib)
	}
}

func TestLevelMemoryIsNeverCalled(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range uint64(12 * 60) {
		running := uint64(3)
		if minute%30 < 3 {
			running = 0
		}
		tick(w, time.Duration(minute)*time.Minute, 70*gib+running*gib, running, minute)
	}
	w.Close()
	if called, known := w.Sample().Bool(variable.Must("live.early")); called || !known {
		t.Errorf("high and level memory: early is %v (known %v)", called, known)
	}
	if _, proven := w.Proven("live"); !proven {
		t.Error("twelve level hours prove nothing")
	}
}

func TestAnIdleWorkerGivesOnePointAnHour(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range 5*60 + 1 {
		tick(w, time.Duration(minute)*time.Minute, gib, 0, 1)
	}
	w.Close()
	if n := len(w.quiet.Points); n < 5 || n > 6 {
		t.Errorf("%d points in five idle hours", n)
	}
}

func TestOneSampleIsNoQuietPoint(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range uint64(60) {
		running := uint64(1)
		if minute%20 == 0 {
			running = 0
		}
		tick(w, time.Duration(minute)*time.Minute, gib, running, minute)
	}
	w.Close()
	if n := len(w.quiet.Points); n != 0 {
		t.Errorf("%d points from single samples", n)
	}
}

func TestUnknownLoadIsNeitherQuietNorBusy(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range 60 {
		w.Apply(&event.Event{Time: timestamppb.New(start.Add(time.Duration(minute) * time.Minute)), Host: host, Worker: who, Engine: &event.Engine{KvUsage: event.Ptr(0.1)}})
	}
	w.Close()
	if len(w.quiet.Points) != 0 || w.Sample().Known(variable.Must("running.now")) {
		t.Error("an engine that does not say what runs was taken for quiet")
	}
}

func TestAnOOMIsCountedOnceFromBothSides(t *testing.T) {
	w := New("w", host, who, start)
	count := func(total uint64, at time.Duration) float64 {
		w.Apply(&event.Event{Time: timestamppb.New(start.Add(at)), Host: host, Worker: who, Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(gib)), OomsTotal: &total}})
		w.Close()
		n, _ := w.Sample().Number(variable.Must("oom.count"))
		return n
	}
	if n := count(0, time.Minute); n != 0 {
		t.Errorf("%v before any", n)
	}
	w.Apply(&event.Event{Time: timestamppb.New(start.Add(90 * time.Second)), Host: host, Worker: who, Oom: &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(gib))}})
	if n := count(1, 2*time.Minute); n != 1 {
		t.Errorf("%v after one that both told", n)
	}
	if n := count(3, 3*time.Minute); n != 3 {
		t.Errorf("%v after two more that only the counter told", n)
	}
}

// What PyTorch's host allocator holds and what the kernel counts as pinned are not the same thing: a series is one of them, also in ticks
// that only the other is read in.
func TestPinnedIsOneOrTheOther(t *testing.T) {
	w := New("w", host, who, start)
	at := start
	give := func(e *event.Event) { e.Time, e.Host, e.Worker = timestamppb.New(at), host, who; w.Apply(e) }
	process := func() {
		give(&event.Event{Process: &event.Process{AnonBytes: event.Ptr(uint64(5 * gib)), PinnedKernelBytes: event.Ptr(uint64(0))}})
	}
	told := func(pin int) {
		give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(gib)), PinnedAllocatedBytes: u(pin)}})
	}
	want := func(what string, pin, rest float64) {
		t.Helper()
		w.Close()
		p, a := w.value(column(pinned, 0)), w.value(column(anon, 0))
		if same := func(a, b float64) bool { return a == b || a != a && b != b }; !same(p, pin) || !same(a, rest) {
			t.Errorf("%s: pinned %v, anon %v, want %v and %v", what, p, a, pin, rest)
		}
		at = at.Add(time.Minute)
	}
	process()
	want("only the kernel has told", 0, 5*gib)
	told(2 * gib)
	process()
	want("both, in one tick", 2*gib, 3*gib)
	process()
	want("the process alone: its pages are still pinned", nan, 3*gib)
	told(3 * gib)
	want("the allocator alone", 3*gib, nan)
	process()
	want("and the process again", nan, 2*gib)
}

func TestOutsideIsNotClampedAndAnonFallsBack(t *testing.T) {
	w := New("w", host, who, start)
	when := timestamppb.New(start.Add(time.Minute))
	give := func(e *event.Event) { e.Time, e.Host, e.Worker = when, host, who; w.Apply(e) }
	give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(gib)), ActiveBytes: event.Ptr(uint64(gib)), ReservedBytes: event.Ptr(uint64(2 * gib))}})
	give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: event.Ptr(uint64(gib))}})
	give(&event.Event{Process: &event.Process{RssBytes: event.Ptr(uint64(3 * gib)), PinnedKernelBytes: event.Ptr(uint64(gib))}})
	w.Close()
	for name, want := range map[string]float64{"outside.now": -gib, "anon.now": 2 * gib, "cached.now": gib} {
		if got, known := w.Sample().Number(variable.Must(name)); got != want || !known {
			t.Errorf("%s is %v (known %v), want %v", name, got, known, want)
		}
	}
	if w.Sample().Known(variable.Must("fds.now")) {
		t.Error("handles that were not read are known")
	}
}
