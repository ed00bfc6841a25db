package broker

import (
	"errors"
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

// pull fetches up to n messages as a judge does.
func pull(t *testing.T, c jetstream.Consumer, n int, patience time.Duration) ([]uint64, jetstream.Msg, error) {
	t.Helper()
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(patience), jetstream.FetchPriorityGroup(GroupJudge))
	if err != nil {
		t.Fatal(err)
	}
	var sequences []uint64
	var last jetstream.Msg
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		sequences, last = append(sequences, meta.Sequence.Stream), m
	}
	return sequences, last, batch.Error()
}

const soon, ample = 200 * time.Millisecond, 10 * time.Second

func TestOneReaderOfAPartitionIsServedAtATime(t *testing.T) {
	s, js := begin(t, Options{StoreDir: t.TempDir()})
	one, err := JudgeConsumer(t.Context(), client(t, s), 3)
	if err != nil {
		t.Fatal(err)
	}
	two, err := JudgeConsumer(t.Context(), js, 3)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, 3, 3)
	if got, _, err := pull(t, one, 2, ample); !slices.Equal(got, []uint64{1, 2}) || err != nil {
		t.Fatalf("the first that pulls got %v, %v", got, err)
	}
	publish(t, js, 3, 3)
	if got, _, err := pull(t, two, 2, soon); got != nil || err != nil {
		t.Fatalf("another got %v, %v while the first is pinned", got, err)
	}
	if got, _, err := pull(t, one, 1, ample); !slices.Equal(got, []uint64{3}) || err != nil {
		t.Fatalf("the first then got %v, %v", got, err)
	}
	if err := Unpin(t.Context(), js, 3); err != nil {
		t.Fatal(err)
	}
	if err := Unpin(t.Context(), js, 3); err != nil {
		t.Fatalf("nobody is pinned: %v", err)
	}
	// What the first was given and did not acknowledge does not come by itself, only what is new.
	if got, _, err := pull(t, two, 1, ample); !slices.Equal(got, []uint64{4}) || err != nil {
		t.Fatalf("after unpinning the other got %v, %v", got, err)
	}
	if got, _, err := pull(t, one, 2, ample); got != nil || !errors.Is(err, jetstream.ErrPinIDMismatch) {
		t.Fatalf("the former one got %v, %v", got, err)
	}
	if err := Rewind(t.Context(), js, 3, 2); err != nil {
		t.Fatal(err)
	}
	got, last, err := pull(t, two, 3, ample)
	if !slices.Equal(got, []uint64{2, 3, 4}) || err != nil {
		t.Fatalf("after rewinding to 2 it got %v, %v", got, err)
	}
	if err := last.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := two.Info(t.Context()); err != nil || info.AckFloor.Stream != 4 || info.NumAckPending != 0 {
		t.Errorf("acknowledged %+v, %v", info, err)
	}
}

// A reader that dies says nothing: its place is free when it has not pulled for a while, also for one whose pull already waits.
func TestSilentReaderLosesItsPlace(t *testing.T) {
	s, js := begin(t, Options{StoreDir: t.TempDir()})
	dying := client(t, s)
	one, err := JudgeConsumer(t.Context(), dying, 3)
	if err != nil {
		t.Fatal(err)
	}
	config := one.CachedInfo().Config
	if config.PinnedTTL != 5*time.Second {
		t.Fatalf("pinned for %v", config.PinnedTTL)
	}
	config.PinnedTTL = time.Second // so that the test need not wait
	two, err := js.UpdateConsumer(t.Context(), event.StreamEvents, config)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, 3)
	if got, _, err := pull(t, one, 1, ample); !slices.Equal(got, []uint64{1}) || err != nil {
		t.Fatalf("got %v, %v", got, err)
	}
	dying.Conn().Close()
	publish(t, js, 3)
	start := time.Now()
	got, _, err := pull(t, two, 1, ample)
	if !slices.Equal(got, []uint64{2}) || err != nil {
		t.Fatalf("the next got %v, %v", got, err)
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("after %v, want about a second", took)
	}
}

// Messages and Consume are pinned like Fetch, also when a pull lasts longer than the place: whoever is alone gets all.
func TestMessagesArePinnedToo(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	c, err := JudgeConsumer(t.Context(), js, 3)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := c.Messages(jetstream.PullPriorityGroup(GroupJudge), jetstream.PullMaxMessages(10), jetstream.PullExpiry(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for want := uint64(1); want <= 3; want++ {
		publish(t, js, 3)
		m, err := messages.Next(jetstream.NextMaxWait(ample))
		if err != nil {
			t.Fatal(err)
		}
		if meta, err := m.Metadata(); err != nil || meta.Sequence.Stream != want {
			t.Fatalf("got %+v, %v, want %d", meta, err, want)
		}
		if err := Unpin(t.Context(), js, 3); err != nil { // as if it had lapsed
			t.Fatal(err)
		}
	}
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

// The events are 1: partition 8, 2: 9, 3: 8, 4: 9, 5: 8, 6: 20, 7: 9. Partition 8 is stored to 3, 9 to 2, so storing goes on with 4; it
// begins there however often the lane is opened, and 20 belongs to another lane.
func TestLaneBeginsWhereTheEarlierVersionStopped(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	publish(t, js, 8, 9, 8, 9, 8, 20, 9)
	for p, upTo := range map[int]uint64{8: 3, 9: 2, 10: 0, 11: 0, 12: 0, 13: 0, 14: 0, 15: 0, 20: 0} {
		old(t, js, "store-"+strconv.Itoa(p), p, jetstream.AckAllPolicy, upTo)
	}
	for range 2 {
		lane, err := StoreConsumer(t.Context(), js, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(t, js); !slices.Equal(got, []string{"store-20", "store-lane-1"}) {
			t.Errorf("consumers %v", got)
		}
		if info, err := lane.Info(t.Context()); err != nil || info.NumPending != 3 {
			t.Errorf("waiting %+v, %v; want 4, 5 and 7", info, err)
		}
	}
	lane, err := StoreConsumer(t.Context(), js, 1)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := lane.Fetch(3, jetstream.FetchMaxWait(ample))
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
	if !slices.Equal(got, []uint64{4, 5, 7}) {
		t.Errorf("delivered %v, %v", got, batch.Error())
	}
}

// All that the earlier version's silent partitions had is stored, so nothing is read again.
func TestLaneOfStoredPartitionsBeginsWithWhatIsNew(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	publish(t, js, 8, 9, 20, 20)
	old(t, js, "store-8", 8, jetstream.AckAllPolicy, 1)
	old(t, js, "store-9", 9, jetstream.AckAllPolicy, 2)
	lane, err := StoreConsumer(t.Context(), js, 1)
	if err != nil {
		t.Fatal(err)
	}
	if c := lane.CachedInfo().Config; c.OptStartSeq != 5 {
		t.Errorf("begins with %d, want 5, the next one", c.OptStartSeq)
	}
	fresh, err := StoreConsumer(t.Context(), js, 2) // 16 to 23: nobody stored them
	if err != nil {
		t.Fatal(err)
	}
	if info, err := fresh.Info(t.Context()); err != nil || info.NumPending != 2 || info.Config.DeliverPolicy != jetstream.DeliverAllPolicy {
		t.Errorf("a lane without a past: %+v, %v", info, err)
	}
	if _, err := StoreConsumer(t.Context(), js, 8); err == nil || err.Error() != "consume lane 8: there are 0 to 7" {
		t.Errorf("lane 8: %v", err)
	}
}

func TestJudgeOfTheEarlierVersionGoesOn(t *testing.T) {
	_, js := begin(t, Options{StoreDir: t.TempDir()})
	publish(t, js, 3, 3, 3, 4, 4, 4)
	old(t, js, "judge-3", 3, jetstream.AckAllPolicy, 2)
	old(t, js, "judge-4", 4, jetstream.AckExplicitPolicy, 5) // what cannot be updated in place
	for partition, want := range map[int]uint64{3: 3, 4: 6} {
		for range 2 {
			if _, err := JudgeConsumer(t.Context(), js, partition); err != nil {
				t.Fatal(err)
			}
		}
		c, err := JudgeConsumer(t.Context(), js, partition)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.CachedInfo().Config; got.PriorityPolicy != jetstream.PriorityPolicyPinned || got.AckPolicy != jetstream.AckAllPolicy {
			t.Errorf("partition %d: %+v", partition, got)
		}
		if got, _, err := pull(t, c, 1, ample); !slices.Equal(got, []uint64{want}) || err != nil {
			t.Errorf("partition %d goes on with %v, %v, want %d", partition, got, err, want)
		}
	}
}
