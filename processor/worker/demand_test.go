package worker

import (
	"math"
	"testing"

	"lowtide/event"
)

// Ten requests a minute of 1,000 + 200 tokens for four hours, then twice as many of them, or as many that are twice as long.
func TestDemandIsArrivalsTimesTokensAgainstTheOwn(t *testing.T) {
	for name, test := range map[string]struct {
		requests, prompt, output int // by the minute, after four hours
		want                     float64
	}{
		"the same":    {10, 1000, 200, 1},
		"more come":   {20, 1000, 200, 2},
		"longer ones": {10, 2000, 400, 2},
		"both":        {20, 2000, 400, 4},
		"fewer":       {5, 1000, 200, 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			var finished, prompt, output int
			play := func(n, requests, p, o int) {
				s.minutes(n, func(i int, e *event.Engine) {
					finished, prompt, output = finished+requests, prompt+requests*p, output+requests*o
					e.Running, e.FinishedTotal, e.AbortedTotal, e.PromptTokensTotal, e.GenerationTokensTotal = u(8), u(finished), u(0), u(prompt), u(output)
				})
			}
			play(120, 10, 1000, 200)
			s.want("demand.ratio", math.NaN())
			play(120, 10, 1000, 200)
			play(35, test.requests, test.prompt, test.output)
			if got := s.number("demand.ratio"); math.Abs(got-test.want) > 0.05*test.want {
				t.Errorf("demand.ratio is %v, want %v", got, test.want)
			}
		})
	}
}

// What is still in the engine has arrived too: 10 ended a minute and 10 more stayed.
func TestWhatWaitsHasArrived(t *testing.T) {
	s := newStage(t)
	s.minutes(241, func(i int, e *event.Engine) {
		e.Running, e.FinishedTotal, e.PromptTokensTotal = u(8), u(10*i), u(1000*i)
	})
	s.minutes(31, func(i int, e *event.Engine) {
		e.Running, e.Waiting, e.FinishedTotal, e.PromptTokensTotal = u(8), u(10*i), u(2410+10*i), u(241000+1000*i)
	})
	if got := s.number("demand.ratio"); math.Abs(got-2) > 0.1 {
		t.Errorf("demand.ratio is %v, want 2", got)
	}
}

func TestRequestRate(t *testing.T) {
	s := newStage(t)
	if _, known := s.RequestRate(); known {
		t.Error("a rate out of nothing")
	}
	s.minutes(300, func(i int, e *event.Engine) { e.Running, e.FinishedTotal, e.AbortedTotal = u(8), u(9*i), u(i) })
	if rate, known := s.RequestRate(); !known || math.Abs(rate-600) > 25 {
		t.Errorf("%v requests an hour (known %v), want 600", rate, known)
	}
}
