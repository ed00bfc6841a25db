package ownership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// brisk is the pace of production, some times as fast: still slow enough for a busy machine.
var brisk = pace{
	beat: 250 * time.Millisecond, letGo: 1500 * time.Millisecond, expiry: 2 * time.Second, settle: 250 * time.Millisecond,
	handover: 2 * time.Second, reread: 6 * time.Second, retry: 200 * time.Millisecond, request: 500 * time.Millisecond,
}

// wards are the seats of production.
var wards = map[string]int{"judge": 64, "store": 9, "notifier": 1}

const allSeats = 64 + 9 + 1

// fleet is a broker, processors around it, and a book of who worked at what.
type fleet struct {
	t      *testing.T
	dir    string
	listen string
	server *broker.Server
	pace   pace

	mu      sync.Mutex
	changed chan struct{}
	working map[string][]tenure // seat → who works at it right now
	book    []tenure            // all that began
	wrong   []string
}

type tenure struct {
	seat   string
	member string
	fence  uint64
}

func newFleet(t *testing.T, p pace) *fleet {
	f := &fleet{t: t, dir: t.TempDir(), listen: "127.0.0.1:0", pace: p, changed: make(chan struct{}), working: make(map[string][]tenure)}
	f.up()
	t.Cleanup(func() {
		f.server.Close()
		for _, w := range f.wrong {
			t.Error(w)
		}
	})
	return f
}

// up starts the broker, again on the same port and folder.
func (f *fleet) up() {
	f.t.Helper()
	server, err := broker.Start(context.Background(), broker.Options{StoreDir: f.dir, Listen: f.listen, MaxBytes: 32 << 20})
	if err != nil {
		f.t.Fatal(err)
	}
	f.server, f.listen = server, server.ClientURL()[len("nats://"):]
	conn, js := f.dial("fleet")
	defer conn.Close()
	if err := broker.Ensure(f.t.Context(), js, server.Limits()); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) dial(name string, options ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	f.t.Helper()
	options = append([]nats.Option{nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond)}, options...)
	conn, err := broker.Dial("nats://"+f.listen, name, nil, options...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		f.t.Fatal(err)
	}
	return conn, js
}

// processor is one Run.
type processor struct {
	name    string
	conn    *nats.Conn
	cut     func() // nothing goes through any more, and nobody is told
	mend    func()
	stop    context.CancelFunc
	done    chan struct{}
	err     error
	metrics *Metrics
}

// join starts a processor with the seats of production, which works as told.
func (f *fleet) join(name string, change ...func(*Options)) *processor {
	f.t.Helper()
	var roles []Role
	for role, seats := range wards {
		roles = append(roles, Role{Name: role, Seats: seats, Work: f.work(name, role)})
	}
	return f.joinWith(name, roles, change...)
}

func (f *fleet) joinWith(name string, roles []Role, change ...func(*Options)) *processor {
	f.t.Helper()
	line := &line{}
	conn, js := f.dial(name, nats.SetCustomDialer(line))
	ctx, stop := context.WithCancel(context.Background())
	p := &processor{name: name, conn: conn, cut: line.cut, mend: line.mend, stop: stop, done: make(chan struct{}), metrics: NewMetrics()}
	o := Options{JS: js, Member: name, Version: "test", Log: slog.New(slog.NewTextHandler(&lastWords{t: f.t}, nil)), Metrics: p.metrics, pace: f.pace}
	for _, c := range change {
		c(&o)
	}
	go func() {
		defer close(p.done)
		p.err = Run(ctx, o, roles...)
	}()
	f.t.Cleanup(func() { p.leave(f.t) })
	return p
}

// kill ends a processor's line for good, as its death would.
func (p *processor) kill() { p.conn.Close() }

// leave ends a processor in good order and returns the error of Run.
func (p *processor) leave(t *testing.T) error {
	t.Helper()
	p.stop()
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		t.Errorf("%s did not end", p.name)
	}
	return p.err
}

// work writes into the book when it begins and ends, and notes when two are at one seat.
func (f *fleet) work(name, role string) Work {
	return func(ctx context.Context, number int, fence uint64) error {
		one := tenure{seatKey(role, number), name, fence}
		f.begin(one)
		defer f.end(one)
		<-ctx.Done()
		return ctx.Err()
	}
}

func (f *fleet) begin(one tenure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if others := f.working[one.seat]; len(others) > 0 {
		f.wrong = append(f.wrong, fmt.Sprintf("%+v began beside %+v", one, others))
	}
	for _, before := range f.book {
		if before.seat == one.seat && before.fence >= one.fence {
			f.wrong = append(f.wrong, fmt.Sprintf("fence of %+v is not above that of %+v", one, before))
		}
	}
	f.working[one.seat] = append(f.working[one.seat], one)
	f.book = append(f.book, one)
	f.tell()
}

func (f *fleet) end(one tenure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.working[one.seat] = slices.DeleteFunc(f.working[one.seat], func(t tenure) bool { return t == one })
	f.tell()
}

func (f *fleet) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// owners returns who works at each seat.
func (f *fleet) owners() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]string)
	for seat, at := range f.working {
		for _, one := range at {
			all[seat] = one.member
		}
	}
	return all
}

// begun returns how many works began so far.
func (f *fleet) begun() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.book)
}

// until waits until a condition of the book holds.
func (f *fleet) until(what string, holds func() bool) {
	f.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-limit:
			f.t.Fatalf("not within 30 s: %s; working %v", what, f.owners())
		}
	}
}

// shared waits until every seat is worked at by the one that rendezvous hashing names.
func (f *fleet) shared(names ...string) {
	f.t.Helper()
	f.until(fmt.Sprintf("%v share all seats", names), func() bool {
		owners := f.owners()
		for role, seats := range wards {
			for n := range seats {
				if owners[seatKey(role, n)] != owner(names, role, n) {
					return false
				}
			}
		}
		return true
	})
}

// line is a connection that can go dead without a word, as when a switch fails: what is written disappears, nothing arrives.
type line struct {
	mu    sync.Mutex
	conns []*deadable
	off   atomic.Bool
}

type deadable struct {
	net.Conn
	line *line
}

func (l *line) Dial(network, address string) (net.Conn, error) {
	if l.off.Load() {
		return nil, errors.New("no route to host")
	}
	conn, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &deadable{conn, l}
	l.conns = append(l.conns, d)
	return d, nil
}

func (l *line) cut() { l.off.Store(true) }

func (l *line) mend() {
	l.off.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close() // words were lost on it: it cannot go on
	}
	l.conns = nil
}

func (d *deadable) Write(p []byte) (int, error) {
	if d.line.off.Load() {
		return len(p), nil
	}
	return d.Conn.Write(p)
}

func (d *deadable) Read(p []byte) (int, error) {
	for {
		n, err := d.Conn.Read(p)
		if err != nil || !d.line.off.Load() {
			return n, err
		}
	}
}

// lastWords hands log lines to a test, as long as it runs.
type lastWords struct{ t *testing.T }

func (w *lastWords) Write(p []byte) (int, error) { return w.t.Output().Write(p) }

var _ io.Writer = (*lastWords)(nil)
