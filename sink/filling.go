package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Filler is a Store with rollups. Fill adds to them the samples of the blocks whose numbers are above after and at most upTo; called again with
// the same numbers it changes nothing, also when the first call ended in between. It is not called for blocks that are still being inserted.
type Filler interface {
	Fill(ctx context.Context, token string, after, upTo uint64) error
}

const (
	fillEvery  = 15 * time.Second
	fillLimit  = 2 * time.Minute // of a step, which takes seconds: all rollups begin anew when it is over
	fillEvents = 2_000_000       // of one step, about 400,000 rows, which bounds the memory
	maxSteps   = 10_000
)

// step is a run of stored blocks that the rollups do not have yet, up to and with one number.
type step struct {
	From   uint64 `json:"from,omitempty"` // number of its first block, which is when that was planned; 0 in plans of an earlier version
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
	// A plan with more steps than may be read back would end storing for good: then the last one becomes larger than it should.
	if full := len(p.Unfilled) >= maxSteps; last >= 0 && !p.Unfilled[last].Begun && (full || p.Unfilled[last].Events+b.Events <= fillEvents) {
		p.Unfilled = append(p.Unfilled[:last:last], step{From: p.Unfilled[last].From, To: b.Number, Events: p.Unfilled[last].Events + b.Events})
		return
	}
	p.Unfilled = append(p.Unfilled[:last+1:last+1], step{From: b.Number, To: b.Number, Events: b.Events})
}

// behind is since when the rollups lack something, as far as the plan tells.
func (p *plan) behind(now time.Time) time.Time {
	if len(p.Unfilled) == 0 || p.Unfilled[0].From == 0 {
		return now
	}
	return time.UnixMilli(int64(min(p.Unfilled[0].From, uint64(max(now.UnixMilli(), 1)))))
}

// fill brings the rollups up to what is stored, a step at a time, when that is due; meanwhile the next block is stored. What fails is tried again
// later; the error is that of the broker, or ErrFenced.
func (r *run) fill(ctx context.Context) error {
	if r.filling != nil {
		select {
		case err := <-r.filling:
			return r.filled(ctx, err)
		default:
			return nil
		}
	}
	plan := r.ledger.plan
	if len(plan.Unfilled) == 0 || plan.Block != nil && r.stored < plan.Block.Last || ctx.Err() != nil {
		return nil
	}
	now := r.owner.now()
	if r.gauge.unfilled(plan.behind(now)); now.Before(r.fillAt) {
		return nil
	}
	if !plan.Unfilled[0].Begun {
		plan.Unfilled = slices.Clone(plan.Unfilled)
		plan.Unfilled[0].Begun = true
		if err := r.record(ctx, plan); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	r.filling = done
	filler, able := r.store.(Filler)
	if !able {
		done <- nil
		return nil
	}
	first := plan.Unfilled[0]
	go func() {
		limited, cancel := context.WithTimeout(ctx, fillLimit)
		defer cancel()
		done <- filler.Fill(limited, fmt.Sprintf("%s:%d-%d", r.source.durable, plan.Filled, first.To), plan.Filled, first.To)
	}()
	return nil
}

// filled notes how a step ended.
func (r *run) filled(ctx context.Context, err error) error {
	r.filling = nil
	r.fillAt = r.owner.now().Add(r.owner.fillEvery)
	if err != nil {
		if !errors.Is(err, context.Canceled) && !r.fillTold {
			r.fillTold = true
			r.log.Warn("rollups are behind what is stored, and filled later", "error", err)
		}
		return nil
	}
	r.fillTold = false
	next := r.ledger.plan
	next.Filled, next.Unfilled = next.Unfilled[0].To, next.Unfilled[1:]
	if len(next.Unfilled) > 1 { // more than what has come since
		r.fillAt = time.Time{}
	}
	r.gauge.filled(next.behind(r.owner.now()), len(next.Unfilled) == 0)
	return r.record(ctx, next)
}

// finish waits for the step that was begun, whose end is near when its context has ended, and fills what is left as long as ctx lasts.
func (r *run) finish(ctx context.Context) error {
	r.fillTold = true // the next owner does what is not done
	for failed := 0; ; {
		if r.filling != nil {
			err := <-r.filling
			if err != nil {
				failed++
			}
			if err := r.filled(ctx, err); err != nil {
				return err
			}
		}
		if failed > 1 || ctx.Err() != nil {
			return nil
		}
		r.fillAt = time.Time{}
		if err := r.fill(ctx); err != nil || r.filling == nil {
			return err
		}
	}
}

// record writes the plan also when ctx ends meanwhile: one that was written without our knowing would shut us out of the last word.
func (r *run) record(ctx context.Context, next plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingLimit)
	defer cancel()
	return r.ledger.write(ctx, next)
}
