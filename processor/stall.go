package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

const eventStream = event.StreamEvents

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

// unstall helps itself to what the consumer does not deliver, and sets it going again: first by resetting it, then by making it anew.
func (p *partition) unstall(ctx context.Context, to uint64) error {
	r := &p.reading
	r.stalls++
	r.stuck++
	p.log.Warn("the consumer delivers nothing; reading from the stream itself", "stalls", r.stalls, "applied", p.applied, "newest", to)
	if err := p.fill(ctx, to); err != nil {
		return err
	}
	r.heard = p.now()
	if r.stuck == 1 {
		return p.rewind(ctx)
	}
	if err := p.js.DeleteConsumer(ctx, eventStream, r.consumer.CachedInfo().Name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete the stalled consumer: %w", err)
	}
	return p.open(ctx)
}
