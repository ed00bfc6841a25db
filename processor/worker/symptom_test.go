package worker

import (
	"testing"
	"time"

	"lowtide/event"
)

// One tick of a worker on two GPUs, a minute after the one before, while it is healthy. What is measured is the symptoms' part.
func BenchmarkSymptoms(b *testing.B) {
	for name, every := range map[string]time.Duration{"a minute": time.Minute, "five seconds": 5 * time.Second} {
		b.Run(name, func(b *testing.B) {
			w := New("w", host, who, start)
			w.ready, w.said = start, true
			e := &event.Engine{Running: u(9), Waiting: u(1), KvUsage: event.Ptr(0.5), FinishedTotal: u(0), AbortedTotal: u(0), PreemptionsTotal: u(0), PromptTokensTotal: u(0),
				GenerationTokensTotal: u(0), TtftP95Seconds: event.Ptr(0.0), ItlP95Seconds: event.Ptr(0.02), SloTotal: u(0), SloOkTotal: u(0)}
			p := &event.Process{AnonBytes: u(9 * gib), CgroupBytes: u(20 * gib), CgroupLimitBytes: u(64 * gib), Fds: u(100), FdsLimit: u(1024)}
			w.now.engine, w.now.process = e, p
			for _, uuid := range []string{"GPU-1", "GPU-2"} {
				w.now.cards = append(w.now.cards, card{uuid: uuid,
					allocator: &event.Allocator{AllocatedBytes: u(40 * gib), ActiveBytes: u(40 * gib), ReservedBytes: u(60 * gib), ReservedPeakBytes: u(61 * gib), AllocatedPeakBytes: u(50 * gib), AllocRetriesTotal: u(0), InactiveSplitBytes: u(gib)},
					process:   &event.GpuProcess{UsedBytes: u(66 * gib)},
					device:    &event.Gpu{TotalBytes: u(80 * gib), UsedBytes: u(66 * gib), FreeBytes: u(14 * gib), Utilization: event.Ptr(0.7), EccCorrectedTotal: u(0), EccUncorrectedTotal: u(0)}})
			}
			at := start.Add(time.Hour)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				at = at.Add(every)
				w.Last = at
				w.now.freshAllocator, w.now.freshDevice, w.now.freshEngine, w.now.freshGPU, w.now.freshProcess = true, true, true, true, true
				*e.FinishedTotal, *e.PromptTokensTotal, *e.GenerationTokensTotal = *e.FinishedTotal+9, *e.PromptTokensTotal+9000, *e.GenerationTokensTotal+900
				*e.SloTotal, *e.SloOkTotal, *e.TtftP95Seconds = *e.SloTotal+9, *e.SloOkTotal+9, 0.2+float64(i%10)/100
				*e.Running, *e.KvUsage = uint64(9+i%3), 0.5+float64(i%7)/100
				*w.now.cards[0].allocator.ActiveBytes += uint64(i%3) * mib
				w.load.observe(at, e)
				w.observeDevice(at)
				w.loadFeatures(at)
				w.oomFeatures(at)
				w.faultFeatures(at)
				w.headroom()
				w.capacity()
				w.imminent(at)
			}
		})
	}
}

func TestSymptomsAreToldWithTheirLag(t *testing.T) {
	s := newStage(t)
	onset := s.at
	s.serve(9, 8, 0, 0.4, 0.02)
	s.serve(3, 8, 0, 1, 0.02)
	s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(256 * mib)}})
	s.xid(31)
	s.Close()
	want := []struct {
		name, text string
		lag        float64
	}{{"oom", "an allocation of 256 MiB failed", 720}, {"xid", "Xid 31", 720}, {"latency", "p95 time to first token above the worker's own baseline without a queue", 660}}
	got := s.Symptoms(onset)
	if len(got) != len(want) {
		t.Fatalf("%d symptoms, want %d: %v", len(got), len(want), got)
	}
	for i, w := range want {
		if g := got[i]; g.Name != w.name || g.Text != w.text || g.LagSeconds != w.lag {
			t.Errorf("symptom %d is %q, %q after %v s; want %q, %q after %v s", i, g.Name, g.Text, g.LagSeconds, w.name, w.text, w.lag)
		}
	}
}
