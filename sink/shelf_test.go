package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// faulty is a broker that refuses so many of the next writes of a plan.
type faulty struct {
	jetstream.JetStream
	fail atomic.Int32
}

func (f *faulty) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := f.JetStream.KeyValue(ctx, bucket)
	return faultyBucket{kv, f}, err
}

type faultyBucket struct {
	jetstream.KeyValue
	broker *faulty
}

func (b faultyBucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if b.broker.fail.Add(-1) >= 0 {
		return 0, errors.New("the broker went away")
	}
	return b.KeyValue.Update(ctx, key, value, revision)
}

// shelfStore is a memory that knows what stands in its rows, and takes nothing while it is held.
type shelfStore struct {
	*memory
	mutex sync.Mutex
	text  map[string]string // by rowName; without the number of the block, which depends on where blocks end
	open  chan struct{}     // closed to let inserts go on; nil when they are not held
	stuck func()            // says that one is
}

func newShelfStore() *shelfStore { return &shelfStore{memory: newMemory(), text: map[string]string{}} }

func (s *shelfStore) InsertRows(ctx context.Context, token string, rows Rows) error {
	s.mutex.Lock()
	open, stuck := s.open, s.stuck
	s.mutex.Unlock()
	if open != nil {
		stuck()
		<-open
	}
	s.mutex.Lock()
	for row := range rows.Count {
		var text strings.Builder
		for i := range rows.Columns {
			c := &rows.Columns[i]
			if v := c.value(row); c.name != "block" && v != nil && v != "" { // a column that is empty in all rows of a block is left out
				fmt.Fprintf(&text, "%s=%v ", c.name, v)
			}
		}
		s.text[rowName(rows, row)] = text.String()
	}
	s.mutex.Unlock()
	return s.memory.InsertRows(ctx, token, rows)
}

// shelfTest is a store beside judges, who leave to it what the test lets them read.
type shelfTest struct {
	fleetOf
	stream  jetstream.Stream
	store   *shelfStore
	shelf   *event.Shelf
	batches *event.BatchReader
	next    map[string]uint64
	last    uint64 // sequence
}

const shelfHosts = 6

func newShelfTest(t *testing.T, bytes int) *shelfTest {
	t.Helper()
	_, _, js := brokertest.Start(t)
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	s := &shelfTest{fleetOf: fleetOf{t, js}, stream: stream, store: newShelfStore(), batches: event.NewBatchReader(), next: map[string]uint64{}}
	s.anew(bytes)
	return s
}

// anew is another shelf, as of another process.
func (s *shelfTest) anew(bytes int) {
	s.shelf = event.NewShelf(bytes)
	for p := range event.PartitionCount {
		s.shelf.Judged(p, true)
	}
}

func (s *shelfTest) begin(js jetstream.JetStream, store Store) (end func()) {
	storer := NewStorer(js, store, nil)
	storer.linger = 20 * time.Millisecond
	storer.Share(s.shelf)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- storer.Run(ctx, eventsSeat, 0) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("the storer ended: %v", err)
		}
	})
}

// say publishes so many ticks, host after host, and returns the last one's row.
func (s *shelfTest) say(n int) (row string) {
	s.t.Helper()
	for i := range n {
		host := fmt.Sprint("gpu-", i%shelfHosts)
		s.next[host]++
		s.last = s.publish(s.message(host, s.next[host]))
		row = hostTick(host, s.next[host])
	}
	return row
}

// read makes the judges read what is between two sequences, these included: all judges, or those of the partitions that are picked.
func (s *shelfTest) read(from, to uint64, picked func(partition int) bool) {
	s.t.Helper()
	for ; from <= to; from++ {
		s.leave(from, nil, picked)
	}
}

// leave does with a message what a judge does, who may add an event that the message does not have.
func (s *shelfTest) leave(sequence uint64, more *event.Event, picked func(partition int) bool) {
	s.t.Helper()
	m, err := s.stream.GetMsg(s.t.Context(), sequence)
	if err != nil {
		s.t.Error(err)
		return
	}
	partition, _ := event.PartitionOf(m.Subject)
	if picked != nil && !picked(partition) {
		return
	}
	batch, _, err := s.batches.Decode(m.Header.Get("Content-Type"), m.Data)
	if err == nil {
		if _, host, ok := event.SplitSubject(m.Subject); !ok || host != batch.Host.Name {
			err = errors.New("another host")
		}
	}
	if err != nil {
		batch = nil
	} else if more != nil {
		more.Host, batch.Events = batch.Host, append(slices.Clip(batch.Events), more)
	}
	s.shelf.Put(partition, sequence, m.Time, batch, len(m.Data))
}

// hold publishes a tick, and returns when the store is held in an insert, so that it reads nothing until it is let go on.
func (s *shelfTest) hold() (goOn func()) {
	s.t.Helper()
	open, stuck := make(chan struct{}), make(chan struct{})
	s.store.mutex.Lock()
	s.store.open, s.store.stuck = open, sync.OnceFunc(func() { close(stuck) })
	s.store.mutex.Unlock()
	s.say(1)
	await(s.t, stuck, "a tick that is held")
	return sync.OnceFunc(func() {
		s.store.mutex.Lock()
		s.store.open = nil
		s.store.mutex.Unlock()
		close(open)
	})
}

// takesFromTheShelf sees to it that the store still does: a batch is left to it that has more in it than the message.
func (s *shelfTest) takesFromTheShelf(host string) {
	s.t.Helper()
	goOn := s.hold()
	s.next[host]++
	s.last = s.publish(s.message(host, s.next[host]))
	s.leave(s.last, &event.Event{Time: timestamppb.New(tick), Mark: &event.Mark{Name: "shelf", Kind: "start"}}, nil)
	goOn()
	name := fmt.Sprint(TableEvents, " ", host, " mark shelf ", s.last)
	await(s.t, s.store.when(name), "what stood on the shelf only")
	await(s.t, s.store.when(hostTick(host, s.next[host])), "the message itself")
	s.store.memory.mutex.Lock()
	defer s.store.memory.mutex.Unlock()
	delete(s.store.rows, name)
}

// asWithout compares the rows with those that a store without a shelf makes of the same stream. The storer must have ended.
func (s *shelfTest) asWithout() {
	s.t.Helper()
	plans, err := s.js.Stream(s.t.Context(), "KV_"+broker.BucketBlocks)
	if err == nil {
		err = errors.Join(plans.Purge(s.t.Context()), s.stream.DeleteConsumer(s.t.Context(), broker.StoreName))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	got := s.store
	s.store, s.shelf = newShelfStore(), nil
	end := s.begin(s.js, s.store)
	await(s.t, s.store.when(s.say(shelfHosts)), "all of it, without a shelf")
	end()
	for host, n := range s.next { // which came after
		for _, table := range []string{TableWorkers, TableGpus, TableHosts} {
			delete(s.store.rows, fmt.Sprint(table, " ", host, " ", tick.Add(time.Duration(n)*time.Second).Unix()))
		}
		maps.DeleteFunc(s.store.rows, func(name string, _ int) bool {
			return strings.HasPrefix(name, fmt.Sprint(TableEvents, " ", host, " mark ", n, " "))
		})
	}
	if len(s.store.rows) == 0 || len(s.store.tried) == 0 {
		s.t.Error("there is nothing to compare with")
	}
	for name, n := range got.rows {
		if n != 1 || s.store.rows[name] != 1 {
			s.t.Errorf("%s is there %d times, %d without a shelf", name, n, s.store.rows[name])
		}
		if got.text[name] != s.store.text[name] {
			s.t.Errorf("%s is\n %s, without a shelf\n %s", name, got.text[name], s.store.text[name])
		}
	}
	for name := range s.store.rows {
		if got.rows[name] == 0 {
			s.t.Errorf("%s is missing", name)
		}
	}
}

// partition is that of a host that has said something.
func (s *shelfTest) partition(host string) int {
	s.t.Helper()
	m, err := s.stream.GetLastMsgForSubject(s.t.Context(), "lowtide.p.*.prod."+host+".>")
	if err != nil {
		s.t.Fatal(err)
	}
	p, _ := event.PartitionOf(m.Subject)
	return p
}

// A judge that lags is waited for a moment; what it reads when the store is past that is not stored again, and what it reads in time later is taken.
func TestStoreBesideAJudgeThatLags(t *testing.T) {
	t.Parallel()
	s := newShelfTest(t, 64<<20)
	end := s.begin(s.js, s.store)
	goOn := s.hold()
	row := s.say(60)
	slow := s.partition("gpu-1")
	s.read(1, s.last, func(partition int) bool { return partition != slow })
	goOn()
	await(t, s.store.when(row), "what the other judges left, and what the store reads by itself")
	s.read(1, s.last, func(partition int) bool { return partition == slow })
	for range 5 { // now the store and the judges are about as fast
		from := s.last + 1
		row = s.say(20)
		s.read(from, s.last, nil)
	}
	await(t, s.store.when(row), "what is read beside each other")
	s.takesFromTheShelf("gpu-1")
	s.takesFromTheShelf("gpu-2")
	end()
	s.asWithout()
}

// The judges are ahead of what the shelf has room for: what fell from it the store reads by itself.
func TestStoreBehindWhatTheShelfHolds(t *testing.T) {
	t.Parallel()
	s := newShelfTest(t, 8000) // of 200 messages some 20
	end := s.begin(s.js, s.store)
	for range 3 {
		goOn := s.hold()
		from := s.last // the one that is held is read by a judge when the store has it
		row := s.say(200)
		s.read(from, s.last, nil)
		goOn()
		await(t, s.store.when(row), "what is left on the shelf, and what fell from it")
	}
	s.takesFromTheShelf("gpu-3")
	end()
	s.asWithout()
}

// What the store reads is read anew in between, and the shelf emptied or closed meanwhile.
func TestStoreAndShelfWhenItIsReadAnew(t *testing.T) {
	for name, anew := range map[string]func(*shelfTest, *faulty){
		"the broker forgets the reader": func(s *shelfTest, _ *faulty) {
			for consumer := range s.stream.ConsumerNames(s.t.Context()).Name() {
				if consumer == broker.StoreName {
					continue
				}
				if err := s.stream.DeleteConsumer(s.t.Context(), consumer); err != nil {
					s.t.Error(err)
				}
			}
		},
		"a plan is not written": func(_ *shelfTest, broker *faulty) { broker.fail.Store(1) },
		"nor is the next":       func(_ *shelfTest, broker *faulty) { broker.fail.Store(3) },
		"the shelf is emptied":  func(s *shelfTest, _ *faulty) { s.shelf.Wanted(true) },
		"the shelf is closed":   func(s *shelfTest, _ *faulty) { s.shelf.Wanted(false) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShelfTest(t, 64<<20)
			shaky := &faulty{JetStream: s.js}
			end := s.begin(shaky, s.store)
			goOn := s.hold()
			from := s.last
			s.say(40)
			s.read(from, s.last-10, nil)
			anew(s, shaky)
			s.read(s.last-9, s.last, nil)
			goOn()
			for range 5 {
				from := s.last + 1
				row := s.say(20)
				s.read(from, s.last, nil)
				if from%2 == 0 {
					await(t, s.store.when(row), "what is read beside each other")
				}
			}
			await(t, s.store.when(s.say(shelfHosts)), "what no judge reads")
			s.shelf.Wanted(true) // which a store that began again has said by itself
			s.takesFromTheShelf("gpu-4")
			end()
			s.asWithout()
		})
	}
}

// A process that planned a block of what it had from the shelf dies before all of it is inserted. Whoever builds it again, with a shelf or
// without, builds it of the same bytes.
func TestPlannedBlockIsTheSameWithoutTheShelf(t *testing.T) {
	for _, death := range []struct {
		steps  int // 1 takes the seat, 2 writes the plan, and the tables follow
		before bool
	}{{2, false}, {3, false}, {5, true}} {
		for name, after := range map[string]func(*shelfTest){
			"no shelf":              func(s *shelfTest) { s.shelf = nil },
			"another shelf":         func(s *shelfTest) { s.anew(64 << 20) },
			"the shelf as it is":    func(*shelfTest) {},
			"all of it is on it":    func(s *shelfTest) { s.shelf.Wanted(true); s.read(1, s.last, nil) },
			"a part of it is on it": func(s *shelfTest) { s.shelf.Wanted(true); s.read(10, s.last-10, nil) },
		} {
			t.Run(fmt.Sprint(name, " after step ", death.steps, death.before), func(t *testing.T) {
				t.Parallel()
				s := newShelfTest(t, 64<<20)
				row := s.say(40)
				ctx, kill := context.WithCancel(t.Context())
				defer kill()
				dying := &attempt{JetStream: s.js, store: s.store, steps: death.steps, before: death.before, kill: kill}
				storer := NewStorer(dying, dying, nil)
				storer.linger = 3 * time.Second
				storer.Share(s.shelf)
				ended := make(chan error, 1)
				go func() { ended <- storer.Run(ctx, eventsSeat, 0) }()
				for ctx.Err() == nil { // the judges read on until the store has come to it
					s.read(1, s.last, nil)
				}
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				planned, _, err := readPlan(t.Context(), blocksOf(t, s.js), "block."+broker.StoreName)
				if err != nil || planned.Block == nil || planned.Block.Last != s.last {
					t.Fatalf("planned is %+v, %v; want a block of all", planned.Block, err)
				}
				after(s)
				end := s.begin(s.js, s.store)
				await(t, s.store.when(row), "the planned block")
				await(t, s.store.when(s.say(10)), "what comes after it")
				if s.shelf != nil {
					s.takesFromTheShelf("gpu-5")
				}
				end()
				s.asWithout()
			})
		}
	}
}

func blocksOf(t *testing.T, js jetstream.JetStream) jetstream.KeyValue {
	t.Helper()
	bucket, err := js.KeyValue(t.Context(), broker.BucketBlocks)
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

// What a judge refuses lies on no shelf, and neither holds the store up nor moves what stands around it.
func TestStoreRefusesWhatJudgesRefuse(t *testing.T) {
	t.Parallel()
	s := newShelfTest(t, 64<<20)
	end := s.begin(s.js, s.store)
	want := map[string]bool{}
	bad := func(m *nats.Msg, host string) {
		s.last = s.publish(m)
		want[fmt.Sprint(TableEvents, " ", host, " refused  ", s.last)] = true
	}
	for _, read := range []bool{true, false, true} { // the judges have read it, or not yet
		goOn := s.hold()
		from := s.last
		for n := range uint64(10) {
			s.say(3)
			whole, other := s.message("gpu-1", 1000+n), s.message("gpu-2", 1000+n)
			bad(&nats.Msg{Subject: whole.Subject, Data: []byte{0xff, 0xff, byte(n)}}, "gpu-1")
			bad(&nats.Msg{Subject: whole.Subject, Data: whole.Data[:len(whole.Data)-3]}, "gpu-1")
			bad(&nats.Msg{Subject: whole.Subject, Data: other.Data}, "gpu-1")
			bad(&nats.Msg{Subject: whole.Subject, Data: whole.Data, Header: nats.Header{"Content-Type": []string{"application/json"}}}, "gpu-1")
		}
		row := s.say(3)
		if read {
			s.read(from, s.last, nil)
		}
		goOn()
		await(t, s.store.when(row), "what comes after what is refused")
	}
	s.takesFromTheShelf("gpu-1")
	end()
	for name := range want {
		if s.store.rows[name] != 1 {
			t.Errorf("%s is there %d times", name, s.store.rows[name])
		}
	}
	s.asWithout()
}
