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

// Another reader takes messages away from the middle and gives them back when newer ones are judged. They are read from the stream in
// their place, and dropped when they come again.
func TestMessagesThatWentElsewhere(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	all := judges(t, js)
	w := begin(t, all, testPartition, 1)
	w.applied(testPartition, s.send(js, 100))
	thief, err := broker.JudgeConsumer(t.Context(), js, testPartition)
	if err != nil {
		t.Fatal(err)
	}
	var stolen []jetstream.Msg
	for round := 0; len(stolen) < 30 && round < 20; round++ {
		if err := broker.Unpin(t.Context(), js, testPartition); err != nil {
			t.Fatal(err)
		}
		batch, err := thief.Fetch(10, jetstream.FetchMaxWait(time.Second), jetstream.FetchPriorityGroup(broker.GroupJudge))
		if err != nil {
			t.Fatal(err)
		}
		s.send(js, 10)
		for m := range batch.Messages() {
			stolen = append(stolen, m)
		}
	}
	if len(stolen) == 0 {
		t.Fatal("nothing was stolen")
	}
	if err := broker.Unpin(t.Context(), js, testPartition); err != nil {
		t.Fatal(err)
	}
	last := s.rest(js)
	w.applied(testPartition, last)
	for _, m := range stolen {
		if err := m.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "what was stolen comes again", func() bool {
		return all.partitions()[0].gauge.read().redelivered > 0 || floorOf(t, js, testPartition) == last
	})
	m := all.partitions()[0].gauge.read()
	w.close()
	if m.gaps+m.stalls == 0 || m.missing != 0 {
		t.Errorf("%d gaps and %d stalls, %d missing", m.gaps, m.stalls, m.missing)
	}
	same(t, announced(t, js), s.undisturbed())
	if floor := floorOf(t, js, testPartition); floor != last {
		t.Errorf("acknowledged up to %d, want %d", floor, last)
	}
}

// The consumer is deleted again and again while events come.
func TestConsumerDeletedUnderTheLoop(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak", "kv_leak")
	w := begin(t, judges(t, js), testPartition, 1)
	var last uint64
	for s.sent < len(s.batches) {
		last = s.send(js, 250)
		w.applied(testPartition, last-20)
		if err := js.DeleteConsumer(t.Context(), event.StreamEvents, fmt.Sprint("judge-", testPartition)); err != nil {
			t.Fatal(err)
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
	name := fmt.Sprint("judge-", testPartition)
	if _, err := js.PauseConsumer(t.Context(), event.StreamEvents, name, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	last := s.send(js, 100)
	w.applied(testPartition, last)
	last = s.send(js, 100)
	w.applied(testPartition, last)
	paused := func() bool {
		c, err := js.Consumer(t.Context(), event.StreamEvents, name)
		return err != nil || c.CachedInfo().Paused
	}
	for round := 0; paused() && round < 10; round++ {
		last = s.send(js, 10)
		w.applied(testPartition, last)
	}
	if paused() {
		t.Error("the consumer was not made anew")
	}
	last = s.rest(js)
	w.applied(testPartition, last)
	until(t, "all is acknowledged", func() bool { return floorOf(t, js, testPartition) == last })
	w.close()
	same(t, announced(t, js), s.undisturbed())
	if kept.count("delivers nothing") == 0 {
		t.Error("the stall was not said")
	}
}
