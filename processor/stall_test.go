package processor

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// readers are the names of the consumers that judges read by.
func readers(t testing.TB, js jetstream.JetStream) (names []string) {
	t.Helper()
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	list := stream.ListConsumers(t.Context())
	for info := range list.Info() {
		if info.Config.Durable == "" && info.Config.AckPolicy == jetstream.AckNonePolicy {
			names = append(names, info.Name)
		}
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

// Whoever pulls from the consumer that shows what is acknowledged takes nothing away, and what it shows is put right.
func TestNobodyTakesMessagesAway(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	all := judges(t, js)
	w := begin(t, all, testPartition, 1)
	w.applied(testPartition, s.send(js, 100))
	thief, err := broker.JudgeConsumer(t.Context(), js, testPartition)
	if err != nil {
		t.Fatal(err)
	}
	stolen := 0
	for round := 0; stolen < 30 && round < 20; round++ {
		s.send(js, 10)
		batch, err := thief.Fetch(10, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for range batch.Messages() {
			stolen++
		}
	}
	if stolen == 0 {
		t.Fatal("nothing was stolen")
	}
	last := s.rest(js)
	w.applied(testPartition, last)
	until(t, "all is acknowledged", func() bool { return floorOf(t, js, testPartition) == last })
	m := all.partitions()[0].gauge.read()
	w.close()
	if m.gaps+m.stalls+m.redelivered != 0 || m.missing != 0 {
		t.Errorf("%d gaps, %d stalls, %d redelivered, %d missing", m.gaps, m.stalls, m.redelivered, m.missing)
	}
	same(t, announced(t, js), s.undisturbed())
}

// The consumers are deleted again and again while events come, those that are read and that which shows what is acknowledged.
func TestConsumerDeletedUnderTheLoop(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak", "kv_leak")
	w := begin(t, judges(t, js), testPartition, 1)
	var last uint64
	for s.sent < len(s.batches) {
		last = s.send(js, 250)
		w.applied(testPartition, last-20)
		for _, name := range append(readers(t, js), fmt.Sprint("judge-", testPartition)) {
			if err := js.DeleteConsumer(t.Context(), event.StreamEvents, name); err != nil && err != jetstream.ErrConsumerNotFound {
				t.Fatal(err)
			}
		}
	}
	w.applied(testPartition, last)
	until(t, "all is acknowledged", func() bool { return floorOf(t, js, testPartition) == last })
	w.close()
	same(t, announced(t, js), s.undisturbed())
}

// A consumer that has messages and delivers none, as one that is paused, is noticed: events are judged all the same, and it is made anew.
func TestStalledConsumerIsMadeAnew(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	all, kept := journalled(t, js)
	w := begin(t, all, testPartition, 1)
	w.applied(testPartition, s.send(js, 100))
	var paused []string // none for a moment while the one of the start is made anew
	until(t, "one reads", func() bool { paused = readers(t, js); return len(paused) == 1 })
	if _, err := js.PauseConsumer(t.Context(), event.StreamEvents, paused[0], time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	last := s.send(js, 100)
	w.applied(testPartition, last)
	until(t, "another is made", func() bool {
		now := readers(t, js)
		return len(now) == 1 && now[0] != paused[0]
	})
	last = s.rest(js)
	w.applied(testPartition, last)
	until(t, "all is acknowledged", func() bool { return floorOf(t, js, testPartition) == last })
	w.close()
	same(t, announced(t, js), s.undisturbed())
	if kept.count("delivers nothing") == 0 {
		t.Error("the stall was not said")
	}
}
