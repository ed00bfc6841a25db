package processor

import (
	"testing"
	"time"

	"lowtide/event"
)

// asked plays a worker that keeps 1 MiB of every request: by day twelve hours in bursts of a quarter of an hour, by night nothing.
func asked(s *stage, w *event.Worker, from, to int, done *uint64, day func(minute int) bool) {
	for minute := from; minute < to; minute++ {
		s.at = s.at.Add(time.Minute)
		running := uint64(0)
		if day(minute) && minute%15 < 8 {
			running = 3
			*done += uint64(2 + minute*7%4)
		}
		held := uint64(10<<30) + *done<<20 + running*100<<20
		s.apply(w, &event.Event{Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), FinishedTotal: event.Ptr(*done)}})
		s.apply(w, &event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-a", AllocatedBytes: &held, ActiveBytes: &held, ReservedBytes: event.Ptr(uint64(40 << 30)), OomsTotal: event.Ptr(uint64(0))}})
	}
}

// Neither a night without requests nor a process that was started and never asked proves that a leak by request is gone.
func TestWhatIsNotAskedProvesNothing(t *testing.T) {
	count := func(s *stage) (incidents map[string]bool, resolved int) {
		incidents = map[string]bool{}
		for _, f := range s.findings {
			incidents[f.Incident] = true
			if f.State == event.Resolved {
				resolved++
			}
		}
		return incidents, resolved
	}
	first := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Unit: "u", Engine: "vllm", Release: "r1", GpuUuids: []string{"GPU-a"}}
	t.Run("a night", func(t *testing.T) {
		s, done := newStage(t), uint64(0)
		asked(s, first, 0, 4*24*60, &done, func(minute int) bool { return minute/60%24 < 12 })
		if incidents, resolved := count(s); len(incidents) != 1 || resolved != 0 {
			t.Errorf("%d incidents, %d resolved, in four days and nights of one leak", len(incidents), resolved)
		}
	})
	t.Run("a process that nobody asks", func(t *testing.T) {
		s, done := newStage(t), uint64(0)
		asked(s, first, 0, 8*60, &done, func(int) bool { return true })
		s.apply(first, &event.Event{Lifecycle: &event.Lifecycle{State: "exited", SaidBye: event.Ptr(true), ExitCode: event.Ptr(int64(0))}})
		next := &event.Worker{Pid: 11, StartTicks: event.Ptr(uint64(200)), Role: "worker", Unit: "u", Engine: "vllm", Release: "r1", GpuUuids: []string{"GPU-a"}}
		none := uint64(0)
		asked(s, next, 0, 10*60, &none, func(int) bool { return false })
		if incidents, resolved := count(s); len(incidents) != 1 || resolved != 0 {
			t.Errorf("%d incidents, %d resolved, after ten idle hours", len(incidents), resolved)
		}
		asked(s, next, 0, 12*60, &none, func(int) bool { return true })
		if incidents, resolved := count(s); len(incidents) != 1 || resolved != 0 {
			t.Errorf("%d incidents, %d resolved, though it grows again", len(incidents), resolved)
		}
	})
}
