package rulebook_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
	"lowtide/processor/rulebook"
)

// With judges as they are in production: a rule in shadow is pushed while they judge, and sees a worker that was there before; made a real
// one, it announces it. Both within seconds.
func TestPushedRulesAreJudgedBy(t *testing.T) {
	server, _, js := brokertest.Start(t)
	w, err := rulebook.Watch(t.Context(), rulebook.Options{JS: js, Member: "p0", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	judges, err := processor.NewJudges(t.Context(), processor.Options{JS: js, Pack: w.Pack()})
	if err != nil {
		t.Fatal(err)
	}
	const partition = 7
	host := &event.Host{Cluster: "lab", BootId: "b"}
	for n := 0; ; n++ {
		host.Name = fmt.Sprint("h-", n)
		h := fnv.New32a()
		h.Write([]byte(host.Cluster + host.Name))
		if h.Sum32()%event.PartitionCount == partition {
			break
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	running.Go(func() {
		if err := judges.Run(ctx, partition, 1); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		if err := w.Run(ctx, judges); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() { beat(t, ctx, js) })
	var heard sync.Map
	subscription, err := js.Conn().SubscribeSync("lowtide.*.>")
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() {
		for ctx.Err() == nil {
			m, err := subscription.NextMsg(100 * time.Millisecond)
			if err == nil && !strings.HasPrefix(m.Subject, "lowtide.event.") {
				heard.Store(strings.Join(strings.Split(m.Subject, ".")[:2], "."), string(m.Data))
			}
		}
	})
	sequence := uint64(0)
	tick := func() {
		sequence++
		e := &event.Event{Time: timestamppb.Now(), Host: host, Worker: &event.Worker{Pid: 7, StartTicks: event.Ptr(uint64(9)), Unit: "u", Engine: "vllm"}, Process: &event.Process{Fds: event.Ptr(100 + sequence)}}
		wire, err := event.EncodeBatch(&event.Batch{Host: host, Source: "process", Producer: "p", Lane: event.LaneSamples, Sequence: sequence, Events: []*event.Event{e}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), event.SubjectFor(host.Cluster, host.Name, "process"), wire); err != nil {
			t.Fatal(err)
		}
	}
	tick()
	const text = "rules:\n  - id: there\n    class: fd_leak\n    scope: worker\n    shadow: true\n    when: known(fds.now)\n    severity: {alone: page}\n    summary: It has {{fds.now}}\n"
	start := time.Now()
	push := func(text string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "there.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := rulebook.PushCommand{Broker: rulebook.Broker{NATS: server.ClientURL(), Stdout: t.Output(), Stderr: t.Output()}, Files: []string{path}, Message: "because", Author: "ann", Wait: 20 * time.Second}
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	push(text)
	t.Logf("taken over %s after the push began", time.Since(start))
	wait(t, "it is seen in shadow", func() bool { tick(); _, seen := heard.Load("lowtide.shadow"); return seen })
	if told, seen := heard.Load("lowtide.finding"); seen {
		t.Errorf("it is announced: %s", told)
	}
	if told, _ := heard.Load("lowtide.shadow"); !strings.Contains(told.(string), `"shadow":true`) {
		t.Errorf("told is %s", told)
	}
	push(strings.Replace(text, "shadow: true", "shadow: false", 1))
	wait(t, "it is announced", func() bool { tick(); _, seen := heard.Load("lowtide.finding"); return seen })
}

// beat says that a processor lives, as package ownership does.
func beat(t testing.TB, ctx context.Context, js jetstream.JetStream) {
	members, err := js.KeyValue(ctx, broker.BucketMembers)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if _, err := members.Put(ctx, "p0", []byte(`{"session":"s","roles":{"judge":64}}`)); err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// wait polls for something that other goroutines bring about.
func wait(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline, poll := time.NewTimer(20*time.Second), time.NewTicker(50*time.Millisecond)
	defer deadline.Stop()
	defer poll.Stop()
	for !done() {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("waited for 20 s: %s", what)
		}
	}
}
