package collector

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// told is what a stream stored, a message a line: its place, source and the numbers of its events.
func told(s *stream) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, b := range s.stored {
		line := fmt.Sprintf("%s%s %s/%d %s:", b.Host.Name, b.Host.BootId, b.Lane, b.Sequence, b.Source)
		for _, e := range b.Events {
			line += fmt.Sprintf(" %d", e.Machine.GetFds()+e.Oom.GetFreeBytes())
		}
		out = append(out, line)
	}
	return out
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func send(t *testing.T, p *Publisher, source string, events ...*event.Event) {
	t.Helper()
	if err := p.Publish(source, events); err != nil {
		t.Fatal(err)
	}
}

// The sources of a host answer within 99 ms of each other: they are one message, 100 ms after the first of them. What comes later has one of
// its own, under the name of its only source.
func TestTickOfSeveralSourcesIsOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		p := NewPublisher(s, PublisherOptions{})
		began := time.Now()
		send(t, p, "nvml", sample(began, 1), sample(began, 2))
		time.Sleep(40 * time.Millisecond)
		send(t, p, "process", sample(began, 3))
		time.Sleep(59 * time.Millisecond)
		send(t, p, "engine", sample(began, 4))
		synctest.Wait()
		if got := p.Stats(); got.PendingMessages != 1 || got.Sent != 0 || got.PendingBytes < 30 || got.PendingBytes > 200 {
			t.Errorf("%+v, want one message that is still being written", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		equal(t, told(s), "h1b samples/1 all: 1 2 3 4")
		if got := p.Stats(); got.PendingMessages != 0 || got.PendingBytes != 0 {
			t.Errorf("%+v", got)
		}
		send(t, p, "engine", sample(began, 5))
		time.Sleep(50 * time.Millisecond)
		send(t, p, "engine", sample(began, 6))
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, told(s), "h1b samples/1 all: 1 2 3 4", "h1b samples/2 engine: 5 6")
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// A failed allocation leaves at once, also one that came in the same call as samples, and what lingers is sent by the end.
func TestUrgentDoesNotLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		p := NewPublisher(s, PublisherOptions{Linger: time.Hour})
		failed := oom(time.Now())
		failed.Oom.FreeBytes = event.Ptr(uint64(2))
		send(t, p, "allocator", sample(time.Now(), 1), failed)
		synctest.Wait()
		equal(t, told(s), "h1b urgent/1 allocator: 2")
		began := time.Now()
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		equal(t, told(s), "h1b urgent/1 allocator: 2", "h1b samples/1 allocator: 1")
		if took := time.Since(began); took != 0 {
			t.Errorf("the end took %v", took)
		}
	})
}

// Each host has a message of its own, and one that starts again has one for each life: a message has one boot id.
func TestHostsAndTheirLivesDoNotShareAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		p := NewPublisher(s, PublisherOptions{})
		of := func(name, boot string, number int) *event.Event {
			e := sample(time.Now(), number)
			e.Host = &event.Host{Cluster: "lab", Name: name, BootId: boot}
			return e
		}
		send(t, p, "a", of("h1", "-1", 1), of("h2", "-1", 2), of("h1", "-1", 3), of("h1", "-2", 4), of("h2", "-1", 5), of("h1", "-2", 6))
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, told(s), "h1-1 samples/1 a: 1 3", "h2-1 samples/1 a: 2 5", "h1-2 samples/2 a: 4 6")
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// What cannot be encoded is named and costs no neighbour, and no sequence.
func TestEventThatCannotBeEncodedCostsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		p := NewPublisher(s, PublisherOptions{})
		bad := sample(time.Now(), 2)
		bad.Machine.DriverVersion = "\xff"
		homeless := sample(time.Now(), 3)
		homeless.Host = nil
		for range 2 {
			err := p.Publish("nvml", []*event.Event{bad, sample(time.Now(), 1), homeless, sample(time.Now(), 4)})
			if err == nil || !strings.Contains(err.Error(), "2 of 4 are left out: machine of nvml at 2000-01-01T00:00:00Z: ") || !strings.Contains(err.Error(), "UTF-8") || !strings.Contains(err.Error(), "field host: missing") {
				t.Errorf("error %v", err)
			}
		}
		if err := p.Publish("", []*event.Event{{Time: timestamppb.Now(), Host: &event.Host{Cluster: "lab", Name: "h2"}, Machine: &event.Machine{Fds: event.Ptr(uint64(1))}}}); err == nil {
			t.Error("a source without a name is taken")
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		equal(t, told(s), "h1b samples/1 nvml: 1 4 1 4")
	})
}

// 2,500 small events are three messages, since one holds 1,000. Events with a text of 1,000 bytes take 1,019 each, 1,020 once their number
// has two bytes, and the head takes 50: 256 KiB hold 257 of the first and 256 of the others. Sequences have no gap, and no event is lost or moved.
func TestMessageThatGrowsTooLargeIsSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			events, text int
			want         []int
		}{{2500, 0, []int{1000, 1000, 500}}, {700, 1000, []int{257, 256, 187}}} {
			s := &stream{}
			p := NewPublisher(s, PublisherOptions{})
			for i := range test.events {
				e := sample(time.Now(), i)
				e.Machine.DriverVersion = strings.Repeat("x", test.text)
				send(t, p, fmt.Sprintf("s%d", i%3), e)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []int
			next := uint64(0)
			for i, b := range s.stored {
				if b.Sequence != uint64(i+1) {
					t.Errorf("message %d has sequence %d", i, b.Sequence)
				}
				for _, e := range b.Events {
					if e.Machine.GetFds() != next {
						t.Fatalf("event %d came instead of %d", e.Machine.GetFds(), next)
					}
					next++
				}
				got = append(got, len(b.Events))
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("%d events of %d bytes: messages of %v, want %v", test.events, test.text, got, test.want)
			}
		}
	})
}

// A snapshot's summary that is larger than a message should be is one all the same, of its own.
func TestLargeEventIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := sample(time.Now(), 0)
		large.Machine, large.Snapshot = nil, &event.Snapshot{Reason: "asked"}
		for range 300 {
			large.Snapshot.Stacks = append(large.Snapshot.Stacks, &event.SnapshotStack{Frames: []string{strings.Repeat("x", 1000)}})
		}
		s := &stream{}
		p := NewPublisher(s, PublisherOptions{})
		send(t, p, "allocator", sample(time.Now(), 1), large)
		send(t, p, "process", sample(time.Now(), 2), sample(time.Now(), 3))
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		equal(t, told(s), "h1b samples/1 allocator: 1", "h1b samples/2 allocator: 0", "h1b samples/3 process: 2 3")
	})
}

// What lingers counts for the room: a thousand hosts that tell something at once fill no more than it, the oldest of them go, and each loss
// is counted; to tell each of these hosts' losses costs no more of what waits.
func TestWhatLingersIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{away: true}
		p := NewPublisher(s, PublisherOptions{MaxBytes: 10_000, Linger: time.Hour})
		for i := range 1000 {
			e := sample(time.Now(), i)
			e.Host = &event.Host{Cluster: "lab", Name: fmt.Sprintf("h%d", i)}
			send(t, p, "a", e)
			if got := p.Stats(); got.PendingBytes > 10_000 {
				t.Fatalf("%+v", got)
			}
		}
		got := p.Stats()
		if got.Dropped == 0 || int(got.Dropped)+got.PendingMessages != 1000 {
			t.Errorf("%+v, want a thousand in all", got)
		}
		s.set(func() { s.away = false })
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var last uint64
		for _, b := range s.stored {
			for _, e := range b.Events {
				last = max(last, e.Machine.GetFds())
			}
		}
		if after := p.Stats(); last != 999 || after.Dropped != got.Dropped {
			t.Errorf("the newest that arrived is %d; %+v afterwards, %+v before", last, after, got)
		}
	})
}

// Whatever is published when, and however often the broker is away: each lane of a host arrives in its order, once, without a gap in its
// sequences, and no event is missing.
func TestOrderHoldsWhateverComes(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 1))
			s := &stream{}
			kept := openSpool(t, t.TempDir())
			o := PublisherOptions{}
			if seed%2 == 0 {
				o.Spool = kept
			}
			p := NewPublisher(s, o)
			type stretch struct{ host, lane string }
			made := map[stretch]uint64{}
			for range 300 {
				var events []*event.Event
				for range draw.IntN(5) {
					host := &event.Host{Cluster: "lab", Name: fmt.Sprintf("h%d", draw.IntN(3)), BootId: fmt.Sprint(draw.IntN(20) / 19)}
					e := sample(time.Now(), 0)
					if draw.IntN(5) == 0 {
						e = oom(time.Now())
					}
					e.Host = host
					at := stretch{host.Name, event.Lane(e)}
					made[at]++
					if e.Machine != nil {
						e.Machine.Fds = event.Ptr(made[at])
					} else {
						e.Oom.FreeBytes = event.Ptr(made[at])
					}
					events = append(events, e)
				}
				send(t, p, fmt.Sprintf("s%d", draw.IntN(3)), events...)
				if draw.IntN(20) == 0 {
					s.set(func() { s.away = !s.away })
				}
				time.Sleep(time.Duration(draw.IntN(60)) * time.Millisecond)
			}
			s.set(func() { s.away = false })
			time.Sleep(time.Minute)
			end(t, p)
			arrived, sequences := map[stretch]uint64{}, map[stretch]uint64{}
			for _, b := range s.stored {
				at := stretch{b.Host.Name, b.Lane}
				if sequences[at]++; b.Sequence != sequences[at] {
					t.Fatalf("seed %d, %v: sequence %d, want %d", seed, at, b.Sequence, sequences[at])
				}
				for _, e := range b.Events {
					if arrived[at]++; e.Machine.GetFds()+e.Oom.GetFreeBytes() != arrived[at] {
						t.Fatalf("seed %d, %v: event %d, want %d", seed, at, e.Machine.GetFds()+e.Oom.GetFreeBytes(), arrived[at])
					}
				}
			}
			if fmt.Sprint(arrived) != fmt.Sprint(made) {
				t.Errorf("seed %d: arrived %v of %v", seed, arrived, made)
			}
			if err := kept.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
