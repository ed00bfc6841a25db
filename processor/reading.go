package processor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

const (
	pull        = 500
	pullWait    = 2 * time.Second // below broker.PinnedTTL
	retryAfter  = time.Second
	publishWait = 5 * time.Second
	lookWait    = 5 * time.Second // for one question about the stream
	maxUnsaved  = 8000            // events; well below what the consumer delivers before it waits for an acknowledgement
)

// errShort says that a reader of the stream lost messages on the way.
var errShort = errors.New("messages were lost on the way")

// reading is where a partition stands in its stream.
type reading struct {
	consumer  jetstream.Consumer
	delivered uint64        // the consumer's own number of its newest delivery; 0: what comes next may not be what follows
	newest    jetstream.Msg // of those that this consumer delivered, by place in the stream
	at        uint64        // its place
	acked     bool          // it was
	heard     time.Time     // when something was delivered, or nothing was there to be
	past      uint64        // findings of events up to here were announced by who saved no state
	through   uint64        // nothing of this partition lies between the newest event and here
	target    uint64        // the newest event when this processor began
	caught    bool          // it was reached
	latest    time.Time     // the latest broker's time of an event

	redelivered, gaps, stalls int
	stuck                     int // stalls without a delivery in between
}

func (p *partition) subjects() string { return "lowtide.p." + strconv.Itoa(p.number) + ".>" }

// follow judges what comes until ctx ends, and returns nil then, or ErrFenced.
func (p *partition) follow(ctx context.Context) error {
	beat := time.NewTicker(p.pace.beat)
	defer beat.Stop()
	told := false
	for ctx.Err() == nil {
		err := p.keep(ctx)
		if err == nil {
			err = p.take(ctx, beat.C)
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
		case told && p.js.Conn().IsConnected(): // a pull that nobody heard ends without an error, too
			p.log.Info("judging again")
			told = false
		}
	}
	return nil
}

// take pulls once and applies what it is given.
func (p *partition) take(ctx context.Context, beat <-chan time.Time) error {
	batch, err := p.reading.consumer.Fetch(pull, jetstream.FetchMaxWait(pullWait), jetstream.FetchPriorityGroup(broker.GroupJudge))
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	for {
		select {
		case m, more := <-batch.Messages():
			if !more {
				return p.pulled(ctx, batch.Error())
			}
			if err := p.deliver(ctx, m); err != nil {
				p.reading.delivered = 0 // what was not applied has to be looked for
				return err
			}
			if p.saving.unsaved >= maxUnsaved {
				p.start(ctx)
			}
		case done := <-p.saving.running:
			if err := p.settle(done); err != nil {
				return err
			}
		case <-beat:
			if err := p.keep(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// pulled looks at how a pull ended.
func (p *partition) pulled(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, jetstream.ErrPinIDMismatch), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, nats.ErrNoResponders):
		_, gone := p.reading.consumer.Info(ctx)
		if !errors.Is(gone, jetstream.ErrConsumerNotFound) {
			return err
		}
		p.log.Warn("the consumer was deleted; making it anew")
		return p.open(ctx)
	}
	return err
}

// deliver applies one message of the durable consumer. What it does not follow from is looked for in the stream first: it may have gone to another
// reader, or been lost on the way, and would come again only behind newer ones.
func (p *partition) deliver(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	r := &p.reading
	sequence, follows := meta.Sequence.Stream, meta.Sequence.Consumer == r.delivered+1
	r.delivered, r.heard, r.stuck = meta.Sequence.Consumer, p.now(), 0
	if sequence >= r.at {
		r.newest, r.at, r.acked = m, sequence, false
	}
	if sequence <= p.applied {
		if !meta.Timestamp.After(r.latest) {
			r.redelivered++
			return nil
		}
		p.rebase(sequence-1, "it lost its newest messages") // this one is new, in the place of another
	}
	if !follows {
		if err := p.fill(ctx, sequence-1); err != nil {
			return err
		}
	}
	return p.digest(ctx, letterOf(m, meta))
}

// rebase takes note that the stream's sequences begin anew behind some place.
func (p *partition) rebase(sequence uint64, why string) {
	p.log.Warn("the stream's sequences were used again: "+why, "applied", p.applied, "goes_on_behind", sequence)
	p.applied, p.reading.through, p.reading.at = sequence, min(p.reading.through, sequence), 0
}

// fill applies what lies in the stream behind the newest event, up to a sequence.
func (p *partition) fill(ctx context.Context, to uint64) error {
	if to <= p.applied {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	if err := p.saving.hold.verify(look); err != nil { // another reader's pull is one of the reasons
		return err
	}
	p.announce.verified = p.now()
	next, err := p.stream.GetMsg(look, p.applied+1, jetstream.WithGetMsgSubject(p.subjects()))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for what was not delivered: %w", err)
	}
	if next.Sequence > to {
		return nil
	}
	p.reading.gaps++
	return p.read(ctx, to)
}

// read applies everything of the partition that the stream holds behind the newest event, up to a sequence, without the durable consumer.
func (p *partition) read(ctx context.Context, to uint64) error {
	for p.applied < to {
		config := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: p.applied + 1, FilterSubject: p.subjects()}
		err := readStream(ctx, p.js, event.StreamEvents, config, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
			if meta.Sequence.Stream > to {
				return false, nil
			}
			err := p.digest(ctx, letterOf(m, meta))
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
