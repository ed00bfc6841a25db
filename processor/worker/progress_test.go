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
