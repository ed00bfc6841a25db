package processor

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// journal is a log that a test reads.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), what)
}

func journalled(t testing.TB, js jetstream.JetStream) (*Judges, *journal) {
	t.Helper()
	kept := new(journal)
	all := judges(t, js)
	all.options.Log = slog.New(slog.NewTextHandler(kept, nil))
	return all, kept
}

// What was saved is of no use; the stream still holds everything. The state is made anew, which the log says once, what was announced is
// not announced again, and what follows is what an undisturbed run says.
func TestStateOfNoUseIsMadeAnew(t *testing.T) {
	resave := func(t *testing.T, a *archive, change func(state []byte) []byte) {
		t.Helper()
		e, revision, err := a.read(t.Context(), testPartition)
		if err != nil {
			t.Fatal(err)
		}
		state, err := a.get(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.put(t.Context(), testPartition, &e, change(state)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.write(t.Context(), testPartition, e, revision); err != nil {
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func(*testing.T, *archive){
		"another version": func(t *testing.T, a *archive) {
			resave(t, a, func(state []byte) []byte { state[len(envelopeMark)]++; return state })
		},
		"judge of another version": func(t *testing.T, a *archive) {
			resave(t, a, func(state []byte) []byte {
				l, judge, err := decodeEnvelope(state, testPartition)
				if err != nil {
					t.Fatal(err)
				}
				judge[3]++ // behind the mark
				out, err := encodeEnvelope(l, judge)
				if err != nil {
					t.Fatal(err)
				}
				return out
			})
		},
		"damaged": func(t *testing.T, a *archive) {
			resave(t, a, func(state []byte) []byte { return state[:len(state)-1] })
		},
		"lost": func(t *testing.T, a *archive) {
			e, _, err := a.read(t.Context(), testPartition)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.drop(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		},
		"a part of it lost": func(t *testing.T, a *archive) {
			e, _, err := a.read(t.Context(), testPartition)
			if err != nil {
				t.Fatal(err)
			}
			stream, err := a.stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(chunkSubject(e.Chunks))); err != nil {
				t.Fatal(err)
			}
		},
		"entry of another version": func(t *testing.T, a *archive) {
			if _, err := a.kv.Put(t.Context(), stateKey(testPartition), []byte(`{"version":99,"fence":1,"where":"elsewhere"}`)); err != nil {
				t.Fatal(err)
			}
		},
		"entry of nothing": func(t *testing.T, a *archive) {
			if _, err := a.kv.Put(t.Context(), stateKey(testPartition), []byte{0xff}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, js := brokertest.Start(t)
			forgetful(t, js)
			s := newScript(t, 5, "leak", "kv_leak")
			all, _ := journalled(t, js)
			w := begin(t, all, testPartition, 1)
			half := s.send(js, len(s.batches)/10*9)
			w.applied(testPartition, half)
			w.close()
			before := len(announced(t, js))
			want := s.undisturbed()
			if before == 0 || before == len(want) {
				t.Fatalf("%d of %d are announced before", before, len(want))
			}
			spoil(t, all.archive)
			forgotten(t, js)
			all, kept := journalled(t, js)
			w = begin(t, all, testPartition, 2)
			last := s.rest(js)
			w.applied(testPartition, last)
			w.close()
			same(t, announced(t, js), want)
			if n := kept.count("made anew from what the stream holds"); n != 1 {
				t.Errorf("the log says it %d times", n)
			}
			if e := savedUpTo(t, js, testPartition, last); e.Fence != 2 {
				t.Errorf("entry %+v", e)
			}
		})
	}
}

// The stream dropped events that no state holds. That is counted and said, and the rest is judged.
func TestTrimmedStreamIsCountedAsLoss(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	all := judges(t, js)
	w := begin(t, all, testPartition, 1)
	saved := s.send(js, 100)
	w.applied(testPartition, saved)
	w.close()
	s.send(js, 50)
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(saved+31)); err != nil { // 30 are gone
		t.Fatal(err)
	}
	all, kept := journalled(t, js)
	w = begin(t, all, testPartition, 2)
	last := s.rest(js)
	w.applied(testPartition, last)
	m := all.partitions()[0].gauge.read()
	w.close()
	if m.trimmed != 30 || m.missing != 30 || kept.count("events were lost") != 1 {
		t.Errorf("%d trimmed, %d missing, said %d times; want 30, 30 and once", m.trimmed, m.missing, kept.count("events were lost"))
	}
	if floor := floorOf(t, js, testPartition); floor != last {
		t.Errorf("acknowledged up to %d, want %d", floor, last)
	}
}

// A silent partition's place is far behind the stream's first message, and nothing is lost.
func TestSilentPartitionLosesNothing(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	all := judges(t, js)
	w := begin(t, all, testPartition, 1)
	w.applied(testPartition, s.send(js, 10))
	other := hostOn(testPartition+1, "other")
	var newest uint64
	for n := range 20 {
		newest = quiet(t, js, other, uint64(n+1))
	}
	p := all.partitions()[0]
	until(t, "it looked through the stream", func() bool { return p.gauge.read().through == newest })
	w.close()
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	through := savedThrough(t, all, p)
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(through+1)); err != nil {
		t.Fatal(err)
	}
	all, kept := journalled(t, js)
	w = begin(t, all, testPartition, 2)
	last := s.send(js, 10)
	w.applied(testPartition, last)
	w.close()
	if n := kept.count("events were lost"); n != 0 {
		t.Error("a loss is said where none is")
	}
}

// savedThrough saves how far a partition that has ended had looked, as it would have after ten minutes.
func savedThrough(t testing.TB, all *Judges, p *partition) uint64 {
	t.Helper()
	if err := p.saveNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, _, err := all.archive.read(t.Context(), p.number)
	if err != nil {
		t.Fatal(err)
	}
	return e.Through
}

// quiet publishes a message of a host that says nothing but that it is there.
func quiet(t testing.TB, js jetstream.JetStream, host *event.Host, sequence uint64) uint64 {
	t.Helper()
	wire, err := event.EncodeBatch(&event.Batch{Host: host, Source: "x", Producer: "q", Lane: event.LaneSamples, Sequence: sequence,
		Events: []*event.Event{{Time: timestamppb.New(time.Unix(1_790_000_000+int64(sequence), 0)), Source: &event.SourceStatus{Name: "nvml", Status: "ok"}}}})
	if err != nil {
		t.Fatal(err)
	}
	ack, err := js.Publish(t.Context(), event.SubjectFor(host.Cluster, host.Name, "x"), wire)
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

// The stream was deleted and made again: its sequences begin at 1, far below what the state holds.
func TestStreamThatBeginsAnew(t *testing.T) {
	server, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak")
	w := begin(t, judges(t, js), testPartition, 1)
	w.applied(testPartition, s.send(js, 200))
	w.close()
	if err := js.DeleteStream(t.Context(), event.StreamEvents); err != nil {
		t.Fatal(err)
	}
	if err := broker.Ensure(context.WithoutCancel(t.Context()), js, server.Limits()); err != nil {
		t.Fatal(err)
	}
	all, kept := journalled(t, js)
	w = begin(t, all, testPartition, 2)
	last := s.rest(js)
	w.applied(testPartition, last)
	w.close()
	same(t, announced(t, js), s.undisturbed())
	if last >= 300 || kept.count("used again") != 1 {
		t.Errorf("ends with %d; said %d times that sequences were used again", last, kept.count("used again"))
	}
}
