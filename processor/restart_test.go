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

// stage applies events of one host at a moment that the test sets.
type stage struct {
	judge    *Judge
	findings []*event.Finding
	at       time.Time
	host     *event.Host
}

func newStage(t *testing.T) *stage {
	t.Helper()
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}}
	s.judge = NewJudge(pack, func(f *event.Finding) { s.findings = append(s.findings, f) })
	return s
}

func (s *stage) apply(w *event.Worker, e *event.Event) {
	e.Host, e.Time, e.Worker = s.host, timestamppb.New(s.at), proto.CloneOf(w)
	s.judge.Apply(e)
}

func (s *stage) worker(w *event.Worker) *watched { return s.judge.workers[event.WorkerKey(s.host, w)] }

func handles() *event.Event { return &event.Event{Process: &event.Process{Fds: event.Ptr(uint64(7))}} }

func waits(n uint64) *event.Event {
	return &event.Event{Engine: &event.Engine{Running: event.Ptr(uint64(0)), Waiting: event.Ptr(n)}}
}

// A worker restarts on its card. What the card and the engine say from then on is about its successor alone, an error that NVML
// reports without a process is the successor's, and the one that has gone is forgotten however long its card lives.
func TestWhatHasEndedIsToldNothingMore(t *testing.T) {
	s := newStage(t)
	old := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Unit: "port-8000", Engine: "vllm", GpuUuids: []string{"GPU-a"}}
	next := &event.Worker{Pid: 20, StartTicks: event.Ptr(uint64(200)), Role: "worker", Unit: "port-8000", Engine: "vllm", GpuUuids: []string{"GPU-a"}}
	s.apply(old, handles())
	s.apply(old, waits(3))
	s.at = s.at.Add(5 * time.Second)
	s.apply(old, &event.Event{Lifecycle: &event.Lifecycle{State: "exited"}})
	s.apply(old, &event.Event{Oom: &event.Oom{Kind: "cuda", Text: "CUDA out of memory. A line of the log that came late"}})
	s.at = s.at.Add(time.Minute)
	s.apply(next, handles())
	s.apply(next, waits(1))
	for range 3 {
		s.at = s.at.Add(5 * time.Second)
		s.apply(next, handles())
		s.apply(next, waits(9))
		s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", FreeBytes: event.Ptr(uint64(5))}})
	}
	if v, _ := s.worker(old).Sample().Number(variable.Must("waiting.now")); v != 3 {
		t.Errorf("%v requests wait in a process that has ended, want the 3 that did when it was last seen", v)
	}
	if v, _ := s.worker(next).Sample().Number(variable.Must("waiting.now")); v != 9 {
		t.Errorf("%v requests wait in its successor, want 9", v)
	}
	s.findings = nil
	s.apply(nil, &event.Event{Xid: &event.Xid{Code: event.Ptr(uint64(31)), GpuUuid: "GPU-a", Source: "nvml"}})
	if len(s.findings) != 1 || s.findings[0].Class != "software_fault" || s.findings[0].Worker.GetPid() != 20 {
		t.Errorf("an illegal access on the card of the successor: %v", s.findings)
	}
	for range 8 {
		s.at = s.at.Add(time.Hour)
		s.apply(next, handles())
		s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", FreeBytes: event.Ptr(uint64(5))}})
	}
	if s.worker(old) != nil {
		t.Error("a process that ended eight hours ago is still held")
	}
}

// The end of a process comes before what NVML says about the error that ended it.
func TestAnErrorIsToldAfterTheEndItCaused(t *testing.T) {
	s := newStage(t)
	w := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Unit: "port-8000", GpuUuids: []string{"GPU-a"}}
	s.apply(w, handles())
	s.at = s.at.Add(5 * time.Second)
	s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "exited"}})
	s.at = s.at.Add(time.Second)
	s.apply(nil, &event.Event{Xid: &event.Xid{Code: event.Ptr(uint64(31)), GpuUuid: "GPU-a", Source: "nvml"}})
	if len(s.findings) != 1 || s.findings[0].Class != "software_fault" {
		t.Errorf("findings %v, want the software fault", s.findings)
	}
}

// A process whose end nobody saw, since the collector was away, is forgotten too.
func TestASilentProcessIsForgottenThoughItsCardSpeaks(t *testing.T) {
	s := newStage(t)
	w := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Unit: "port-8000", GpuUuids: []string{"GPU-a"}}
	s.apply(w, handles())
	for range 8 {
		s.at = s.at.Add(time.Hour)
		s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", FreeBytes: event.Ptr(uint64(5))}})
	}
	if users := s.judge.hosts[hostName{"c", "h"}].cards["GPU-a"].users; len(s.judge.workers)+len(users)+len(s.judge.instances) != 0 {
		t.Errorf("%d workers, %d users of the card, %d instances are held", len(s.judge.workers), len(users), len(s.judge.instances))
	}
}

// A front end speaks for the engines of two indices. Which of them it speaks for first is not its own index.
func TestAFrontEndHasNoIndexOfTheEnginesItSpeaksFor(t *testing.T) {
	s := newStage(t)
	front := &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(90)), Role: "frontend", Unit: "port-8000", Engine: "vllm"}
	of := func(index int64) *event.Worker {
		w := proto.CloneOf(front)
		w.EngineIndex = &index
		return w
	}
	rank := func(index int64) *event.Worker {
		w := of(index)
		w.Pid, w.StartTicks, w.Role, w.Rank = 100+index, event.Ptr(uint64(100+index)), "worker", event.Ptr(int64(0))
		return w
	}
	for range 3 { // the engine's source is read before that of processes
		s.apply(of(1), waits(4))
		s.apply(of(0), waits(2))
		s.apply(front, handles())
		s.apply(rank(0), handles())
		s.apply(rank(1), handles())
		s.at = s.at.Add(5 * time.Second)
	}
	s.judge.Flush()
	if got := s.worker(front).Slot; got != "c/h/port-8000/0/frontend" {
		t.Errorf("the front end's slot is %s", got)
	}
	for index, want := range map[int64]float64{0: 2, 1: 4} {
		if v, _ := s.worker(rank(index)).Sample().Number(variable.Must("waiting.now")); v != want {
			t.Errorf("%v requests wait at index %d, want %v", v, index, want)
		}
	}
}

// An incident keeps its slot until it ends; then the worker goes where it belongs.
func TestTheSlotFollowsWhenTheIncidentHasEnded(t *testing.T) {
	s := newStage(t)
	w := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", GpuUuids: []string{"GPU-a"}}
	s.apply(w, handles())
	s.at = s.at.Add(5 * time.Second)
	s.apply(w, &event.Event{Xid: &event.Xid{Code: event.Ptr(uint64(31)), GpuUuid: "GPU-a", Source: "kmsg"}})
	if len(s.findings) != 1 || s.findings[0].Slot != "c/h/GPU-a/0/0" {
		t.Fatalf("findings %v", s.findings)
	}
	w.Unit = "port-8000"
	s.apply(w, handles())
	if got := s.worker(w).Slot; got != "c/h/GPU-a/0/0" {
		t.Fatalf("the slot moved to %s below an open incident", got)
	}
	incident := s.findings[0].Incident
	s.findings = nil
	// Its fault stays for the process's life. The next one has none for a day.
	s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "exited"}})
	w.Pid, w.StartTicks = 11, event.Ptr(uint64(111))
	w.Unit = ""
	for range 26 * 6 {
		s.at = s.at.Add(10 * time.Minute)
		s.apply(w, handles())
		s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", FreeBytes: event.Ptr(uint64(5))}})
		w.Unit = "port-8000"
	}
	if len(s.findings) != 1 || s.findings[0].State != event.Resolved || s.findings[0].Incident != incident {
		t.Fatalf("findings %v, want the end of %s", s.findings, incident)
	}
	if got := s.worker(w).Slot; got != "c/h/port-8000/0/0" {
		t.Errorf("the slot is still %s", got)
	}
}

// Two processes share a slot, as the API servers of one engine do. That one of them is level ends no incident of the other.
func TestALevelSiblingEndsNobodysIncident(t *testing.T) {
	s := newStage(t)
	var flat *event.Allocator
	for _, e := range events(t, "testdata/leak.ndjson.gz") {
		s.judge.Apply(e)
		if e.Worker == nil || e.Engine != nil || e.Oom != nil || e.Lifecycle != nil {
			continue
		}
		sibling := proto.CloneOf(e)
		sibling.Worker.Pid++
		if a := sibling.Allocator; a != nil {
			if flat == nil {
				flat = a
			}
			a.AllocatedBytes, a.ActiveBytes, a.RequestedBytes, a.OomsTotal = flat.AllocatedBytes, flat.ActiveBytes, flat.RequestedBytes, flat.OomsTotal
		}
		s.judge.Apply(sibling)
	}
	s.judge.Flush()
	begun := 0
	for _, f := range s.findings {
		if f.Class != "retention" {
			continue
		}
		begun++
		if f.State == event.Resolved || f.Worker.GetPid() != 4242 {
			t.Errorf("%s: %s, pid %d", f.Time.Format(time.TimeOnly), f.State, f.Worker.GetPid())
		}
	}
	if begun == 0 {
		t.Error("the leak was not found")
	}
}

// One host's clock is a year ahead. The workers of the others in the partition are not silent for that, and one whose host is
// switched off is.
func TestAClockThatIsAheadForgetsNobodyElse(t *testing.T) {
	s := newStage(t)
	origin := s.at
	who := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Unit: "u"}
	at := func(name string, at time.Time) {
		s.at, s.host = at, &event.Host{Cluster: "c", Name: name, BootId: "b"}
		s.apply(who, handles())
	}
	first := make(map[string]*watched)
	for hour := range 10 {
		now := origin.Add(time.Duration(hour) * time.Hour)
		at("ahead", now.AddDate(1, 0, 0))
		for _, name := range []string{"a", "b", "c"} {
			at(name, now)
			if hour == 0 {
				first[name] = s.worker(who)
			} else if s.worker(who) != first[name] {
				t.Fatalf("the worker of %s was forgotten in hour %d", name, hour)
			}
		}
		if hour == 0 {
			at("off", now)
		}
	}
	s.host.Name = "off"
	if s.worker(who) != nil {
		t.Error("the worker of a host that was switched off nine hours ago is still held")
	}
}

// The ranks of a front end with two engines are not known. Its own numbers are those of its index, or of the only one there is; what is
// said about another index is about nobody that is known.
func TestAnEngineOfAnotherIndexIsNotTheFrontEnds(t *testing.T) {
	front := &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(90)), Role: "frontend", Unit: "port-8000", Engine: "vllm"}
	for name, test := range map[string]struct {
		indices []int64
		want    float64
	}{
		"both":           {[]int64{0, 1}, 2},
		"the other way":  {[]int64{1, 0}, 2},
		"only the other": {[]int64{1}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			for range 3 {
				for _, index := range test.indices {
					w := proto.CloneOf(front)
					w.EngineIndex = &index
					s.apply(w, waits(uint64(2+2*index)))
				}
				s.apply(front, handles())
				s.at = s.at.Add(5 * time.Second)
			}
			s.judge.Flush()
			if v, _ := s.worker(front).Sample().Number(variable.Must("waiting.now")); v != test.want {
				t.Errorf("%v requests wait, want %v", v, test.want)
			}
		})
	}
}

// A worker of which only the engine speaks is not silent.
func TestAWorkerIsHeardThroughItsEngine(t *testing.T) {
	s := newStage(t)
	w := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Unit: "port-8000"}
	s.apply(w, waits(1))
	first := s.worker(w)
	for range 9 {
		s.at = s.at.Add(time.Hour)
		s.apply(w, waits(1))
	}
	if s.worker(w) != first {
		t.Error("it was forgotten")
	}
}

// The front end says when the engine is ready. That holds for its ranks, whose warm-up ends 20 minutes later and not 20 minutes
// after the first request.
func TestTheEngineIsReadyForItsRanksToo(t *testing.T) {
	s := newStage(t)
	origin := s.at
	front := &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(90)), Role: "frontend", Unit: "port-8000", Engine: "vllm"}
	rank := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Rank: event.Ptr(int64(0)), Unit: "port-8000", Engine: "vllm"}
	s.apply(front, handles())
	s.apply(rank, handles())
	s.apply(front, &event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})
	for second := 0; second < 40*60; second += 10 {
		s.at = origin.Add(time.Duration(second) * time.Second)
		running, finished := uint64(0), uint64(0)
		if second >= 25*60 { // the first request takes a minute
			finished = 1
			if second < 26*60 {
				running = 1
			}
		}
		s.apply(rank, &event.Event{Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(1 << 30))}})
		s.apply(front, &event.Event{Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: &finished, GenerationTokensTotal: event.Ptr(100 * finished)}})
	}
	s.judge.Flush()
	if n, _ := s.worker(rank).Sample().Number(variable.Must("quiet.count")); n != 1 {
		t.Errorf("%v quiet points since warm-up, want the one after the first request", n)
	}
}
