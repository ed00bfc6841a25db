package processor

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

// One life ends, another comes to the slot. What the end was decides what the judge makes of both.
func TestHowALifeEnds(t *testing.T) {
	ready := &event.Event{Lifecycle: &event.Lifecycle{State: "ready"}}
	for _, test := range []struct {
		name    string
		before  func(*stage, *event.Worker) // a minute or less before the end
		end     *event.Event
		release string // of the successor
		kill    string // symptom.kill of the successor
		proven  string
		restart float64 // restarts.hour of the successor
		finding time.Duration
	}{
		{name: "the kernel kills", end: signal(9, "kernel"), kill: "yes", proven: "yes", restart: 1},
		{name: "a cgroup kills with a request to end", end: signal(15, "cgroup"), kill: "yes", proven: "yes", restart: 1},
		{name: "SIGKILL of the parent", end: signal(9, "parent"), kill: "yes", proven: "yes", restart: 1},
		{name: "a container runtime tells 137", end: code(137), kill: "yes", proven: "yes", restart: 1},
		{name: "SIGTERM out of nowhere", end: signal(15, "unknown"), kill: "yes", proven: "no", restart: 1},
		{name: "SIGTERM, and then a new release", end: signal(15, "unknown"), release: "r2", kill: "no", restart: 0},
		{name: "SIGTERM after a drain", before: func(s *stage, w *event.Worker) {
			s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "draining"}})
		}, end: signal(15, "parent"), kill: "no", restart: 0},
		{name: "SIGTERM with a farewell", end: bye(signal(15, "parent")), kill: "no", restart: 0},
		{name: "SIGKILL after a deploy of a unit that nobody has was marked", before: func(s *stage, w *event.Worker) {
			s.apply(nil, &event.Event{Mark: &event.Mark{Name: "another", Kind: "deploy"}})
		}, end: signal(9, "parent"), kill: "yes", proven: "yes", restart: 1},
		{name: "SIGKILL after a deploy of the whole host was marked", before: func(s *stage, w *event.Worker) {
			s.apply(nil, &event.Event{Mark: &event.Mark{Name: "deploy", Kind: "deploy"}})
		}, end: signal(9, "parent"), kill: "no", restart: 0},
		{name: "SIGKILL after a deploy without a name", before: func(s *stage, w *event.Worker) {
			s.apply(nil, &event.Event{Mark: &event.Mark{Kind: "deploy"}})
		}, end: signal(9, "parent"), kill: "no", restart: 0},
		{name: "SIGTERM after a deploy of the unit was marked", before: func(s *stage, w *event.Worker) {
			s.apply(nil, &event.Event{Mark: &event.Mark{Name: "u", Kind: "deploy"}})
		}, end: signal(15, "unknown"), kill: "no", restart: 0},
		{name: "SIGKILL of the cgroup in a deploy is one all the same", before: func(s *stage, w *event.Worker) {
			s.apply(nil, &event.Event{Mark: &event.Mark{Name: "u", Kind: "deploy"}})
		}, end: signal(9, "cgroup"), kill: "yes", proven: "yes", restart: 1},
		{name: "its own abort", end: signal(6, "self"), kill: "no", restart: 1},
		{name: "its own error", end: code(1), kill: "no", restart: 1},
		{name: "an orderly end", before: func(s *stage, w *event.Worker) { s.apply(w, ready) }, end: code(0), kill: "no", restart: 0},
		{name: "an orderly end after an illegal access (vllm#53726)", before: func(s *stage, w *event.Worker) {
			s.apply(w, ready)
			s.apply(w, &event.Event{Xid: &event.Xid{Code: event.Ptr(uint64(31)), GpuUuid: "GPU-a", Source: "kmsg"}})
		}, end: bye(code(0)), kill: "no", restart: 1},
		{name: "nobody knows how", end: exited(func(l *event.Lifecycle) { l.By = "unknown" }), kill: "unknown", restart: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newProbeStage(t)
			old := rank(10, "r1")
			s.apply(old, handles())
			s.live(old, 5*time.Minute)
			if test.before != nil {
				test.before(s, old)
			}
			s.pass(5 * time.Second)
			ended := s.at
			s.apply(old, proto.CloneOf(test.end))
			s.pass(time.Minute)
			if test.release == "" {
				test.release = "r1"
			}
			next := rank(20, test.release)
			s.apply(next, handles())
			s.live(next, 3*time.Minute)
			if got := s.flag(next, "symptom.kill"); got != test.kill {
				t.Errorf("symptom.kill of the successor is %s, want %s", got, test.kill)
			}
			if got := s.number(next, "restarts.hour"); got != test.restart {
				t.Errorf("%v restarts, want %v", got, test.restart)
			}
			var kills []*event.Finding
			for _, f := range s.findings {
				if f.Class == "external_kill" {
					kills = append(kills, f)
				}
			}
			if (len(kills) > 0) != (test.kill == "yes") {
				t.Fatalf("%d findings of a kill", len(kills))
			}
			if test.kill != "yes" {
				return
			}
			if got := s.flag(next, "kill.proven"); got != test.proven {
				t.Errorf("proven: %s, want %s", got, test.proven)
			}
			if f := kills[0]; f.Worker.GetPid() != 10 || f.Subject.Key != event.WorkerKey(s.host, old) || f.Slot != "c/h/u/0/0" || len(kills) != 1 {
				t.Errorf("%d findings, the first is %+v", len(kills), f)
			} else if test.proven == "yes" && !f.Time.Equal(ended) {
				t.Errorf("told at %v, the process ended at %v", f.Time, ended)
			}
			s.live(next, 62*time.Minute) // the symptom is over after an hour
			if k, n := s.flag(next, "symptom.kill"), s.number(next, "restarts.hour"); k != "no" || n != 0 {
				t.Errorf("an hour later: kill %s, %v restarts", k, n)
			}
		})
	}
}

// Nobody comes back after a request to end. Ten minutes later it is told, and not before: a new release may still have come.
func TestARequestToEndIsToldWhenNobodyComes(t *testing.T) {
	s := newProbeStage(t)
	w, other := rank(10, "r1"), rank(11, "r1")
	other.Unit = "v"
	s.apply(w, handles())
	s.live(w, 2*time.Minute)
	s.apply(w, signal(15, "unknown"))
	s.live(other, 9*time.Minute)
	if len(s.findings) != 0 {
		t.Fatalf("told after nine minutes: %v", s.findings)
	}
	s.live(other, 2*time.Minute)
	if len(s.findings) != 1 || s.findings[0].Class != "external_kill" || s.findings[0].Worker.GetPid() != 10 {
		t.Fatalf("findings %v", s.findings)
	}
}

// When the parent ends the other ranks after one was killed, that is one kill.
func TestTheRanksThatFollowAreNotKilled(t *testing.T) {
	s := newProbeStage(t)
	a, b := rank(10, "r1"), rank(11, "r1")
	b.Rank = event.Ptr(int64(1))
	s.apply(a, handles())
	s.apply(b, handles())
	s.pass(time.Minute)
	s.apply(a, &event.Event{Oom: &event.Oom{Kind: "cgroup", VictimPid: event.Ptr(int64(10))}})
	s.apply(a, signal(9, "unknown"))
	s.pass(time.Second)
	s.apply(b, signal(9, "parent"))
	if len(s.findings) != 1 || s.findings[0].Worker.GetPid() != 10 {
		t.Fatalf("findings %v", s.findings)
	}
	if got, _ := s.worker(a).Sample().Text(variable.Must("kill.by")); got != "cgroup" {
		t.Errorf("killed by %q, the kernel's log said cgroup", got)
	}
}

// The kernel kills one process because another grew. The event is published beside a third.
func TestTheVictimAndTheCulprit(t *testing.T) {
	const gib = 1 << 30
	s := newProbeStage(t)
	victim, greedy, large := rank(10, "r1"), rank(11, "r1"), rank(12, "r1")
	greedy.Unit, large.Unit = "v", "w"
	for hour := range 4 {
		for pid, anon := range map[*event.Worker]uint64{victim: 11 * gib, greedy: uint64(10+5*hour) * gib, large: 90 * gib} {
			s.apply(pid, &event.Event{Process: &event.Process{AnonBytes: event.Ptr(anon)}})
		}
		s.pass(time.Hour)
	}
	oom := &event.Event{Oom: &event.Oom{Kind: "kernel", VictimPid: event.Ptr(int64(10))}}
	s.apply(large, oom)
	if got := s.number(large, "oom.count"); got > 0 {
		t.Errorf("the OOM was given to a process that was not its victim")
	}
	s.pass(time.Second)
	s.apply(victim, exited(func(l *event.Lifecycle) { l.By = "unknown" }))
	if v, c := s.number(victim, "kill.victim_bytes"), s.number(victim, "kill.culprit_bytes"); v != 11*gib || c != 25*gib {
		t.Errorf("victim of %v and culprit of %v bytes, want 11 and 25 GiB", v/gib, c/gib)
	}
	if got := s.flag(victim, "kill.by_growth"); got != "no" {
		t.Errorf("by its own growth: %s", got)
	}
	if len(s.findings) != 1 || s.findings[0].Worker.GetPid() != 10 {
		t.Errorf("findings %v", s.findings)
	}
}

// In a recording nobody tells how processes end. A new key in the slot, and silence of the old one, are a restart; whether it was
// killed is not known. Two that go on side by side are none.
func TestARestartIsSeenWithoutLifecycle(t *testing.T) {
	for _, together := range []bool{false, true} {
		s := newProbeStage(t)
		old, next := rank(10, "r1"), rank(20, "r1")
		s.apply(old, handles())
		s.live(old, 10*time.Minute)
		for range 12 {
			s.pass(time.Minute)
			s.apply(next, handles())
			if together {
				s.apply(old, handles())
			}
		}
		want := 1.0
		if together {
			want = 0
		}
		if got := s.number(next, "restarts.hour"); got != want || s.flag(next, "symptom.kill") != "unknown" {
			t.Errorf("together %v: %v restarts, kill %s", together, got, s.flag(next, "symptom.kill"))
		}
	}
}

func TestACrashLoopIsCountedOverItsLives(t *testing.T) {
	s := newProbeStage(t)
	for life := range int64(5) {
		w := rank(10+life, "r1")
		s.apply(w, handles())
		s.live(w, 4*time.Minute)
		s.apply(w, code(1))
	}
	if len(s.findings) == 0 || s.findings[0].Class != "crash_loop" || s.findings[0].Worker.GetPid() != 13 {
		t.Fatalf("findings %v, want a crash loop at the third restart", s.findings)
	}
}

// The leak comes again after a restart, at the slope that it had: of the same release that confirms it.
func TestTheSameSlopeAfterARestartIsAProof(t *testing.T) {
	all := events(t, "testdata/leak.ndjson.gz")
	for release, want := range map[string]string{"build-a": "yes", "build-b": "no"} {
		judge := NewJudge(builtin(t), func(*event.Finding) {})
		apply := func(pid int64, release string, later time.Duration) {
			for _, e := range all {
				e = proto.CloneOf(e)
				e.Time = timestamppb.New(e.At().Add(later))
				if e.Worker != nil {
					e.Worker.Pid, e.Worker.Release = pid, release
					e.Worker.StartTime = timestamppb.New(e.Worker.StartTime.AsTime().Add(later))
				}
				judge.Apply(e)
			}
		}
		apply(4242, "build-a", 0)
		apply(5000, release, 8*time.Hour)
		judge.Flush()
		got := "unknown"
		for _, w := range judge.workers {
			if w.Who.Pid != 5000 {
				continue
			}
			if v, known := w.Sample().Bool(variable.Must("proof.restart")); known {
				got = map[bool]string{true: "yes", false: "no"}[v]
			}
			if _, called := w.Called("live"); !called {
				t.Error("the second life's growth was not called")
			}
		}
		if got != want {
			t.Errorf("then release %s: proof.restart is %s, want %s", release, got, want)
		}
	}
}

// A request to end is held back, and then its host falls silent: its time does not pass, that of the broker does.
func TestARequestToEndIsToldOfASilentHost(t *testing.T) {
	s := newProbeStage(t)
	silent, stays := s.host, &event.Host{Cluster: "c", Name: "stays", BootId: "b"}
	w := rank(10, "r1")
	run := func(d time.Duration, hosts ...*event.Host) {
		for range int(d / time.Minute) {
			s.pass(time.Minute)
			for _, h := range hosts {
				s.host = h
				s.apply(w, handles())
			}
			s.judge.Tick(s.at)
		}
	}
	run(65*time.Minute, silent, stays)
	s.host = silent
	s.apply(w, signal(15, "unknown"))
	ended := s.at
	told := func() []*event.Finding {
		return slices.DeleteFunc(slices.Clone(s.findings), func(f *event.Finding) bool { return f.Class != "external_kill" })
	}
	run(9*time.Minute, stays)
	if len(told()) != 0 {
		t.Fatalf("told after nine minutes: %v", s.findings)
	}
	run(3*time.Minute, stays)
	if kills := told(); len(kills) != 1 || !kills[0].Time.Equal(ended) {
		t.Fatalf("findings %v, want the kill at %v", s.findings, ended)
	}
}

// Jobs that belong to no engine end when they are done; an engine that ends well before it was ready does not.
func TestJobsThatEndWellAreNoCrashLoop(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*event.Worker)
		says   *event.Event
		end    *event.Event
		want   float64
	}{
		"jobs":                                 {nil, handles(), code(0), 0},
		"jobs that fail":                       {nil, handles(), code(1), 4},
		"an engine, by its name":               {func(w *event.Worker) { w.Engine = "vllm" }, handles(), code(0), 4},
		"an engine, by its model":              {func(w *event.Worker) { w.Model = "m" }, handles(), code(0), 4},
		"an engine, by what it says of itself": {nil, waits(0), code(0), 4},
	} {
		s := newProbeStage(t)
		for life := range int64(5) {
			w := rank(10+life, "")
			w.Model = ""
			if test.change != nil {
				test.change(w)
			}
			for range 8 {
				s.pass(time.Minute)
				s.apply(w, proto.CloneOf(test.says))
				s.apply(w, handles())
			}
			if life == 4 {
				if got := s.number(w, "restarts.hour"); got != test.want {
					t.Errorf("%s: %v restarts, want %v", name, got, test.want)
				}
				break
			}
			s.pass(10 * time.Second)
			s.apply(w, proto.CloneOf(test.end))
		}
	}
}

// The kernel killed the life before. That the next one is of another release, known at once or late, does not make it planned.
func TestAKillIsNoRolloutHoweverLateTheReleaseIsKnown(t *testing.T) {
	for _, late := range []bool{false, true} {
		s := newProbeStage(t)
		s.live(rank(10, "r1"), 10*time.Minute)
		s.apply(rank(10, "r1"), signal(9, "kernel"))
		next := rank(11, "r2")
		if late {
			next.Release = ""
		}
		s.pass(time.Minute)
		s.apply(next, handles())
		next.Release = "r2"
		s.live(next, 2*time.Minute)
		if n, kill := s.number(next, "restarts.hour"), s.flag(next, "symptom.kill"); n != 1 || kill != "yes" {
			t.Errorf("known late %v: %v restarts, kill %s, want one and yes", late, n, kill)
		}
	}
}

// Without a probe an OOM is told in words only. The next life says nothing of the kind, which is an answer: a day later the incident is
// over. Where only the allocator's counter told, its absence is none.
func TestAnOomInWordsDoesNotFreezeTheNextLife(t *testing.T) {
	for name, test := range map[string]struct {
		oom  *event.Event
		want string
	}{
		"in words":     {&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(9 << 30)), FreeBytes: event.Ptr(uint64(1 << 30))}}, "no"},
		"by an engine": {&event.Event{Oom: &event.Oom{Kind: "engine", Text: "no memory for the cache blocks"}}, "no"},
		"by a counter": {&event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-a", OomsTotal: event.Ptr(uint64(1))}}, "unknown"},
	} {
		s := newStage(t)
		old, next := rank(10, "r1"), rank(11, "r1")
		s.apply(old, &event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-a", OomsTotal: event.Ptr(uint64(0))}})
		s.live(old, 30*time.Minute)
		s.apply(old, proto.CloneOf(test.oom))
		s.live(old, time.Minute)
		s.apply(old, code(1))
		s.live(next, 10*time.Minute)
		if got := s.flag(next, "symptom.oom"); got != test.want {
			t.Errorf("%s: symptom.oom of the next life is %s, want %s", name, got, test.want)
		}
		s.live(next, 25*time.Hour)
		if open := s.judge.incidents.Open("c/h/u/0/0"); test.want == "no" && len(open) != 0 {
			t.Errorf("%s: a day later %s is open", name, open[0].Class)
		}
	}
}

// Live memory and host memory grow in one process, and only a cache on the GPU is declared and exceeded: that proves nothing about the
// host's.
func TestAxesAreThoseOfTheSeriesThatGrows(t *testing.T) {
	s := newStage(t)
	w := rank(10, "r1")
	w.Engine = "vllm"
	work := uint64(0)
	s.apply(w, &event.Event{Config: &event.Config{DeclaredCaches: []*event.DeclaredCache{{Name: "lora", CapBytes: event.Ptr(uint64(100 << 20))}}}})
	for i := range uint64(7 * 60) {
		s.pass(time.Minute)
		running := uint64(0)
		if i%20 < 10 {
			running, work = 4, work+1+(i*7)%5
		}
		s.apply(w, &event.Event{Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: event.Ptr(work), GenerationTokensTotal: event.Ptr(50 * work)}})
		bytes := 10<<30 + i*10<<20
		s.apply(w, &event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-a", AllocatedBytes: &bytes, ActiveBytes: &bytes, ReservedBytes: event.Ptr(uint64(30 << 30)), OomsTotal: event.Ptr(uint64(0))}})
		s.apply(w, &event.Event{Process: &event.Process{AnonBytes: event.Ptr(4<<30 + i*5<<20)}})
	}
	last := map[string]string{}
	for _, f := range s.findings {
		last[f.Class] = f.State
	}
	if len(last) != 2 || last["retention"] != event.Confirmed || last["host_memory"] != event.Suspected {
		t.Errorf("found %v, want retention confirmed by the cap and host_memory suspected", last)
	}
	if _, _, known := s.worker(w).Axes("anon"); known {
		t.Error("a cache of the GPU caps host memory")
	}
	if _, exceeded, known := s.worker(w).Axes("live"); !exceeded || !known {
		t.Error("the declared cache is not exceeded")
	}
	if work, exceeded, known := s.worker(w).Axes("threads"); work || exceeded || known {
		t.Error("threads do not grow")
	}
}

// The kernel log says whom it killed; nobody saw the process go. It was ended from outside all the same, once.
func TestAKillIsKnownFromTheKernelLogAlone(t *testing.T) {
	for name, oom := range map[string]*event.Oom{
		"by the victim's pid":          {Kind: "cgroup", VictimPid: event.Ptr(int64(10))},
		"by the worker it is told for": {Kind: "kernel"},
	} {
		s := newStage(t)
		w := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(1)), Role: "worker", Unit: "u", GpuUuids: []string{"GPU-a"}}
		for range 30 {
			s.at = s.at.Add(time.Minute)
			s.apply(w, handles())
		}
		s.apply(w, &event.Event{Oom: oom})
		s.at = s.at.Add(time.Second)
		s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "exited", Signal: event.Ptr(int64(9)), By: "cgroup"}})
		s.judge.Flush()
		if len(s.findings) != 1 || s.findings[0].Class != "external_kill" || s.findings[0].Severity != event.Page {
			t.Errorf("%s: %d findings, %v", name, len(s.findings), s.findings)
		}
	}
}
