package processor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// onOneCard merges recordings into one of a single host and card, in which only the pid tells the workers apart: 4242, 4243 and so on.
// The card's own readings are those of the first, and each is later than the one before by lag.
func onOneCard(t testing.TB, lag time.Duration, names ...string) []*event.Event {
	t.Helper()
	type placed struct {
		e  *event.Event
		at time.Time
	}
	var all []placed
	for i, name := range names {
		for _, e := range events(t, "testdata/"+name+".ndjson.gz") {
			e = proto.CloneOf(e)
			if i > 0 && e.Gpu != nil {
				continue
			}
			if e.Worker != nil {
				e.Worker.Pid = 4242 + int64(i)
			}
			e.Time.Seconds += int64(lag.Seconds()) * int64(i)
			all = append(all, placed{e, e.At()})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return a.at.Compare(b.at) })
	merged := make([]*event.Event, len(all))
	for i, one := range all {
		merged[i] = one.e
	}
	return merged
}

// classesOf returns the classes found of each process, sorted: "4242 kv_pressure".
func classesOf(found []*event.Finding) []string {
	var all []string
	for _, f := range found {
		all = append(all, fmt.Sprintf("%d %s", f.Worker.GetPid(), f.Class))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Engines that nothing but their pid tells apart share a card. Each gets the verdict of its recording, as when it is alone.
func TestEnginesThatShareACardSpeakForThemselves(t *testing.T) {
	class := map[string]string{"leak": "retention", "native_leak": "native_growth", "kv_leak": "kv_block_leak", "kv_pressure": "kv_pressure",
		"spike": "oversize_request", "host_leak": "host_memory", "expandable": "retention", "malloc_async": "retention"} // labels.json of the recordings
	for _, names := range [][]string{
		{"healthy", "leak"}, {"healthy", "kv_leak"}, {"healthy", "spike"}, {"busy_healthy", "healthy"}, {"healthy", "kv_pressure"}, {"healthy", "host_leak"},
		{"kv_leak", "busy_healthy"}, {"kv_pressure", "healthy"}, {"leak", "native_leak", "kv_leak", "kv_pressure"},
		{"spike", "frag", "expandable", "malloc_async"}, {"host_leak", "healthy", "leak", "busy_healthy"},
	} {
		for _, lag := range []time.Duration{0, 7 * time.Second} {
			t.Run(strings.Join(names, "+")+" "+lag.String(), func(t *testing.T) {
				var found []*event.Finding
				j := NewJudge(builtin(t), func(f *event.Finding) { found = append(found, f) })
				for _, e := range onOneCard(t, lag, names...) {
					j.Apply(e)
				}
				j.Flush()
				var want []string
				for i, name := range names {
					if class[name] != "" {
						want = append(want, fmt.Sprintf("%d %s", 4242+i, class[name]))
					}
				}
				if got := classesOf(found); !slices.Equal(got, want) {
					t.Errorf("found %v, want %v", got, want)
				}
			})
		}
	}
}

// A restart on the card is none of that: the successor has the slot, whether its predecessor ended with a word or without.
func TestASuccessorKeepsTheSlot(t *testing.T) {
	for _, end := range []string{"told", "not told", "after a drain, while the next is there"} {
		s := newProbeStage(t)
		old, next := rank(10, "r1"), rank(11, "r1")
		old.Unit, next.Unit = "", ""
		for range 5 {
			s.pass(time.Minute)
			s.apply(old, handles())
			s.apply(old, waits(0))
		}
		want := 1.0
		switch end {
		case "told":
			s.apply(old, code(1))
		case "after a drain, while the next is there":
			s.apply(old, &event.Event{Lifecycle: &event.Lifecycle{State: "draining"}})
			want = 0
		}
		for i := range 8 {
			s.pass(time.Minute)
			if want == 0 && i < 4 {
				s.apply(old, waits(0))
				s.apply(old, handles())
			}
			s.apply(next, waits(0))
			s.apply(next, handles())
		}
		a, b := s.worker(old), s.worker(next)
		if b.Slot != "c/h/GPU-a/0/0" || b.Instance != "c/h/GPU-a/0" || a.Slot != b.Slot {
			t.Errorf("%s: slots %s and %s", end, a.Slot, b.Slot)
		}
		if n := s.number(next, "restarts.hour"); n != want {
			t.Errorf("%s: %v restarts", end, n)
		}
	}
}

// The second of two is started again: it comes back to its own slot, not to that of the first.
func TestTheSecondComesBackToItsOwnSlot(t *testing.T) {
	s := newProbeStage(t)
	first, second, third := rank(10, "r1"), rank(11, "r1"), rank(12, "r1")
	first.Unit, second.Unit, third.Unit = "", "", ""
	live := func(n int, all ...*event.Worker) {
		for range n {
			s.pass(time.Minute)
			for _, w := range all {
				s.apply(w, handles())
				s.apply(w, waits(uint64(w.Pid)))
			}
		}
	}
	live(5, first, second)
	s.apply(second, code(1))
	live(5, first, third)
	if a, b := s.worker(first), s.worker(third); a.Slot != "c/h/GPU-a/0/0" || b.Slot != "c/h/GPU-a#2/0/0" {
		t.Errorf("slots %s and %s", a.Slot, b.Slot)
	}
	if a, b := s.number(first, "restarts.hour"), s.number(third, "restarts.hour"); a != 0 || b != 1 {
		t.Errorf("%v and %v restarts", a, b)
	}
	s.judge.Flush()
	for _, w := range []*event.Worker{first, third} {
		if got := s.number(w, "waiting.now"); got != float64(w.Pid) {
			t.Errorf("%v requests wait for pid %d", got, w.Pid)
		}
	}
}

// A process is gone without a word, and another has its slot. What that one's engine says is not told to the dead one, whether the
// unit is known or not, and whichever event is the first.
func TestTheDeadHearNothingOfTheirSuccessors(t *testing.T) {
	for _, unit := range []string{"u", ""} {
		for _, engineFirst := range []bool{true, false} {
			s := newProbeStage(t)
			old, next := rank(10, "r1"), rank(11, "r1")
			old.Unit, next.Unit = unit, unit
			for range 10 {
				s.pass(time.Minute)
				s.apply(old, handles())
				s.apply(old, waits(1))
			}
			gone := s.at
			for range 10 {
				s.pass(time.Minute)
				if !engineFirst {
					s.apply(next, handles())
				}
				s.apply(next, waits(9))
				s.apply(next, handles())
				s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", UsedBytes: event.Ptr(uint64(5))}})
			}
			s.judge.Flush()
			if got := s.number(old, "waiting.now"); got != 1 || s.worker(old).Last.After(gone) {
				t.Errorf("unit %q, engine first %v: %v wait for the dead one, whose last tick is %v after its end", unit, engineFirst, got, s.worker(old).Last.Sub(gone))
			}
			if got := s.number(next, "waiting.now"); got != 9 {
				t.Errorf("unit %q, engine first %v: %v wait for its successor", unit, engineFirst, got)
			}
		}
	}
}

// A pid without a start time, as in a container, is used again after its process has ended: that is another life, with a slot that
// was restarted. What is told late about the end is still about the first.
func TestAPidIsUsedAgain(t *testing.T) {
	s := newProbeStage(t)
	s.host = &event.Host{Cluster: "c", Name: "h"}
	w := rank(1, "r1")
	w.StartTicks = nil
	s.live(w, 10*time.Minute)
	first := s.worker(w)
	s.apply(w, code(1))
	s.pass(5 * time.Second)
	s.apply(w, handles())
	s.apply(w, &event.Event{Oom: &event.Oom{Kind: "cuda", Text: "CUDA out of memory. A line of the log that came late"}})
	if len(s.judge.workers) != 1 {
		t.Fatalf("%d processes after what came late", len(s.judge.workers))
	}
	s.pass(time.Minute)
	s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "started"}})
	s.live(w, 5*time.Minute)
	s.judge.Flush()
	if len(s.judge.workers) != 2 || s.worker(w) != first {
		t.Fatalf("%d processes", len(s.judge.workers))
	}
	all := s.judge.sorted()
	slices.SortFunc(all, func(a, b *watched) int { return cmp.Compare(a.First.Unix(), b.First.Unix()) })
	second := all[1]
	if second.Slot != first.Slot || !second.end.at.IsZero() || second.Last.Sub(s.at) != 0 {
		t.Errorf("slot %s, ended %v, last tick %v", second.Slot, second.end.at, second.Last)
	}
	if n, _ := second.Sample().Number(slotIDs.restarts); n != 1 {
		t.Errorf("%v restarts", n)
	}
	if n, known := first.Sample().Number(slotIDs.restarts); known && n > 0 {
		t.Errorf("%v restarts of the first", n)
	}
}
