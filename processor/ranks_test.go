package processor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// eight is a tensor parallel engine: a rank on each of eight cards, started again and again.
type eight struct {
	*stage
	ranks  []*event.Worker
	pid    int64
	tokens uint64
}

func (e *eight) start() {
	e.ranks = nil
	for i := range int64(8) {
		e.pid++
		w := rank(e.pid, "r1")
		w.Engine, w.Rank, w.GpuUuids, w.EngineIndex = "vllm", event.Ptr(i), []string{fmt.Sprintf("GPU-%d", i)}, event.Ptr(int64(0))
		e.ranks = append(e.ranks, w)
	}
}

// minute lets all but one rank speak, and the engine make progress or none.
func (e *eight) minute(moving bool, dead int) {
	e.pass(time.Minute)
	for i, w := range e.ranks {
		if i == dead {
			continue
		}
		e.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: w.GpuUuids[0], Utilization: event.Ptr(1.0), EccUncorrectedTotal: event.Ptr(uint64(0))}})
		e.apply(w, handles())
	}
	if moving {
		e.tokens += 1000
	}
	e.apply(e.ranks[0], &event.Event{Engine: &event.Engine{Running: event.Ptr(uint64(8)), Waiting: event.Ptr(uint64(2)), KvUsage: event.Ptr(0.5),
		FinishedTotal: event.Ptr(e.tokens / 100), GenerationTokensTotal: event.Ptr(e.tokens)}})
}

func (e *eight) end(how *event.Event) {
	e.pass(5 * time.Second)
	for _, w := range e.ranks {
		e.apply(w, proto.CloneOf(how))
	}
	e.pass(30 * time.Second)
	e.start()
}

// One card of eight falls off the bus. The engine hangs or dies at once, and dies again for three hours, longer than its first ranks are
// remembered: that is one page, of the card.
func TestOneBrokenCardOfEightIsOnePage(t *testing.T) {
	for name, test := range map[string]struct {
		hangs int // minutes
		end   *event.Event
	}{
		"it hangs, then dies":     {12, code(1)},
		"it dies by an error":     {0, code(1)},
		"it aborts":               {0, signal(6, "self")},
		"its parent ends it":      {0, signal(9, "parent")},
		"it is told to end":       {0, signal(15, "parent")},
		"nobody knows how it was": {0, exited(func(l *event.Lifecycle) { l.By = "unknown" })},
	} {
		t.Run(name, func(t *testing.T) {
			e := &eight{stage: newStage(t)}
			e.start()
			for range 90 {
				e.minute(true, -1)
			}
			e.pass(5 * time.Second)
			e.apply(nil, &event.Event{Xid: &event.Xid{GpuUuid: "GPU-3", Code: event.Ptr(uint64(79)), Source: "nvml"}})
			for range test.hangs {
				e.minute(false, 3)
			}
			for range 36 {
				e.end(test.end)
				for range 4 {
					e.minute(false, 3)
				}
			}
			if len(e.findings) != 1 || e.findings[0].Class != "device_fault" || e.findings[0].Subject.Key != "c/h/GPU-3" || e.findings[0].Severity != event.Page {
				t.Errorf("%d findings", len(e.findings))
				for _, f := range e.findings {
					t.Logf("%s %s %s %s", f.Class, f.State, f.Severity, f.Subject.Key)
				}
			}
		})
	}
}

// No card is broken: the engine takes all its ranks with it, again and again. That is one incident, not eight, and another engine
// of the same host has its own.
func TestAnEngineThatDiesIsOneIncident(t *testing.T) {
	e := &eight{stage: newStage(t)}
	e.start()
	other := rank(1000, "r1")
	other.Unit, other.GpuUuids = "v", []string{"GPU-9"}
	for range 3 {
		for range 5 {
			e.minute(true, -1)
			e.apply(other, handles())
		}
		e.end(code(1))
		e.apply(other, code(1))
		other.Pid, other.StartTicks = other.Pid+1, event.Ptr(*other.StartTicks+1)
	}
	for range 5 {
		e.minute(true, -1)
		e.apply(other, handles())
	}
	var slots []string
	for _, f := range e.findings {
		if f.Class != "crash_loop" {
			t.Errorf("%s of %s", f.Class, f.Slot)
		}
		slots = append(slots, f.Slot)
	}
	slices.Sort(slots)
	if slots = slices.Compact(slots); !slices.Equal(slots, []string{"c/h/u/0/0", "c/h/v/0/0"}) {
		t.Errorf("crash loops at %v", slots)
	}
}

// The ranks of an engine are related to the cards of all of them, however many there are, and no list grows without bound.
func TestRelativesAreBounded(t *testing.T) {
	s := newProbeStage(t)
	var all []*event.Worker
	for i := range int64(300) {
		w := rank(i+1, "r1")
		w.Rank, w.GpuUuids = &i, []string{fmt.Sprintf("GPU-%d", i)}
		all = append(all, w)
		s.apply(w, handles())
	}
	for _, w := range all {
		related := s.worker(w).relatives(s.judge)
		if len(related) != maxRelatives || related[0] != "c/h/"+w.GpuUuids[0] || slices.Contains(related, s.worker(w).Slot) {
			t.Fatalf("rank %d: %d relatives, the first is %s", *w.Rank, len(related), related[0])
		}
	}
	w := rank(1000, "r1")
	w.Unit, w.GpuUuids = "v", nil
	for i := range 20_000 {
		w.GpuUuids = append(w.GpuUuids, fmt.Sprintf("GPU-%d", i))
	}
	s.apply(w, handles())
	if got := s.worker(w); len(got.cards) != 64 || len(got.Who.GpuUuids) != 64 {
		t.Errorf("%d cards, %d names", len(got.cards), len(got.Who.GpuUuids))
	}
}
