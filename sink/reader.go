package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// pullMessages are asked for at once, and lie in memory besides the block that is being filled.
const pullMessages = 1000

// source is what a seat reads: a stream.
type source struct {
	js       jetstream.JetStream
	stream   string
	durable  string // the consumer that shows where the seat stands
	identity string
	decoder  messageReader
}

func newSource(js jetstream.JetStream, seat int, shelf *event.Shelf) source {
	decoder := messageReader{event.NewBatchReader(), shelf}
	if seat == findingsSeat {
		return source{js: js, stream: event.StreamFindings, durable: "store", decoder: decoder}
	}
	return source{js: js, stream: event.StreamEvents, durable: broker.StoreName, decoder: decoder}
}

// consumer returns the durable consumer of the seat, which nobody pulls from.
func (s *source) consumer(ctx context.Context, seat int) (jetstream.Consumer, error) {
	if seat != findingsSeat {
		return broker.StoreConsumer(ctx, s.js)
	}
	ctx, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	consumer, err := s.js.CreateOrUpdateConsumer(ctx, s.stream, jetstream.ConsumerConfig{
		Durable: s.durable, DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckAllPolicy, AckWait: 2 * time.Minute,
		MaxDeliver: -1, MaxAckPending: 20000,
	})
	if err != nil {
		return nil, fmt.Errorf("create consumer store of findings: %w", err)
	}
	return consumer, nil
}

// look reads where the stream stands. Its identity tells it from a successor of the same name, whose sequences begin again: without it
// a token of the old one would make the store drop rows of the new one.
func (s *source) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", s.stream, err)
	}
	info := stream.CachedInfo()
	s.identity = s.stream + "@" + strconv.FormatInt(info.Created.UnixMilli(), 36)
	return info, nil
}

// reader gives the messages of a source in the order of the stream, without a gap: its consumer belongs to nobody else, and is made anew
// after the last message when the broker forgets it or goes.
type reader struct {
	messages jetstream.MessagesContext
	pending  uint64 // that were behind the last message
}

// read starts with the first message at or after from.
func (s *source) read(ctx context.Context, from uint64) (*reader, error) {
	opening, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	consumer, err := s.js.OrderedConsumer(opening, s.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, MaxResetAttempts: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", s.stream, from, err)
	}
	// Bounded in both, since a message may have a megabyte.
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(pullMessages, 2*broker.MaxPayload))
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", s.stream, from, err)
	}
	return &reader{messages: messages, pending: consumer.CachedInfo().NumPending}, nil
}

// next waits for a message; the error is that of ctx when it ends before.
func (r *reader) next(ctx context.Context) (jetstream.Msg, *jetstream.MsgMetadata, error) {
	raw, err := r.messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	meta, err := raw.Metadata()
	if err != nil {
		return nil, nil, fmt.Errorf("read place of message: %w", err)
	}
	r.pending = meta.NumPending
	return raw, meta, nil
}

func (r *reader) stop() { r.messages.Stop() }

// again visits the messages that the stream still holds between two sequences, these included.
func (s *source) again(ctx context.Context, from, to uint64, visit func(Message)) error {
	if from > to {
		return nil
	}
	r, err := s.read(ctx, from)
	if err != nil {
		return err
	}
	defer r.stop()
	for r.pending > 0 {
		wait, cancel := context.WithTimeout(ctx, brokerLimit)
		raw, meta, err := r.next(wait)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return fmt.Errorf("read %s from %d to %d again: the broker gives nothing", s.stream, from, to)
		}
		if err != nil {
			return err
		}
		if meta.Sequence.Stream > to {
			return nil
		}
		m, err := s.decoder.read(ctx, raw)
		if err != nil {
			return err
		}
		visit(m)
		if m.Sequence == to {
			return nil
		}
	}
	return nil
}
