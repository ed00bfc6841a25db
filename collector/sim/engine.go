package sim

import (
	"math"
	"time"
)

// engine is the serving engine of one instance at the level of ticks: an M/M/∞ queue while there is room, and a saturated one when
// sequences or KV blocks run out. Counts are floats that hold whole numbers.
type engine struct {
	maxSeqs     float64
	tokens      float64 // of the KV pool
	prompt      float64 // mean length, tokens
	output      float64 // mean length, tokens
	prefillRate float64 // tokens per second
	itl         float64 // seconds per output token with one sequence
	itlPerSeq   float64 // seconds more for each further one
	maxBatch    float64 // tokens per step
	abortShare  float64 // of requests, by clients that go away
	errorShare  float64
	patience    float64 // seconds that a client waits in the queue; 0 is for ever
	preempt     float64 // preemptions per finished request while blocks are short
	slo         float64 // seconds to the first token that were promised; 0 is not counted
	evictable   float64 // part of the pool that idle prefix cache takes, counted in the gauge and told apart; 0 is left out of it
	stopped     bool    // a step hangs: what runs stays, what comes waits

	running, waiting float64
	held             float64 // tokens of blocks that nothing will free
	cachedPrefix     float64 // tokens now in the evictable prefix cache
	usage            float64

	finished, aborted, errors, preempted float64
	promptTokens, outputTokens           float64
	sloOK, sloAll                        float64
	ttft, itlP95, e2e                    float64
	told                                 bool // quantiles exist: something has finished
	promptP95, outputP95, hits           float64
}

// work is what an engine did in one tick.
type work struct {
	arrived, finished, aborted, errors float64
	prompt, output                     float64 // tokens
	running, waiting                   float64 // at its end
	most                               float64 // running at once
}

// capacity is how many sequences fit at once.
func (e *engine) capacity() float64 {
	return math.Min(e.maxSeqs, math.Floor(math.Max(0, e.tokens-e.held)/(e.mean()*1.08)))
}

// mean is what a running sequence holds, in tokens: half of its output is still to come.
func (e *engine) mean() float64 { return e.prompt + e.output/2 }

// service is how long a request runs, in seconds, beside n others.
func (e *engine) service(n float64) float64 {
	return e.prompt/e.prefillRate + e.output*(e.itl+e.itlPerSeq*n)
}

func (e *engine) step(c chance, rate float64, dt time.Duration) work {
	seconds := dt.Seconds()
	w := work{arrived: c.poisson(rate * seconds)}
	if e.stopped {
		e.waiting += w.arrived
		if e.patience > 0 {
			gone := c.part(e.waiting, math.Min(1, seconds/e.patience))
			e.waiting -= gone
			e.aborted += gone
		}
		w.running, w.waiting, w.most = e.running, e.waiting, e.running
		return w
	}
	room := e.capacity()
	service := e.service(math.Max(1, e.running))
	stay := math.Exp(-seconds / service)
	late := service / seconds * (1 - stay)
	left := c.part(e.running, stay)
	candidates := e.waiting + w.arrived
	// How many can start: the free places, and those that turn over within the tick.
	places := math.Max(0, room-left) + math.Max(0, room*(seconds/service)-(e.running-left))*c.between(0.94, 1.0)
	admitted := math.Min(candidates, math.Floor(places))
	after := left + c.part(admitted, late)
	if over := after - room; over > 0 {
		after, admitted = room, math.Max(0, admitted-over)
	}
	if admitted < candidates {
		after = math.Min(room, math.Max(after, room-c.poisson(room*0.03))) // full but for what is just being replaced
	}
	after = math.Min(after, e.running+admitted)
	waiting, done := candidates-admitted, e.running+admitted-after
	w.most = math.Min(room, math.Max(math.Max(e.running, after), rate*service+1.5*math.Sqrt(rate*service)))
	if done+admitted == 0 {
		w.most = math.Max(e.running, after)
	}
	e.running = after
	e.finish(c, &w, done, admitted)
	e.queue(c, &w, waiting, done, seconds)
	e.blocks(c, &w, room)
	e.latency(c, done, admitted, seconds)
	w.running, w.waiting = e.running, e.waiting
	return w
}

func (e *engine) finish(c chance, w *work, done, admitted float64) {
	w.aborted = c.part(done, e.abortShare)
	w.errors = c.part(done-w.aborted, e.errorShare)
	w.finished = done - w.aborted - w.errors
	if admitted > 0 {
		w.prompt = math.Round(admitted * e.prompt * math.Exp(0.4/math.Sqrt(admitted)*c.NormFloat64()))
	}
	if done > 0 || e.running > 0 {
		w.output = math.Round((done*0.8 + e.running*0.3) * e.output * c.between(0.9, 1.1))
	}
	e.finished += w.finished
	e.aborted += w.aborted
	e.errors += w.errors
	e.promptTokens += w.prompt
	e.outputTokens += w.output
}

// queue is left by those whose patience ends.
func (e *engine) queue(c chance, w *work, waiting, done, seconds float64) {
	e.waiting = waiting
	if e.patience == 0 || waiting == 0 {
		return
	}
	wait := waiting / math.Max(done/seconds, 0.01)
	if wait > e.patience {
		gone := c.part(waiting, math.Min(0.9, seconds/e.patience*(1-e.patience/wait)))
		e.waiting -= gone
		e.aborted += gone
		w.aborted += gone
	}
}

// blocks says how full the pool is, and preempts when it is full.
func (e *engine) blocks(c chance, w *work, room float64) {
	held := 0.0
	if e.running > 0 {
		held = e.running * e.mean() * math.Max(0.3, 1+0.45/math.Sqrt(e.running)*c.NormFloat64())
	}
	if e.waiting > 0 && room < e.maxSeqs && e.running > 0.8*room {
		held = math.Max(0, e.tokens-e.held) * c.between(0.9, 1) // whatever is freed is taken at once
	}
	short := room < e.maxSeqs && (e.waiting > 0 || held+e.held > 0.93*e.tokens)
	if short && e.preempt > 0 {
		e.preempted += c.poisson(w.finished * e.preempt)
	}
	e.usage = math.Min(1-c.between(0, 0.012), (held+e.held)/e.tokens)
	if e.held == 0 && e.running == 0 {
		e.usage = 0
	}
	if e.evictable > 0 {
		// A prefix cache takes what running sequences leave, and gives way to them.
		e.cachedPrefix = math.Min(e.evictable*e.tokens, e.cachedPrefix+w.prompt*0.6)
		e.cachedPrefix = math.Min(e.cachedPrefix, math.Max(0, 0.99-e.usage)*e.tokens)
	}
}

// latency holds the quantiles of the newest window in which something came out; like the gauge of a histogram it stays when
// nothing does.
func (e *engine) latency(c chance, done, admitted, seconds float64) {
	if done+admitted == 0 {
		return
	}
	load := 1 + 0.6*e.running/e.maxSeqs
	wait := 0.0
	if e.waiting > 0 {
		wait = math.Min(e.waiting/math.Max(done/seconds, 0.02), 3600)
		if e.patience > 0 {
			wait = math.Min(wait, 1.3*e.patience)
		}
	}
	storm := 1.0
	if e.waiting > 0 && e.preempt > 0.1 {
		storm += 0.5 * e.preempt
	}
	ttft := (e.prompt*1.8/e.prefillRate*load + 0.02) * math.Exp(0.08*c.NormFloat64())
	e.ttft = ttft + wait*math.Exp(0.05*c.NormFloat64())
	e.itlP95 = (e.itl + e.itlPerSeq*e.running) * 1.25 * storm * math.Exp(0.05*c.NormFloat64())
	e.e2e = e.ttft + e.output*1.9*e.itlP95
	e.told = true
	e.promptP95 = e.prompt * 2.1 * math.Exp(0.02*c.NormFloat64())
	e.outputP95 = e.output * 2.3 * math.Exp(0.02*c.NormFloat64())
	e.hits = 0.3 + 0.02*c.NormFloat64()
	if e.slo > 0 {
		share := 0.996
		if e.ttft > e.slo {
			share = math.Max(0.05, 0.9*e.slo/e.ttft)
		}
		e.sloAll += done
		e.sloOK += c.part(done, share)
	}
}

// restart forgets what a process knew.
func (e *engine) restart() {
	e.running, e.waiting, e.held, e.cachedPrefix, e.usage = 0, 0, 0, 0, 0
	e.stopped, e.told = false, false
	e.resetCounters()
}

// resetCounters is a metrics endpoint that starts anew.
func (e *engine) resetCounters() {
	e.finished, e.aborted, e.errors, e.preempted = 0, 0, 0, 0
	e.promptTokens, e.outputTokens, e.sloOK, e.sloAll = 0, 0, 0, 0
}
