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

const (
	pull        = 500
	pullWait    = 2 * time.Second
	retryAfter  = time.Second
	publishWait = 5 * time.Second
	lookWait    = 5 * time.Second // for one question about the stream
	maxUnsaved  = 8000            // messages: what is judged again after a crash
)

// errShort says that a reader of the stream lost messages on the way.
var errShort = errors.New("messages were lost on the way")

// reading is where a partition stands in its stream.
type reading struct {
	queue   *queue           // that the feed fills; nil until everything was read that was there at the start
	letters []letter         // taken from it, still to be judged
	whole   uint64           // the queue has everything from here on, and what is older is judged
	beat    <-chan time.Time // when to look at what is due
	heard   time.Time        // when something was delivered, or nothing was there to be
	past    uint64           // findings of events up to here were announced by who saved no state
	through uint64           // nothing of this partition lies between the newest event and here
	target  uint64           // the newest event when this processor began
	caught  bool             // it was reached
	latest  time.Time        // the latest broker's time of an event

	redelivered, gaps, stalls int
}

func (p *partition) subjects() string { return broker.PartitionSubjects(p.number) }

// follow judges what comes until ctx ends, and returns nil then, or ErrFenced.
func (p *partition) follow(ctx context.Context) error {
	beat := time.NewTicker(p.pace.beat)
	defer beat.Stop()
	p.reading.beat = beat.C
	defer p.part()
	told := false
	for ctx.Err() == nil {
		err := p.keep(ctx)
		if err == nil && p.reading.queue == nil {
			err = p.join(ctx)
		}
		if err == nil {
			err = p.take(ctx)
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			if !told {
				p.log.Warn("cannot judge, trying again", "error", err)
				told = true
			}
			broker.Wait(ctx, retryAfter)
		case told && p.js.Conn().IsConnected():
			p.log.Info("judging again")
			told = false
		}
	}
	return nil
}

// join reads what was there at the start, and then becomes one of the partitions that the feed reads.
func (p *partition) join(ctx context.Context) error {
	if _, err := broker.JudgeConsumer(ctx, p.js, p.number); err != nil { // it shows from now on what is saved
		return err
	}
	if _, err := p.fill(ctx, p.reading.target); err != nil {
		return err
	}
	p.reading.queue, p.reading.whole = p.feed.join(p.number), 0
	return nil
}

func (p *partition) part() {
	if p.reading.queue != nil {
		p.feed.leave(p.reading.queue)
	}
	p.reading.queue, p.reading.letters = nil, nil
}

// take waits for what the feed has, and applies it.
func (p *partition) take(ctx context.Context) error {
	r := &p.reading
	if len(r.letters) == 0 {
		select {
		case <-r.queue.ready:
		case done := <-p.saving.running:
			return p.settle(done)
		case <-r.beat:
			return nil // follow looks at what is due
		case <-ctx.Done():
			return nil
		}
	}
	for ctx.Err() == nil {
		if len(r.letters) == 0 {
			letters, from := p.feed.take(r.queue)
			if len(letters) == 0 && from <= r.whole {
				return nil
			}
			r.letters = letters
			if from > r.whole {
				if err := p.bridge(ctx, from); err != nil {
					return err
				}
			}
		}
		for len(r.letters) > 0 && ctx.Err() == nil {
			m := r.letters[0]
			r.letters[0], r.letters = letter{}, r.letters[1:]
			if err := p.deliver(ctx, m); err != nil {
				return err
			}
			if err := p.pause(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// bridge reads what is between what was judged and what the feed has. When it fails the feed gives everything from a later place on.
func (p *partition) bridge(ctx context.Context, from uint64) error {
	r := &p.reading
	first := r.whole == 0 // a gap is no fault when a partition begins
	found, err := p.fill(ctx, from-1)
	if err != nil {
		r.letters = nil
		p.feed.skip(r.queue)
		return err
	}
	if found && !first {
		r.gaps++
	}
	r.whole = from
	return nil
}

// pause does between two events what must not wait until there are no more.
func (p *partition) pause(ctx context.Context) error {
	if p.saving.unsaved >= maxUnsaved {
		p.start(ctx)
	}
	select {
	case done := <-p.saving.running:
		return p.settle(done)
	case <-p.reading.beat:
		return p.keep(ctx)
	default:
		return nil
	}
}

// deliver applies one message that the feed handed out.
func (p *partition) deliver(ctx context.Context, m letter) error {
	r := &p.reading
	r.heard = p.now()
	if m.sequence <= p.applied {
		if !m.at.After(r.latest) {
			r.redelivered++
			return nil
		}
		p.rebase(m.sequence-1, "it lost its newest messages") // this one is new, in the place of another
	}
	return p.digest(ctx, m)
}

// rebase takes note that the stream's sequences begin anew behind some place.
func (p *partition) rebase(sequence uint64, why string) {
	p.log.Warn("the stream's sequences were used again: "+why, "applied", p.applied, "goes_on_behind", sequence)
	p.applied, p.reading.through = sequence, min(p.reading.through, sequence)
}

// fill applies what lies in the stream behind the newest event, up to a sequence, and says whether there was something.
func (p *partition) fill(ctx context.Context, to uint64) (found bool, err error) {
	if to <= p.applied {
		return false, nil
	}
	look, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	if err := p.saving.hold.verify(look); err != nil {
		return false, err
	}
	p.announce.verified = p.now()
	next, err := p.stream.GetMsg(look, p.applied+1, jetstream.WithGetMsgSubject(p.subjects()))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for what was not delivered: %w", err)
	}
	if next.Sequence > to {
		return false, nil
	}
	return true, p.read(ctx, to)
}

// read applies everything of the partition that the stream holds behind the newest event, up to a sequence, by a consumer of its own.
func (p *partition) read(ctx context.Context, to uint64) error {
	for p.applied < to {
		config := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: p.applied + 1, FilterSubject: p.subjects()}
		err := readStream(ctx, p.js, event.StreamEvents, config, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
			if meta.Sequence.Stream > to {
				return false, nil
			}
			p.reading.heard = p.now()
			err := p.digest(ctx, letterOf(m, meta))
			if err == nil {
				err = p.pause(ctx)
			}
			return meta.Sequence.Stream < to, err
		})
		if !errors.Is(err, errShort) {
			return err
		}
	}
	return nil
}

// readStream gives each message of a stream to take, in order, until it says that it wants no more, or the last one there was. errShort
// means that the next one did not arrive, and that it can be asked for again.
func readStream(ctx context.Context, js jetstream.JetStream, stream string, config jetstream.ConsumerConfig, take func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error)) error {
	config.AckPolicy, config.MemoryStorage, config.InactiveThreshold, config.Replicas = jetstream.AckNonePolicy, true, time.Minute, 1
	setup, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	consumer, err := js.CreateConsumer(setup, stream, config)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(leave, stream, consumer.CachedInfo().Name) // it goes by itself when nobody reads
	}()
	pending := consumer.CachedInfo().NumPending
	for delivered := uint64(0); pending > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		batch, err := consumer.Fetch(min(pull, int(pending)), jetstream.FetchMaxWait(pullWait))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		came := false
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return fmt.Errorf("read metadata: %w", err)
			}
			if meta.Sequence.Consumer != delivered+1 {
				return errShort
			}
			delivered, pending, came = meta.Sequence.Consumer, meta.NumPending, true
			if more, err := take(m, meta); err != nil || !more {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		if !came {
			info, err := consumer.Info(ctx)
			if err != nil {
				return fmt.Errorf("read stream %s: %w", stream, err)
			}
			if info.Delivered.Consumer > delivered {
				return errShort
			}
			pending = info.NumPending // what it promised may have aged out
		}
	}
	return nil
}
