package broker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// fleetServer runs the server that deploy/nats.conf describes, on a port of the kernel's choice.
func fleetServer(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../deploy/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOWTIDE_NATS_DIR", t.TempDir())
	for _, user := range []string{"COLLECTOR", "PROCESSOR", "OPERATOR", "READER"} {
		t.Setenv("LOWTIDE_"+user+"_PASSWORD", "of-"+user)
	}
	options, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	options.Host, options.Port, options.NoLog, options.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("server did not start")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s.ClientURL()
}

func TestFleetConfigurationLetsEachRoleDoItsWork(t *testing.T) {
	address := fleetServer(t)
	as := func(user, password string) jetstream.JetStream {
		t.Helper()
		conn, err := Dial(address, user, nil, nats.UserInfo(user, password))
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
	processor := as("processor", "of-PROCESSOR")
	if err := Ensure(t.Context(), processor, Limits{EventBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	states, err := processor.ObjectStore(t.Context(), ObjectsState)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := states.PutBytes(t.Context(), "partition", []byte("state")); err != nil {
		t.Errorf("the processor may not save its state: %v", err)
	}
	if _, err := JudgeConsumer(t.Context(), processor, 0); err != nil {
		t.Fatal(err)
	}
	collector := as("collector", "of-COLLECTOR")
	if _, err := collector.Publish(t.Context(), event.SubjectFor("lab", "h1", "process"), []byte("x")); err != nil {
		t.Errorf("a collector may publish events: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := collector.Publish(ctx, "lowtide.finding.x", []byte("x")); err == nil {
		t.Error("a collector published a finding")
	}
	operator := as("operator", "of-OPERATOR")
	if _, err := operator.Publish(t.Context(), event.SubjectFor("lab", "h1", "mark"), []byte("x")); err != nil {
		t.Errorf("an operator may mark: %v", err)
	}
	stream, err := operator.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatalf("an operator may look at the stream: %v", err)
	}
	past, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{"lowtide.p.>"}})
	if err != nil {
		t.Fatalf("an operator may read what the stream holds: %v", err)
	}
	batch, err := past.Fetch(2, jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for range batch.Messages() {
		read++
	}
	if read != 2 {
		t.Errorf("an operator read %d of 2 messages (%v)", read, batch.Error())
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := operator.Publish(ctx, event.SubjectFor("lab", "h1", "process"), []byte("x")); err == nil {
		t.Error("an operator published what a collector does")
	}
	for _, bucket := range []string{BucketSilences, BucketActions} {
		kv, err := operator.KeyValue(t.Context(), bucket)
		if err != nil {
			t.Fatalf("an operator may open %s: %v", bucket, err)
		}
		revision, err := kv.Create(t.Context(), "one", []byte("x"))
		if err != nil {
			t.Fatalf("an operator may write %s: %v", bucket, err)
		}
		if _, err := kv.Update(t.Context(), "one", []byte("y"), revision); err != nil {
			t.Errorf("an operator may change %s: %v", bucket, err)
		}
		if entry, err := kv.Get(t.Context(), "one"); err != nil || string(entry.Value()) != "y" {
			t.Errorf("an operator may read %s: %v", bucket, err)
		}
	}
	outbox, err := operator.KeyValue(t.Context(), BucketOutbox)
	if err != nil {
		t.Fatalf("an operator may open the outbox: %v", err)
	}
	owned, err := processor.KeyValue(t.Context(), BucketOutbox)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owned.Create(t.Context(), "incident", []byte("told")); err != nil {
		t.Fatal(err)
	}
	if keys, err := outbox.Keys(t.Context()); err != nil || len(keys) != 1 || keys[0] != "incident" {
		t.Errorf("an operator may list the outbox: %v, %v", keys, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := outbox.Put(ctx, "incident", []byte("x")); err == nil {
		t.Error("an operator wrote into the outbox")
	}
	if _, err := processor.Publish(t.Context(), "lowtide.finding.x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	findings, err := operator.Stream(t.Context(), event.StreamFindings)
	if err != nil {
		t.Fatalf("an operator may look at the findings: %v", err)
	}
	transitions, err := findings.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{"lowtide.finding.>"}})
	if err != nil {
		t.Fatalf("an operator may read the findings: %v", err)
	}
	if m, err := transitions.Next(jetstream.FetchMaxWait(5 * time.Second)); err != nil || string(m.Data()) != "x" {
		t.Errorf("an operator may read a finding: %v", err)
	}
	pushes(t, operator, processor)
	asks(t, address)
	if _, err := Dial(address, "test", nil, nats.UserInfo("collector", "wrong")); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a wrong password: %v", err)
	}
}

// pushes checks that an operator may replace the rules and read who lives, but not speak for a processor; and that rules in shadow are told.
func pushes(t *testing.T, operator, processor jetstream.JetStream) {
	t.Helper()
	rules, err := operator.KeyValue(t.Context(), BucketRules)
	if err != nil {
		t.Fatalf("an operator may open the rules: %v", err)
	}
	revision, err := rules.Update(t.Context(), "current", []byte("x"), 0)
	if err != nil {
		t.Fatalf("an operator may push rules: %v", err)
	}
	if _, err := rules.Update(t.Context(), "current", []byte("y"), revision); err != nil {
		t.Errorf("an operator may push rules again: %v", err)
	}
	if past, err := rules.History(t.Context(), "current"); err != nil || len(past) != 2 {
		t.Errorf("an operator may read the history of the rules: %d, %v", len(past), err)
	}
	own, err := processor.KeyValue(t.Context(), BucketRules)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Put(t.Context(), "outcome.p0", []byte("x")); err != nil {
		t.Errorf("a processor may say what became of the rules: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := rules.Put(ctx, "outcome.p0", []byte("y")); err == nil {
		t.Error("an operator spoke for a processor")
	}
	members, err := operator.KeyValue(t.Context(), BucketMembers)
	if err != nil {
		t.Fatalf("an operator may see who lives: %v", err)
	}
	watcher, err := members.WatchAll(t.Context())
	if err != nil {
		t.Fatalf("an operator may see who lives: %v", err)
	}
	if first := <-watcher.Updates(); first != nil {
		t.Errorf("somebody lives: %s", first.Key())
	}
	if err := watcher.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := processor.Publish(t.Context(), "lowtide.shadow.x", []byte("x")); err != nil {
		t.Errorf("a processor may tell what rules in shadow see: %v", err)
	}
}

// asks checks who may ask a host for evidence, and that its collector may answer and nothing more.
func asks(t *testing.T, address string) {
	t.Helper()
	as := func(user, password string) *nats.Conn {
		t.Helper()
		conn, err := Dial(address, user, nil, nats.UserInfo(user, password))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	const subject = "lowtide.ask.lab.h1"
	collector := as("collector", "of-COLLECTOR")
	subscription, err := collector.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := collector.FlushTimeout(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		for range 2 {
			m, err := subscription.NextMsg(20 * time.Second)
			if err == nil {
				err = m.Respond([]byte("accepted"))
			}
			if err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	for user, password := range map[string]string{"processor": "of-PROCESSOR", "operator": "of-OPERATOR"} {
		reply, err := as(user, password).Request(subject, []byte("{}"), 20*time.Second)
		if err != nil || string(reply.Data) != "accepted" {
			t.Errorf("a %s may ask: %v", user, err)
		}
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	for user, password := range map[string]string{"collector": "of-COLLECTOR", "reader": "of-READER"} {
		conn := as(user, password)
		if err := conn.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := conn.FlushTimeout(20 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if err := collector.Publish("_INBOX.somebody", nil); err != nil { // nobody has asked for that
		t.Fatal(err)
	}
	if err := collector.FlushTimeout(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := collector.LastError(); !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("a collector wrote into an inbox: %v", err)
	}
	if n, _, err := subscription.Pending(); err != nil || n != 0 {
		t.Errorf("%d asks of who may not ask, %v", n, err)
	}
}
