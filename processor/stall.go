package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// idle looks at the stream itself when nothing was delivered for a while. Either there is nothing, and the judge is told how late it is by the
// newest message of whatever partition; or the consumer has stalled.
func (p *partition) idle(ctx context.Context) error {
	newest := p.all.stand()
	if newest.last < p.applied && newest.last > 0 && newest.asked.After(p.reading.heard) {
		p.rebase(newest.last, "it lost its newest messages")
	}
	if newest.last <= p.reading.through {
		return nil
	}
	if r := &p.reading; r.queue != nil {
		seen, waiting := p.feed.seen(r.queue, r.whole)
		if waiting || len(r.letters) > 0 {
			return nil
		}
		if seen >= newest.last && r.whole > 0 {
			return p.rest(ctx, newest) // nothing of this partition is among what others were given
		}
	}
	look, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	last, err := p.stream.GetLastMsgForSubject(look, p.subjects())
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("look for what was not delivered: %w", err)
	}
	if last != nil && last.Sequence > p.applied {
		if p.now().Sub(p.reading.heard) >= p.pace.stall {
			return p.unstall(ctx, last.Sequence)
		}
		return nil
	}
	return p.rest(ctx, newest)
}

// rest takes note that nothing of the partition was there when the stream was last looked at.
func (p *partition) rest(ctx context.Context, newest standing) error {
	p.reading.through, p.reading.caught = newest.last, true
	return p.tell(ctx, newest.at)
}

// tell says to the judge how late it is while nothing comes.
func (p *partition) tell(ctx context.Context, now time.Time) error {
	before := p.ticked
	if p.idled.After(before) {
		before = p.idled
	}
	if before.IsZero() || now.Sub(before) < tickEvery {
		return nil
	}
	awaited := len(p.judge.awaiting)
	p.excuse(now)
	p.idled = now
	p.judge.tick(now, true)
	if len(p.findings) == 0 && len(p.judge.awaiting) == awaited {
		return nil
	}
	if err := p.keepBack(ctx); err != nil {
		return err
	}
	return p.publishAll(ctx)
}

// unstall helps itself to what the consumer does not deliver, and has it made anew.
func (p *partition) unstall(ctx context.Context, to uint64) error {
	r := &p.reading
	r.stalls++
	p.log.Warn("the consumer delivers nothing; reading from the stream itself", "stalls", r.stalls, "applied", p.applied, "newest", to)
	p.feed.renew()
	found, err := p.fill(ctx, to)
	if found {
		r.gaps++
	}
	r.heard = p.now()
	return err
}
