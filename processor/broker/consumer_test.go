package broker

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// hostOf returns the name of a host whose events come to a partition.
func hostOf(partition int) string {
	for i := 0; ; i++ {
		if name := "h" + strconv.Itoa(i); partitionOf("lab", name) == strconv.Itoa(partition) {
			return name
		}
	}
}

func publish(t *testing.T, js jetstream.JetStream, partitions ...int) {
	t.Helper()
	for _, p := range partitions {
		if _, err := js.Publish(t.Context(), event.SubjectFor("lab", hostOf(p), "process"), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
}

// client returns another connection's JetStream.
func client(t *testing.T, s *Server) jetstream.JetStream {
	t.Helper()
	conn, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// pull fetches up to n messages.
func pull(t *testing.T, c jetstream.Consumer, n int, patience time.Duration) []uint64 {
	t.Helper()
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(patience))
	if err != nil {
		t.Fatal(err)
	}
	var sequences []uint64
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, meta.Sequence.Stream)
	}
	if err := batch.Error(); err != nil {
		t.Fatal(err)
	}
	return sequences
}

const ample = 10 * time.Second

// shows checks up to where a partition is acknowledged, and how many events are not.
func shows(t *testing.T, js jetstream.JetStream, partition int, floor, pending uint64) {
	t.Helper()
	c, err := js.Consumer(t.Context(), event.StreamEvents, JudgeName(partition))
	if err != nil {
		t.Fatal(err)
	}
	info := c.CachedInfo()
	if info.AckFloor.Stream != floor || info.NumPending != pending || info.NumAckPending != 0 {
		t.Errorf("acknowledged up to %d, %d pending and %d delivered, want %d, %d and 0", info.AckFloor.Stream, info.NumPending, info.NumAckPending, floor, pending)
	}
}

// Nobody pulls; the acknowledgements go where they are told, forward and back, also when somebody else helped himself or the consumer is gone.
func TestAcknowledgementsShowWhatIsSaved(t *testing.T) {
	s, js := begin(t, Options{StoreDir: t.TempDir()})
	c, err := JudgeConsumer(t.Context(), js, 3)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, 3, 3, 4, 3, 3)
	for _, step := range []struct{ to, pending uint64 }{{2, 2}, {5, 0}, {1, 3}, {4, 1}} {
		if err := Acknowledge(t.Context(), js, 3, step.to); err != nil {
			t.Fatal(err)
		}
		shows(t, js, 3, step.to, step.pending)
	}
	if got := pull(t, c, 1, ample); !slices.Equal(got, []uint64{5}) {
		t.Fatalf("somebody helps himself to %v", got)
	}
	if err := Acknowledge(t.Context(), js, 3, 1); err != nil {
		t.Fatal(err)
	}
	shows(t, js, 3, 1, 3)
	if err := js.DeleteConsumer(t.Context(), event.StreamEvents, JudgeName(3)); err != nil {
		t.Fatal(err)
	}
	if err := Acknowledge(t.Context(), client(t, s), 3, 2); err != nil {
		t.Fatal(err)
	}
	shows(t, js, 3, 2, 2)
}

// old makes a consumer as an earlier version did, and acknowledges up to a sequence of the stream.
func old(t *testing.T, js jetstream.JetStream, name string, partition int, policy jetstream.AckPolicy, upTo uint64) {
	t.Helper()
	c, err := js.CreateConsumer(t.Context(), event.StreamEvents, jetstream.ConsumerConfig{
		Durable: name, FilterSubject: fmt.Sprintf("lowtide.p.%d.>", partition), AckPolicy: policy, MaxDeliver: -1, MaxAckPending: 20000, AckWait: 2 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	for done := upTo == 0; !done; {
		m, err := c.Next(jetstream.FetchMaxWait(ample))
		if err != nil {
			t.Fatal(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
		done = meta.Sequence.Stream == upTo
	}
}

func names(t *testing.T, js jetstream.JetStream) []string {
	t.Helper()
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	lister := stream.ConsumerNames(t.Context())
	for name := range lister.Name() {
		all = append(all, name)
	}
	if err := lister.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// The events are 1: partition 40, 2: 41, 3: 40, 4: 41, 5: 40, 6: 20, 7: 41. Partition 40 is stored to 3, 41 to 2, 20 to 6, so storing goes on
// with 4, and 6 comes once more; it begins there however often it is opened.
func TestStoringBeginsWhereTheEarlierVersionStopped(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	publish(t, js, 40, 41, 40, 41, 40, 20, 41)
	for p, upTo := range map[int]uint64{40: 3, 41: 2, 42: 0, 63: 0, 20: 6} {
		old(t, js, "store-"+strconv.Itoa(p), p, jetstream.AckAllPolicy, upTo)
	}
	for range 2 {
		consumer, err := StoreConsumer(t.Context(), js)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(t, js); !slices.Equal(got, []string{"store-events"}) {
			t.Errorf("consumers %v", got)
		}
		if info, err := consumer.Info(t.Context()); err != nil || info.NumPending != 4 {
			t.Errorf("waiting %+v, %v; want 4 to 7", info, err)
		}
	}
	consumer, err := StoreConsumer(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.Fetch(4, jetstream.FetchMaxWait(ample))
	if err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, meta.Sequence.Stream)
	}
	if !slices.Equal(got, []uint64{4, 5, 6, 7}) {
		t.Errorf("delivered %v, %v", got, batch.Error())
	}
}

// All that the earlier versions' silent partitions had is stored, so nothing is read again.
func TestStoringOfStoredPartitionsBeginsWithWhatIsNew(t *testing.T) {
	for _, names := range [][2]string{{"store-40", "store-lane-5"}, {"store-half-1", "store-half-1"}} {
		_, js := begin(t, Options{StoreDir: t.TempDir()})
		publish(t, js, 40, 41)
		old(t, js, names[1], 41, jetstream.AckAllPolicy, 2)
		if names[0] != names[1] {
			old(t, js, names[0], 40, jetstream.AckAllPolicy, 1)
		}
		consumer, err := StoreConsumer(t.Context(), js)
		if err != nil {
			t.Fatal(err)
		}
		if c := consumer.CachedInfo().Config; c.OptStartSeq != 3 {
			t.Errorf("%v: begins with %d, want 3, the next one", names, c.OptStartSeq)
		}
	}
}

func TestStoringWithoutAPastBeginsWithTheOldest(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	publish(t, js, 20, 20)
	fresh, err := StoreConsumer(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := fresh.Info(t.Context()); err != nil || info.NumPending != 2 || info.Config.DeliverPolicy != jetstream.DeliverAllPolicy {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestJudgeOfTheEarlierVersionGoesOn(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	publish(t, js, 3, 3, 3, 4, 4, 4, 5, 5, 5)
	old(t, js, "judge-3", 3, jetstream.AckAllPolicy, 2)
	old(t, js, "judge-4", 4, jetstream.AckExplicitPolicy, 5) // what cannot be updated in place
	old(t, js, "judge-5", 5, jetstream.AckAllPolicy, 8)
	c, err := js.Consumer(t.Context(), event.StreamEvents, "judge-5")
	if err != nil {
		t.Fatal(err)
	}
	config := c.CachedInfo().Config
	config.PriorityPolicy, config.PriorityGroups, config.PinnedTTL = jetstream.PriorityPolicyPinned, []string{"judge"}, 5*time.Second
	if _, err := js.UpdateConsumer(t.Context(), event.StreamEvents, config); err != nil {
		t.Fatal(err)
	}
	for partition, want := range map[int]uint64{3: 3, 4: 6, 5: 9} {
		for range 2 {
			if _, err := JudgeConsumer(t.Context(), js, partition); err != nil {
				t.Fatal(err)
			}
		}
		c, err := JudgeConsumer(t.Context(), js, partition)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.CachedInfo().Config; got.PriorityPolicy != jetstream.PriorityPolicyNone || got.AckPolicy != jetstream.AckAllPolicy {
			t.Errorf("partition %d: %+v", partition, got)
		}
		if got := pull(t, c, 1, ample); !slices.Equal(got, []uint64{want}) {
			t.Errorf("partition %d goes on with %v, want %d", partition, got, want)
		}
	}
}
