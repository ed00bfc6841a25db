package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// entry is one message of the event stream.
type entry struct {
	sequence  uint64
	partition string
	id        string
	batch     *event.Batch
	repeat    bool // the same batch stands earlier in the stream: it counts once
}

// ledger is what the broker holds, which is what everybody else has to agree with.
type ledger struct {
	events   []entry
	findings []*event.Finding // in the order of the stream
	places   []uint64         // of findings: their sequences
	seen     map[string]bool  // the batches
	judged   []*event.Finding // what one process judges that nothing happens to
	judges   map[string]*processor.Judge
	board    *processor.Board
	pack     *rules.Pack
}

func newLedger(pack *rules.Pack) *ledger {
	return &ledger{seen: map[string]bool{}, judges: map[string]*processor.Judge{}, board: processor.NewBoard(), pack: pack}
}

// readLimit bounds one reading of the streams: a consumer whose server has just died may never answer, and a new one does.
const readLimit = 30 * time.Second

// read reads both streams to their last message, from where it was read to before.
func (l *ledger) read(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	from := uint64(1)
	if n := len(l.events); n > 0 {
		from = l.events[n-1].sequence + 1
	}
	err := readStream(ctx, js, event.StreamEvents, from, func(m jetstream.Msg, sequence uint64) error {
		batch, _, err := event.DecodeBatch(m.Headers().Get("Content-Type"), m.Data())
		if err != nil {
			return fmt.Errorf("message %d of the events: %w", sequence, err)
		}
		one := entry{sequence: sequence, id: m.Headers().Get(nats.MsgIdHdr), batch: batch}
		if parts := strings.Split(m.Subject(), "."); len(parts) > 2 {
			one.partition = parts[2]
		}
		if batch.Producer != "" {
			key := event.MessageID(event.HostKey(batch.Host), batch.Producer, batch.Lane, batch.Sequence)
			one.repeat, l.seen[key] = l.seen[key], true
		}
		l.events = append(l.events, one)
		l.judge(one)
		return nil
	})
	if err != nil {
		return err
	}
	if from = 1; len(l.places) > 0 {
		from = l.places[len(l.places)-1] + 1
	}
	return readStream(ctx, js, event.StreamFindings, from, func(m jetstream.Msg, sequence uint64) error {
		f, err := event.UnmarshalFinding(m.Data())
		if err != nil {
			return fmt.Errorf("message %d of the findings: %w", sequence, err)
		}
		l.findings, l.places = append(l.findings, f), append(l.places, sequence)
		return nil
	})
}

func readStream(ctx context.Context, js jetstream.JetStream, name string, from uint64, visit func(jetstream.Msg, uint64) error) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", name, err)
	}
	last := stream.CachedInfo().State.LastSeq
	if stream.CachedInfo().State.Msgs == 0 || last < from {
		return nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", name, err)
	}
	for at := uint64(0); at < last; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read stream %s to %d of %d: %w", name, at, last, err)
		}
		batch, err := consumer.Fetch(1000, jetstream.FetchMaxWait(2*time.Second))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", name, err)
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return fmt.Errorf("read stream %s: %w", name, err)
			}
			if at = meta.Sequence.Stream; at > last {
				break
			}
			if err := visit(m, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// marks returns the names of the endings that have arrived.
func (l *ledger) marks() map[string]bool {
	out := map[string]bool{}
	for _, one := range l.events {
		for _, e := range one.batch.Events {
			if e.Mark != nil && strings.HasPrefix(e.Mark.Name, endingMark) {
				out[e.Mark.Name] = true
			}
		}
	}
	return out
}

// gaps returns the messages that are missing between two of the same producer, host and lane: a lane is first-in-first-out, so that a
// later one was only sent once the earlier one had been acknowledged, or given up. What a producer says that it gave up is no gap.
func (l *ledger) gaps() (out []string) {
	type lane struct{ host, producer, name string }
	held := map[lane][]uint64{}
	for _, one := range l.events {
		if b := one.batch; b.Producer != "" && !one.repeat {
			key := lane{event.HostKey(b.Host), b.Producer, b.Lane}
			held[key] = append(held[key], b.Sequence)
		}
	}
	holes, missing := map[string][]string{}, map[string]int{} // by producer
	for key, all := range held {
		if !slices.IsSorted(all) {
			out = append(out, fmt.Sprintf("%s %s %s came out of order: %v", key.host, key.producer, key.name, all))
			slices.Sort(all)
		}
		next := uint64(1)
		for _, sequence := range all {
			if sequence != next {
				missing[key.producer] += int(sequence - next)
				holes[key.producer] = append(holes[key.producer], fmt.Sprintf("%s %s %s: %d to %d are missing before %d", key.host, key.producer, key.name, next, sequence-1, sequence))
			}
			next = sequence + 1
		}
	}
	announced := l.announced()
	for producer, all := range holes {
		if missing[producer] > announced[producer] {
			out = append(out, all...)
		}
	}
	slices.Sort(out)
	return out
}

// ids counts the messages by id.
func (l *ledger) ids() map[string]int {
	out := map[string]int{}
	for _, one := range l.events {
		out[one.id]++
	}
	return out
}

// repeats is how many messages stand in the stream a second time.
func (l *ledger) repeats() (n int) {
	for _, one := range l.events {
		if one.repeat {
			n++
		}
	}
	return n
}

// counts returns how many events of which body the broker holds.
func (l *ledger) counts() map[string]int {
	out := map[string]int{}
	for _, one := range l.events {
		if one.repeat {
			continue
		}
		for _, e := range one.batch.Events {
			out[e.Body()]++
		}
	}
	return out
}

// judge judges a message in one process that nothing happens to: partition by partition, in the order of the stream.
func (l *ledger) judge(one entry) {
	if one.repeat {
		return
	}
	judge := l.judges[one.partition]
	if judge == nil {
		judge = processor.NewJudgeWith(l.pack, l.board, func(f *event.Finding) { l.judged = append(l.judged, f) })
		l.judges[one.partition] = judge
	}
	for _, e := range one.batch.Events {
		judge.Apply(e)
	}
}

// story is what is told of an incident, transition by transition, as far as it must not depend on what happened on the way.
func story(all []*event.Finding) map[string][]string {
	out := map[string][]string{}
	for _, f := range all {
		if f.Class == "blind" {
			continue // the pipeline says so itself when it cannot see, and that depends on what happened to it
		}
		out[f.Incident] = append(out[f.Incident], strings.Join([]string{f.ID, f.Class, f.Subject.Kind, f.Subject.Key, f.State, f.Severity,
			f.Time.UTC().Format(time.RFC3339Nano), strconv.FormatFloat(f.Confidence, 'g', 6, 64), f.Summary}, " | "))
	}
	return out
}

// compareStories says in which incidents two runs differ.
func compareStories(want, got map[string][]string) (out []string) {
	for _, incident := range slices.Sorted(maps.Keys(want)) {
		if have, ok := got[incident]; !ok {
			out = append(out, fmt.Sprintf("incident %s is missing: %v", incident, want[incident]))
		} else if !slices.Equal(want[incident], have) {
			out = append(out, fmt.Sprintf("incident %s differs:\n  undisturbed %s\n  here        %s", incident, strings.Join(want[incident], "\n              "), strings.Join(have, "\n              ")))
		}
	}
	for _, incident := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[incident]; !ok {
			out = append(out, fmt.Sprintf("incident %s is not in an undisturbed run: %v", incident, got[incident]))
		}
	}
	return out
}

// twice returns the ids of findings that stand in the stream more than once.
func (l *ledger) twice() (out []string) {
	count := map[string]int{}
	for _, f := range l.findings {
		if count[f.ID]++; count[f.ID] == 2 {
			out = append(out, f.ID)
		}
	}
	return out
}

// pendings are what the durable consumers have not delivered, and what they have delivered without hearing back.
func pendings(ctx context.Context, js jetstream.JetStream) (waiting, unacknowledged map[string]uint64, err error) {
	waiting, unacknowledged = map[string]uint64{}, map[string]uint64{}
	for _, name := range []string{event.StreamEvents, event.StreamFindings} {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return nil, nil, fmt.Errorf("list consumers of %s: %w", name, err)
		}
		all := stream.ListConsumers(ctx)
		for info := range all.Info() {
			if info.Config.Durable == "" {
				continue
			}
			if info.NumPending > 0 {
				waiting[name+"/"+info.Name] = info.NumPending
			}
			if info.NumAckPending > 0 {
				unacknowledged[name+"/"+info.Name] = uint64(info.NumAckPending)
			}
		}
		if err := all.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
			return nil, nil, fmt.Errorf("list consumers of %s: %w", name, err)
		}
	}
	return waiting, unacknowledged, nil
}
