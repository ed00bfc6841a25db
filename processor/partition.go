package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// partition judges one partition of the event stream. Its state is not saved yet: at the start it is rebuilt from what the
// stream still holds, up to the last acknowledged message, without repeating the findings of that time.
type partition struct {
	number   int
	js       jetstream.JetStream
	log      *slog.Logger
	judge    *Judge
	findings []*event.Finding
	marks    map[string]uint64 // high-water mark per host, producer and lane
	applied  uint64            // stream sequence
	refused  int
}

func newPartition(number int, o Options) *partition {
	p := &partition{number: number, js: o.JS, log: o.Log.With("partition", number), marks: make(map[string]uint64)}
	p.judge = NewJudge(o.Pack, func(f *event.Finding) { p.findings = append(p.findings, f) })
	return p
}

func (p *partition) run(ctx context.Context) error {
	consumer, err := broker.JudgeConsumer(ctx, p.js, p.number)
	if err != nil {
		return err
	}
	if err := p.rebuild(ctx, consumer); err != nil {
		return err
	}
	told := false
	for ctx.Err() == nil {
		err := p.take(ctx, consumer)
		switch {
		case err == nil && told:
			p.log.Info("judging again")
			told = false
		case err != nil && ctx.Err() == nil:
			if !told {
				p.log.Warn("cannot judge, trying again", "error", err)
				told = true
			}
			wait(ctx, retryAfter)
		}
	}
	return nil
}

// rebuild feeds the acknowledged past to the judge.
func (p *partition) rebuild(ctx context.Context, consumer jetstream.Consumer) error {
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("read consumer: %w", err)
	}
	floor := info.AckFloor.Stream
	if floor == 0 {
		return nil
	}
	past, err := p.js.OrderedConsumer(ctx, event.StreamEvents, jetstream.OrderedConsumerConfig{FilterSubjects: []string{fmt.Sprintf("lowtide.p.%d.>", p.number)}})
	if err != nil {
		return fmt.Errorf("read the past: %w", err)
	}
	began := time.Now()
	for p.applied < floor {
		messages, err := past.Fetch(pull, jetstream.FetchMaxWait(pullWait))
		if err != nil {
			return fmt.Errorf("read the past: %w", err)
		}
		n := 0
		for m := range messages.Messages() {
			n++
			if meta, err := m.Metadata(); err == nil && meta.Sequence.Stream <= floor {
				p.apply(m, meta.Sequence.Stream)
			}
		}
		if n < pull || messages.Error() != nil {
			break // the end of what the stream holds
		}
	}
	p.findings = nil
	p.log.Debug("state rebuilt from the stream", "floor", floor, "took", time.Since(began))
	return nil
}

// take pulls once. An error leaves the messages unacknowledged: they come again and are dropped by sequence where applied.
func (p *partition) take(ctx context.Context, consumer jetstream.Consumer) error {
	messages, err := consumer.Fetch(pull, jetstream.FetchMaxWait(pullWait))
	if err != nil {
		return err
	}
	var last jetstream.Msg
	for m := range messages.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read metadata: %w", err)
		}
		p.apply(m, meta.Sequence.Stream)
		last = m
		if len(p.findings) > 0 {
			if err := p.publish(ctx); err != nil {
				return err
			}
		}
	}
	if last != nil {
		if err := last.Ack(); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	if err := messages.Error(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (p *partition) apply(m jetstream.Msg, sequence uint64) {
	if sequence <= p.applied {
		return // redelivered
	}
	p.applied = sequence
	batch, _, err := event.DecodeBatch(m.Headers().Get("Content-Type"), m.Data())
	if err == nil {
		err = sameHost(m.Subject(), batch)
	}
	if err != nil {
		p.refused++
		p.log.Warn("message refused", "subject", m.Subject(), "sequence", sequence, "refused", p.refused, "error", err)
		return
	}
	if batch.Producer != "" {
		key := event.HostKey(batch.Host) + "/" + batch.Producer + "/" + batch.Lane
		if mark, seen := p.marks[key]; seen && batch.Sequence <= mark {
			return // published twice, outside the server's own window
		}
		p.marks[key] = batch.Sequence
	}
	for _, e := range batch.Events {
		p.judge.Apply(e)
	}
}

func sameHost(subject string, b *event.Batch) error {
	cluster, host, ok := event.SplitSubject(subject)
	if !ok {
		return fmt.Errorf("subject %s is not one of events", subject)
	}
	if cluster != b.Host.GetCluster() || host != b.Host.GetName() {
		return fmt.Errorf("subject names host %s/%s, the batch %s", cluster, host, event.HostKey(b.Host))
	}
	return nil
}

// publish stores the findings, in order. They stay with the partition until the broker has them.
func (p *partition) publish(ctx context.Context) error {
	for len(p.findings) > 0 {
		f := p.findings[0]
		text, err := event.MarshalFinding(f)
		if err != nil {
			return fmt.Errorf("write finding: %w", err)
		}
		sending, cancel := context.WithTimeout(ctx, publishWait)
		_, err = p.js.Publish(sending, event.FindingSubject(f), text, jetstream.WithMsgID(f.ID))
		cancel()
		if err != nil {
			return fmt.Errorf("publish finding %s: %w", f.ID, err)
		}
		p.findings = p.findings[1:]
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
