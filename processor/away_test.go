package processor

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// mortal is a broker that a test stops and starts again, on the same port and with the same store.
type mortal struct {
	t      testing.TB
	dir    string
	listen string
	server *broker.Server
}

func newMortal(t testing.TB) *mortal {
	m := &mortal{t: t, dir: t.TempDir(), listen: "127.0.0.1:0"}
	m.start()
	m.listen = strings.TrimPrefix(m.server.ClientURL(), "nats://")
	t.Cleanup(func() { m.server.Close() })
	if err := broker.Ensure(t.Context(), m.client(), m.server.Limits()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mortal) start() {
	m.t.Helper()
	server, err := broker.Start(m.t.Context(), broker.Options{StoreDir: m.dir, Listen: m.listen, MaxBytes: 256 << 20})
	if err != nil {
		m.t.Fatal(err)
	}
	m.server = server
}

// restart stops the broker, and starts it again.
func (m *mortal) restart() {
	m.server.Close()
	m.start()
}

func (m *mortal) client() jetstream.JetStream {
	m.t.Helper()
	conn, err := broker.Dial(m.server.ClientURL(), "test", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		m.t.Fatal(err)
	}
	return js
}

// The broker goes away and comes back while events are judged and checkpoints are under way, over and over: nothing is lost and nothing
// is announced twice.
func TestBrokerGoesAway(t *testing.T) {
	draw := rand.New(rand.NewPCG(seed(t), 2))
	m := newMortal(t)
	forgetful(t, m.client())
	s := newScript(t, 5, "leak", "kv_leak")
	all := judges(t, m.client())
	all.pace.save = time.Millisecond // a checkpoint is always under way
	w := begin(t, all, testPartition, 1)
	var last uint64
	for round := 0; round < 4; round++ {
		last = s.send(m.client(), 150)
		w.applied(testPartition, last-uint64(draw.IntN(140)))
		m.restart()
	}
	js := m.client()
	last = max(last, s.rest(js))
	w.applied(testPartition, last)
	until(t, "all is acknowledged", func() bool { return floorOf(t, js, testPartition) == last })
	savedUpTo(t, js, testPartition, last)
	w.close()
	same(t, announced(t, js), s.undisturbed())
	if blobs := all.archive.blobs(t, testPartition); len(blobs) > 1+4 {
		t.Errorf("%d blobs: one, and at most one of each checkpoint that was cut off", len(blobs))
	}
}

// The broker is away when the work ends: it ends at once, and the next owner reads what was not saved.
func TestWorkEndsWhileTheBrokerIsAway(t *testing.T) {
	m := newMortal(t)
	s := newScript(t, 5, "leak", "kv_leak")
	all := judges(t, m.client())
	w := begin(t, all, testPartition, 1)
	last := s.send(m.client(), 500)
	w.applied(testPartition, last)
	conn := all.options.JS.Conn()
	m.server.Close()
	until(t, "the connection is lost", func() bool { return !conn.IsConnected() })
	began := time.Now()
	w.stop()
	if err := w.wait(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v to end", took)
	}
	m.start()
	js := m.client()
	w = begin(t, judges(t, js), testPartition, 2)
	last = s.rest(js)
	w.applied(testPartition, last)
	w.close()
	same(t, announced(t, js), s.undisturbed())
}

// The store is away at the start: the work waits for it, and says so once.
func TestWorkBeginsWhileTheBrokerIsAway(t *testing.T) {
	m := newMortal(t)
	s := newScript(t, 5, "leak")
	s.rest(m.client())
	all, kept := journalled(t, m.client())
	conn := all.options.JS.Conn()
	m.server.Close()
	until(t, "the connection is lost", func() bool { return !conn.IsConnected() })
	w := begin(t, all, testPartition, 1)
	until(t, "it says that it waits", func() bool { return kept.count("cannot begin to judge") == 1 })
	if err := all.Ready(); err == nil {
		t.Error("it says that it is ready")
	}
	m.start()
	w.applied(testPartition, uint64(len(s.batches)))
	w.close()
	same(t, announced(t, m.client()), s.undisturbed())
	if n := kept.count("cannot begin to judge"); n != 1 {
		t.Errorf("it says %d times that it waits", n)
	}
}
