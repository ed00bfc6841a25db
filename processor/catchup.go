package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// lookBack is how much earlier than the first event that was not seen to its findings are looked for, by the broker's clock.
const lookBack = 2 * time.Minute

// begin makes the partition what it was when it was saved last, and this processor's. It returns nil when ctx ends.
func (p *partition) begin(ctx context.Context, fence uint64) error {
	p.saving.hold = &hold{archive: p.all.archive, partition: p.number, fence: fence, log: p.log}
	for _, step := range []func(context.Context) error{p.claim, p.load, p.remember, p.reread} {
		if err := p.insist(ctx, step); err != nil || ctx.Err() != nil {
			return err
		}
	}
	p.reading.heard = p.now()
	return nil
}

// insist does a step until it succeeds: the broker may be away just now.
func (p *partition) insist(ctx context.Context, step func(context.Context) error) error {
	for told := false; ctx.Err() == nil; {
		err := step(ctx)
		if err == nil || errors.Is(err, ErrFenced) {
			return err
		}
		if !told && ctx.Err() == nil {
			p.log.Warn("cannot begin to judge, trying again", "error", err)
			told = true
		}
		broker.Wait(ctx, retryAfter)
	}
	return nil
}

func (p *partition) claim(ctx context.Context) error {
	found, err := p.saving.hold.claim(ctx)
	if err != nil {
		return err
	}
	p.announce.verified = p.now()
	if found != nil {
		p.log.Warn("what was saved cannot be used; the state is made anew from what the stream holds", "error", found)
	}
	return nil
}

// load takes over the saved state, or prepares to make it anew.
func (p *partition) load(ctx context.Context) error {
	stream, err := p.js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	p.stream = stream
	e := p.saving.hold.entry
	p.reading.through, p.saving.floor, p.saving.next = e.Through, e.Findings, e.Findings
	if e.Blob != "" {
		err := p.restore(ctx, e)
		if err == nil {
			return p.compare(stream, e)
		}
		if !unusable(err) {
			return err
		}
		p.log.Warn("the saved state cannot be used; it is made anew from what the stream holds", "error", err)
	}
	consumer, err := broker.JudgeConsumer(ctx, p.js, p.number)
	if err != nil {
		return err
	}
	p.reading.past = max(e.Sequence, consumer.CachedInfo().AckFloor.Stream)
	if last := stream.CachedInfo().State.LastSeq; p.reading.past > last {
		p.reading.past, p.reading.through = 0, 0 // of a stream that is no more
	}
	return nil
}

// unusable says that a saved state will not get better.
func unusable(err error) bool {
	return errors.Is(err, errBlob) || errors.Is(err, errEnvelope) || errors.Is(err, errEnvelopeVersion) || errors.Is(err, ErrState) || errors.Is(err, ErrStateVersion)
}

func (p *partition) restore(ctx context.Context, e entry) error {
	state, err := p.all.archive.get(ctx, e)
	if err != nil {
		return err
	}
	l, saved, err := decodeEnvelope(state, p.number)
	if err != nil {
		return err
	}
	if l.Applied != e.Sequence {
		return fmt.Errorf("%w: it ends with event %d, and the entry says %d", errEnvelope, l.Applied, e.Sequence)
	}
	p.findings = nil
	judge, err := RestoreJudge(p.ruling.asked, p.board, p.emit, saved)
	if err != nil {
		return err
	}
	emitted := p.findings // about rules that are not asked any more
	if err := p.resume(l); err != nil {
		judge.Leave()
		return err
	}
	p.findings = append(p.findings, emitted...)
	p.hire(judge)
	p.reading.latest = p.clock
	p.saving.saved, p.saving.through, p.saving.fresh = e.Sequence, e.Through, p.now()
	for _, in := range judge.incidents.State().Incidents {
		if in.Last != nil {
			p.evidence.Seen(in.Last)
		}
	}
	return nil
}

// compare looks whether the stream still begins before what the state does not hold.
func (p *partition) compare(stream jetstream.Stream, e entry) error {
	info := stream.CachedInfo()
	switch {
	case !info.Created.Equal(e.Stream):
		p.rebase(0, "it was made anew")
		p.saving.saved = 0
	case info.State.LastSeq < p.applied:
		p.rebase(info.State.LastSeq, "it lost its newest messages")
		p.saving.saved = info.State.LastSeq
	}
	if next := max(p.applied, p.reading.through) + 1; next > 1 && info.State.FirstSeq > next {
		gone := info.State.FirstSeq - next
		p.trimmed += gone
		p.log.Error("events were lost: the stream dropped them before they were judged; what they would have shown is not known", "first", next, "last", info.State.FirstSeq-1,
			"messages_of_all_partitions", gone, "hint", "raise the stream's limits above the longest time that no processor runs")
	}
	return nil
}

// remember finds out what was announced after the state was saved, and where the stream ends now.
func (p *partition) remember(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	p.reading.target = 0
	last, err := p.stream.GetLastMsgForSubject(look, p.subjects())
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("read the end of the stream: %w", err)
	}
	if last != nil {
		p.reading.target = last.Sequence
	}
	from := max(p.applied, p.reading.past)
	if p.reading.target <= from && len(p.findings) == 0 {
		return nil
	}
	var since time.Time
	if p.saving.floor == 0 {
		next, err := p.stream.GetMsg(look, from+1, jetstream.WithGetMsgSubject(p.subjects()))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return fmt.Errorf("read the stream: %w", err)
		}
		if next != nil {
			since = next.Time.Add(-lookBack)
		}
	}
	known, err := p.recall(ctx, p.saving.floor, since)
	if err != nil {
		return err
	}
	p.announce.known, p.announce.until = known, p.stream.CachedInfo().State.LastSeq
	return nil
}

// reread makes a state anew: all that the stream holds of what was seen to before is applied without a word.
func (p *partition) reread(ctx context.Context) error {
	if p.applied < p.reading.past {
		if err := p.read(ctx, p.reading.past); err != nil {
			return err
		}
		p.saving.due = p.now()
	}
	return p.publishAll(ctx)
}
