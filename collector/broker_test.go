package collector_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector"
	"lowtide/event"
	"lowtide/processor/broker"
)

// outage is a real broker that can go away and come back on the same port with the same store. It is closed with the test.
type outage struct {
	*broker.Server
	options broker.Options
}

func startBroker(ctx context.Context, t *testing.T) *outage {
	t.Helper()
	o := &outage{options: broker.Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0"}}
	o.restart(ctx, t)
	o.options.Listen = strings.TrimPrefix(o.ClientURL(), "nats://")
	t.Cleanup(func() { o.Close() })
	return o
}

func (o *outage) restart(ctx context.Context, t *testing.T) {
	t.Helper()
	server, err := broker.Start(ctx, o.options)
	if err != nil {
		t.Fatal(err)
	}
	o.Server = server
}

// A real broker is stopped, is away while events are published, and comes back on the same port with the same store: every
// event is there once.
func TestBrokerRestartLosesAndDoublesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	server := startBroker(ctx, t)
	url := server.ClientURL()
	back := make(chan struct{}, 8)
	conn, err := broker.Dial(url, "test", nil, nats.ReconnectBufSize(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	limits := broker.Limits{EventBytes: 64 << 20}
	if err := broker.Ensure(ctx, js, limits); err != nil {
		t.Fatal(err)
	}
	p := collector.NewPublisher(js, collector.PublisherOptions{Linger: -1, AckTimeout: 500 * time.Millisecond, RetryMin: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond})
	host := &event.Host{Cluster: "lab", Name: "h1"}
	next := uint64(0)
	publish := func(count int) {
		for range count {
			next++
			at := timestamppb.New(time.Unix(1_800_000_000+int64(next), 0))
			if err := p.Publish("s", []*event.Event{
				{Time: at, Host: host, Machine: &event.Machine{Fds: event.Ptr(next)}}, {Time: at, Host: host, Oom: &event.Oom{Kind: "cuda", FreeBytes: event.Ptr(next)}},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(100)
	server.Close()
	publish(100)
	server.restart(ctx, t)
	publish(100)
	select {
	case <-back:
	case <-ctx.Done():
		t.Fatal("the connection does not come back")
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]uint64{}
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq; sequence++ {
		m, err := stream.GetMsg(ctx, sequence)
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := event.DecodeBatch("", m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if b.Sequence != last[b.Lane]+1 {
			t.Fatalf("lane %s: %d after %d", b.Lane, b.Sequence, last[b.Lane])
		}
		last[b.Lane] = b.Sequence
		if got := b.Events[0].GetMachine().GetFds() + b.Events[0].GetOom().GetFreeBytes(); got != b.Sequence {
			t.Fatalf("message %d carries event %d", b.Sequence, got)
		}
	}
	if got := fmt.Sprint(last); got != "map[samples:300 urgent:300]" {
		t.Errorf("arrived: %s, want 300 in each lane", got)
	}
}
