package bench

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// Two partitions have three and one message; one of the first is acknowledged by the judge, and its state has the second.
func TestBacklogOfARealBroker(t *testing.T) {
	ctx := t.Context()
	server, err := broker.Start(ctx, broker.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Ensure(ctx, js, server.Limits()); err != nil {
		t.Fatal(err)
	}
	if behind, err := Unjudged(ctx, js); err != nil || len(behind) != 0 {
		t.Fatalf("of an empty stream: %v (%v)", behind, err)
	}
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	subjects := map[string][]uint64{}
	for _, host := range []string{"a", "a", "a", "b"} {
		ack, err := js.Publish(ctx, event.SubjectFor("c", host, "s"), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.GetMsg(ctx, ack.Sequence)
		if err != nil {
			t.Fatal(err)
		}
		subjects[m.Subject] = append(subjects[m.Subject], ack.Sequence)
	}
	for _, name := range []string{"judge-x", broker.ReaderPrefix + "x", "store-y"} {
		c, err := js.CreateConsumer(ctx, event.StreamEvents, jetstream.ConsumerConfig{Durable: name, FilterSubject: "lowtide.p.>", AckPolicy: jetstream.AckAllPolicy, AckWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if name == "judge-x" {
			continue
		}
		messages, err := c.Fetch(3)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for m := range messages.Messages() {
			if n++; n == 1 {
				if err := m.DoubleAck(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	b, err := ReadBacklog(ctx, js)
	if err != nil {
		t.Fatal(err)
	}
	if b.Bytes == 0 {
		t.Error("the stream has no bytes")
	}
	if b.Bytes = 0; b != (Backlog{Messages: 4, JudgePending: 1, StorePending: 1, StoreUnacked: 2, Judges: 1, Stores: 1}) {
		t.Errorf("%+v", b)
	}
	if behind, err := Unjudged(ctx, js); err != nil || len(behind) != len(subjects) {
		t.Errorf("%v (%v), want both of %v", behind, err, subjects)
	}
	states, err := js.KeyValue(ctx, broker.BucketState)
	if err != nil {
		t.Fatal(err)
	}
	for subject, sequences := range subjects {
		partition := subject[len("lowtide.p.") : len(subject)-len(".c.a.s")]
		saved := `{"sequence":1}`
		if len(sequences) == 1 {
			saved = `{"sequence":4}`
		}
		if _, err := states.PutString(ctx, "state."+partition, saved); err != nil {
			t.Fatal(err)
		}
	}
	if behind, err := Unjudged(ctx, js); err != nil || len(behind) != 1 {
		t.Errorf("%v (%v), want the one whose state ends at the first of its three", behind, err)
	}
}
