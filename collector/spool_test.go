package collector

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/spool"
	"lowtide/event"
)

func openSpool(t *testing.T, folder string) *spool.Spool {
	t.Helper()
	s, err := spool.Open(spool.Options{Folder: folder, MaxBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// end closes a publisher that has a minute for it.
func end(t *testing.T, p *Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Close(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("close: %v, %v", err, ctx.Err())
	}
}

// arrived is what a stream stored, in order, by lane and producer: "samples/A:1-12 samples/B:1-3". Producers are named in the order given.
func arrived(t *testing.T, s *stream, producers ...string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, lane := range []string{event.LaneSamples, event.LaneUrgent} {
		last, from := "", uint64(0)
		var before uint64
		end := func() {
			if last != "" {
				out = append(out, fmt.Sprintf("%s/%c:%d-%d", lane, 'A'+slices.Index(producers, last), from, before))
			}
		}
		for _, b := range s.stored {
			if b.Lane != lane {
				continue
			}
			if b.Producer != last || b.Sequence != before+1 {
				end()
				last, from = b.Producer, b.Sequence
			}
			before = b.Sequence
		}
		end()
	}
	for id, attempts := range s.attempts {
		for _, bytes := range attempts {
			if bytes != attempts[0] {
				t.Errorf("message %s was published with other bytes", id)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestWhatWaitsForTheBrokerIsOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := openSpool(t, t.TempDir())
		s := &stream{away: true}
		p := NewPublisher(s, PublisherOptions{Linger: -1, Spool: kept})
		for i := range 12 {
			publish(t, p, sample(time.Now(), i), oom(time.Now()))
			time.Sleep(5 * time.Second)
		}
		for _, lane := range []string{event.LaneSamples, event.LaneUrgent} {
			if got := kept.Lane(lane).Stats(); got.Messages != 12 || got.Age(time.Now()) != time.Minute {
				t.Errorf("%s: %d messages, the oldest of %v, want 12 of 1m0s", lane, got.Messages, got.Age(time.Now()))
			}
		}
		if got := p.Stats(); !got.Away || got.PendingMessages != 0 || p.Ready() {
			t.Errorf("while away: %+v, ready %v, want nothing in memory, and not ready", got, p.Ready())
		}
		s.set(func() { s.away, s.loseAck = false, true })
		time.Sleep(5 * time.Second) // two pauses of 2 s: the first acknowledgement is lost
		publish(t, p, sample(time.Now(), 12))
		end(t, p)
		if got, want := arrived(t, s, p.Producer()), "samples/A:1-13 urgent/A:1-12"; got != want {
			t.Errorf("arrived: %s, want %s", got, want)
		}
		if got := p.Stats(); got.Sent != 25 || got.Duplicates != 1 || got.Dropped != 0 {
			t.Errorf("afterwards: %+v, want 25 sent, one of them twice", got)
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

// 400 messages wait, one more comes every second, and four a second may be sent of what waited: a message that comes is sent behind
// all of them, and after 100 seconds none waits.
func TestReplayIsBoundedAndNewEventsGoOnBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := openSpool(t, t.TempDir())
		s := &stream{away: true}
		p := NewPublisher(s, PublisherOptions{Linger: -1, Spool: kept, SpoolRate: 4})
		for i := range 400 {
			publish(t, p, sample(time.Now(), i))
		}
		time.Sleep(time.Minute)
		s.set(func() { s.away = false })
		for second := range 120 {
			time.Sleep(time.Second)
			publish(t, p, sample(time.Now(), 400+second))
			synctest.Wait()
			waits := kept.Lane(event.LaneSamples).Stats().Messages
			if least, most := max(0, 400-4*(second+1)-6), max(0, 400-4*(second-3)); int(waits) < least || int(waits) > most {
				t.Fatalf("after %d s %d messages wait, want %d to %d", second+1, waits, least, most)
			}
		}
		if got, want := arrived(t, s, p.Producer()), "samples/A:1-520"; got != want {
			t.Errorf("arrived: %s, want %s", got, want)
		}
		end(t, p)
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What came while the broker was slow has a right to be sent at once, and loses it when the broker goes: 40 of 400 in ten seconds.
func TestBrokerThatIsSlowAndThenGoesIsNotDrowned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := openSpool(t, t.TempDir())
		s := &stream{}
		var slow atomic.Bool
		slow.Store(true)
		p := NewPublisher(streamOf(func(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
			if slow.Load() {
				return hanging{}.PublishMsg(ctx, m)
			}
			return s.PublishMsg(ctx, m)
		}), PublisherOptions{Linger: -1, Spool: kept, SpoolRate: 4, MaxBytes: 10_000})
		for i := range 400 {
			publish(t, p, sample(time.Now(), i))
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		slow.Store(false)
		time.Sleep(5 * time.Second) // the last attempt of the slow time ends
		before := p.Stats().Sent
		time.Sleep(10 * time.Second)
		if got := p.Stats().Sent - before; got < 38 || got > 42 || before > 25 {
			t.Errorf("%d sent in the first 5 s, %d in the next 10 s, want up to 20 and 40", before, got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A collector that is restarted while the broker is away does not wait for it; the next one sends what is left under the old ids first.
func TestNextCollectorSendsWhatTheLastOneLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		s := &stream{away: true}
		var producers []string
		for range 3 {
			kept := openSpool(t, folder)
			p := NewPublisher(s, PublisherOptions{Linger: -1, Spool: kept})
			producers = append(producers, p.Producer())
			for i := range 5 {
				publish(t, p, sample(time.Now(), i), oom(time.Now()))
			}
			if len(producers) == 3 {
				s.set(func() { s.away = false })
				time.Sleep(10 * time.Second)
			} else {
				synctest.Wait() // both lanes have tried
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := p.Close(ctx); err != nil {
				t.Error(err)
			}
			cancel()
			if took := time.Since(began); took > 0 {
				t.Errorf("the end took %v", took)
			}
			if err := kept.Close(); err != nil {
				t.Error(err)
			}
		}
		if got, want := arrived(t, s, producers...), "samples/A:1-5 samples/B:1-5 samples/C:1-5 urgent/A:1-5 urgent/B:1-5 urgent/C:1-5"; got != want {
			t.Errorf("arrived: %s, want %s", got, want)
		}
	})
}

// What is queued when the end comes and the broker hangs goes to disk, the message in flight first.
func TestEndBeforeTheAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := openSpool(t, t.TempDir())
		p := NewPublisher(hanging{}, PublisherOptions{Linger: -1, Spool: kept, AckTimeout: time.Hour})
		for i := range 5 {
			publish(t, p, sample(time.Now(), i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		s := &stream{}
		next := NewPublisher(s, PublisherOptions{Linger: -1, Spool: kept})
		end(t, next)
		if got, want := arrived(t, s, p.Producer()), "samples/A:1-5"; got != want {
			t.Errorf("arrived: %s, want %s", got, want)
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

// hanging is a broker that takes messages and says nothing.
type hanging struct{}

func (hanging) PublishMsg(ctx context.Context, _ *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The samples' acknowledgement does not come for a minute: they go to disk when memory is half full, none is lost, none is sent twice,
// and the urgent lane does not notice.
func TestHangingLaneHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := openSpool(t, t.TempDir())
		s := &stream{}
		hold := make(chan struct{})
		p := NewPublisher(streamOf(func(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
			if strings.Contains(m.Header.Get(nats.MsgIdHdr), "/samples/") {
				<-hold
			}
			return s.PublishMsg(ctx, m)
		}), PublisherOptions{Linger: -1, Spool: kept, MaxBytes: 40_000})
		for i := range 1000 {
			publish(t, p, sample(time.Now(), i))
			if i%10 == 0 {
				publish(t, p, oom(time.Now()))
			}
			synctest.Wait()
		}
		if got, want := arrived(t, s, p.Producer()), "urgent/A:1-100"; got != want {
			t.Errorf("while samples hang: %s, want %s", got, want)
		}
		if got := p.Stats(); got.Dropped != 0 || got.PendingBytes > 20_000 {
			t.Errorf("%+v, want at most half of the memory in use", got)
		}
		if got := kept.Lane(event.LaneSamples).Stats(); got.Messages < 500 {
			t.Errorf("%d messages on disk", got.Messages)
		}
		close(hold)
		end(t, p)
		if got, want := arrived(t, s, p.Producer()), "samples/A:1-1000 urgent/A:1-100"; got != want {
			t.Errorf("arrived: %s, want %s", got, want)
		}
		if got := p.Stats(); got.Duplicates != 0 || got.Sent != 1100 {
			t.Errorf("%+v", got)
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

type streamOf func(context.Context, *nats.Msg) (*jetstream.PubAck, error)

func (f streamOf) PublishMsg(ctx context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return f(ctx, m)
}

// The disk takes nothing: the collector goes on in memory, drops the oldest there, says so in both ways, and is well afterwards.
func TestDiskThatTakesNothingIsAStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		kept := openSpool(t, folder)
		sensor := spool.NewSensor(kept, nil)
		s := &stream{away: true}
		p := NewPublisher(s, PublisherOptions{Linger: -1, Spool: kept, MaxBytes: 4000})
		publish(t, p, sample(time.Now(), 0), oom(time.Now()))
		synctest.Wait()
		// The next segment cannot be made; the one that is open is no more than a reader's by then.
		lane := filepath.Join(folder, event.LaneSamples)
		if err := os.Rename(lane, lane+".away"); err != nil {
			t.Fatal(err)
		}
		big := sample(time.Now(), 1)
		big.Machine.KernelVersion = strings.Repeat("x", 256<<10) // begins a segment
		publish(t, p, big)
		synctest.Wait()
		for i := range 100 {
			publish(t, p, sample(time.Now(), 2+i))
		}
		synctest.Wait()
		if _, err := sensor.Collect(t.Context(), time.Now()); err == nil || !strings.Contains(err.Error(), "nothing is written") {
			t.Errorf("status %v", err)
		}
		before := p.Stats()
		if before.Dropped == 0 || before.PendingMessages == 0 {
			t.Errorf("%+v, want some dropped and some in memory", before)
		}
		if err := os.Rename(lane+".away", lane); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if _, err := sensor.Collect(t.Context(), time.Now()); err != nil {
			t.Errorf("status of a disk that is well: %v", err)
		}
		s.set(func() { s.away = false })
		time.Sleep(10 * time.Second)
		end(t, p)
		// 102 samples and the report; the oldest go, but for the one that is being sent at that moment.
		var got []uint64
		for _, b := range s.stored {
			if b.Lane == event.LaneSamples {
				got = append(got, b.Sequence)
			}
		}
		if uint64(len(got))+uint64(before.Dropped) != 103 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) || got[0] != 1 || got[len(got)-1] != 103 {
			t.Errorf("%d dropped, arrived: %s", before.Dropped, arrived(t, s, p.Producer()))
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A message that the broker will never take is given up, also when a former collector left it on disk.
func TestMessageThatIsNeverTakenDoesNotHoldUpTheSpool(t *testing.T) {
	for _, fault := range []error{nats.ErrMaxPayload, nats.ErrBadSubject, &jetstream.APIError{Code: 400, ErrorCode: codeTooLarge, Description: "message size exceeds maximum allowed"}} {
		synctest.Test(t, func(t *testing.T) {
			folder := t.TempDir()
			kept := openSpool(t, folder)
			p := NewPublisher(&stream{away: true}, PublisherOptions{Linger: -1, Spool: kept})
			publish(t, p, sample(time.Now(), 1), oom(time.Now()))
			synctest.Wait()
			end(t, p)
			s := &stream{}
			next := NewPublisher(streamOf(func(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
				if strings.Contains(m.Header.Get(nats.MsgIdHdr), p.Producer()+"/samples/") {
					return nil, fault
				}
				return s.PublishMsg(ctx, m)
			}), PublisherOptions{Linger: -1, Spool: kept})
			publish(t, next, sample(time.Now(), 2))
			time.Sleep(time.Second)
			end(t, next)
			if got, want := arrived(t, s, p.Producer(), next.Producer()), "samples/B:1-2 urgent/A:1-1"; got != want { // and the report
				t.Errorf("%v: arrived: %s, want %s", fault, got, want)
			}
			if got := next.Stats(); got.Dropped != 1 {
				t.Errorf("%v: %+v", fault, got)
			}
			if err := kept.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
