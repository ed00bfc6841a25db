package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// Store keeps blocks. Insert returns nil only when every row of the block is kept, or was before under the same token; after an
// error the caller calls it again with the same block. It is called by several goroutines at once.
type Store interface {
	Insert(ctx context.Context, b Block) error
}

// The bounds of a block, and how long one waits to be filled.
const (
	blockRows     = 20000
	blockBytes    = 16 << 20
	blockLinger   = time.Second
	blockMessages = 1000 // fewer than MaxAckPending of the consumer
	insertsAtOnce = 4    // ClickHouse prefers few large inserts; the others wait their turn
	retryFirst    = 250 * time.Millisecond
	retryMost     = 15 * time.Second
)

// RunStore inserts what the streams hold until ctx ends, and acknowledges after it is stored: partitions 0 to partitions-1 of the
// events, and the findings. While the store is away it tries the same block again, and says so once. It returns nil when ctx ends.
func RunStore(ctx context.Context, js jetstream.JetStream, store Store, log *slog.Logger, partitions int) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var runs sync.WaitGroup
	fail := make(chan error, partitions+1)
	turn := make(chan struct{}, insertsAtOnce)
	start := func(stream, name string, consumer jetstream.Consumer) {
		runs.Go(func() {
			identity, err := streamIdentity(ctx, js, stream)
			if err == nil {
				r := &storeRun{consumer: consumer, store: store, log: log.With("consumer", name), identity: identity + ":" + name, turn: turn}
				err = r.run(ctx)
			}
			if err != nil && ctx.Err() == nil {
				fail <- fmt.Errorf("store %s: %w", name, err)
				cancel(err)
			}
		})
	}
	err := func() error {
		for p := range partitions {
			consumer, err := broker.StoreConsumer(ctx, js, p)
			if err != nil {
				return err
			}
			start(event.StreamEvents, strconv.Itoa(p), consumer)
		}
		consumer, err := findingsConsumer(ctx, js)
		if err != nil {
			return err
		}
		start(event.StreamFindings, "findings", consumer)
		return nil
	}()
	if err != nil {
		cancel(err)
	}
	runs.Wait()
	select {
	case first := <-fail:
		return first
	default:
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func findingsConsumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	consumer, err := js.CreateOrUpdateConsumer(ctx, event.StreamFindings, jetstream.ConsumerConfig{
		Durable: "store", DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckAllPolicy, AckWait: 2 * time.Minute,
		MaxDeliver: -1, MaxAckPending: 20000,
	})
	if err != nil {
		return nil, fmt.Errorf("create consumer store of findings: %w", err)
	}
	return consumer, nil
}

// streamIdentity tells a stream from its successor of the same name, whose sequences begin again: without it a token of the old one
// would make the store drop rows of the new one.
func streamIdentity(ctx context.Context, js jetstream.JetStream, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return "", fmt.Errorf("look up stream %s: %w", name, err)
	}
	return name + "@" + strconv.FormatInt(stream.CachedInfo().Created.UnixMilli(), 36), nil
}

type storeRun struct {
	consumer jetstream.Consumer
	store    Store
	log      *slog.Logger
	identity string
	turn     chan struct{}
	stored   uint64 // last sequence that was stored: a redelivery of it is not stored again
}

func (r *storeRun) run(ctx context.Context) error {
	messages, err := r.consumer.Messages(jetstream.PullMaxMessages(blockMessages))
	if err != nil {
		return fmt.Errorf("pull messages: %w", err)
	}
	defer messages.Stop()
	for ctx.Err() == nil {
		last, block, err := r.gather(ctx, messages)
		if last == nil {
			if err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		if len(block.Messages) > 0 && !r.insert(ctx, block) {
			return nil
		}
		// An acknowledgement that is lost costs a redelivery, which `stored` passes over.
		if err := acknowledge(ctx, last); err != nil && ctx.Err() == nil {
			r.log.Warn("stored, but not acknowledged; will be delivered again", "error", err)
		}
	}
	return nil
}

func acknowledge(ctx context.Context, m jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return m.DoubleAck(ctx)
}

// gather reads until a bound of the block is reached, or blockLinger after its first message.
func (r *storeRun) gather(ctx context.Context, messages jetstream.MessagesContext) (last jetstream.Msg, b Block, err error) {
	wait, stop := context.WithCancel(ctx)
	defer stop()
	rows, bytes := 0, 0
	for rows < blockRows && bytes < blockBytes && len(b.Messages) < blockMessages {
		raw, err := messages.Next(jetstream.NextContext(wait))
		if err != nil {
			if last == nil && wait.Err() == nil && !errors.Is(err, jetstream.ErrNoHeartbeat) {
				return nil, b, fmt.Errorf("read next message: %w", err)
			}
			break
		}
		if last == nil {
			linger := time.AfterFunc(blockLinger, stop)
			defer linger.Stop()
		}
		last = raw
		m, err := Decode(raw)
		if err != nil {
			return nil, b, err
		}
		if m.Sequence <= r.stored {
			continue
		}
		r.stored = m.Sequence
		b.Messages = append(b.Messages, m)
		rows += len(m.Batch.GetEvents()) + 1
		bytes += len(raw.Data())
	}
	if n := len(b.Messages); n > 0 {
		b.Token = fmt.Sprintf("%s:%d-%d", r.identity, b.Messages[0].Sequence, b.Messages[n-1].Sequence)
	}
	return last, b, nil
}

// insert tries until the block is stored; false means that ctx ended before.
func (r *storeRun) insert(ctx context.Context, b Block) bool {
	pause, away := retryFirst, ""
	for {
		select {
		case r.turn <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		err := r.store.Insert(ctx, b)
		<-r.turn
		if err == nil {
			if away != "" {
				r.log.Info("store is back", "block", b.Token)
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if text := err.Error(); text != away {
			r.log.Warn("store refuses; events wait in the stream and are tried again", "block", b.Token, "error", err)
			away = text
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		pause = min(2*pause, retryMost)
	}
}

// Decode reads a message of either stream. What cannot be read becomes Refused, with its reason; an error means that the message
// came from no stream.
func Decode(raw jetstream.Msg) (Message, error) {
	meta, err := raw.Metadata()
	if err != nil {
		return Message{}, fmt.Errorf("read place of message: %w", err)
	}
	m := decode(meta.Stream == event.StreamFindings, raw.Subject(), raw.Headers().Get("Content-Type"), raw.Data())
	m.Sequence, m.Time = meta.Sequence.Stream, meta.Timestamp
	return m, nil
}

func decode(finding bool, subject, contentType string, data []byte) Message {
	m := Message{Subject: subject}
	refuse := func(reason string) Message {
		m.Batch, m.Finding, m.Refused, m.Data = nil, nil, reason, data
		return m
	}
	var err error
	if finding {
		if m.Finding, err = event.UnmarshalFinding(data); err != nil {
			return refuse(err.Error())
		}
		return m
	}
	if m.Batch, _, err = event.DecodeBatch(contentType, data); err != nil {
		return refuse(err.Error())
	}
	if cluster, host, ok := event.SplitSubject(subject); !ok || cluster != m.Batch.Host.Cluster || host != m.Batch.Host.Name {
		return refuse("host " + event.HostKey(m.Batch.Host) + " is not the host of subject " + subject)
	}
	return m
}
