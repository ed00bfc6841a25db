package worker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

// Three loads, four half hours, value = load + time, with one cell that a burst spoiled and two that were never seen: the effects of
// time come back but for the common level (100, 300 and 900 have the median 300).
func TestPolishTakesTheLoadOut(t *testing.T) {
	load, hour := []float64{100, 300, 900}, []float64{0, 10, 20, 35}
	var p polish
	for w, h := range hour {
		for b, l := range load {
			v := l + h
			if w == 2 && b == 0 {
				v += 5000
			}
			if w == 1 && b == 2 || w == 3 && b == 1 {
				continue
			}
			p.byTime = append(p.byTime, entry{w, b, v})
		}
	}
	p.arrange(len(load))
	p.fit(0)
	for w, h := range hour {
		if got := p.times[w] - p.times[0]; math.Abs(got-h) > 0.5 {
			t.Errorf("half hour %d is %v above the first, want %v", w, got, h)
		}
	}
	if len(p.left) != len(p.byTime) {
		t.Errorf("%d residuals of %d cells", len(p.left), len(p.byTime))
	}
}

// busy plays a worker that never drains: what is live follows what runs, and besides it keeps some bytes an hour.
func busy(w *Worker, hours float64, keeps float64, running func(minute int, r *rand.Rand) uint64) {
	r := rand.New(rand.NewPCG(7, 7))
	for minute := range int(hours * 60) {
		n := running(minute, r)
		held := uint64(40*gib) + n*96<<20 + uint64(r.Float64()*(3<<20)) + uint64(keeps*float64(minute)/60)
		tick(w, time.Duration(minute)*time.Minute, held, n, 1+uint64(minute)*5)
	}
	w.Close()
}

func swings(minute int, r *rand.Rand) uint64 {
	return 6 + uint64(4*(1+math.Sin(float64(minute)/40))) + r.Uint64N(4)
}

func TestAWorkerThatNeverDrainsIsComparedAtItsLoad(t *testing.T) {
	early, matched := variable.Must("live.early"), variable.Must("quiet.matched")
	for _, test := range []struct {
		name    string
		keeps   float64
		running func(int, *rand.Rand) uint64
		called  bool
	}{
		{"level", 0, swings, false},
		{"keeps 120 MiB an hour", 120 << 20, swings, true},
		// Ever more runs and no load comes back, so that nothing tells its memory from a leak: nothing is called.
		{"load that only grows", 0, func(minute int, r *rand.Rand) uint64 { return 4 + uint64(minute)/12 }, false},
	} {
		w := New("w", host, who, start)
		busy(w, 8, test.keeps, test.running)
		s := w.Sample()
		isEarly, _ := s.Bool(early)
		steady, _ := s.Bool(ids[live].steady)
		if isMatched, _ := s.Bool(matched); !isMatched {
			t.Errorf("%s: not judged at matched load", test.name)
		}
		if called := isEarly || steady; called != test.called {
			t.Errorf("%s: called is %v", test.name, called)
		}
		growth, _ := s.Number(ids[live].growth)
		if test.called && math.Abs(growth-test.keeps) > 0.1*test.keeps {
			t.Errorf("%s: %v MiB/h", test.name, growth/(1<<20))
		}
		if got := w.Verdict(); (got == "live grows") != test.called {
			t.Errorf("%s: verdict %q", test.name, got)
		}
	}
}

// Days of work fit into the windows that are kept, and the growth is still the same.
func TestWindowsBecomeCoarserAndNoMore(t *testing.T) {
	w := New("w", host, who, start)
	busy(w, 80, 30<<20, swings)
	if n := len(w.match.Work); n > maxWindows || w.match.Length != 4*time.Hour {
		t.Errorf("%d windows of %v", n, w.match.Length)
	}
	if growth, _ := w.Sample().Number(ids[live].growth); growth < 28<<20 || growth > 32<<20 {
		t.Errorf("growth is %v MiB/h, want 30", growth/(1<<20))
	}
	if n := w.trace.Low.rows(); n > maxDots {
		t.Errorf("%d dots", n)
	}
}

// A process on two GPUs leaks on the second: that one speaks for the series, with its own growth and not the sum's.
func TestTheGPUThatLeaksSpeaks(t *testing.T) {
	two := &event.Worker{Pid: 7, StartTime: timestamppb.New(start), Engine: "vllm", GpuUuids: []string{"GPU-1", "GPU-2"}}
	w := New("w", host, two, start)
	for minute := range uint64(6 * 60) {
		running := uint64(2)
		if minute%30 < 4 {
			running = 0
		}
		when := timestamppb.New(start.Add(time.Duration(minute) * time.Minute))
		give := func(e *event.Event) { e.Time, e.Host, e.Worker = when, host, two; w.Apply(e) }
		for i, uuid := range two.GpuUuids {
			held := 10*gib + running*gib
			if i == 1 {
				held = 20*gib + running*gib + minute*4<<20
			}
			give(&event.Event{Allocator: &event.Allocator{GpuUuid: uuid, AllocatedBytes: &held, ActiveBytes: &held, ReservedBytes: event.Ptr(held + gib), PinnedAllocatedBytes: event.Ptr(uint64(64 << 20))}})
		}
		give(&event.Event{Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: event.Ptr(minute)}})
	}
	w.Close()
	if uuid := w.Card("live"); uuid != "GPU-2" {
		t.Errorf("%s speaks for live", uuid)
	}
	if growth, _ := w.Sample().Number(ids[live].growth); math.Abs(growth-240<<20) > 1<<20 {
		t.Errorf("growth %v MiB/h, want 4 MiB a minute", growth/(1<<20))
	}
	if pin, _ := w.Sample().Number(ids[pinned].now); pin != 64<<20 {
		t.Errorf("pinned is %v: the process has one host allocator, whichever GPU's line repeats it", pin)
	}
	if len(w.Report().Cards) != 2 {
		t.Errorf("%d cards in the report", len(w.Report().Cards))
	}
}
