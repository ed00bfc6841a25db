package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// StoreName is the name of the durable consumer of what is stored of the events. There is one: a block costs ClickHouse nearly the same however few
// rows are in it, so that several, each with blocks of its own, would cost several times as much.
const StoreName = "store-events"

// ReaderPrefix is what the names of the consumers by which processors read the events to judge begin with. They live as long as their processor.
const ReaderPrefix = "judging-"

const codeUpdate = jetstream.ErrorCode(10012) // a consumer cannot be updated to this

// JudgeConsumer returns the durable consumer of one partition. Nobody pulls from it: its acknowledgements show, by Acknowledge, what is judged
// and saved, and what is pending is not. Before, it was read from; then it had readers of which one was pinned, and is updated, or made
// anew where its acknowledgements end.
func JudgeConsumer(ctx context.Context, js jetstream.JetStream, partition int) (jetstream.Consumer, error) {
	if partition < 0 || partition >= event.PartitionCount {
		return nil, errors.New("consume partition " + strconv.Itoa(partition) + ": there are 0 to " + strconv.Itoa(event.PartitionCount-1))
	}
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	config := eventConsumer(JudgeName(partition))
	config.FilterSubject = PartitionSubjects(partition)
	consumer, _, err := durable(ctx, js, config, nil)
	return consumer, err
}

// StoreConsumer returns the durable consumer of what is inserted of the events. It is apart from the judges', so that paging does not wait for
// ClickHouse. Earlier versions had a consumer for each partition, then eight lanes, then two; where these stopped it begins, and
// they are deleted. The slowest of them decides, so the faster ones' events come once more. No processor of that version may run any more.
func StoreConsumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	consumer, stream, err := durable(ctx, js, eventConsumer(StoreName), func(stream jetstream.Stream) (uint64, error) { return storedBefore(ctx, stream) })
	if err != nil {
		return nil, err
	}
	// Only now, when it is there and remembers where to begin.
	for _, name := range allOldStoreNames() {
		if err := stream.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil, explain("delete consumer "+name+" of an earlier version", err)
		}
	}
	return consumer, nil
}

// Acknowledge makes the consumer of a partition, which is made anew if it is gone, show that everything up to a sequence is judged and saved; that
// may lie behind or before what it shows. Servers before 2.14 cannot do it.
func Acknowledge(ctx context.Context, js jetstream.JetStream, partition int, sequence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	name := JudgeName(partition)
	what := fmt.Sprintf("acknowledge up to %d by consumer %s", sequence, name)
	_, err := js.Consumer(ctx, event.StreamEvents, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		_, err = JudgeConsumer(ctx, js, partition)
	}
	if err != nil {
		return explain(what, err)
	}
	once, cancel := context.WithTimeout(ctx, askOnce) // one that was deleted meanwhile does not answer
	defer cancel()
	_, err = js.ResetConsumerToSequence(once, event.StreamEvents, name, sequence+1)
	if errors.Is(err, nats.ErrNoResponders) {
		return &Failure{What: what + ": " + err.Error(), Remedy: "the NATS server must be 2.14 or newer, and have a leader for stream " + event.StreamEvents, Err: err}
	}
	if err != nil {
		return explain(what, err)
	}
	return nil
}

// JudgeName is the name of the durable consumer of a partition.
func JudgeName(partition int) string { return "judge-" + strconv.Itoa(partition) }

// PartitionSubjects are those of the events of a partition.
func PartitionSubjects(partition int) string { return "lowtide.p." + strconv.Itoa(partition) + ".>" }

// oldStoreNames are the consumers that stored a partition in earlier versions: one each, then eight lanes, then two.
func oldStoreNames(partition int) []string {
	return []string{"store-" + strconv.Itoa(partition), "store-lane-" + strconv.Itoa(partition/8), "store-half-" + strconv.Itoa(partition/(event.PartitionCount/2))}
}

func allOldStoreNames() (names []string) {
	for p := range event.PartitionCount {
		names = append(names, oldStoreNames(p)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func eventConsumer(name string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       name,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckAllPolicy, // up to where all is done is one number; nobody pulls, so that it is set by a reset
		AckWait:       2 * time.Minute,        // this and the next two: as when they were read from, since changing them would gain nothing
		MaxDeliver:    -1,
		MaxAckPending: 20000,
	}
}

// durable makes or updates a consumer of the events. begin says with which sequence a new one starts; 0, and no begin, mean the
// oldest. Where an existing one starts cannot be changed and does not matter any more.
func durable(ctx context.Context, js jetstream.JetStream, config jetstream.ConsumerConfig, begin func(jetstream.Stream) (uint64, error)) (jetstream.Consumer, jetstream.Stream, error) {
	what := "create consumer " + config.Durable
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return nil, nil, explain(what, err)
	}
	existing, err := stream.Consumer(ctx, config.Durable)
	if err == nil {
		old := existing.CachedInfo()
		config.DeliverPolicy, config.OptStartSeq = old.Config.DeliverPolicy, old.Config.OptStartSeq
		consumer, err := stream.UpdateConsumer(ctx, config)
		if err == nil {
			return consumer, stream, nil
		}
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != codeUpdate {
			return nil, nil, explain(what, err)
		}
		if err := stream.DeleteConsumer(ctx, config.Durable); err != nil {
			return nil, nil, explain("delete consumer "+config.Durable+" of an earlier version", err)
		}
		begin = func(jetstream.Stream) (uint64, error) { return old.AckFloor.Stream + 1, nil }
	} else if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, nil, explain(what, err)
	}
	config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverAllPolicy, 0
	if begin != nil {
		sequence, err := begin(stream)
		if err != nil {
			return nil, nil, explain(what, err)
		}
		if sequence > 1 {
			config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, sequence
		}
	}
	consumer, err := stream.CreateConsumer(ctx, config)
	if errors.Is(err, jetstream.ErrConsumerExists) { // made by somebody else meanwhile
		consumer, err = stream.Consumer(ctx, config.Durable)
	}
	if err != nil {
		return nil, nil, explain(what, err)
	}
	return consumer, stream, nil
}

// storedBefore returns the sequence of the oldest event that the consumers of an earlier version did not acknowledge, 0 where there are none.
func storedBefore(ctx context.Context, stream jetstream.Stream) (uint64, error) {
	info, err := stream.Info(ctx) // before the positions: what comes after it is new to all
	if err != nil {
		return 0, err
	}
	oldest, found := info.State.LastSeq+1, false
	for p := range event.PartitionCount {
		floor := uint64(0)
		for _, name := range oldStoreNames(p) {
			consumer, err := stream.Consumer(ctx, name)
			switch {
			case err == nil:
				found, floor = true, max(floor, consumer.CachedInfo().AckFloor.Stream)
			case !errors.Is(err, jetstream.ErrConsumerNotFound):
				return 0, fmt.Errorf("read consumer %s: %w", name, err)
			}
		}
		// A silent partition's acknowledgements ended long ago, and nothing waits behind them.
		next, err := stream.GetMsg(ctx, floor+1, jetstream.WithGetMsgSubject(PartitionSubjects(p)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look for what partition %d has not stored: %w", p, err)
		}
		oldest = min(oldest, next.Sequence)
	}
	if !found {
		return 0, nil
	}
	return oldest, nil
}
