package processor

import (
	"fmt"
	"testing"
	"time"

	"lowtide/event"
)

// A host is taken away while a sensor of it is lost. A week later it is forgotten, and that ends what was told about its sensors;
// its time goes on with the others', whether a broker tells its own time or, as in a recording, none does.
func TestAHostThatIsGoneIsForgotten(t *testing.T) {
	for _, ticks := range []bool{true, false} {
		s := newProbeStage(t)
		gone, stays := &event.Host{Cluster: "c", Name: "gone", BootId: "b"}, s.host
		nvml := func(status string) *event.Event {
			return &event.Event{Source: &event.SourceStatus{Name: "nvml", Status: status}}
		}
		minute := func(sensor *event.Event) {
			s.pass(time.Minute)
			s.host = stays
			s.apply(rank(10, "r1"), handles())
			if s.host = gone; sensor != nil {
				s.apply(rank(20, "r1"), handles())
				s.apply(nil, sensor)
			}
			if ticks {
				s.judge.Tick(s.at)
			}
		}
		minute(nvml("ok"))
		for range 15 {
			minute(nvml("lost"))
		}
		last := s.at
		for range 9 * 24 * 60 {
			minute(nil)
		}
		if len(s.judge.hosts) != 1 || len(s.judge.workers) != 1 {
			t.Errorf("ticks %v: %d hosts, %d processes", ticks, len(s.judge.hosts), len(s.judge.workers))
		}
		told := 0
		for _, f := range s.findings {
			if f.Subject.Key != "c/gone/nvml" || f.State != event.Resolved {
				continue
			}
			told++
			if d := f.Time.Sub(last); d < hostKept || d > slotKept+2*sweepEvery {
				t.Errorf("ticks %v: resolved after %v", ticks, d)
			}
		}
		if n := len(s.judge.incidents.Open("c/gone/nvml")) + len(s.judge.incidents.Open("c/gone/"+collector)); told != 1 || n != 0 {
			t.Errorf("ticks %v: the loss of the sensor was resolved %d times, %d incidents are open", ticks, told, n)
		}
	}
}

// Names that somebody makes up take no room for ever, and cost those that are real nothing: hosts on which something runs and
// processes that live are the last to go.
func TestThereIsRoomForSoManyHosts(t *testing.T) {
	s := newProbeStage(t)
	first := s.host
	s.apply(rank(10, "r1"), handles())
	for i := range 2 * maxHosts {
		s.host = &event.Host{Cluster: "c", Name: fmt.Sprintf("h%d", i)}
		s.apply(nil, &event.Event{Machine: &event.Machine{MemoryTotalBytes: event.Ptr(uint64(1))}})
	}
	if n := len(s.judge.hosts); n > maxHosts || n < maxHosts*9/10 {
		t.Errorf("%d hosts", n)
	}
	if s.host = first; s.worker(rank(10, "r1")) == nil {
		t.Error("the host on which something runs was forgotten")
	}
}

func TestThereIsRoomForSoManyProcesses(t *testing.T) {
	s := newProbeStage(t)
	name := func(i int) *event.Worker {
		w := rank(int64(i+1), "r1")
		w.Unit, w.GpuUuids = fmt.Sprintf("u%d", i), nil
		return w
	}
	for i := range maxWorkers {
		s.apply(name(i), handles())
	}
	ended, silent := name(maxWorkers-1), name(0)
	s.apply(ended, code(0))
	for i := range 100 {
		s.apply(name(i+1), handles()) // all but one of the first are heard again
	}
	s.apply(name(maxWorkers), handles())
	if n := len(s.judge.workers); n > maxWorkers || n < maxWorkers*9/10 {
		t.Errorf("%d processes", n)
	}
	if s.worker(ended) != nil || s.worker(silent) != nil {
		t.Error("one that has ended, or is silent, was kept")
	}
	for i := range 100 {
		if s.worker(name(i+1)) == nil {
			t.Fatalf("process %d, heard just now, was forgotten", i+1)
		}
	}
}

// Two sources do not agree on the GPUs of a process. The larger set holds, nothing moves to and fro; and what changes for good is
// taken over once nobody tells the old set any more.
func TestSourcesThatDisagreeAboutGPUs(t *testing.T) {
	for name, test := range map[string]struct {
		a, b []string
		want int // cards
	}{
		"one sees fewer":     {[]string{"GPU-a"}, []string{"GPU-a", "GPU-b"}, 2},
		"each sees another":  {[]string{"GPU-a"}, []string{"GPU-b"}, 1},
		"they are the same":  {[]string{"GPU-a"}, []string{"GPU-a"}, 1},
		"one sees none":      {[]string{"GPU-a"}, nil, 1},
		"in different order": {[]string{"GPU-a", "GPU-b"}, []string{"GPU-b", "GPU-a"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newProbeStage(t)
			a, b := rank(10, "r1"), rank(10, "r1")
			a.Unit, b.Unit, a.GpuUuids, b.GpuUuids = "", "", test.a, test.b
			for range 5 {
				s.pass(time.Minute)
				s.apply(a, handles())
				s.apply(b, handles())
			}
			epoch, w := s.judge.epoch, s.worker(a)
			for range 60 {
				s.pass(time.Minute)
				s.apply(a, handles())
				s.apply(b, handles())
			}
			if s.judge.epoch != epoch || len(w.cards) != test.want {
				t.Errorf("%d changes in an hour, %d cards", s.judge.epoch-epoch, len(w.cards))
			}
			a.GpuUuids = []string{"GPU-c"}
			s.live(a, 10*time.Minute)
			if len(w.cards) != 1 || w.cards[0].uuid != "GPU-c" {
				t.Errorf("%d cards after it moved", len(w.cards))
			}
		})
	}
}
