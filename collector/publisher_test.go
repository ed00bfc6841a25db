package collector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// stream is a broker that can be away, or store a message and lose the acknowledgement.
type stream struct {
	mu       sync.Mutex
	away     bool
	loseAck  bool
	attempts map[string][]string // bytes by message id
	stored   []*event.Batch
	ids      map[string]bool
}

func (s *stream) PublishMsg(_ context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := m.Header.Get(nats.MsgIdHdr)
	if s.attempts == nil {
		s.attempts, s.ids = make(map[string][]string), make(map[string]bool)
	}
	s.attempts[id] = append(s.attempts[id], string(m.Data))
	if s.away {
		return nil, nats.ErrNoResponders
	}
	if !s.ids[id] {
		b, _, err := event.DecodeBatch("", m.Data)
		if err != nil {
			return nil, err
		}
		if want := event.SubjectFor(b.Host.Cluster, b.Host.Name, b.Source); want != m.Subject {
			return nil, fmt.Errorf("subject %s, want %s", m.Subject, want)
		}
		s.stored = append(s.stored, b)
	}
	duplicate := s.ids[id]
	s.ids[id] = true
	if s.loseAck {
		s.loseAck = false
		return nil, context.DeadlineExceeded
	}
	return &jetstream.PubAck{Duplicate: duplicate}, nil
}

func (s *stream) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func sample(at time.Time, fds int) *event.Event {
	return &event.Event{Time: timestamppb.New(at), Host: testHost, Machine: &event.Machine{Fds: event.Ptr(uint64(fds))}}
}

func oom(at time.Time) *event.Event {
	return &event.Event{Time: timestamppb.New(at), Host: testHost, Oom: &event.Oom{Kind: "cuda", Text: "CUDA out of memory"}}
}

func publish(t *testing.T, p *Publisher, events ...*event.Event) {
	t.Helper()
	if err := p.Publish("s", events); err != nil {
		t.Fatal(err)
	}
}

// Sixty seconds without a broker: everything arrives, once, each lane in its order, the same bytes under the same id.
func TestBrokerAwayForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{away: true}
		p := NewPublisher(s, PublisherOptions{Linger: -1})
		for i := range 12 {
			publish(t, p, sample(time.Now(), i), oom(time.Now()))
			time.Sleep(5 * time.Second)
		}
		if got := p.Stats(); !got.Away || got.PendingMessages != 24 || got.Sent != 0 {
			t.Errorf("while away: %+v, want 24 pending", got)
		}
		s.set(func() { s.away, s.loseAck = false, true })
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		sequences := map[string][]uint64{}
		for _, b := range s.stored {
			sequences[b.Lane] = append(sequences[b.Lane], b.Sequence)
			if b.Producer != p.Producer() || len(b.Events) != 1 {
				t.Errorf("batch %v", b)
			}
		}
		for _, lane := range []string{event.LaneSamples, event.LaneUrgent} {
			if got := fmt.Sprint(sequences[lane]); got != "[1 2 3 4 5 6 7 8 9 10 11 12]" {
				t.Errorf("lane %s arrived as %s", lane, got)
			}
		}
		for id, attempts := range s.attempts {
			for _, bytes := range attempts {
				if bytes != attempts[0] {
					t.Errorf("message %s was published with other bytes", id)
				}
			}
		}
		if got := p.Stats(); got.Sent != 24 || got.Duplicates != 1 || got.Dropped != 0 {
			t.Errorf("afterwards: %+v, want 24 sent, one of them twice", got)
		}
	})
}

// A full backlog gives up the oldest samples, keeps every urgent event, and says on return how many are missing.
func TestFullBacklogDropsTheOldestSamplesAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{away: true}
		p := NewPublisher(s, PublisherOptions{Linger: -1, MaxBytes: 1000})
		publish(t, p, oom(time.Now()))
		for i := range 100 {
			publish(t, p, sample(time.Now(), i))
		}
		synctest.Wait()
		s.set(func() { s.away = false })
		if p.Ready() {
			t.Error("a full backlog is ready for the past")
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		stats := p.Stats()
		var ooms, samples, reports int
		last := uint64(0)
		for _, b := range s.stored {
			for _, e := range b.Events {
				switch {
				case e.Oom != nil:
					ooms++
				case e.Machine != nil:
					samples++
					last = *e.Machine.Fds
				case e.Source != nil:
					reports++
					if want := fmt.Sprintf("%d messages dropped", stats.Dropped); e.Source.Status != "lost" || !strings.HasPrefix(e.Source.Error, want) {
						t.Errorf("report %v, want %q", e.Source, want)
					}
				}
			}
		}
		if ooms != 1 || reports != 1 || last != 99 || stats.Dropped == 0 || samples+int(stats.Dropped) != 100 {
			t.Errorf("%d ooms, %d reports, last sample %d, %d samples and %d dropped", ooms, reports, last, samples, stats.Dropped)
		}
	})
}

// One lane that hangs on its acknowledgement does not hold up the other.
func TestUrgentIsNotBehindSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrived := make(chan string, 10)
		hold := make(chan struct{})
		p := NewPublisher(streamFunc(func(m *nats.Msg) error {
			if strings.Contains(m.Header.Get(nats.MsgIdHdr), "/samples/") {
				<-hold
			}
			arrived <- m.Header.Get(nats.MsgIdHdr)
			return nil
		}), PublisherOptions{Linger: -1})
		for i := range 5 {
			publish(t, p, sample(time.Now(), i))
		}
		publish(t, p, oom(time.Now()))
		if got, want := <-arrived, "lab/h1/"+p.Producer()+"/urgent/1"; got != want {
			t.Errorf("first to arrive: %s, want %s", got, want)
		}
		close(hold)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

type streamFunc func(*nats.Msg) error

func (f streamFunc) PublishMsg(_ context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return &jetstream.PubAck{}, f(m)
}

func TestMessageTooLargeForTheBrokerDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		p := NewPublisher(streamFunc(func(*nats.Msg) error {
			if calls++; calls == 1 {
				return nats.ErrMaxPayload
			}
			return nil
		}), PublisherOptions{Linger: -1})
		publish(t, p, sample(time.Now(), 1))
		synctest.Wait()
		publish(t, p, sample(time.Now(), 2))
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.Stats(); got.Dropped != 1 || got.Sent != 2 { // the second sample, and the report of the first
			t.Errorf("%+v, want 1 dropped and 2 sent", got)
		}
	})
}

func TestCloseSaysWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPublisher(&stream{away: true}, PublisherOptions{Linger: -1})
		publish(t, p, sample(time.Now(), 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 messages") {
			t.Errorf("close: %v", err)
		}
		if err := p.Publish("s", []*event.Event{sample(time.Now(), 2)}); err == nil {
			t.Error("a closed publisher takes events")
		}
	})
}
