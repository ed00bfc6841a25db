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
	asks(t, address)
	if _, err := Dial(address, "test", nil, nats.UserInfo("collector", "wrong")); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a wrong password: %v", err)
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
