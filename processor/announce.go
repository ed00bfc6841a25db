package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// verifyAfter is for how long a processor may believe that it has a partition without asking: whoever stood still for longer asks
// before it says anything, since others may have said it while he did.
const verifyAfter = 5 * time.Minute

// announcement is what was said before this processor had the partition. The stream of findings drops what comes twice only
// within an hour; who comes back later looks himself.
type announcement struct {
	known    map[string]bool // ids of findings that were stored after the state was saved; nil once they can come no more
	until    uint64          // the newest event from which they can have followed
	verified time.Time       // when the partition was last known to be this processor's
}

// publishAll stores the findings however long the broker is away. It returns an error only when ctx ends or the partition is
// another's; what was not published is saved with the state, else judged again at the next start.
func (p *partition) publishAll(ctx context.Context) error {
	for _, w := range p.wishes {
		p.evidence.Want(w)
	}
	p.wishes = nil
	for told := false; len(p.findings) > 0; {
		err := p.publish(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, ErrFenced) {
			return err
		}
		if !told {
			p.log.Warn("cannot publish a finding, trying again", "error", err)
			told = true
		}
		broker.Wait(ctx, retryAfter)
	}
	return nil
}

// errUnwritable marks a finding that has no JSON form.
var errUnwritable = errors.New("finding cannot be written")

func (p *partition) send(ctx context.Context, f *event.Finding) error {
	text, err := event.MarshalFinding(f)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnwritable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	_, err = p.js.Publish(ctx, event.FindingSubject(f), text, jetstream.WithMsgID(f.ID))
	return err
}

// hopeless says that the same finding would fail for ever, and hold back all that come after it: it cannot be written, or it is larger
// than the broker takes.
func hopeless(err error) bool {
	return errors.Is(err, errUnwritable) || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum)
}

// publish stores the findings, in order. They stay with the partition until the broker has them, unless it never will.
func (p *partition) publish(ctx context.Context) error {
	for len(p.findings) > 0 {
		f := p.findings[0]
		if p.announce.known[f.ID] {
			if !f.Shadow {
				p.evidence.Seen(f)
				p.put(ctx, f)
			}
			p.findings = p.findings[1:]
			continue
		}
		if err := p.ours(ctx); err != nil {
			return err
		}
		err := p.send(ctx, f)
		if hopeless(err) {
			p.lost++
			p.log.Error("finding dropped", "finding", f.ID, "class", f.Class, "subject", f.Subject.Key, "state", f.State, "severity", f.Severity, "dropped", p.lost, "error", err)
			p.findings = p.findings[1:]
			continue
		}
		if err != nil {
			return fmt.Errorf("publish finding %s: %w", f.ID, err)
		}
		p.published++
		if p.findings = p.findings[1:]; f.Shadow {
			continue
		}
		p.put(ctx, f)
		p.evidence.Offer(f)
	}
	return nil
}

// ours asks whether the partition is still this processor's, when that was not known for a while.
func (p *partition) ours(ctx context.Context) error {
	if p.saving.hold == nil || p.now().Sub(p.announce.verified) < verifyAfter {
		return nil
	}
	if err := p.saving.hold.verify(ctx); err != nil {
		return err
	}
	p.announce.verified = p.now()
	return nil
}

// recall reads which findings were stored behind a place in their stream; where that is 0, since a time.
func (p *partition) recall(ctx context.Context, behind uint64, since time.Time) (map[string]bool, error) {
	config := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: behind + 1, HeadersOnly: true}
	switch {
	case behind == 0 && since.IsZero():
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverAllPolicy, 0
	case behind == 0:
		config.DeliverPolicy, config.OptStartSeq, config.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &since
	}
	known := make(map[string]bool)
	err := readStream(ctx, p.js, event.StreamFindings, config, func(m jetstream.Msg, _ *jetstream.MsgMetadata) (bool, error) {
		if id := m.Headers().Get(jetstream.MsgIDHeader); id != "" {
			known[id] = true
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read findings of before: %w", err)
	}
	return known, nil
}
