package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// begin runs a seat; end ends it and returns what Run returned.
func begin(t *testing.T, js jetstream.JetStream, store Store, seat int, fence uint64, log *slog.Logger) (s *Storer, end func() error) {
	t.Helper()
	s = NewStorer(js, store, log)
	s.linger = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, seat, fence) }()
	return s, sync.OnceValue(func() error {
		cancel()
		return <-done
	})
}

func hostTick(host string, sequence uint64) string {
	return fmt.Sprint(TableHosts, " ", host, " ", tick.Add(time.Duration(sequence)*time.Second).Unix())
}

// A former owner that was held up in an insert finds that the seat is not his, whatever it does next, and nothing is there twice.
func TestFormerOwnerIsFenced(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	f.publish(f.message("gpu-1", 1))
	seat := eventsSeat
	store, held, entered := newMemory(), make(chan struct{}), make(chan struct{})
	slow := storeFunc(func(ctx context.Context, token string, rows Rows) error {
		if rows.Table == TableGpus {
			close(entered)
			<-held
		}
		return store.InsertRows(ctx, token, rows)
	})
	former := NewStorer(js, slow, nil)
	former.linger = 20 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- former.Run(t.Context(), seat, 5) }()
	await(t, entered, "the first block")
	_, end := begin(t, js, store, seat, 6, nil)
	await(t, store.when(hostTick("gpu-1", 1)), "the block of the former owner")
	f.publish(f.message("gpu-1", 2))
	await(t, store.when(hostTick("gpu-1", 2)), "the next block")
	close(held) // it wakes up, inserts under the old token, and learns it with its next write
	if err := <-ended; !errors.Is(err, ErrFenced) {
		t.Errorf("the former owner: %v, want ErrFenced", err)
	}
	if err := end(); err != nil {
		t.Errorf("the next owner: %v", err)
	}
	for name, n := range store.rows {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := NewStorer(js, store, nil).Run(ctx, seat, 5); !errors.Is(err, ErrFenced) {
		t.Errorf("a start with the old fence: %v, want ErrFenced", err)
	}
}

type storeFunc func(ctx context.Context, token string, rows Rows) error

func (f storeFunc) InsertRows(ctx context.Context, token string, rows Rows) error {
	return f(ctx, token, rows)
}

// Two that go on at once: the one whose write comes second stops by itself.
func TestOfTwoOwnersOneStops(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	f.publish(f.message("gpu-1", 1))
	seat := eventsSeat
	store := newMemory()
	one := NewStorer(js, store, nil)
	one.linger = 20 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- one.Run(t.Context(), seat, 7) }()
	await(t, store.when(hostTick("gpu-1", 1)), "the first")
	_, end := begin(t, js, store, seat, 8, nil)
	for n := uint64(2); n < 5; n++ {
		f.publish(f.message("gpu-1", n))
		await(t, store.when(hostTick("gpu-1", n)), "the next")
	}
	if err := <-ended; !errors.Is(err, ErrFenced) {
		t.Errorf("the former owner: %v, want ErrFenced", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	for name, n := range store.rows {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}

// late does something before it opens a bucket.
type late struct {
	jetstream.JetStream
	before func()
}

func (l *late) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	l.before()
	return l.JetStream.KeyValue(ctx, bucket)
}

// The former owner stores on while the next one opens: what that read of the stream before is old, and no sign that the broker lost anything.
func TestFormerOwnerStoresUntilTheSeatIsTaken(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	f.publish(f.message("gpu-1", 1))
	seat := eventsSeat
	store := newMemory()
	former := NewStorer(js, store, nil)
	former.linger = 20 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- former.Run(t.Context(), seat, 7) }()
	await(t, store.when(hostTick("gpu-1", 1)), "the first")
	_, end := begin(t, &late{js, sync.OnceFunc(func() {
		for n := uint64(2); n <= 4; n++ {
			f.publish(f.message("gpu-1", n))
			await(t, store.when(hostTick("gpu-1", n)), "what the former owner stores")
		}
	})}, store, seat, 8, nil)
	if err := <-ended; !errors.Is(err, ErrFenced) {
		t.Errorf("the former owner: %v, want ErrFenced", err)
	}
	f.publish(f.message("gpu-1", 5))
	await(t, store.when(hostTick("gpu-1", 5)), "what the next owner stores")
	if err := end(); err != nil {
		t.Error(err)
	}
	for name, n := range store.rows {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}

// What falls out of the stream before it is stored is counted: 6 to 15 of a host whose 1 to 5 were stored; and a block that was planned.
func TestLossIsCounted(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	store := newMemory()
	var seat int
	for n := uint64(1); n <= 5; n++ {
		f.publish(f.message("gpu-1", n))
	}
	_, end := begin(t, js, store, seat, 0, nil)
	await(t, store.when(hostTick("gpu-1", 5)), "the first five")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	var keep uint64
	for n := uint64(6); n <= 20; n++ {
		if at := f.publish(f.message("gpu-1", n)); n == 16 {
			keep = at
		}
	}
	purge(t, js, keep)
	var said bytes.Buffer
	s, end := begin(t, js, store, seat, 0, slog.New(slog.NewTextHandler(&said, nil)))
	await(t, store.when(hostTick("gpu-1", 20)), "what is left")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if got := metric(t, s, "lowtide_store_lost_messages_total"); got != 10 {
		t.Errorf("%v lost, want 10", got)
	}
	if !strings.Contains(said.String(), "fell out of the stream before they were stored") || !strings.Contains(said.String(), "lost=10") {
		t.Errorf("said: %s", said.String())
	}
	// Planned, killed, and then five of ten are gone.
	for n := uint64(21); n <= 30; n++ {
		if at := f.publish(f.message("gpu-1", n)); n == 26 {
			keep = at
		}
	}
	ctx, kill := context.WithCancel(t.Context())
	dying := &attempt{JetStream: js, store: store, steps: 2, kill: kill} // the seat is taken over, the block is planned
	last := NewStorer(dying, dying, nil)
	last.linger = time.Second // so that all ten are in it
	if err := last.Run(ctx, seat, 0); err != nil {
		t.Fatal(err)
	}
	purge(t, js, keep)
	s, end = begin(t, js, store, seat, 0, nil)
	await(t, store.when(hostTick("gpu-1", 30)), "the other five")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if got := metric(t, s, "lowtide_store_lost_messages_total"); got != 5 {
		t.Errorf("%v lost of a planned block, want 5", got)
	}
}

// A plan whose messages are others by now, as when the broker lost the end of its stream, does not hold the seat up: what is there is stored.
func TestPlanOfOtherMessagesIsGivenUp(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	f.publish(f.message("gpu-1", 1))
	seat := eventsSeat
	at := f.publish(f.message("gpu-1", 2))
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(t.Context(), broker.BucketBlocks)
	if err != nil {
		t.Fatal(err)
	}
	source := newSource(js, seat, nil)
	if _, err := source.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"version":1,"stream":%q,"stored":0,"block":{"first":1,"last":%d,"count":1,"sum":5}}`, source.identity, at)
	if _, err := bucket.Put(t.Context(), "block."+broker.StoreName, []byte(text)); err != nil {
		t.Fatal(err)
	}
	store := newMemory()
	_, end := begin(t, js, store, seat, 0, nil)
	await(t, store.when(hostTick("gpu-1", 2)), "what is in the stream")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if token := store.tried[0]; !strings.Contains(token, ":1:1-") || stream.CachedInfo().State.LastSeq != at {
		t.Errorf("stored under %s, want another epoch", token)
	}
}

func purge(t *testing.T, js jetstream.JetStream, before uint64) {
	t.Helper()
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSequence(before))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The store is away: nothing is lost, the same block is tried again under its token, one line says so and for how long the stream holds, and
// a second that it is back.
func TestStoreThatIsAwayIsWaitedFor(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	f.publish(f.message("gpu-1", 1))
	seat := eventsSeat
	store := newMemory()
	calls := 0
	store.fail = func(token string, rows Rows) error {
		if calls++; calls <= 3 {
			return fmt.Errorf("insert: %w: connection refused", ErrAway)
		}
		return nil
	}
	var said lines
	s, end := begin(t, js, store, seat, 0, slog.New(slog.NewTextHandler(&said, nil)))
	await(t, store.when(hostTick("gpu-1", 1)), "the block")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if store.tried[0] != store.tried[1] || store.tried[1] != store.tried[2] {
		t.Errorf("tried under %v", store.tried[:3])
	}
	text := said.String()
	if strings.Count(text, "does not take a block") != 1 || !strings.Contains(text, "stream_holds=24h0m0s") || strings.Count(text, "store is back") != 1 {
		t.Errorf("said: %s", text)
	}
	if got := metric(t, s, "lowtide_store_retries_total"); got != 3 {
		t.Errorf("%v retries, want 3", got)
	}
	consumer, err := js.Consumer(t.Context(), event.StreamEvents, broker.StoreName)
	if err != nil {
		t.Fatal(err)
	}
	if consumer.CachedInfo().Config.Durable == "" {
		t.Error("nobody can see where the seat stands")
	}
}

// lines may be written by several goroutines.
type lines struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}
