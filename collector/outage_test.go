package collector_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector"
	"lowtide/collector/spool"
	"lowtide/event"
	"lowtide/processor/broker"
)

// spoolChildMark is set for the children of this test. With the first argument it makes a child, which never runs tests.
const spoolChildMark = "LOWTIDE_SPOOL_TEST_CHILD"

// agent is a publisher with a spool and a connection that may not be there yet.
type agent struct {
	*collector.Publisher
	kept *spool.Spool
	conn *nats.Conn
	next uint64
}

func newAgent(url, folder string, rate int) (*agent, error) {
	kept, err := spool.Open(spool.Options{Folder: folder, MaxBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	conn, err := broker.Dial(url, "test", nil, nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	p := collector.NewPublisher(js, collector.PublisherOptions{Linger: -1, Spool: kept, SpoolRate: rate, AckTimeout: 500 * time.Millisecond, RetryMin: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond})
	return &agent{Publisher: p, kept: kept, conn: conn}, nil
}

// publish sends count events in each lane, whose numbers are those of their sequences.
func (a *agent) publish(count int) error {
	host := &event.Host{Cluster: "lab", Name: "h1"}
	for range count {
		a.next++
		at := timestamppb.New(time.Unix(1_800_000_000+int64(a.next), 0))
		if err := a.Publish("s", []*event.Event{
			{Time: at, Host: host, Machine: &event.Machine{Fds: event.Ptr(a.next)}}, {Time: at, Host: host, Oom: &event.Oom{Kind: "cuda", FreeBytes: event.Ptr(a.next)}},
		}); err != nil {
			return err
		}
	}
	return nil
}

// waiting is how many messages of each lane are on disk at least.
func (a *agent) waiting() uint64 {
	return min(a.kept.Lane(event.LaneSamples).Stats().Messages, a.kept.Lane(event.LaneUrgent).Stats().Messages)
}

// idle says whether nothing waits anywhere and the broker is there.
func (a *agent) idle() bool {
	s := a.Stats()
	return a.kept.Lane(event.LaneSamples).Empty() && a.kept.Lane(event.LaneUrgent).Empty() && s.PendingMessages == 0 && !s.Away
}

func (a *agent) end(ctx context.Context) error {
	if err := a.Close(ctx); err != nil {
		return err
	}
	a.conn.Close()
	return a.kept.Close()
}

// spoolChild publishes ten events every millisecond or so, and says how many messages wait on disk, until it is killed, nobody listens
// or half a minute is over.
func spoolChild(url, folder string) error {
	a, err := newAgent(url, folder, 200)
	if err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		if err := a.publish(10); err != nil {
			return err
		}
		if _, err := fmt.Printf("%s %d %d\n", a.Producer(), a.waiting(), a.Stats().Sent); err != nil {
			return err
		}
	}
	return a.end(context.Background())
}

// killed runs a child until enough says so, kills it, and returns its producer.
func killed(t *testing.T, url, folder string, enough func(waiting, sent uint64) bool) (producer string) {
	t.Helper()
	if os.Getenv(spoolChildMark) != "" {
		t.Fatal("a child must not run tests")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0], "spool-child", url, folder)
	command.Env = []string{spoolChildMark + "=1"}
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	for said := bufio.NewScanner(stdout); said.Scan(); {
		var waiting, sent uint64
		if n, _ := fmt.Sscan(said.Text(), &producer, &waiting, &sent); n == 3 && enough(waiting, sent) {
			_ = command.Process.Kill() // SIGKILL
		}
	}
	if err := command.Wait(); err == nil || ctx.Err() != nil {
		t.Fatalf("the child was not killed: %v, %v", err, ctx.Err())
	}
	return producer
}

// A collector without a broker is killed; the next one finds the broker and is killed in the middle of sending; the broker goes away
// from the third one and comes back. Each lane holds what they made, in this order, each producer's sequences without a gap, nothing twice.
func TestOutageAndKilledCollectorsLoseAndDoubleNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	server := startBroker(ctx, t)
	url := server.ClientURL()
	conn, err := broker.Dial(url, "reader", nil, nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Ensure(ctx, js, broker.Limits{EventBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	server.Close()
	folder := filepath.Join(t.TempDir(), "spool")
	first := killed(t, url, folder, func(waiting, _ uint64) bool { return waiting >= 300 })
	server.restart(ctx, t)
	second := killed(t, url, folder, func(waiting, sent uint64) bool { return waiting > 0 && sent >= 100 })
	third, err := newAgent(url, folder, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	if got := third.waiting(); got < 100 {
		t.Fatalf("only %d messages are left by those that were killed", got)
	}
	publish := func(count int) {
		t.Helper()
		if err := third.publish(count); err != nil {
			t.Fatal(err)
		}
	}
	publish(50)
	eventually(ctx, t, "the spool is sent", third.idle)
	server.Close()
	publish(50)
	eventually(ctx, t, "the outage is on disk", func() bool { return third.waiting() >= 50 })
	server.restart(ctx, t)
	publish(50)
	eventually(ctx, t, "the outage is over", third.idle)
	if err := third.end(ctx); err != nil {
		t.Fatal(err)
	}
	producers := []string{first, second, third.Producer()}
	got := read(ctx, t, js)
	for lane, runs := range got {
		if len(runs) != 3 {
			t.Fatalf("lane %s: %+v, want one run of each of %v", lane, runs, producers)
		}
		for i, r := range runs {
			if least := []uint64{300, 10, 150}[i]; r.producer != producers[i] || r.from != 1 || r.to < least {
				t.Errorf("lane %s: %+v, want %s from 1 to %d at least", lane, r, producers[i], least)
			}
		}
		if runs[2].to != 150 {
			t.Errorf("lane %s: the last collector's end at %d, want 150", lane, runs[2].to)
		}
	}
	if len(got) != 2 {
		t.Errorf("lanes %v", got)
	}
}

func eventually(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}

// sent is what stands in the stream of one producer without a gap.
type sent struct {
	producer string
	from, to uint64
}

func read(ctx context.Context, t *testing.T, js jetstream.JetStream) map[string][]sent {
	t.Helper()
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]sent{}
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq; sequence++ {
		m, err := stream.GetMsg(ctx, sequence)
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := event.DecodeBatch("", m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Events[0].GetMachine().GetFds() + b.Events[0].GetOom().GetFreeBytes(); got != b.Sequence {
			t.Fatalf("message %d carries event %d", b.Sequence, got)
		}
		runs := out[b.Lane]
		if n := len(runs); n > 0 && runs[n-1].producer == b.Producer && runs[n-1].to+1 == b.Sequence {
			runs[n-1].to++
			continue
		}
		out[b.Lane] = append(runs, sent{b.Producer, b.Sequence, b.Sequence})
	}
	return out
}

// The command: without a broker its events are on disk when it ends, and the next run sends them, first and under their own producer.
func TestCollectKeepsOnDiskWhatNoBrokerTook(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	server := startBroker(ctx, t)
	url := server.ClientURL()
	server.Close()
	folder := t.TempDir()
	command := func() *collector.Command {
		return &collector.Command{NATS: url, Cluster: "lab", Host: "agent", Metrics: "off", Speed: 1, Shift: time.Hour, Stretch: 1, SpoolDir: folder, SpoolMax: 8 << 20, SpoolRate: 100_000,
			Sensors: sensors(100 * time.Millisecond), Sim: 1, Seed: 1, Logger: slog.New(slog.DiscardHandler)}
	}
	segments := func() int {
		found, err := filepath.Glob(filepath.Join(folder, event.LaneSamples, "*.seg"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	run := func(enough func() bool) {
		t.Helper()
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- command().Run(running) }()
		eventually(ctx, t, "collect has done enough", enough)
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	run(func() bool { return segments() > 0 })
	if segments() == 0 {
		t.Fatal("nothing is left on disk")
	}
	server.restart(ctx, t)
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
	var producers []string
	statuses := map[string]string{}
	arrivals, err := conn.SubscribeSync("lowtide.event.>")
	if err != nil {
		t.Fatal(err)
	}
	run(func() bool {
		m, err := arrivals.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := event.DecodeBatch("", m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if b.Lane == event.LaneSamples && (len(producers) == 0 || producers[len(producers)-1] != b.Producer) {
			producers = append(producers, b.Producer)
		}
		for _, e := range b.Events {
			if e.Source.GetName() == spool.SensorName {
				statuses[b.Producer] = e.Source.Status
			}
		}
		return len(producers) > 1 && statuses[producers[1]] != ""
	})
	if len(producers) != 2 || statuses[producers[1]] != "ok" {
		t.Errorf("producers %v, the spool says %v, want the first run's, then the second's, which is ok", producers, statuses)
	}
}
