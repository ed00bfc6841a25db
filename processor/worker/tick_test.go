package worker

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// desktop is a worker with all sensors: five events a tick, as a collector sends them.
type desktop struct {
	*Worker
	at        time.Time
	gpu       *event.Gpu
	process   *event.GpuProcess
	allocator *event.Allocator
	engine    *event.Engine
	host      *event.Process
	events    []*event.Event
}

func newDesktop() *desktop {
	d := &desktop{Worker: New("w", host, who, start), at: start,
		gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u(66 * gib), FreeBytes: u(14 * gib), Utilization: event.Ptr(0.7), EccCorrectedTotal: u(0),
			EccUncorrectedTotal: u(0)},
		process: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(66 * gib)},
		allocator: &event.Allocator{GpuUuid: "GPU-1", AllocatedBytes: u(40 * gib), ActiveBytes: u(40 * gib), ReservedBytes: u(60 * gib), ReservedPeakBytes: u(61 * gib),
			AllocatedPeakBytes: u(50 * gib), AllocRetriesTotal: u(0), InactiveSplitBytes: u(gib), OomsTotal: u(0), PinnedAllocatedBytes: u(gib), PrivatePoolBytes: u(gib)},
		engine: &event.Engine{Running: u(9), Waiting: u(0), KvUsage: event.Ptr(0.5), FinishedTotal: u(1), AbortedTotal: u(0), ErrorsTotal: u(0), PreemptionsTotal: u(0),
			PromptTokensTotal: u(0), GenerationTokensTotal: u(0), TtftP95Seconds: event.Ptr(0.2), ItlP95Seconds: event.Ptr(0.02), SloTotal: u(0), SloOkTotal: u(0)},
		host: &event.Process{AnonBytes: u(9 * gib), CgroupBytes: u(20 * gib), CgroupLimitBytes: u(64 * gib), Fds: u(100), FdsLimit: u(65536), Threads: u(64), SocketsCloseWait: u(1)}}
	for _, e := range []*event.Event{{Gpu: d.gpu}, {GpuProcess: d.process}, {Allocator: d.allocator}, {Engine: d.engine}, {Process: d.host}} {
		e.Time, e.Host, e.Worker = new(timestamppb.Timestamp), host, who
		d.events = append(d.events, e)
	}
	return d
}

// tick plays one tick with some requests running; so many bytes and handles are kept of every request that has finished.
func (d *desktop) tick(every time.Duration, running uint64, keeps, handles float64) {
	d.at = d.at.Add(every)
	e, a := d.engine, d.allocator
	*e.Running, *e.KvUsage = running, float64(running)/20
	if running > 0 {
		*e.FinishedTotal, *e.SloTotal, *e.SloOkTotal = *e.FinishedTotal+3, *e.SloTotal+3, *e.SloOkTotal+3
		*e.PromptTokensTotal, *e.GenerationTokensTotal = *e.PromptTokensTotal+9000, *e.GenerationTokensTotal+900
		*e.TtftP95Seconds = 0.2 + float64(d.at.Unix()/60%10)/100
	}
	done := float64(*e.FinishedTotal)
	kept := uint64(keeps * done)
	*a.AllocatedBytes = 40*gib + running*gib/4 + kept
	*a.ActiveBytes, *a.ReservedBytes = *a.AllocatedBytes, 60*gib+kept
	*d.process.UsedBytes, *d.gpu.UsedBytes = *a.ReservedBytes+6*gib, *a.ReservedBytes+6*gib
	*d.gpu.FreeBytes = 80*gib - *d.gpu.UsedBytes
	if handles > 0 {
		more := uint64(handles * done)
		*d.process.UsedBytes += kept / 2
		*d.host.AnonBytes, *a.PinnedAllocatedBytes, *a.PrivatePoolBytes = 9*gib+2*kept, gib+kept/2, gib
		*d.host.Fds, *d.host.Threads, *d.host.SocketsCloseWait = 100+more, 64+more, 1+more
	}
	for _, event := range d.events {
		event.Time.Seconds = d.at.Unix()
		d.Apply(event)
	}
}

// drains says that nothing runs now: two minutes in every ten, so that each ten minutes give a quiet point.
func (d *desktop) drains() bool { return d.at.Unix()/60%10 < 2 }

// play goes on until there are so many quiet points.
func (d *desktop) play(every time.Duration, points int, keeps, handles float64) {
	for len(d.quiet.Points) < points {
		running := uint64(9)
		if d.drains() {
			running = 0
		}
		d.tick(every, running, keeps, handles)
	}
}

// worstTurn reports the time of the dearest of the ticks that judge a new point between them, each by the fastest of its runs: the machine's
// own pauses are nobody's cost. Each begins with another column; prepare makes the points new.
func (d *desktop) worstTurn(b *testing.B, prepare ...func()) {
	const runs = 50
	b.ReportAllocs()
	fastest := make([]time.Duration, len(d.calls)*len(prepare))
	for b.Loop() {
		for i := range fastest {
			begin := time.Now()
			for range runs {
				prepare[i/len(d.calls)]()
				d.basis.next, d.basis.last = i%len(d.calls), d.at
				d.features(d.at)
			}
			if took := time.Since(begin) / runs; fastest[i] == 0 || took < fastest[i] {
				fastest[i] = took
			}
		}
	}
	b.ReportMetric(float64(slices.Max(fastest)), "ns/turn")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTick is all that a tick costs here, of a worker on one GPU with every sensor. The worst is the dearest turn after a new
// quiet point of one that has as many as are kept, and at the end of a half hour of one that never drains.
func BenchmarkTick(b *testing.B) {
	for name, every := range map[string]time.Duration{"mean, 5 s": 5 * time.Second, "mean, 60 s": time.Minute} {
		b.Run(name, func(b *testing.B) {
			d := newDesktop()
			d.play(every, 12, 0, 0)
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				running := 5 + i%7
				if d.drains() {
					running = 0
				}
				d.tick(every, running, 0, 0)
			}
		})
	}
	for name, test := range map[string]struct{ keeps, handles float64 }{"worst, level": {}, "worst, live grows": {keeps: 64 << 10}, "worst, all grow": {64 << 10, 0.02}} {
		b.Run(name, func(b *testing.B) {
			d := newDesktop()
			d.play(time.Minute, maxPoints, test.keeps, test.handles)
			if called := d.Verdict() == "live grows"; called != (test.keeps > 0) {
				b.Fatalf("verdict %s", d.Verdict())
			}
			d.worstTurn(b, func() { d.basis.changed = everyBit })
		})
	}
	b.Run("worst, matched load", func(b *testing.B) {
		d := newDesktop()
		for i := range uint64(16*60 - 20) {
			d.tick(time.Minute, 5+i/45%7, 64<<10, 0)
		}
		if matched, _ := d.Sample().Bool(pointIDs.matched); !matched {
			b.Fatal("not compared at matched load")
		}
		d.worstTurn(b, func() { d.basis.windows, d.match.SeenOf = everyBit, 0 }, func() { d.basis.windows = everyBit })
	})
}
