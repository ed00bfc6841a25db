package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/incident"
)

// partition judges one partition of the event stream. Its state is not saved yet: at the start it is rebuilt from what the
// stream still holds, up to the last acknowledged message, without repeating the findings of that time.
type partition struct {
	number   int
	js       jetstream.JetStream
	log      *slog.Logger
	judge    *Judge
	verdicts *Verdicts // nil where nothing is published
	evidence *Asker    // nil where nobody is asked
	findings []*event.Finding
	wishes   []*Wish         // that rules asked for since the last findings were published
	marks    map[string]mark // per host, producer and lane
	applied  uint64          // stream sequence
	refused  int
	lost     int       // findings that no broker takes
	clock    time.Time // broker time of the message that is being applied
	ticked   time.Time // that the judge was told last
	pruned   time.Time // at which marks were pruned last

	now     func() time.Time
	advised time.Time           // when the verdicts of open incidents began to be written again
	renew   []incident.Incident // those still to be written
}

// mark is the highest sequence that was taken of a lane, and the broker's time of its newest message.
type mark struct {
	sequence uint64
	at       time.Time
}

const (
	tickEvery   = 30 * time.Second      // how often the judge is told the broker's time, by which hosts are missed
	adviceEvery = broker.VerdictTTL / 4 // an incident that stays as it is must not fall out of the bucket
	adviceShare = 64                    // so many are written between two pulls: events do not wait for advice
	markKept    = 24 * time.Hour        // as long as the stream holds events: what is older comes from nowhere again
)

func newPartition(number int, o Options, board *Board, verdicts *Verdicts) *partition {
	p := &partition{number: number, js: o.JS, log: o.Log.With("partition", number), marks: make(map[string]mark), verdicts: verdicts, evidence: o.Evidence, now: time.Now}
	p.judge = NewJudgeWith(o.Pack, board, func(f *event.Finding) { p.findings = append(p.findings, f) })
	p.judge.wish = func(w *Wish) { p.wishes = append(p.wishes, w) }
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

// rebuild feeds the past to the judge: all that was delivered before, since what was delivered but not acknowledged comes again
// only later, behind newer messages. Findings of the acknowledged past were published then; those after it may not have been.
func (p *partition) rebuild(ctx context.Context, consumer jetstream.Consumer) error {
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("read consumer: %w", err)
	}
	subjects := fmt.Sprintf("lowtide.p.%d.>", p.number)
	past, err := p.js.OrderedConsumer(ctx, event.StreamEvents, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subjects}})
	if err != nil {
		return fmt.Errorf("read the past: %w", err)
	}
	stream, err := p.js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return fmt.Errorf("read the past: %w", err)
	}
	floor, delivered := info.AckFloor.Stream, info.Delivered.Stream
	for done := delivered == 0; !done; {
		// Asked each time: the target may age out of the stream meanwhile. An idle partition's marks pass its last message.
		last, err := stream.GetLastMsgForSubject(ctx, subjects)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the past: %w", err)
		}
		if p.applied >= min(delivered, last.Sequence) {
			break
		}
		messages, err := past.Fetch(pull, jetstream.FetchMaxWait(pullWait))
		if err != nil {
			return fmt.Errorf("read the past: %w", err)
		}
		for m := range messages.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return fmt.Errorf("read metadata: %w", err)
			}
			if done = meta.Sequence.Stream > delivered; done {
				break
			}
			p.clock = meta.Timestamp
			p.apply(m, meta.Sequence.Stream)
			p.pass(meta.Timestamp)
			if meta.Sequence.Stream <= floor {
				p.forgo()
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return p.publishAll(ctx)
}

// forgo leaves out what followed from events whose consequences were seen to before this process began.
func (p *partition) forgo() {
	for _, f := range p.findings {
		p.evidence.Seen(f)
	}
	p.findings, p.wishes = nil, nil
}

// take pulls once and applies all that it was given before it returns, since the next pull may bring newer messages first.
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
		p.clock = meta.Timestamp
		p.apply(m, meta.Sequence.Stream)
		p.pass(meta.Timestamp)
		last = m
		if err := p.publishAll(ctx); err != nil {
			return err
		}
	}
	if last != nil {
		if err := last.Ack(); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	p.advise(ctx)
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
		if last, seen := p.marks[key]; seen && batch.Sequence <= last.sequence {
			return // published twice, outside the server's own window
		}
		p.marks[key] = mark{batch.Sequence, p.clock}
	}
	for _, e := range batch.Events {
		p.judge.Apply(e)
	}
}

func (p *partition) pass(now time.Time) {
	if now.Sub(p.ticked) >= tickEvery {
		p.ticked = now
		p.judge.Tick(now)
	}
	if now.Sub(p.pruned) >= time.Hour {
		p.pruned = now
		maps.DeleteFunc(p.marks, func(_ string, m mark) bool { return now.Sub(m.at) > markKept }) // a collector draws a new producer at each start
	}
}

// advise writes the verdicts of the open incidents again before they expire, some at a time.
func (p *partition) advise(ctx context.Context) {
	if len(p.renew) == 0 && p.now().Sub(p.advised) >= adviceEvery {
		p.advised, p.renew = p.now(), p.judge.incidents.State().Incidents
	}
	for range min(len(p.renew), adviceShare) {
		next := p.renew[0]
		p.renew = p.renew[1:]
		for _, in := range p.judge.incidents.Open(next.Key) {
			if in.ID == next.ID && in.Last != nil && !p.put(ctx, in.Last) { // it may have ended meanwhile
				return // the broker may not be well, and the events matter more; the next one has its turn later
			}
		}
	}
}

// put writes the advice that follows from a finding, to the process that lives in its slot by now, and takes it from the one before. It
// is no reason to keep the finding back, nor to announce it again.
func (p *partition) put(ctx context.Context, f *event.Finding) bool {
	for _, one := range p.judge.inherited(f) {
		if err := p.verdicts.Put(ctx, one); err != nil {
			p.log.Warn("verdict not written", "incident", f.Incident, "error", err)
			return false
		}
	}
	return true
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

// publishAll stores the findings however long the broker is away. It returns an error only when ctx ends; what was not published
// was not acknowledged either, and is judged again at the next start.
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
		if ctx.Err() != nil {
			return err
		}
		if !told {
			p.log.Warn("cannot publish a finding, trying again", "error", err)
			told = true
		}
		wait(ctx, retryAfter)
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
		p.put(ctx, f)
		p.evidence.Offer(f)
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
