package processor

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

// shift is a worker with every sensor on one GPU, as a collector tells of it every five seconds: it drains for two minutes in ten, and keeps
// some bytes of each request where it leaks.
type shift struct {
	judge     *Judge
	at        time.Time
	events    []*event.Event
	gpu       *event.Gpu
	process   *event.GpuProcess
	allocator *event.Allocator
	engine    *event.Engine
	host      *event.Process
}

func newShift(pack *rules.Pack) *shift {
	const gib = 1 << 30
	u := func(v uint64) *uint64 { return &v }
	s := &shift{judge: NewJudge(pack, func(*event.Finding) {}), at: time.Unix(1_790_000_000, 0).UTC(),
		gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u(0), FreeBytes: u(0), Utilization: event.Ptr(0.7), EccCorrectedTotal: u(0), EccUncorrectedTotal: u(0),
			ProcessesComplete: event.Ptr(true)},
		process: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(0)},
		allocator: &event.Allocator{GpuUuid: "GPU-1", AllocatedBytes: u(0), ActiveBytes: u(0), ReservedBytes: u(0), ReservedPeakBytes: u(61 * gib), AllocatedPeakBytes: u(50 * gib),
			AllocRetriesTotal: u(0), InactiveSplitBytes: u(gib), OomsTotal: u(0), PinnedAllocatedBytes: u(gib), PrivatePoolBytes: u(gib)},
		engine: &event.Engine{Running: u(0), Waiting: u(0), KvUsage: event.Ptr(0.0), FinishedTotal: u(0), AbortedTotal: u(0), ErrorsTotal: u(0), PreemptionsTotal: u(0),
			PromptTokensTotal: u(0), GenerationTokensTotal: u(0), TtftP95Seconds: event.Ptr(0.2), ItlP95Seconds: event.Ptr(0.02), SloTotal: u(0), SloOkTotal: u(0)},
		host: &event.Process{AnonBytes: u(9 * gib), CgroupBytes: u(20 * gib), CgroupLimitBytes: u(64 * gib), Fds: u(100), FdsLimit: u(65536), Threads: u(64), SocketsCloseWait: u(1)}}
	host, who := &event.Host{Cluster: "c", Name: "h", BootId: "b"}, rank(10, "r1")
	who.GpuUuids = []string{"GPU-1"}
	for _, e := range []*event.Event{{Gpu: s.gpu}, {GpuProcess: s.process}, {Allocator: s.allocator}, {Engine: s.engine}, {Process: s.host}} {
		e.Time, e.Host, e.Worker = new(timestamppb.Timestamp), host, who
		if e.Gpu != nil {
			e.Worker = nil
		}
		s.events = append(s.events, e)
	}
	return s
}

// next makes the events of the next tick; half a request is done in it when something runs.
func (s *shift) next(i int, keeps uint64) {
	const gib = 1 << 30
	s.at = s.at.Add(5 * time.Second)
	e, a, running := s.engine, s.allocator, uint64(0)
	if s.at.Unix()/60%10 >= 2 {
		running = 5 + uint64(i)%7
		*e.FinishedTotal += uint64(i % 2)
		*e.PromptTokensTotal, *e.GenerationTokensTotal = *e.PromptTokensTotal+4500, *e.GenerationTokensTotal+450
		*e.SloTotal, *e.SloOkTotal = *e.SloTotal+1, *e.SloOkTotal+1
		*e.TtftP95Seconds = 0.2 + float64(i%10)/100
	}
	*e.Running, *e.KvUsage = running, float64(running)/20
	kept := keeps * *e.FinishedTotal
	*a.AllocatedBytes, *a.ReservedBytes = 40*gib+running*gib/4+kept, 60*gib+kept
	*a.ActiveBytes = *a.AllocatedBytes
	*s.process.UsedBytes, *s.gpu.UsedBytes = *a.ReservedBytes+6*gib, *a.ReservedBytes+6*gib
	*s.gpu.FreeBytes = 80*gib - *s.gpu.UsedBytes
	for _, e := range s.events {
		e.Time.Seconds = s.at.Unix()
	}
}

func (s *shift) apply() {
	for _, e := range s.events {
		s.judge.Apply(e)
	}
}

// BenchmarkShift is a whole day of ticks of one worker from the door to the findings: routing, features and rules. Each tick counts by the
// fastest of identical days, so that what is left is its own cost and not the machine's pauses.
func BenchmarkShift(b *testing.B) {
	const ticks = 24 * 60 * 60 / 5
	pack := builtin(b)
	for name, keeps := range map[string]uint64{"level": 0, "live grows": 128 << 10} {
		b.Run(name, func(b *testing.B) {
			fastest := make([]time.Duration, ticks)
			for b.Loop() {
				s := newShift(pack)
				for i := range ticks {
					s.next(i, keeps)
					began := time.Now()
					s.apply()
					if took := time.Since(began); fastest[i] == 0 || took < fastest[i] {
						fastest[i] = took
					}
				}
			}
			var sum time.Duration
			for _, took := range fastest {
				sum += took
			}
			slices.Sort(fastest)
			b.ReportMetric(float64(sum)/ticks, "ns/tick-mean")
			b.ReportMetric(float64(fastest[ticks-ticks/1000]), "ns/tick-p99.9")
			b.ReportMetric(float64(fastest[ticks-1]), "ns/tick-worst")
			b.ReportMetric(0, "ns/op")
		})
	}
}
