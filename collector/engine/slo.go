package engine

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// promise counts the requests of one engine against its SLO.
type promise struct {
	total, ok float64
	debt      float64 // missed by requests that are not in total yet: the first token of a request is late before it ends
	counted   bool    // a reading has been compared with the one before
}

// count adds what was observed since the last reading. The requests are those of the histogram whose observations come last in a
// request's life, among the objectives'; of each objective, those above its threshold missed, and the worst objective counts: with
// the same requests in all histograms, ok is the lowest count within a threshold. Counts are of whole buckets, so a threshold
// between two edges is judged at the lower one: what may have missed has missed. An itl that is only known per token is turned
// into the same share of the requests, rounded against the engine.
func (p *promise) count(o SLO, deltas *[measures]distribution) {
	var missed float64
	var requests *distribution
	objective := func(which int, limit time.Duration) {
		d := &deltas[which]
		if limit <= 0 || !d.known() {
			return
		}
		n, _ := d.within(limit.Seconds())
		missed = max(missed, d.total()-n)
		requests = d
	}
	objective(ttft, o.TTFT)
	objective(tpot, o.ITL)
	objective(e2e, o.E2E)
	if tokens := &deltas[itl]; o.ITL > 0 && !deltas[tpot].known() && tokens.known() {
		for _, which := range []int{e2e, ttft} {
			if requests == nil && deltas[which].known() {
				requests = &deltas[which]
			}
		}
		if requests != nil && tokens.total() > 0 {
			n, _ := tokens.within(o.ITL.Seconds())
			missed = max(missed, math.Ceil(requests.total()*(1-n/tokens.total())-1e-9))
		}
	}
	if requests == nil {
		return
	}
	p.counted = true
	p.debt += missed
	paid := min(p.debt, requests.total())
	p.debt -= paid
	p.total += requests.total()
	p.ok += requests.total() - paid
}

// put sets the two fields once something has been compared.
func (p *promise) put(e *event.Engine) {
	if p.counted {
		e.SloTotal, e.SloOkTotal = proto.Uint64(uint64(p.total)), proto.Uint64(uint64(p.ok))
	}
}

// between says where an SLO is judged at other thresholds than it names, empty where it is not.
func (o SLO) between(now *[measures]distribution) string {
	text := ""
	note := func(name string, which int, limit time.Duration) {
		if limit <= 0 || !now[which].known() {
			return
		}
		_, edge := now[which].within(limit.Seconds())
		if edge > limit.Seconds()*(1-1e-9) {
			return
		}
		if text != "" {
			text += "; "
		}
		if edge == 0 {
			text += fmt.Sprintf("%s %v lies below the lowest edge, so that every request misses it", name, limit)
			return
		}
		text += fmt.Sprintf("%s %v lies between edges and is judged at %v", name, limit, time.Duration(edge*float64(time.Second)))
	}
	note("ttft", ttft, o.TTFT)
	if now[tpot].known() {
		note("itl", tpot, o.ITL)
	} else {
		note("itl", itl, o.ITL)
	}
	note("e2e", e2e, o.E2E)
	return text
}
