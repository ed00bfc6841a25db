package worker

import "lowtide/event"

// axes are the work done in one process life: the x axes beside time. They only grow; a counter that falls was reset and counts on
// from its new value.
type axes struct {
	Requests, Aborts, Errors, Tokens float64
	Adapters                         float64 // loads of one more adapter
	Cycles                           float64 // of a worker without metrics: times that it became busy
}

// progress changes when anything was done.
func (a axes) progress() float64 { return a.Requests + a.Aborts + a.Tokens + a.Cycles }

// tally is axes as points keep them: beside tokens, no process does more than the 16 million of a thing that a float32 counts to.
type tally struct {
	Tokens                                     float64
	Requests, Aborts, Errors, Adapters, Cycles float32
}

func (a axes) tally() tally {
	return tally{a.Tokens, float32(a.Requests), float32(a.Aborts), float32(a.Errors), float32(a.Adapters), float32(a.Cycles)}
}

// done counts what was finished, whichever way the worker tells it.
func (t tally) done() float64 { return float64(t.Requests) + float64(t.Cycles) }

// counters turn an engine's totals into axes.
type counters struct {
	Work   axes
	Newest [6]uint64
	Known  [6]bool
	Resets int
}

func (c *counters) observe(e *event.Engine) {
	for i, v := range [...]*uint64{e.FinishedTotal, e.AbortedTotal, e.ErrorsTotal, e.PromptTokensTotal, e.GenerationTokensTotal, e.LoadedAdapters} {
		if v == nil || c.Known[i] && *v == c.Newest[i] {
			continue
		}
		delta := float64(*v)
		switch {
		case c.Known[i] && *v > c.Newest[i]:
			delta = float64(*v - c.Newest[i])
		case c.Known[i] && i == 5:
			delta = 0 // adapters are unloaded: that is no reset
		case c.Known[i]:
			c.Resets++
		}
		c.Newest[i], c.Known[i] = *v, true
		switch i {
		case 0:
			c.Work.Requests += delta
		case 1:
			c.Work.Requests += delta
			c.Work.Aborts += delta
		case 2:
			c.Work.Errors += delta
		case 3, 4:
			c.Work.Tokens += delta
		case 5:
			c.Work.Adapters += delta
		}
	}
}
