package processor

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/incident"
)

// partition judges one partition of the event stream. Its state is saved between two events; at the start it is what was saved
// last, and the stream is read from there on. Loop, catch-up, stall and checkpoint have files of their own.
type partition struct {
	number   int
	js       jetstream.JetStream
	stream   jetstream.Stream // of the events
	log      *slog.Logger
	batches  *event.BatchReader
	shelf    *event.Shelf
	judge    *Judge
	labels   Labels // that every judge here adds
	board    *Board
	verdicts *Verdicts // nil where nothing is published
	evidence *Asker    // nil where nobody is asked
	findings []*event.Finding
	wishes   []*Wish         // that rules asked for since the last findings were published
	marks    map[string]mark // per host, producer and lane
	applied  uint64          // stream sequence of the newest event
	clock    time.Time       // broker time of the message that is being applied
	ticked   time.Time       // that the judge was told last with a message
	idled    time.Time       // and without one
	pruned   time.Time       // at which marks were pruned last

	refused, lost, published int
	missing, trimmed         uint64

	now     func() time.Time
	advised time.Time           // when the verdicts of open incidents began to be written again
	renew   []incident.Incident // those still to be written

	all      *Judges // nil where there is no loop
	feed     *feed   // that hands out what there is to judge
	pace     pace
	reading  reading
	saving   saving
	announce announcement
	gauge    gauge
	ruling   ruling
}

// mark is the highest sequence that was taken of a lane, and the broker's time of its newest message.
type mark struct {
	sequence uint64
	at       time.Time
}

// letter is one message of the stream, whichever way it came.
type letter struct {
	subject, kind string // kind is its content type
	data          []byte
	sequence      uint64
	at            time.Time
}

func letterOf(m jetstream.Msg, meta *jetstream.MsgMetadata) letter {
	return letter{subject: m.Subject(), kind: m.Headers().Get("Content-Type"), data: m.Data(), sequence: meta.Sequence.Stream, at: meta.Timestamp}
}

const (
	tickEvery   = 30 * time.Second      // how often the judge is told the broker's time, by which hosts are missed
	tickGap     = 5 * tickEvery         // nobody told it for so long: that is no silence of hosts
	adviceEvery = broker.VerdictTTL / 4 // an incident that stays as it is must not fall out of the bucket
	adviceShare = 64                    // so many are written between two pulls: events do not wait for advice
	markKept    = 24 * time.Hour        // as long as the stream holds events: what is older comes from nowhere again
)

func newPartition(number int, o Options, board *Board, verdicts *Verdicts) *partition {
	p := &partition{number: number, batches: event.NewBatchReader(), shelf: o.Shelf, js: o.JS, log: o.Log.With("partition", number), board: board, marks: make(map[string]mark), verdicts: verdicts,
		evidence: o.Evidence, labels: o.Labels, now: time.Now, pace: usual()}
	p.ruling.asked = o.Pack
	p.hire(NewJudgeWith(o.Pack, board, p.emit))
	return p
}

func (p *partition) emit(f *event.Finding) { p.findings = append(p.findings, f) }

// hire makes a judge the partition's. One that was restored may have been saved under other labels.
func (p *partition) hire(j *Judge) {
	p.judge = j
	j.Label(p.labels)
	j.wish = func(w *Wish) { p.wishes = append(p.wishes, w) }
}

// digest applies one message, whatever came between, and publishes what follows. It returns an error only when ctx ends, or the partition is
// another's.
func (p *partition) digest(ctx context.Context, m letter) error {
	if m.sequence <= p.applied {
		return nil
	}
	p.clock = m.at
	if m.at.After(p.reading.latest) {
		p.reading.latest = m.at
	}
	p.saving.hear(m.at, m.sequence <= p.reading.past)
	p.apply(m)
	p.pass(m.at)
	if m.sequence <= p.reading.past {
		p.forgo()
		return nil
	}
	return p.publishAll(ctx)
}

// forgo leaves out what followed from events whose consequences were seen to before this process began.
func (p *partition) forgo() {
	for _, f := range p.findings {
		if !f.Shadow {
			p.evidence.Seen(f)
		}
	}
	p.findings, p.wishes = nil, nil
}

func (p *partition) apply(m letter) {
	if m.sequence <= p.applied {
		return // redelivered
	}
	p.applied = m.sequence
	batch, err := p.decode(m)
	if err != nil {
		p.refused++
		p.log.Warn("message refused", "subject", m.subject, "sequence", m.sequence, "refused", p.refused, "error", err)
		return
	}
	if batch.Producer != "" {
		key := event.HostKey(batch.Host) + "/" + batch.Producer + "/" + batch.Lane
		if last, seen := p.marks[key]; seen {
			if batch.Sequence <= last.sequence {
				return // published twice, outside the server's own window
			}
			p.missing += batch.Sequence - last.sequence - 1 // dropped by the collector's spool, or by the stream before it was read
		}
		p.marks[key] = mark{batch.Sequence, p.clock}
	}
	for _, e := range batch.Events {
		p.judge.Apply(e)
	}
	p.judge.hear(batch.Host, p.clock)
}

// decode reads a message, and leaves it to the store.
func (p *partition) decode(m letter) (*event.Batch, error) {
	batch, _, err := p.batches.Decode(m.kind, m.data)
	if err == nil {
		err = sameHost(m.subject, batch)
	}
	if err != nil {
		batch = nil // the store says by itself what is wrong with it
	}
	p.shelf.Put(p.number, m.sequence, m.at, batch, len(m.data))
	return batch, err
}

// pass does what the passing of the broker's time asks for. What the judge is told then depends on the messages alone, so that it is the same
// when they are read again.
func (p *partition) pass(now time.Time) {
	if passed := now.Sub(p.ticked); passed >= tickEvery {
		p.excuse(now)
		p.ticked = now
		p.judge.Tick(now)
	}
	if now.Sub(p.pruned) >= time.Hour {
		p.pruned = now
		maps.DeleteFunc(p.marks, func(_ string, m mark) bool { return now.Sub(m.at) > markKept }) // a collector draws a new producer at each start
	}
}

// excuse tells the judge of a time in which it was not told of any: broker or processor were away, or the broker's clock was set.
func (p *partition) excuse(now time.Time) {
	before := p.ticked
	if p.idled.After(before) {
		before = p.idled
	}
	if passed := now.Sub(before); !before.IsZero() && passed > tickGap {
		p.judge.excuse(now, passed-tickEvery)
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
			if ctx.Err() == nil {
				p.log.Warn("verdict not written", "incident", f.Incident, "error", err)
			}
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
