package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/sim"
	"lowtide/event"
)

var start = time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)

// shelf is a stream in memory.
type shelf struct {
	mu      sync.Mutex
	batches []*event.Batch
	ids     map[string]bool
	sizes   int
	held    chan struct{} // nil: nothing holds it
	refuse  int           // so many attempts fail first
}

func (s *shelf) PublishMsg(ctx context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if s.held != nil {
		select {
		case <-s.held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse > 0 {
		s.refuse--
		return nil, errors.New("away")
	}
	b, _, err := event.DecodeBatch("", m.Data)
	if err != nil {
		return nil, err
	}
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	s.ids[m.Header.Get(nats.MsgIdHdr)] = true
	s.batches = append(s.batches, b)
	s.sizes += len(m.Data)
	return &jetstream.PubAck{}, nil
}

func (s *shelf) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.batches)
}

// Two hosts of three workers and three ticks: 18 worker-samples, one message a host and tick, and one of the failed allocation.
func TestFleetPublishesATickAsOneMessage(t *testing.T) {
	stream := &shelf{refuse: 3}
	f, err := New(stream, Options{Hosts: 2, Workers: 3, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for range 3 {
		for n := range 2 {
			samples, err := f.Tick(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			total += samples
		}
	}
	if err := f.Fail(1, start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	bySource, urgent, processes := map[string]int{}, 0, 0
	for _, b := range stream.batches {
		bySource[b.Source]++
		if b.Lane == event.LaneUrgent {
			urgent++
		}
		for _, e := range b.Events {
			if e.Process != nil {
				processes++
			}
			if err := event.Validate(e); err != nil {
				t.Error(err)
			}
		}
	}
	got := f.Count()
	if total != 18 || processes != 18 || got.Samples != 18 {
		t.Errorf("%d ticks, %d processes, %+v", total, processes, got)
	}
	if bySource["all"] != 7 || len(bySource) != 1 || urgent != 1 {
		t.Errorf("%v, %d urgent", bySource, urgent)
	}
	if got.Messages != 7 || got.Acked != 7 || got.Again != 3 || len(stream.ids) != 7 || got.Bytes <= uint64(stream.sizes) || got.WireBytes <= got.Bytes || got.Max == 0 {
		t.Errorf("%+v, %d ids, %d bytes", got, len(stream.ids), stream.sizes)
	}
}

// A broker that takes nothing holds the fleet back at its window, whatever is asked of it.
func TestFleetWaitsForTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := &shelf{held: make(chan struct{})}
		f, err := New(stream, Options{Hosts: 4, Workers: 1, Start: start})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for n := 0; err == nil; n++ {
			_, err = f.Tick(ctx, n%4)
		}
		if got := f.Count().Messages; !errors.Is(err, context.DeadlineExceeded) || got < window || got > window+8 {
			t.Errorf("%d messages wait, want the window of %d (%v)", got, window, err)
		}
		close(stream.held)
		if err := f.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := f.Count(); got.Acked != got.Messages {
			t.Errorf("%+v", got)
		}
	})
}

func TestFleetRefuses(t *testing.T) {
	for _, o := range []Options{{}, {Hosts: MaxHosts + 1, Workers: 1}, {Hosts: 1, Workers: MaxWorkers + 1}, {Hosts: 2, Workers: 1, Scenarios: []string{"none"}}} {
		if _, err := New(&shelf{}, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// Orders are obeyed to the tick: with credit for 100 worker-samples of hosts of 8 there are 104, since a host's tick is whole.
func TestDriveSpendsItsCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := &shelf{}
		in, orders := io.Pipe()
		var reports bytes.Buffer
		ended := make(chan error, 1)
		go func() {
			ended <- Drive(t.Context(), stream, Options{Hosts: 5, Workers: 8, Start: start, Kinds: []sim.Kind{sim.Healthy}}, 2, in, &reports)
		}()
		for _, line := range []string{`{"credit":40}`, `{"credit":100}`, `{"credit":7}`, `{"fail":2}`} {
			if _, err := io.WriteString(orders, line+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		orders.Close()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		var last Report
		var failed []Report
		for line := range strings.Lines(reports.String()) {
			last = Report{}
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Fatal(err)
			}
			if last.Failed > 0 {
				failed = append(failed, last)
			}
		}
		if past := uint64(2 * 131); last.Samples != 104+past || last.Acked != last.Messages || int(last.Acked) != stream.count() {
			t.Errorf("%+v, %d in the stream; want %d worker-samples", last, stream.count(), 104+past)
		}
		if len(failed) != 1 || failed[0].Host != "victim-002" || failed[0].At.IsZero() || !failed[0].Ready {
			t.Errorf("failed: %+v", failed)
		}
	})
}

func TestDriveRefusesOrders(t *testing.T) {
	for _, orders := range []string{"{oops\n", `{"fail":1}` + "\n"} {
		if err := Drive(t.Context(), &shelf{}, Options{Hosts: 1, Workers: 1, Start: start}, 0, strings.NewReader(orders), io.Discard); err == nil {
			t.Errorf("%q is obeyed", orders)
		}
	}
}
