package worker

import (
	"testing"

	"lowtide/event"
)

// engineAndDevice plays minutes of an engine, and of the GPU beside it.
func (s *stage) engineAndDevice(n int, utilization float64, others int, set func(i int, e *event.Engine)) {
	for i := range n {
		s.give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u((60 + others) * gib), FreeBytes: u((20 - others) * gib), Utilization: &utilization}})
		s.give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(60 * gib)}})
		s.minutes(1, func(_ int, e *event.Engine) { set(i, e) })
	}
}

func TestStalls(t *testing.T) {
	flow := func(i int, e *event.Engine) {
		e.Running, e.KvUsage, e.GenerationTokensTotal, e.FinishedTotal = u(5), event.Ptr(0.4), u(1000+200*i), u(10+i)
	}
	// stopped is an engine that accepts work and brings nothing out.
	stopped := func(running, waiting, more int) func(i int, e *event.Engine) {
		return func(i int, e *event.Engine) {
			e.Running, e.Waiting, e.KvUsage, e.GenerationTokensTotal, e.FinishedTotal = u(running), u(waiting+more*i), event.Ptr(0.4), u(9000), u(90)
		}
	}
	for name, test := range map[string]struct {
		play                 func(s *stage)
		stalled, idle, spins string
	}{
		"it flows":                                 {func(s *stage) { s.engineAndDevice(9, 1, 0, flow) }, "false", "false", "false"},
		"waiting grows (vllm#39863)":               {func(s *stage) { s.engineAndDevice(5, 0, 0, stopped(0, 3, 2)) }, "true", "true", "false"},
		"under two minutes, or three samples":      {func(s *stage) { s.engineAndDevice(3, 1, 0, stopped(4, 3, 2)) }, "false", "false", "false"},
		"frozen, the GPU spins":                    {func(s *stage) { s.engineAndDevice(6, 1, 0, stopped(4, 0, 0)) }, "true", "false", "true"},
		"frozen, the GPU spins for another":        {func(s *stage) { s.engineAndDevice(6, 1, 15, stopped(4, 0, 0)) }, "false", "false", "unknown"},
		"frozen, the GPU works":                    {func(s *stage) { s.engineAndDevice(9, 0.6, 0, stopped(4, 0, 0)) }, "false", "false", "false"},
		"frozen, the GPU idles, work waits":        {func(s *stage) { s.engineAndDevice(6, 0, 0, stopped(4, 3, 0)) }, "true", "true", "false"},
		"a running count left behind (vllm#22545)": {func(s *stage) { s.engineAndDevice(60, 0, 0, stopped(4, 0, 0)) }, "false", "true", "false"},
		"frozen, nothing known of the GPU":         {func(s *stage) { s.minutes(9, stopped(4, 3, 0)) }, "false", "false", "false"},
		"nothing to do":                            {func(s *stage) { s.engineAndDevice(60, 0, 0, stopped(0, 0, 0)) }, "false", "false", "false"},
		"left behind by requests that came and were aborted": {func(s *stage) {
			s.engineAndDevice(1, 0, 0, stopped(2, 0, 0))
			s.engineAndDevice(60, 0, 0, func(i int, e *event.Engine) { stopped(4, 0, 0)(i, e); e.AbortedTotal = u(4) })
		}, "false", "true", "false"},
		"a zombie beside an abort now and then (sglang#36333)": {func(s *stage) {
			s.engineAndDevice(60, 0, 0, func(i int, e *event.Engine) { stopped(1, 0, 0)(i, e); e.AbortedTotal = u(i / 7) })
		}, "false", "true", "false"},
		"an engine that counts tokens at the end": {func(s *stage) {
			s.engineAndDevice(20, 0.9, 0, func(i int, e *event.Engine) {
				stopped(3+i/9, 0, 0)(i, e)
				e.KvUsage = event.Ptr(0.4 + 0.01*float64(i))
			})
		}, "false", "false", "false"},
		"times between tokens still come": {func(s *stage) {
			s.engineAndDevice(20, 0.9, 0, func(i int, e *event.Engine) {
				stopped(3, 0, 1)(i, e)
				e.ItlP95Seconds = event.Ptr(0.02 + float64(i%3)/1000)
			})
		}, "false", "false", "false"},
		"asleep": {func(s *stage) {
			s.engineAndDevice(60, 0, 0, func(i int, e *event.Engine) { stopped(1, 1, 1)(i, e); e.Sleeping = event.Ptr(true) })
		}, "false", "true", "false"},
		"one long prompt has the GPU": {func(s *stage) { s.engineAndDevice(8, 1, 0, stopped(1, 0, 0)) }, "false", "false", "true"},
		"for a quarter of an hour":    {func(s *stage) { s.engineAndDevice(15, 1, 0, stopped(1, 0, 0)) }, "true", "false", "true"},
		"a long prompt fills the cache": {func(s *stage) {
			s.engineAndDevice(8, 1, 0, func(i int, e *event.Engine) { stopped(4, 0, 1)(i, e); e.KvUsage = event.Ptr(0.4 + 0.02*float64(i)) })
		}, "false", "false", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.engineAndDevice(5, 0.7, 0, flow)
			test.play(s)
			s.wantFlag("symptom.stalled", test.stalled)
			s.wantFlag("device.idle", test.idle)
			s.wantFlag("device.spinning", test.spins)
		})
	}
}

// On a shared card the utilisation is anybody's. A worker that works moves its own memory, whatever its metrics say; one that hangs moves
// nothing, though its metrics are served and its CPU spins.
func TestAFrozenEngineOnASharedCard(t *testing.T) {
	flow := func(i int, e *event.Engine) {
		e.Running, e.GenerationTokensTotal, e.FinishedTotal = u(13), u(1000+200*i), u(10+i)
	}
	frozen := func(running, waiting int) func(int, *event.Engine) {
		return func(_ int, e *event.Engine) {
			e.Running, e.Waiting, e.GenerationTokensTotal, e.FinishedTotal = u(running), u(waiting), u(9000), u(90)
		}
	}
	busy := 0.85
	const lent = 40 // GiB that others hold of the card
	for name, test := range map[string]struct {
		minutes, others int
		running, wait   int
		moves           func(i int, a *event.Allocator, p *event.GpuProcess)
		device          bool
		stalled         string
	}{
		"it hangs, and ten minutes have passed":           {13, lent, 13, 0, nil, true, "true"},
		"they have not":                                   {9, lent, 13, 0, nil, true, "false"},
		"something waits, which takes two":                {4, lent, 13, 2, nil, true, "true"},
		"nobody reads the card":                           {13, lent, 13, 0, nil, false, "true"},
		"what is live moves":                              {60, lent, 13, 0, func(i int, a *event.Allocator, _ *event.GpuProcess) { a.AllocatedBytes = u(gib + i%3*mib) }, true, "false"},
		"only a peak moves":                               {60, lent, 13, 0, func(i int, a *event.Allocator, _ *event.GpuProcess) { a.AllocatedPeakBytes = u(gib + i*mib) }, true, "false"},
		"only its memory on the device moves":             {60, lent, 13, 2, func(i int, _ *event.Allocator, p *event.GpuProcess) { p.UsedBytes = u(2*gib + i*mib) }, true, "false"},
		"it moved five minutes ago":                       {14, lent, 13, 0, func(i int, a *event.Allocator, _ *event.GpuProcess) { a.AllocatedBytes = u(gib + i/9) }, true, "false"},
		"the card is its own and works: the sensor hangs": {60, 0, 13, 0, nil, true, "false"},
		"there is nothing to do":                          {60, lent, 0, 0, nil, true, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			play := func(n int, set func(int, *event.Engine), works bool) {
				for i := range n {
					a := &event.Allocator{GpuUuid: "GPU-1", AllocatedBytes: u(gib), ActiveBytes: u(gib), ReservedBytes: u(2 * gib), AllocatedPeakBytes: u(gib)}
					p := &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(2 * gib)}
					switch {
					case works:
						a.AllocatedBytes = u(gib + (i+1)*mib)
					case test.moves != nil:
						test.moves(i, a, p)
					}
					if test.device {
						s.give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u((2 + test.others) * gib), Utilization: &busy}})
					}
					s.give(&event.Event{GpuProcess: p})
					s.give(&event.Event{Allocator: a})
					s.give(&event.Event{Process: &event.Process{CpuSecondsTotal: event.Ptr(float64(60 * i))}}) // a hang in a CUDA call spins
					s.minutes(1, func(_ int, e *event.Engine) { set(i, e) })
				}
			}
			play(5, flow, true)
			play(test.minutes, frozen(test.running, test.wait), false)
			s.wantFlag("symptom.stalled", test.stalled)
			if test.device && test.others > 0 {
				s.wantFlag("device.spinning", "false")
			}
		})
	}
}

// Seconds since the last token, and since any field moved: the queue that grows is movement, and no progress.
func TestProgressAndFrozenSeconds(t *testing.T) {
	s := newStage(t)
	s.minutes(3, func(i int, e *event.Engine) { e.Running, e.FinishedTotal = u(2), u(i) })
	s.want("progress.seconds", 0)
	s.minutes(4, func(i int, e *event.Engine) { e.Running, e.Waiting, e.FinishedTotal = u(2), u(i), u(2) })
	s.want("progress.seconds", 240)
	s.want("frozen.seconds", 0)
	s.minutes(3, func(i int, e *event.Engine) { e.Running, e.Waiting, e.FinishedTotal = u(2), u(3), u(2) })
	s.want("progress.seconds", 420)
	s.want("frozen.seconds", 180)
	s.minutes(1, func(i int, e *event.Engine) { e.FinishedTotal = u(2) })
	s.want("progress.seconds", 0) // nothing runs, nothing waits
}

// The first request may compile for minutes; after warm-up that is no excuse.
func TestBeforeTheFirstTokenWarmUpIsWaitedFor(t *testing.T) {
	s := newStage(t)
	s.ready = s.at
	first := func(i int, e *event.Engine) {
		e.Running, e.Waiting, e.FinishedTotal, e.GenerationTokensTotal = u(1), u(i), u(0), u(0)
	}
	s.minutes(15, first)
	s.wantFlag("symptom.stalled", "false")
	s.minutes(10, first)
	s.wantFlag("symptom.stalled", "true")
}

// TGI counts no tokens. Requests of some minutes are no stall there, those of a quarter of an hour are.
func TestWithoutTokensOnlyFinishedRequestsShow(t *testing.T) {
	s := newStage(t)
	long := func(i int, e *event.Engine) { e.Running, e.Waiting, e.FinishedTotal = u(2), u(i), u(7) }
	s.minutes(3, func(i int, e *event.Engine) { e.Running, e.FinishedTotal = u(2), u(5+i) })
	s.minutes(9, long)
	s.wantFlag("symptom.stalled", "false")
	s.minutes(9, func(i int, e *event.Engine) { long(9+i, e) })
	s.wantFlag("symptom.stalled", "true")
}
