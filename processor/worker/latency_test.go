package worker

import (
	"testing"
	"time"

	"lowtide/event"
)

// serve plays minutes in which something finishes, with a first token and a time between tokens.
func (s *stage) serve(n, running, waiting int, ttft, itl float64) {
	s.minutes(n, func(i int, e *event.Engine) {
		e.Running, e.Waiting, e.FinishedTotal = u(running), u(waiting), u(int(s.at.Unix()/60))
		e.TtftP95Seconds, e.ItlP95Seconds = event.Ptr(ttft), event.Ptr(itl)
	})
}

func TestLatencyIsAgainstTheOwnAtTheSameLoad(t *testing.T) {
	for name, test := range map[string]struct {
		play func(s *stage)
		want string
	}{
		"slow without a queue":         {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.02); s.serve(3, 9, 0, 0.7, 0.02) }, "true"},
		"two windows are noise":        {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.02); s.serve(2, 9, 0, 0.7, 0.02) }, "false"},
		"below the floor":              {func(s *stage) { s.serve(9, 8, 0, 0.1, 0.02); s.serve(6, 9, 0, 0.45, 0.02) }, "false"},
		"less than half as slow again": {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.02); s.serve(6, 9, 0, 0.59, 0.02) }, "false"},
		"queueing":                     {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.02); s.serve(3, 12, 40, 6, 0.02) }, "true"},
		"three apart in six":           {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.02); alternate(s) }, "true"},
		"tokens":                       {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.08); s.serve(3, 8, 0, 0.4, 0.13) }, "true"},
		"tokens below the floor":       {func(s *stage) { s.serve(9, 8, 0, 0.4, 0.02); s.serve(6, 8, 0, 0.4, 0.09) }, "false"},
		"more load has another pace":   {func(s *stage) { s.serve(9, 1, 0, 0.4, 0.05); s.serve(9, 64, 0, 0.9, 0.2) }, "false"},
		"back at a load that was seen": {func(s *stage) {
			s.serve(9, 64, 0, 0.9, 0.02)
			s.serve(9, 1, 0, 0.4, 0.02)
			s.serve(6, 70, 0, 0.9, 0.02)
		}, "false"},
		"always full, one minute of prompts": {func(s *stage) { s.serve(30, 16, 9, 2, 0.02); s.serve(1, 16, 9, 30, 0.02); s.serve(9, 16, 9, 2.5, 0.02) }, "false"},
		"always full, one lucky minute":      {func(s *stage) { s.serve(9, 16, 9, 2, 0.02); s.serve(1, 16, 9, 0.3, 0.02); s.serve(20, 16, 9, 2, 0.02) }, "false"},
		"always full, and ever slower": {func(s *stage) {
			for i := range 60 {
				s.serve(1, 16, 9+i, 1+float64(i)/2, 0.02)
			}
		}, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			test.play(s)
			s.wantFlag("symptom.latency", test.want)
		})
	}
}

func alternate(s *stage) {
	for _, ttft := range []float64{0.9, 0.4, 0.9, 0.4, 0.9} {
		s.serve(1, 8, 0, ttft, 0.02)
	}
}

// A p95 that stays where it is because no request finishes is the same slow window once more.
func TestARepeatedGaugeIsOneWindow(t *testing.T) {
	s := newStage(t)
	s.serve(9, 8, 0, 0.4, 0.02)
	s.minutes(6, func(i int, e *event.Engine) {
		e.Running, e.FinishedTotal, e.TtftP95Seconds = u(8), u(int(start.Add(70*time.Minute).Unix()/60)), event.Ptr(0.9)
	})
	s.wantFlag("symptom.latency", "false")
}

// Three of six windows are three minutes, however often the engine is read.
func TestFastTicksMakeNoMoreWindows(t *testing.T) {
	s := newStage(t)
	fast := func(n int, ttft float64) {
		for range n {
			s.give(&event.Event{Engine: &event.Engine{Running: u(8), Waiting: u(0), FinishedTotal: u(int(s.at.Unix())), TtftP95Seconds: event.Ptr(ttft)}})
			s.Close()
			s.at = s.at.Add(5 * time.Second)
		}
	}
	fast(120, 0.4)
	fast(12, 0.9)
	s.wantFlag("symptom.latency", "false")
	fast(36, 0.9)
	s.wantFlag("symptom.latency", "true")
}

// What compilation made slow is no baseline once warm-up is over.
func TestTheBaselineIsFromAfterWarmUp(t *testing.T) {
	s := newStage(t)
	s.ready = s.at
	s.serve(15, 8, 0, 5, 0.02)
	s.at = s.at.Add(4 * time.Minute)
	s.serve(9, 8, 0, 0.4, 0.02)
	s.serve(3, 8, 0, 1, 0.02)
	s.wantFlag("symptom.latency", "true")
}

func TestASymptomHoldsForAnHour(t *testing.T) {
	s := newStage(t)
	s.serve(9, 8, 0, 0.4, 0.02)
	s.serve(3, 8, 0, 1, 0.02)
	s.serve(50, 8, 0, 0.4, 0.02)
	s.wantFlag("symptom.latency", "true")
	s.serve(15, 8, 0, 0.4, 0.02)
	s.wantFlag("symptom.latency", "false")
}

func TestTheObjective(t *testing.T) {
	// play gives minutes of a hundred requests each, of which so many were met.
	play := func(s *stage, n, met, waiting int) {
		s.minutes(n, func(i int, e *event.Engine) {
			e.Running, e.Waiting = u(8), u(waiting)
			s.sloAll, s.sloMet = s.sloAll+100, s.sloMet+met
			e.SloTotal, e.SloOkTotal = u(s.sloAll), u(s.sloMet)
		})
	}
	for name, test := range map[string]struct {
		play func(s *stage)
		want string
	}{
		"all met":                       {func(s *stage) { play(s, 12, 100, 0) }, "false"},
		"under 0.95 from the start":     {func(s *stage) { play(s, 5, 94, 9) }, "true"},
		"under its own 0.99":            {func(s *stage) { play(s, 9, 99, 0); play(s, 3, 90, 0) }, "true"},
		"a strict objective, as always": {func(s *stage) { play(s, 30, 80, 0) }, "false"},
		"a strict one, and chance":      {func(s *stage) { play(s, 9, 80, 0); play(s, 6, 72, 0) }, "false"}, // three standard errors are 0.12
		"a strict one, and worse":       {func(s *stage) { play(s, 9, 80, 0); play(s, 3, 60, 0) }, "true"},
		"two windows":                   {func(s *stage) { play(s, 9, 99, 0); play(s, 2, 50, 0) }, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			test.play(s)
			s.wantFlag("symptom.slo", test.want)
		})
	}
}

// Ten requests an hour give no share to judge.
func TestFewRequestsAreNoShare(t *testing.T) {
	s := newStage(t)
	s.minutes(120, func(i int, e *event.Engine) { e.Running, e.SloTotal, e.SloOkTotal = u(1), u(i/6), u(0) })
	s.wantFlag("symptom.slo", "false")
}
