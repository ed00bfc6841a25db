package processor

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

var several = []string{"leak", "expandable", "kv_leak", "spike", "malloc_async"}

// forgetful makes the stream of findings drop no duplicates but those of the last moment: what holds then holds after an outage of any length.
func forgetful(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	stream, err := js.Stream(t.Context(), event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// forgotten waits until the stream has forgotten every id: then it takes one again that it was given before.
func forgotten(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	const subject = "lowtide.finding.probe"
	id := jetstream.WithMsgID(strconv.FormatInt(time.Now().UnixNano(), 36))
	stored := 0
	until(t, "the stream forgets ids", func() bool {
		ack, err := js.Publish(t.Context(), subject, []byte(`{}`), id)
		if err != nil {
			t.Fatal(err)
		}
		if !ack.Duplicate {
			stored++
		}
		return stored == 2
	})
	stream, err := js.Stream(t.Context(), event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
}

// seed is drawn, or that of LOWTIDE_SEED.
func seed(t testing.TB) uint64 {
	t.Helper()
	n := rand.Uint64()
	if text := os.Getenv("LOWTIDE_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOWTIDE_SEED=%d", n)
	return n
}

// A processor is killed again and again, at moments that are drawn, while events come; each time the stream has forgotten the ids of before when
// the next one starts. What is announced is what an undisturbed run announces, by id, once, and in its order.
func TestKilledAtAnyMoment(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		draw := rand.New(rand.NewPCG(seed(t), 1))
		_, _, js := brokertest.Start(t)
		forgetful(t, js)
		s := newScript(t, 5, several...)
		var last uint64
		for s.sent < len(s.batches) {
			all := judges(t, js)
			all.pace.save = time.Duration(1+draw.IntN(200)) * time.Millisecond
			w := begin(t, all, testPartition, 0)
			for range 1 + draw.IntN(4) {
				last = max(last, s.send(js, 1+draw.IntN(200)))
			}
			if draw.IntN(2) == 0 {
				w.applied(testPartition, last-min(last, uint64(draw.IntN(100))))
			}
			w.kill()
			if draw.IntN(3) == 0 {
				forgotten(t, js)
			}
		}
		w := begin(t, judges(t, js), testPartition, 0)
		w.applied(testPartition, last)
		w.close()
		same(t, announced(t, js), s.undisturbed())
		if floor := floorOf(t, js, testPartition); floor != last {
			t.Errorf("acknowledged up to %d, want %d", floor, last)
		}
	}
}

// Two hours pass between a crash and the next start, and nobody remembers ids: what was announced after the last checkpoint is not announced again.
func TestOutageLongerThanIdsAreRemembered(t *testing.T) {
	_, _, js := brokertest.Start(t)
	forgetful(t, js)
	s := newScript(t, 5, several...)
	first := judges(t, js)
	first.pace.save = time.Hour // nothing is saved but what follows
	w := begin(t, first, testPartition, 0)
	w.applied(testPartition, s.rest(js))
	want := s.undisturbed()
	until(t, "everything is announced", func() bool { return len(announced(t, js)) == len(want) })
	w.kill()
	forgotten(t, js)
	w = begin(t, judges(t, js), testPartition, 0)
	w.applied(testPartition, uint64(len(s.batches)))
	w.close()
	same(t, announced(t, js), want)
}

// Two processors believe that they have the partition. The first finds out with its next checkpoint, acknowledges nothing after that, and
// what both announce is there once.
func TestFormerOwnerIsFenced(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, several...)
	first, second := judges(t, js), judges(t, js)
	first.pace.save = 300 * time.Millisecond
	old := begin(t, first, testPartition, 10)
	saved := s.send(js, 400)
	savedUpTo(t, js, testPartition, saved)
	fresh := begin(t, second, testPartition, 11)
	until(t, "the second has the partition", func() bool {
		e, _, err := first.archive.read(t.Context(), testPartition)
		return err == nil && e.Fence == 11
	})
	last := s.rest(js)
	if err := old.wait(); !errors.Is(err, ErrFenced) {
		t.Fatalf("the first ended with %v", err)
	}
	fresh.applied(testPartition, last)
	fresh.close()
	e := savedUpTo(t, js, testPartition, last)
	if e.Fence != 11 {
		t.Errorf("saved with fence %d", e.Fence)
	}
	if floor := floorOf(t, js, testPartition); floor != last {
		t.Errorf("acknowledged up to %d, want %d", floor, last)
	}
	same(t, announced(t, js), s.undisturbed())
	if err := first.Run(t.Context(), testPartition, 10); !errors.Is(err, ErrFenced) {
		t.Errorf("the first comes back and gets %v", err)
	}
}

// Between the claim of the second and the end of the first nothing is acknowledged that the second has not saved.
func TestNothingIsAcknowledgedBehindTheFence(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	w := begin(t, judges(t, js), testPartition, 3)
	saved := s.send(js, 100)
	savedUpTo(t, js, testPartition, saved)
	until(t, "the first has acknowledged", func() bool { return floorOf(t, js, testPartition) == saved })
	// Somebody claims the partition and does nothing with it.
	h := &hold{archive: w.all.archive, partition: testPartition, fence: 4, log: w.all.options.Log}
	if _, err := h.claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.rest(js)
	if err := w.wait(); !errors.Is(err, ErrFenced) {
		t.Fatalf("ended with %v", err)
	}
	if floor := floorOf(t, js, testPartition); floor != saved {
		t.Errorf("acknowledged up to %d, and only %d is saved", floor, saved)
	}
	if e, _, err := h.archive.read(t.Context(), testPartition); err != nil || e.Fence != 4 || e.Sequence != saved {
		t.Errorf("entry %+v (%v)", e, err)
	}
	if blobs := h.archive.blobs(t, testPartition); len(blobs) != 1 {
		t.Errorf("blobs %v: that of the one who lost was to go", blobs)
	}
}
