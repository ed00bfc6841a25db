package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// Backlog is how much of the event stream its readers still have before them, in messages.
type Backlog struct {
	Messages, Bytes            uint64 // that the stream has taken in all, and holds
	JudgePending               uint64 // that the judges were not given
	StorePending, StoreUnacked uint64
	Judges, Stores             int // durable consumers there are
}

// ReadBacklog asks the broker about the consumers by which the events are read, or which show what is stored, in a few requests: what the
// judges' durable ones show moves once a minute.
func ReadBacklog(ctx context.Context, js jetstream.JetStream) (Backlog, error) {
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return Backlog{}, fmt.Errorf("read backlog: %w", err)
	}
	state := stream.CachedInfo().State
	b := Backlog{Messages: state.LastSeq, Bytes: state.Bytes}
	names := stream.ConsumerNames(ctx)
	for name := range names.Name() {
		reads, stores := strings.HasPrefix(name, broker.ReaderPrefix), strings.HasPrefix(name, "store")
		if strings.HasPrefix(name, "judge-") {
			b.Judges++
		}
		if !reads && !stores {
			continue
		}
		consumer, err := js.Consumer(ctx, event.StreamEvents, name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue // made anew just now
		}
		if err != nil {
			return Backlog{}, fmt.Errorf("read backlog: %w", err)
		}
		info := consumer.CachedInfo()
		if reads {
			b.JudgePending += info.NumPending
			continue
		}
		b.Stores++
		b.StorePending += info.NumPending
		b.StoreUnacked += uint64(max(0, info.NumAckPending))
	}
	if err := names.Err(); err != nil {
		return Backlog{}, fmt.Errorf("read backlog: %w", err)
	}
	return b, nil
}

// Unjudged returns the partitions whose saved state lacks their newest event. It means something once the judges have stopped, which
// save then: what a consumer was given, or acknowledged, says less.
func Unjudged(ctx context.Context, js jetstream.JetStream) (behind []int, err error) {
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("read what was judged: %w", err)
	}
	states, err := js.KeyValue(ctx, broker.BucketState)
	if err != nil {
		return nil, fmt.Errorf("read what was judged: %w", err)
	}
	for p := range event.PartitionCount {
		newest, err := stream.GetLastMsgForSubject(ctx, "lowtide.p."+strconv.Itoa(p)+".>")
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the newest event of partition %d: %w", p, err)
		}
		var saved struct {
			Sequence uint64 `json:"sequence"`
		}
		entry, err := states.Get(ctx, "state."+strconv.Itoa(p))
		if err == nil {
			err = json.Unmarshal(entry.Value(), &saved)
		}
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil, fmt.Errorf("read the state of partition %d: %w", p, err)
		}
		if saved.Sequence < newest.Sequence {
			behind = append(behind, p)
		}
	}
	return behind, nil
}
