package sink

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// memory is a Store that forgets no token. It knows its rows by what a test can count.
type memory struct {
	mutex  sync.Mutex
	tokens map[string][sha256.Size]byte // and the bytes that came with it
	rows   map[string]int               // how often each is there: table and identity
	tried  []string
	fail   func(token string, rows Rows) error // before anything is kept; nil keeps
	reach  map[string]chan struct{}            // closed when that row is there
}

func newMemory() *memory {
	return &memory{tokens: map[string][sha256.Size]byte{}, rows: map[string]int{}, reach: map[string]chan struct{}{}}
}

func (m *memory) InsertRows(_ context.Context, token string, rows Rows) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.tried = append(m.tried, token)
	if err := rows.check(); err != nil {
		return err
	}
	if m.fail != nil {
		if err := m.fail(token, rows); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(rows.appendNative(nil))
	if have, ok := m.tokens[token]; ok {
		if have != sum {
			m.rows["other bytes under "+token]++
		}
		return nil
	}
	m.tokens[token] = sum
	for row := range rows.Count {
		name := rowName(rows, row)
		m.rows[name]++
		if done := m.reach[name]; done != nil {
			close(done)
			delete(m.reach, name)
		}
	}
	return nil
}

// rowName is the identity of a row in the tests: a tick of a host, a finding, a happening.
func rowName(r Rows, row int) string {
	switch r.Table {
	case TableFindings, TableIncidents:
		return r.Table + " " + r.Value(row, "id").(string)
	case TableEvents:
		return fmt.Sprint(r.Table, " ", r.Value(row, "host"), " ", r.Value(row, "event"), " ", r.Value(row, "name"), " ", r.Value(row, "sequence"))
	}
	return fmt.Sprint(r.Table, " ", r.Value(row, "host"), " ", r.Value(row, "time").(time.Time).Unix())
}

// when returns a channel that is closed when the row is there.
func (m *memory) when(name string) <-chan struct{} {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	done := make(chan struct{})
	if m.rows[name] > 0 {
		close(done)
	} else {
		m.reach[name] = done
	}
	return done
}

// attempt is one run of the storer until it is killed: from then on it reaches neither broker nor store.
type attempt struct {
	jetstream.JetStream
	store  Store
	mutex  sync.Mutex
	steps  int // until it is killed; below zero never
	before bool
	kill   context.CancelFunc
	dead   bool
}

var errDead = errors.New("killed")

// step runs do, and kills before or after it when the time has come. What was done then is not told.
func (a *attempt) step(do func() error) error {
	a.mutex.Lock()
	a.steps--
	last := a.steps == 0
	if a.dead || last && a.before {
		a.dead = true
		a.kill()
		a.mutex.Unlock()
		return errDead
	}
	a.mutex.Unlock()
	err := do()
	if last {
		a.mutex.Lock()
		a.dead = true
		a.kill()
		a.mutex.Unlock()
		return errDead
	}
	return err
}

func (a *attempt) InsertRows(ctx context.Context, token string, rows Rows) error {
	return a.step(func() error { return a.store.InsertRows(ctx, token, rows) })
}

func (a *attempt) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := a.JetStream.KeyValue(ctx, bucket)
	return mortal{kv, a}, err
}

type mortal struct {
	jetstream.KeyValue
	attempt *attempt
}

func (m mortal) Update(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error) {
	err = m.attempt.step(func() error {
		next, err = m.KeyValue.Update(ctx, key, value, revision)
		return err
	})
	return next, err
}

// live runs all seats until ctx ends or they are killed after so many steps.
func live(ctx context.Context, js jetstream.JetStream, store Store, steps int, before bool) error {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	l := &attempt{JetStream: js, store: store, steps: steps, before: before, kill: kill}
	return runAll(ctx, l, l)
}

func runAll(ctx context.Context, js jetstream.JetStream, store Store) error {
	s := NewStorer(js, store, nil)
	s.linger = 20 * time.Millisecond
	var all sync.WaitGroup
	faults := make([]error, StoreSeats)
	for seat := range StoreSeats {
		all.Go(func() { faults[seat] = s.Run(ctx, seat, 0) })
	}
	all.Wait()
	return errors.Join(faults...)
}

// fleetOf publishes for tests: ticks of hosts that are spread over all lanes.
type fleetOf struct {
	t  *testing.T
	js jetstream.JetStream
}

func (f fleetOf) message(host string, sequence uint64) *nats.Msg {
	m := tickBatch(sequence, tick.Add(time.Duration(sequence)*time.Second))
	b := m.Batch
	b.Host.Name, b.Events = host, b.Events[3:] // gpu_process, gpu, machine: one row in each of three tables
	if sequence%3 == 0 {
		b.Events = append(b.Events, &event.Event{Time: timestamppb.New(tick), Host: b.Host, Mark: &event.Mark{Name: strconv.FormatUint(sequence, 10), Kind: "start"}})
	}
	for _, e := range b.Events {
		e.Host = b.Host
	}
	data, err := event.EncodeBatch(b)
	if err != nil {
		f.t.Fatal(err)
	}
	return &nats.Msg{Subject: event.SubjectFor("prod", host, "sim"), Data: data, Header: nats.Header{}}
}

func (f fleetOf) publish(m *nats.Msg) uint64 {
	f.t.Helper()
	ack, err := f.js.PublishMsg(f.t.Context(), m)
	if err != nil {
		f.t.Fatal(err)
	}
	return ack.Sequence
}

func (f fleetOf) finding(id string) *nats.Msg {
	one := findingMessage(1, event.Suspected).Finding
	one.ID, one.Incident = id, "incident-"+id
	text, err := event.MarshalFinding(one)
	if err != nil {
		f.t.Fatal(err)
	}
	return &nats.Msg{Subject: event.FindingSubject(one), Data: text}
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("never stored: " + what)
	}
}

// Killed at any step, before it took effect or after, the storer has every row once in the end. Some is published twice, outside what
// the broker remembers.
func TestEveryRowIsStoredOnceWhateverDiesWhen(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 7))
			_, _, js := brokertest.Start(t)
			f := fleetOf{t, js}
			store := newMemory()
			want := map[string]bool{}
			var sent []*nats.Msg
			next := map[string]uint64{}
			say := func() {
				if random.IntN(8) == 0 {
					id := strconv.Itoa(random.IntN(40)) // the same one comes again
					f.publish(f.finding(id))
					want[TableFindings+" "+id], want[TableIncidents+" "+id] = true, true
					return
				}
				if len(sent) > 0 && random.IntN(6) == 0 {
					f.publish(sent[random.IntN(len(sent))])
					return
				}
				host := "gpu-" + strconv.Itoa(random.IntN(25))
				next[host]++
				n := next[host]
				m := f.message(host, n)
				sent = append(sent, m)
				sequence := f.publish(m)
				for _, table := range []string{TableWorkers, TableGpus, TableHosts} {
					want[fmt.Sprint(table, " ", host, " ", tick.Add(time.Duration(n)*time.Second).Unix())] = true
				}
				if n%3 == 0 {
					want[fmt.Sprint(TableEvents, " ", host, " mark ", n, " ", sequence)] = true
				}
			}
			for range 12 {
				for range 10 + random.IntN(40) {
					say()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // some lives end in peace
				if err := live(ctx, js, store, 5+random.IntN(60), random.IntN(2) == 0); err != nil {
					t.Errorf("the storer ended: %v", err)
				}
				cancel()
			}
			// One more message for each lane and one finding: when these are stored, so is all before them.
			var last []<-chan struct{}
			for i := range 25 {
				host := "gpu-" + strconv.Itoa(i)
				next[host]++
				sequence := f.publish(f.message(host, next[host]))
				if next[host]%3 == 0 {
					want[fmt.Sprint(TableEvents, " ", host, " mark ", next[host], " ", sequence)] = true
				}
				for _, table := range []string{TableWorkers, TableGpus, TableHosts} {
					name := fmt.Sprint(table, " ", host, " ", tick.Add(time.Duration(next[host])*time.Second).Unix())
					want[name], last = true, append(last, store.when(name))
				}
			}
			f.publish(f.finding("last"))
			want[TableFindings+" last"], want[TableIncidents+" last"] = true, true
			last = append(last, store.when(TableIncidents+" last"))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- live(ctx, js, store, -1, false) }()
			for _, one := range last {
				await(t, one, "the last messages")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the storer ended: %v", err)
			}
			for name, n := range store.rows {
				if n != 1 || !want[name] {
					t.Errorf("%s is there %d times, wanted %v", name, n, want[name])
				}
			}
			for name := range want {
				if store.rows[name] == 0 {
					t.Errorf("%s is missing", name)
				}
			}
		})
	}
}
