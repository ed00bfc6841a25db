package sink

import (
	"context"
	"fmt"
	"time"
)

// Filler is a Store with rollups. Fill adds to them the samples of the blocks whose numbers are above after and at most upTo; called again with
// the same numbers it changes nothing, also when the first call ended in between. It is not called for blocks that are still being inserted.
type Filler interface {
	Fill(ctx context.Context, token string, after, upTo uint64) error
}

const (
	fillEvery  = 15 * time.Second
	fillLimit  = 30 * time.Second // storing waits for it
	fillEvents = 2_000_000        // of one step, about 400,000 rows, which bounds the memory
	maxSteps   = 10_000
)

// step is a run of stored blocks that the rollups do not have yet, up to and with one number.
type step struct {
	To     uint64 `json:"to"`
	Events int    `json:"events"`
	Begun  bool   `json:"begun,omitempty"` // it may be in some rollups already, so that it must be filled as it is
}

// number gives a planned block the number that its rows carry: larger than any before, also than those of a plan that is lost, as long as the
// clock does not run back behind it.
func (p *plan) number(b *bounds, now time.Time) {
	b.Number = max(p.Number+1, uint64(max(now.UnixMilli(), 1)))
	if p.Number == 0 { // whatever the tables hold is of another time
		p.Filled = b.Number - 1
	}
	p.Number = b.Number
	last := len(p.Unfilled) - 1
	if last >= 0 && !p.Unfilled[last].Begun && p.Unfilled[last].Events+b.Events <= fillEvents {
		p.Unfilled = append(p.Unfilled[:last:last], step{To: b.Number, Events: p.Unfilled[last].Events + b.Events})
		return
	}
	p.Unfilled = append(p.Unfilled[:last+1:last+1], step{To: b.Number, Events: b.Events})
}

// fill brings the rollups up to what is stored, a step at a time, when that is due. What fails is tried again later; the error is that of the
// broker, or ErrFenced.
func (r *run) fill(ctx context.Context) error {
	filler, able := r.store.(Filler)
	plan := &r.ledger.plan
	if len(plan.Unfilled) == 0 || plan.Block != nil && r.stored < plan.Block.Last {
		return nil
	}
	now := r.owner.now()
	if r.gauge.unfilled(now); now.Before(r.fillAt) || ctx.Err() != nil {
		return nil
	}
	r.fillAt = now.Add(r.owner.fillEvery)
	next := *plan
	if able {
		if !next.Unfilled[0].Begun {
			next.Unfilled = append([]step{next.Unfilled[0]}, next.Unfilled[1:]...)
			next.Unfilled[0].Begun = true
			if err := r.record(ctx, next); err != nil {
				return err
			}
		}
		first := next.Unfilled[0]
		limited, cancel := context.WithTimeout(ctx, fillLimit)
		err := filler.Fill(limited, fmt.Sprintf("%s:%d-%d", r.source.durable, next.Filled, first.To), next.Filled, first.To)
		cancel()
		if err != nil {
			if ctx.Err() == nil && !r.fillTold {
				r.fillTold = true
				r.log.Warn("rollups are behind what is stored, and filled later", "error", err)
			}
			return nil
		}
	}
	r.fillTold = false
	next.Filled, next.Unfilled = next.Unfilled[0].To, next.Unfilled[1:]
	if err := r.record(ctx, next); err != nil {
		return err
	}
	r.gauge.filled(len(next.Unfilled) == 0)
	if len(next.Unfilled) > 0 {
		r.fillAt = now
	}
	return nil
}

// record writes the plan also when ctx ends meanwhile: one that was written without our knowing would shut us out of the last word.
func (r *run) record(ctx context.Context, next plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingLimit)
	defer cancel()
	return r.ledger.write(ctx, next)
}
