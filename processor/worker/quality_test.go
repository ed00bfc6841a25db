package worker

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

// leaking plays a worker that drains for three minutes of every thirty and keeps 4 MiB a minute, on a clock of its own.
func leaking(w *Worker, from, to int, clock func(minute int) time.Time, also func(minute int)) {
	for minute := from; minute < to; minute++ {
		running := uint64(3)
		if minute%30 < 3 {
			running = 0
		}
		if also != nil {
			also(minute)
		}
		tick(w, clock(minute).Sub(start), 40*gib+uint64(minute)*4<<20+running*gib, running, uint64(minute))
	}
	w.Close()
}

func plain(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }

func number64(t *testing.T, w *Worker, name string) float64 {
	t.Helper()
	v, known := w.Sample().Number(variable.Must(name))
	if !known {
		t.Errorf("%s is unknown", name)
	}
	return v
}

// The clock of the host is set back by two hours in the fourth hour: time goes on, growth is what it was, and the report says so.
func TestAClockThatIsSetBackCostsNothing(t *testing.T) {
	w := New("w", host, who, start)
	leaking(w, 0, 6*60, func(minute int) time.Time {
		at := plain(minute)
		if minute >= 200 {
			at = at.Add(-2 * time.Hour)
		}
		return at
	}, nil)
	if growth := number64(t, w, "live.growth"); growth < 225<<20 || growth > 255<<20 {
		t.Errorf("growth %v MiB/h, want 240", growth/(1<<20))
	}
	if _, called := w.Called("live"); !called {
		t.Error("the leak was lost with the clock")
	}
	if w.quality.Steps != 1 || len(w.Report().Quality) == 0 {
		t.Errorf("%d steps, remarks %q", w.quality.Steps, w.Report().Quality)
	}
}

// Single events that come late are left out and counted; nothing moves for them.
func TestLateEventsAreCountedAndLeftOut(t *testing.T) {
	w := New("w", host, who, start)
	leaking(w, 0, 5*60, plain, func(minute int) {
		if minute%20 == 10 {
			tick(w, plain(minute-8).Sub(start), 900*gib, 0, 0)
		}
	})
	if late := number64(t, w, "quality.late"); late != 2*15 {
		t.Errorf("%v late events, want two in each of fifteen", late)
	}
	if growth := number64(t, w, "live.growth"); growth < 239<<20 || growth > 241<<20 {
		t.Errorf("growth %v MiB/h, want 240", growth/(1<<20))
	}
}

// An engine's page that stands still at nothing, while the GPU works and memory moves, is no quiet.
func TestFrozenZerosAreNoQuiet(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range uint64(120) {
		when := timestamppb.New(start.Add(time.Duration(minute) * time.Minute))
		give := func(e *event.Event) { e.Time, e.Host, e.Worker = when, host, who; w.Apply(e) }
		give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", Utilization: event.Ptr(0.7)}})
		held := 10*gib + (minute*7%5)*gib
		give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: &held, ActiveBytes: &held}})
		give(&event.Event{Engine: &event.Engine{Running: event.Ptr(uint64(0)), Waiting: event.Ptr(uint64(0)), FinishedTotal: event.Ptr(uint64(400))}})
	}
	w.Close()
	if n := len(w.quiet.Points); n > 1 {
		t.Errorf("%d quiet points while the GPU worked", n)
	}
	if w.quality.Frozen < 100 {
		t.Errorf("%d samples were not believed", w.quality.Frozen)
	}
}

// Nobody says what runs. A GPU that does nothing and memory that stays the same to the byte are taken for quiet, and it says so.
func TestQuietIsInferredWhereNobodySays(t *testing.T) {
	bare := &event.Worker{Pid: 7, StartTime: timestamppb.New(start), GpuUuids: []string{"GPU-1"}}
	w := New("w", host, bare, start)
	for minute := range uint64(6 * 60) {
		when := timestamppb.New(start.Add(time.Duration(minute) * time.Minute))
		give := func(e *event.Event) { e.Time, e.Host, e.Worker = when, host, bare; w.Apply(e) }
		held, used := 10*gib+(minute/30)*64<<20, 0.0
		if minute%30 < 20 {
			held, used = held+(minute%7)*gib, 0.6
		}
		give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", Utilization: &used}})
		give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: &held, ActiveBytes: &held, ReservedBytes: event.Ptr(uint64(20 * gib))}})
	}
	w.Close()
	if inferred, _ := w.Sample().Bool(variable.Must("quiet.inferred")); !inferred {
		t.Error("it does not say that quiet is inferred")
	}
	if _, called := w.Called("live"); !called {
		t.Errorf("64 MiB stay of every half hour, and it says %q over %d points", w.Verdict(), w.Points())
	}
}

// A counter that falls was reset: work goes on from there.
func TestCountersThatFallWereReset(t *testing.T) {
	var c counters
	for _, v := range []uint64{10, 25, 5, 6} {
		c.observe(&event.Engine{FinishedTotal: &v})
	}
	if c.Work.Requests != 31 || c.Resets != 1 {
		t.Errorf("%v requests and %d resets, want 25 + 6 and one", c.Work.Requests, c.Resets)
	}
	for _, v := range []uint64{2, 0, 3} {
		c.observe(&event.Engine{LoadedAdapters: &v})
	}
	if c.Work.Adapters != 5 || c.Resets != 1 {
		t.Errorf("%v loads and %d resets: adapters that are unloaded are no reset", c.Work.Adapters, c.Resets)
	}
}

// A long life keeps a bounded ring whose first point stays the first.
func TestTheRingOfPointsHalves(t *testing.T) {
	w := New("w", host, who, start)
	leaking(w, 0, 80*60, plain, nil)
	if n := len(w.quiet.Points); n > maxPoints || n < maxPoints/2 {
		t.Errorf("%d points", n)
	}
	if first := w.quiet.Points[0].at().Sub(start); first > 20*time.Minute {
		t.Errorf("the first point is now at %v", first)
	}
	for i := 1; i < len(w.quiet.Points); i++ {
		if !w.quiet.Points[i].at().After(w.quiet.Points[i-1].at()) {
			t.Fatalf("point %d is not after the one before", i)
		}
	}
	if growth := number64(t, w, "live.growth"); growth < 239<<20 || growth > 241<<20 {
		t.Errorf("growth %v MiB/h, want 240", growth/(1<<20))
	}
}

// A worker that was level for ten hours begins to keep 4 MiB a minute: the growth is that since then, and so is its onset.
func TestGrowthIsMeasuredFromItsBeginning(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range uint64(16 * 60) {
		running, kept := uint64(3), uint64(0)
		if minute%30 < 3 {
			running = 0
		}
		if minute > 600 {
			kept = (minute - 600) * 4 << 20
		}
		tick(w, time.Duration(minute)*time.Minute, 40*gib+kept+running*gib, running, minute)
	}
	w.Close()
	onset, called := w.Called("live")
	if !called {
		t.Fatalf("not called: %s", w.Verdict())
	}
	if growth := number64(t, w, "live.growth"); growth < 230<<20 || growth > 250<<20 {
		t.Errorf("growth %v MiB/h, want 240", growth/(1<<20))
	}
	if began := onset.Sub(start); began < 9*time.Hour || began > 11*time.Hour {
		t.Errorf("it began after %v, want ten hours", began)
	}
}

// Sensors that stamp their events themselves, some hundred milliseconds apart, mean one moment.
func TestSensorsMayBeAFewMillisecondsApart(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range uint64(6 * 60) {
		at := start.Add(time.Duration(minute) * time.Minute)
		give := func(after time.Duration, e *event.Event) {
			e.Time, e.Host, e.Worker = timestamppb.New(at.Add(after)), host, who
			w.Apply(e)
		}
		running := uint64(2)
		if minute%30 < 4 {
			running = 0
		}
		held := 10*gib + running*gib + minute*4<<20
		give(0, &event.Event{Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: event.Ptr(minute)}})
		give(120*time.Millisecond, &event.Event{Allocator: &event.Allocator{AllocatedBytes: &held, ActiveBytes: &held, ReservedBytes: event.Ptr(held + gib)}})
		give(90*time.Millisecond, &event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: event.Ptr(held + 2*gib)}})
	}
	w.Close()
	if _, called := w.Called("live"); !called {
		t.Errorf("4 MiB a minute were lost: %s", w.Verdict())
	}
	if v := number64(t, w, "outside.now"); v != gib {
		t.Errorf("outside is %v", v)
	}
}

// A clock that leaps by centuries costs neither an endless loop nor the worker.
func TestALeapOfCenturies(t *testing.T) {
	w := New("w", host, who, start)
	leaking(w, 0, 60, plain, nil)
	leaking(w, 60, 120, func(minute int) time.Time { return plain(minute).AddDate(7000, 0, 0) }, nil)
	leaking(w, 120, 400, plain, nil)
	if w.trace.Low.rows() > maxDots || len(w.match.Work) > maxWindows {
		t.Errorf("%d dots, %d windows", w.trace.Low.rows(), len(w.match.Work))
	}
}

// A cache that is not declared fills within 45 minutes of the fourth hour: the level hours before it are no part of its growth.
func TestAShortFillIsNoLeakHoweverLongItWasLevel(t *testing.T) {
	w := New("w", host, who, start)
	for minute := range uint64(8 * 60) {
		running := uint64(3)
		if minute%20 < 4 {
			running = 0
		}
		filled := min(max(minute, 180)-180, 45) * 8 << 20
		tick(w, time.Duration(minute)*time.Minute, 40*gib+filled+running*gib, running, minute)
		if _, called := w.Called("live"); called {
			t.Fatalf("called after %d minutes", minute)
		}
	}
}
