package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// judges returns the partitions of one process, in a hurry.
func judges(t testing.TB, js jetstream.JetStream) *Judges {
	t.Helper()
	all, err := NewJudges(t.Context(), Options{JS: js, Pack: builtin(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	all.pace = pace{beat: 20 * time.Millisecond, save: 100 * time.Millisecond, idle: 50 * time.Millisecond, stall: time.Second, look: 50 * time.Millisecond, share: time.Hour, sweep: time.Hour}
	return all
}

// work is one partition that runs in a test.
type work struct {
	t     testing.TB
	all   *Judges
	stop  context.CancelFunc
	ended chan error
	once  sync.Once
	err   error
}

func begin(t testing.TB, all *Judges, partition int, fence uint64) *work {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &work{t: t, all: all, stop: stop, ended: make(chan error, 1)}
	go func() { w.ended <- all.Run(ctx, partition, fence) }()
	t.Cleanup(func() { stop(); w.wait() })
	return w
}

// wait returns how the work ended.
func (w *work) wait() error {
	w.once.Do(func() { w.err = <-w.ended })
	return w.err
}

// close ends it with a last checkpoint.
func (w *work) close() {
	w.t.Helper()
	w.stop()
	if err := w.wait(); err != nil {
		w.t.Fatal(err)
	}
}

// kill ends it without.
func (w *work) kill() {
	w.all.abrupt.Store(true)
	w.stop()
	w.wait()
}

// until polls for something that other goroutines bring about.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline, poll := time.NewTimer(30*time.Second), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer poll.Stop()
	for !done() {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("waited for 30 s: %s", what)
		}
	}
}

// testPartition is where the hosts of these tests are.
const testPartition = 7

// hostOn returns a host that the broker puts on a partition, by its documented hash: FNV-1a of the tokens, joined.
func hostOn(partition int, name string) *event.Host {
	for n := 0; ; n++ {
		host := &event.Host{Cluster: "lab", Name: fmt.Sprint(name, "-", n), BootId: "b"}
		h := fnv.New32a()
		h.Write([]byte(host.Cluster + host.Name))
		if h.Sum32()%event.PartitionCount == uint32(partition) {
			return host
		}
	}
}

// script is what some collectors send, one message for so many events, in a fixed order.
type script struct {
	t       testing.TB
	batches []*event.Batch
	sent    int
}

// newScript mixes recordings, each of a host of its own.
func newScript(t testing.TB, size int, names ...string) *script {
	t.Helper()
	s := &script{t: t}
	for _, name := range names {
		host := hostOn(testPartition, strings.ReplaceAll(name, "_", "-"))
		all := events(t, "testdata/"+name+".ndjson.gz")
		for _, e := range all {
			e.Host = host
		}
		sequence := uint64(0)
		for some := range slices.Chunk(all, size) {
			sequence++
			s.batches = append(s.batches, &event.Batch{Host: host, Source: "recording", Producer: "p-" + name, Lane: event.LaneSamples, Sequence: sequence, Events: some})
		}
	}
	slices.SortStableFunc(s.batches, func(a, b *event.Batch) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return s
}

// send publishes the next messages and returns the stream sequence of the last.
func (s *script) send(js jetstream.JetStream, n int) (last uint64) {
	s.t.Helper()
	for range min(n, len(s.batches)-s.sent) {
		b := s.batches[s.sent]
		wire, err := event.EncodeBatch(b)
		if err != nil {
			s.t.Fatal(err)
		}
		id := jetstream.WithMsgID(event.MessageID(b.Host.Name, b.Producer, b.Lane, b.Sequence))
		ack, err := js.Publish(s.t.Context(), event.SubjectFor(b.Host.Cluster, b.Host.Name, b.Source), wire, id)
		if err != nil {
			s.t.Fatal(err)
		}
		s.sent++
		last = ack.Sequence
	}
	return last
}

func (s *script) rest(js jetstream.JetStream) uint64 { return s.send(js, len(s.batches)) }

// undisturbed is what a judge says that is fed once, without a broker, by id.
func (s *script) undisturbed() (ids []string) {
	j := NewJudge(builtin(s.t), func(f *event.Finding) { ids = append(ids, f.ID+" "+f.Class+" "+f.State+" "+f.Severity) })
	for _, b := range s.batches {
		for _, e := range b.Events {
			j.Apply(e)
		}
	}
	return ids
}

// announced is what the stream of findings holds, in its order; a finding that it holds twice stands twice.
func announced(t testing.TB, js jetstream.JetStream) (ids []string) {
	t.Helper()
	for _, f := range found(t, js) {
		ids = append(ids, f.ID+" "+f.Class+" "+f.State+" "+f.Severity)
	}
	return ids
}

func found(t testing.TB, js jetstream.JetStream) (all []*event.Finding) {
	t.Helper()
	err := readStream(t.Context(), js, event.StreamFindings, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy}, func(m jetstream.Msg, _ *jetstream.MsgMetadata) (bool, error) {
		f, err := event.UnmarshalFinding(m.Data())
		if err != nil {
			return false, err
		}
		all = append(all, f)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func same(t testing.TB, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("announced\n  %s\nan undisturbed run says\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// applied waits until a partition has judged an event.
func (w *work) applied(number int, sequence uint64) {
	w.t.Helper()
	until(w.t, fmt.Sprintf("event %d is judged", sequence), func() bool {
		all := w.all.partitions()
		at := slices.IndexFunc(all, func(p *partition) bool { return p.number == number })
		return at >= 0 && all[at].gauge.read().applied >= sequence
	})
}

// savedUpTo waits until the state that holds an event is saved.
func savedUpTo(t testing.TB, js jetstream.JetStream, partition int, sequence uint64) entry {
	t.Helper()
	a, err := openArchive(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	var e entry
	until(t, fmt.Sprintf("event %d is saved", sequence), func() bool {
		e, _, err = a.read(t.Context(), partition)
		if err != nil && !errors.Is(err, errNoEntry) {
			t.Fatal(err)
		}
		return e.Sequence >= sequence
	})
	return e
}

func floorOf(t testing.TB, js jetstream.JetStream, partition int) uint64 {
	t.Helper()
	c, err := broker.JudgeConsumer(t.Context(), js, partition)
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.AckFloor.Stream
}
