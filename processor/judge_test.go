package processor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/worker"
)

// What is true of an engine is told once, on the sample of its lowest rank, however many processes it has; and it goes on when that
// rank is gone and another speaks.
func TestAnInstanceIsJudgedOnce(t *testing.T) {
	s := newProbeStage(t)
	front := &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(9)), Role: "frontend", Unit: "u", Model: "m", Release: "r1"}
	ranks := []*event.Worker{rank(11, "r1"), rank(10, "r1")}
	for i, w := range ranks {
		w.Rank = event.Ptr(int64(1 - i))
	}
	minute := func(waiting uint64, living ...*event.Worker) {
		s.pass(time.Minute)
		for _, w := range living {
			s.apply(w, handles())
		}
		s.apply(front, waits(waiting))
	}
	for range 5 {
		minute(0, front, ranks[0], ranks[1])
	}
	for range 5 {
		minute(9, front, ranks[0], ranks[1])
	}
	if len(s.findings) != 1 {
		t.Fatalf("%d findings of one queue: %v", len(s.findings), s.findings)
	}
	f := s.findings[0]
	if f.Subject != (event.Subject{Kind: "instance", Key: "c/h/u/0"}) || f.Worker.GetPid() != 10 || f.Slot != "c/h/u/0/0" {
		t.Errorf("subject %v, pid %d, slot %s", f.Subject, f.Worker.GetPid(), f.Slot)
	}
	s.apply(ranks[1], code(1))
	for range 8 {
		minute(9, front, ranks[0])
	}
	for _, later := range s.findings[1:] {
		if later.Class == "kv_pressure" && later.Incident != f.Incident {
			t.Errorf("another incident when rank 0 has gone: %+v", later)
		}
	}
	for range 26 * 60 {
		minute(0, front, ranks[0])
	}
	if last := s.findings[len(s.findings)-1]; last.Incident != f.Incident || last.State != event.Resolved {
		t.Errorf("a day later the last transition is %s of %s", last.State, last.Class)
	}
}

// The life of an instance is that of one process. That a better speaker is discovered later is no restart; that the process ends is one.
func TestAnotherSpeakerIsNoRestart(t *testing.T) {
	s := newProbeStage(t)
	second, first := rank(11, "r1"), rank(10, "r1")
	second.Rank = event.Ptr(int64(1))
	runs := &event.Event{Engine: &event.Engine{Running: event.Ptr(uint64(9)), Waiting: event.Ptr(uint64(0))}}
	minutes := func(n int, living ...*event.Worker) {
		for range n {
			s.pass(time.Minute)
			for _, w := range living {
				s.apply(w, handles())
			}
			s.apply(living[0], proto.CloneOf(runs))
		}
	}
	masked := func() int { return s.findings[len(s.findings)-1].MaskedRestarts }
	minutes(5, second)
	minutes(10, second, first)
	if n := len(s.findings); n != 1 || masked() != 0 || s.findings[0].Worker.GetPid() != 11 {
		t.Fatalf("%d findings, masked %d: %v", n, masked(), s.findings)
	}
	s.apply(second, signal(6, "self"))
	if masked() != 1 {
		t.Errorf("its process ended, masked %d", masked())
	}
	minutes(5, first)
	for _, f := range s.findings {
		if f.Class == "kv_block_leak" && (f.MaskedRestarts > 1 || f.Incident != s.findings[0].Incident || f.Slot != "c/h/u/0/1") {
			t.Errorf("incident %s, masked %d, slot %s", f.Incident, f.MaskedRestarts, f.Slot)
		}
	}
}

// The clock of a host leaps by thirty hours and falls back. Nothing has ended for that: no process, and no incident that waits for
// a day of silence.
func TestALeapOfTheClockEndsNothing(t *testing.T) {
	s := newProbeStage(t)
	a, b := rank(10, "r1"), rank(11, "r1")
	b.Unit = "v"
	minute := func(waiting uint64) {
		s.pass(time.Minute)
		for _, w := range []*event.Worker{a, b} {
			s.apply(w, handles())
			s.apply(w, waits(waiting))
		}
	}
	for range 5 {
		minute(9)
	}
	if len(s.findings) != 2 {
		t.Fatalf("findings %v", s.findings)
	}
	first := s.worker(b)
	for range 3 {
		s.pass(30 * time.Hour)
		s.apply(a, handles())
		s.apply(a, waits(0))
		s.pass(-30 * time.Hour)
		for range 5 {
			minute(0)
		}
	}
	if s.worker(b) != first {
		t.Error("a process was forgotten")
	}
	for _, f := range s.findings {
		if f.State == event.Resolved {
			t.Errorf("%s was resolved at %v", f.Class, f.Time)
		}
	}
}

// What its workers suffer on a card that is broken is told once, as the card's.
func TestAFaultOfTheDeviceExplainsThatOfTheProgram(t *testing.T) {
	pack := probePack(t)
	shipped := builtin(t)
	for _, r := range shipped.Rules {
		if r.Class == "software_fault" {
			pack.Rules = append(pack.Rules, r)
		}
	}
	s := newProbeStage(t)
	s.judge = NewJudge(pack, func(f *event.Finding) { s.findings = append(s.findings, f) })
	w := rank(10, "r1")
	s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
	s.pass(time.Minute)
	s.apply(nil, xidOf(79))
	s.pass(3 * time.Minute)
	s.apply(w, xidOf(31))
	for _, f := range s.findings {
		if f.Class != "device_fault" {
			t.Errorf("%s beside the fault of the device", f.Class)
		}
	}
	if len(s.findings) == 0 {
		t.Error("nothing was found")
	}
}

// The new release leaks, and the one before it, on another host at the same load, is proven level. That confirms what the worker's own
// numbers only suspect; an old release that nobody uses says nothing.
func TestAnotherReleaseAtTheSameLoadIsAProof(t *testing.T) {
	leak, control := events(t, "testdata/leak.ndjson.gz"), events(t, "testdata/leak.ndjson.gz")
	for name, test := range map[string]struct {
		idle bool
		want string
	}{"at the same load": {false, "yes"}, "idle": {true, "unknown"}} {
		judge := NewJudge(builtin(t), func(*event.Finding) {})
		for i, e := range leak {
			judge.Apply(e)
			other := proto.CloneOf(control[i])
			other.Host.Name = "h200-b"
			if other.Worker != nil {
				other.Worker.Release = "build-0"
			}
			if a := other.Allocator; a != nil { // what it keeps is always the same
				a.AllocatedBytes, a.ActiveBytes, a.OomsTotal = event.Ptr(uint64(8<<30)), event.Ptr(uint64(8<<30)), nil
			}
			if en := other.Engine; en != nil && test.idle {
				en.Running, en.FinishedTotal, en.AbortedTotal, en.GenerationTokensTotal = event.Ptr(uint64(0)), event.Ptr(uint64(0)), event.Ptr(uint64(0)), event.Ptr(uint64(0))
			}
			judge.Apply(other)
		}
		judge.Flush()
		got := "nobody"
		for _, w := range judge.workers {
			if w.home.name.name != "h200-a" {
				continue
			}
			v, known := w.Sample().Bool(slotIDs.proofPeer)
			got = map[bool]string{true: "yes", false: "no"}[v]
			if !known {
				got = "unknown"
			}
			if n, _ := w.Sample().Number(slotIDs.other); test.want == "yes" && n != 1 {
				t.Errorf("%s: %v peers of another release", name, n)
			}
		}
		if got != test.want {
			t.Errorf("%s: proof.peer is %s, want %s", name, got, test.want)
		}
	}
}

// A worker fails to allocate half a minute after its tick, and then its process ends. The tick, which is closed by that, is not judged
// as if the failure had come before it.
func TestWhatIsToldAtOnceIsNoEarlierThanItsTick(t *testing.T) {
	s := newStage(t)
	w := rank(10, "r1")
	for range 5 {
		s.pass(time.Minute)
		s.apply(w, &event.Event{Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(1 << 30)), OomsTotal: event.Ptr(uint64(0))}})
	}
	s.pass(30 * time.Second)
	failed := s.at
	s.apply(w, &event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(9 << 30)), FreeBytes: event.Ptr(uint64(1 << 30)), ReservedUnallocatedBytes: event.Ptr(uint64(0))}})
	s.pass(time.Second)
	s.apply(w, code(1))
	if len(s.findings) == 0 {
		t.Fatal("the failed allocation was not found")
	}
	for _, f := range s.findings {
		if f.Time.Before(failed) {
			t.Errorf("%s at %v, before the failure at %v", f.Class, f.Time, failed)
		}
	}
}

// Nobody comes back to the slot of a worker that was killed. What needs no proof ends there after a day in which it was not seen.
func TestAnEmptySlotKeepsNoTroubleForEver(t *testing.T) {
	s := newProbeStage(t)
	w, other := rank(10, "r1"), rank(11, "r1")
	other.Unit = "v"
	s.apply(w, handles())
	s.pass(time.Minute)
	s.apply(w, signal(9, "kernel"))
	killed := s.at
	for range 40 * 6 {
		s.pass(10 * time.Minute)
		s.apply(other, handles())
	}
	if n := len(s.findings); n != 2 || s.findings[1].State != event.Resolved || s.findings[1].Incident != s.findings[0].Incident {
		t.Fatalf("findings %v", s.findings)
	}
	if d := s.findings[1].Time.Sub(killed); d < 24*time.Hour || d > 28*time.Hour || s.findings[1].Worker.GetPid() != 10 {
		t.Errorf("resolved after %v, pid %d", d, s.findings[1].Worker.GetPid())
	}
	if s.worker(w) != nil {
		t.Error("the process is still held")
	}
}

func TestReportsAreSortedAndComplete(t *testing.T) {
	s := newProbeStage(t)
	for _, pid := range []int64{30, 10, 20} {
		s.apply(rank(pid, "r1"), handles())
	}
	reports := s.judge.Reports()
	if len(reports) != 3 || !slices.IsSortedFunc(reports, func(a, b worker.Report) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("%d reports", len(reports))
	}
}

// The judge's own part of a tick of a healthy worker, once all is known, takes no memory.
func TestAHealthyTickAllocatesNothing(t *testing.T) {
	s := newStage(t)
	w := rank(10, "r1")
	for range 10 {
		s.pass(time.Minute)
		s.apply(w, handles())
		s.apply(w, waits(0))
		s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
	}
	watched := s.worker(w)
	at := s.at
	if n := testing.AllocsPerRun(100, func() {
		at = at.Add(time.Second)
		s.judge.evaluate(watched, at)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkEvaluate is the judge's part of a tick: what the slot, the card and the peers say, and the rules, of a worker on which
// only numbers moved that no rule reads.
func BenchmarkEvaluate(b *testing.B) {
	pack := builtin(b)
	j := NewJudge(pack, func(*event.Finding) {})
	s := &stage{at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}, judge: j}
	w := rank(10, "r1")
	for range 10 {
		s.pass(time.Minute)
		s.apply(w, handles())
		s.apply(w, waits(0))
	}
	watched, at := s.worker(w), s.at
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Second)
		j.evaluate(watched, at)
	}
}

// BenchmarkRoute is what finding the worker, its instance and its card costs: five events of a tick, none of which closes one.
func BenchmarkRoute(b *testing.B) {
	j := NewJudge(builtin(b), func(*event.Finding) {})
	var five []*event.Event
	for _, e := range events(b, "testdata/healthy.ndjson.gz")[:5] {
		e = proto.CloneOf(e)
		j.Apply(e)
		five = append(five, e)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range five {
			j.Apply(e)
		}
	}
}
