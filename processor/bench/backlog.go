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
	JudgePending, JudgeUnacked uint64 // not delivered; delivered and not acknowledged
	StorePending, StoreUnacked uint64
	Judges, Stores             int // consumers there are
}

// ReadBacklog asks the broker about every consumer of the event stream, in a few requests.
func ReadBacklog(ctx context.Context, js jetstream.JetStream) (Backlog, error) {
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return Backlog{}, fmt.Errorf("read backlog: %w", err)
	}
	consumers := stream.ListConsumers(ctx)
	state := stream.CachedInfo().State
	b := Backlog{Messages: state.LastSeq, Bytes: state.Bytes}
	for info := range consumers.Info() {
		switch {
		case strings.HasPrefix(info.Name, "judge"):
			b.Judges++
			b.JudgePending += info.NumPending
			b.JudgeUnacked += uint64(max(0, info.NumAckPending))
		case strings.HasPrefix(info.Name, "store"):
			b.Stores++
			b.StorePending += info.NumPending
			b.StoreUnacked += uint64(max(0, info.NumAckPending))
		}
	}
	if err := consumers.Err(); err != nil {
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
