package processor

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// The judge reads a leak from a real broker, is stopped and started again: every finding is there once, and a message whose
// host is not its subject's stops nothing.
func TestJudgeRestartsWithoutRepeatingItself(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, js := brokertest.Start(t)
	all := events(t, "testdata/leak.ndjson.gz")
	subject := event.SubjectFor("lab", "h200-a", "recording")
	send := func(sequence uint64, part []*event.Event) {
		t.Helper()
		wire, err := event.EncodeBatch(&event.Batch{Host: part[0].Host, Source: "recording", Producer: "p", Lane: event.LaneSamples, Sequence: sequence, Events: part})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(ctx, subject, wire); err != nil {
			t.Fatal(err)
		}
	}
	liar, err := event.EncodeBatch(&event.Batch{Host: &event.Host{Cluster: "lab", Name: "other"}, Source: "recording", Producer: "p", Lane: event.LaneSamples, Sequence: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, subject, liar); err != nil {
		t.Fatal(err)
	}
	half := len(all) / 10 * 9 / 5 * 5 // nine tenths, at the end of a tick: the growth is called, the OOM is still to come
	send(1, all[:half])
	send(1, all[:half]) // the same producer and sequence outside the server's window
	judgeUntil(t, ctx, js, 1)
	send(2, all[half:])
	findings := judgeUntil(t, ctx, js, 2)
	if findings[0].Severity != event.Ticket || findings[1].Severity != event.Page || findings[0].Incident != findings[1].Incident {
		t.Errorf("findings %v", findings)
	}
}

// judgeUntil runs the judge until it has acknowledged everything, and returns the findings of the stream, which must be want.
func judgeUntil(t *testing.T, ctx context.Context, js jetstream.JetStream, want uint64) (found []*event.Finding) {
	t.Helper()
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	all := judges(t, js)
	go func() { ended <- all.runAll(running) }()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for !acknowledged(t, ctx, js) {
		select {
		case <-poll.C:
		case err := <-ended:
			t.Fatalf("the judge ended: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != want {
		t.Fatalf("%d findings, want %d", info.State.Msgs, want)
	}
	for sequence := uint64(1); sequence <= want; sequence++ {
		m, err := stream.GetMsg(ctx, sequence)
		if err != nil {
			t.Fatal(err)
		}
		f, err := event.UnmarshalFinding(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, f)
	}
	return found
}

func acknowledged(t *testing.T, ctx context.Context, js jetstream.JetStream) bool {
	t.Helper()
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	last, err := stream.GetLastMsgForSubject(ctx, "lowtide.p.*.lab.h200-a.recording")
	if err != nil {
		t.Fatal(err)
	}
	partition, err := strconv.Atoi(strings.Split(last.Subject, ".")[2])
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := broker.JudgeConsumer(ctx, js, partition)
	if err != nil {
		t.Fatal(err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return info.AckFloor.Stream == last.Sequence
}
