package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// refusing refuses every insert into a table that has a row of one of the seconds.
func refusing(table string, code int, seconds ...int64) func(string, Rows) error {
	return func(_ string, rows Rows) error {
		if rows.Table != table {
			return nil
		}
		for row := range rows.Count {
			for _, second := range seconds {
				if rows.Value(row, "time").(time.Time).Unix() == tick.Unix()+second {
					return fmt.Errorf("insert: %w: %w", ErrRefused, &Refusal{Code: code, Message: "Constraint violated"})
				}
			}
		}
		return nil
	}
}

func keptAsRefused(m *memory) (refused int) {
	for name, n := range m.rows {
		if strings.HasPrefix(name, TableEvents) && strings.Contains(name, " refused ") {
			refused += n
		}
	}
	return refused
}

// Of 60 ticks in one block three rows are refused: the others are stored, the three are kept as events with all they held, once, also when
// the storer is killed at any step of taking the block apart.
func TestRefusedRowsAreKeptAndHoldNothingUp(t *testing.T) {
	for seed := range uint64(3) {
		_, _, js := brokertest.Start(t)
		f := fleetOf{t, js}
		random := rand.New(rand.NewPCG(seed, 3))
		store := newMemory()
		store.fail = refusing(TableGpus, 469, 7, 8, 33)
		bodies := map[string]string{}
		inner := store.fail
		store.fail = func(token string, rows Rows) error {
			for row := range rows.Count {
				if rows.Table == TableEvents && rows.Value(row, "event") == "refused" {
					bodies[rows.Value(row, "time").(time.Time).Format("05")] = rows.Value(row, "body").(string)
				}
			}
			return inner(token, rows)
		}
		for n := uint64(1); n <= 60; n++ {
			f.publish(f.message("gpu-1", n))
		}
		for range 6 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if err := live(ctx, js, store, 12+random.IntN(20), random.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		f.publish(f.message("gpu-1", 61))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runAll(ctx, js, store) }()
		await(t, store.when(hostTick("gpu-1", 61)), "the message behind them")
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		gpus := 0
		for name, n := range store.rows {
			if strings.HasPrefix(name, TableGpus) {
				gpus += n
			}
			if n != 1 && !strings.Contains(name, " refused ") {
				t.Errorf("%s is there %d times", name, n)
			}
		}
		if gpus != 58 || keptAsRefused(store) != 3 {
			t.Errorf("seed %d: %d rows and %d refused, want 58 and 3", seed, gpus, keptAsRefused(store))
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(bodies["33"]), &body); err != nil || body["uuid"] != "GPU-a" || body["total_bytes"] != 1000.0 {
			t.Errorf("kept %s: %v", bodies["33"], err)
		}
	}
}

// What is refused even as an event goes to a stream of its own, and nothing waits for it.
func TestWhatIsRefusedTwiceIsBuried(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := fleetOf{t, js}
	store := newMemory()
	gpus := refusing(TableGpus, 469, 2)
	store.fail = func(token string, rows Rows) error {
		if strings.Contains(token, ":refused:") {
			return fmt.Errorf("insert: %w: %w", ErrRefused, &Refusal{Code: 131, Message: "too large"})
		}
		return gpus(token, rows)
	}
	seat := 0
	for n := uint64(1); n <= 4; n++ {
		f.publish(f.message("gpu-1", n))
	}
	s, end := begin(t, js, store, seat, 0, nil)
	await(t, store.when(hostTick("gpu-1", 4)), "the rest")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), StreamRefused)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil || !strings.Contains(string(m.Data), `GPU-a`) || !strings.Contains(string(m.Data), `"name":"gpu_samples"`) || stream.CachedInfo().State.Msgs != 1 {
		t.Errorf("buried %+v, %v, %+v", m, err, stream.CachedInfo().State)
	}
	if got := metric(t, s, "lowtide_store_refused_rows_total"); got != 1 {
		t.Errorf("%v refused, want 1", got)
	}
}

// What says something of the server and not of the rows is tried again, whole, until it passes.
func TestWhatWillPassIsNotTakenApart(t *testing.T) {
	for _, code := range []int{252, 241, 159, 164, 243, 60, 202, 999999} {
		_, _, js := brokertest.Start(t)
		f := fleetOf{t, js}
		store := newMemory()
		calls := 0
		store.fail = func(string, Rows) error {
			if calls++; calls <= 2 {
				return fmt.Errorf("insert: %w: %w", ErrRefused, &Refusal{Code: code, Message: "later"})
			}
			return nil
		}
		f.publish(f.message("gpu-1", 1))
		seat := eventsSeat
		s, end := begin(t, js, store, seat, 0, nil)
		await(t, store.when(hostTick("gpu-1", 1)), fmt.Sprint("code ", code))
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if store.tried[0] != store.tried[2] || keptAsRefused(store) != 0 || metric(t, s, "lowtide_store_refused_rows_total") != 0 {
			t.Errorf("code %d: tried %v", code, store.tried)
		}
	}
}

// On a clock that a test moves: too much at once is halved after half a minute, a code that nobody knows is taken for a refusal after five.
func TestPatienceEnds(t *testing.T) {
	_, _, js := brokertest.Start(t)
	for code, want := range map[int]time.Duration{241: splitAfter, 999999: askFor} {
		s := NewStorer(js, nil, nil)
		now := tick
		s.now = func() time.Time { return now }
		r := newRun(s, 0, 0)
		r.ledger = &ledger{now: s.now, confirmed: tick.Add(time.Hour)}
		calls := 0
		r.store = storeFunc(func(context.Context, string, Rows) error {
			calls++
			if calls == 3 {
				now = tick.Add(want)
			}
			return fmt.Errorf("insert: %w: %w", ErrRefused, &Refusal{Code: code, Message: "no"})
		})
		rows := Join(Block{Messages: []Message{tickBatch(1, tick), tickBatch(2, tick.Add(time.Second))}})[0]
		var no *refused
		if err := r.try(t.Context(), "t", rows, patience{splitAfter, askFor}); !errors.As(err, &no) || calls != 3 {
			t.Errorf("code %d: %v after %d calls, want a refusal after 3", code, err, calls)
		}
		if err := r.try(t.Context(), "t", rows, patience{}); !errors.As(err, &no) || calls != 4 {
			t.Errorf("code %d, once it is taken apart: %v after %d calls", code, err, calls)
		}
	}
}

// A plan of the broker is refused or holds together.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"version":1,"stream":"LOWTIDE_EVENTS@a","fence":3,"owner":"o","stored":4,"block":{"first":6,"last":9,"count":2,"sum":77,"again":[7],"pieces":[{"table":"events","from":0,"to":2}]}}`))
	f.Add([]byte(`{"version":1,"stored":4}`))
	f.Add([]byte(`{"version":1,"block":{"first":1,"last":18446744073709551615,"count":2000}}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := decodePlan(text)
		if err != nil {
			if !errors.Is(err, ErrPlan) {
				t.Fatalf("%v is no ErrPlan", err)
			}
			return
		}
		if b := p.Block; b != nil && (b.First <= p.Stored || b.Last < b.First || b.Count < 1 || b.Count > blockMessages) {
			t.Fatalf("took %+v", *b)
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodePlan(again); err != nil && len(again) <= maxPlan {
			t.Fatalf("wrote %s: %v", again, err)
		}
	})
}

// Marks that are read are those that were written.
func FuzzMarks(f *testing.F) {
	m := &marks{stored: 12, known: map[uint64]mark{1: {3, 4, 5}, markKey("a", "b"): {6, 7, 8}}}
	f.Add(m.encode("LOWTIDE_EVENTS@a"))
	f.Add([]byte{marksVersion, 0, 0, 0xff, 0xff, 0x01})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, stream, err := decodeMarks(text)
		if err != nil {
			if !errors.Is(err, ErrMarks) {
				t.Fatalf("%v is no ErrMarks", err)
			}
			return
		}
		again, of, err := decodeMarks(m.encode(stream))
		if err != nil || of != stream || again.stored != m.stored || len(again.known) != len(m.known) {
			t.Fatalf("%v: %q %d, then %q %d", err, stream, m.stored, of, again.stored)
		}
		for key, one := range m.known {
			if again.known[key] != one {
				t.Fatalf("mark %d: %v, then %v", key, one, again.known[key])
			}
		}
	})
}

// By the producer's sequence in each lane, and by the finding's id; old ones are forgotten, and of too many the oldest.
func TestMarks(t *testing.T) {
	m := &marks{known: map[uint64]mark{}}
	say := func(host, lane string, sequence uint64) bool {
		b := tickBatch(sequence, tick)
		b.Batch.Host, b.Batch.Lane = &event.Host{Cluster: "prod", Name: host}, lane
		fresh, _, _ := m.take(&b)
		return fresh
	}
	for _, c := range []struct {
		host, lane string
		sequence   uint64
		fresh      bool
	}{
		{"a", "samples", 5, true}, {"a", "samples", 5, false}, {"a", "samples", 4, false}, {"a", "urgent", 4, true}, {"b", "samples", 5, true}, {"a", "samples", 6, true},
	} {
		if got := say(c.host, c.lane, c.sequence); got != c.fresh {
			t.Errorf("%+v: new is %v", c, got)
		}
	}
	one := findingMessage(9, event.Suspected)
	if fresh, _, _ := m.take(&one); !fresh {
		t.Error("a finding is new")
	}
	if fresh, _, _ := m.take(&one); fresh {
		t.Error("a finding that comes again is not")
	}
	if m.prune(tick.Add(marksKept)); len(m.known) != 4 {
		t.Errorf("%d marks after %v, want 4", len(m.known), marksKept)
	}
	for i := range uint64(maxMarks) {
		m.known[i+1<<60] = mark{1, 100 + i, tick.Unix()}
	}
	if m.prune(tick); len(m.known) != maxMarks || m.evicted != 4 || m.known[1<<60] != (mark{1, 100, tick.Unix()}) {
		t.Errorf("%d marks, %d evicted", len(m.known), m.evicted)
	}
	if n := len(m.encode("s")); n > maxMarksText/2 {
		t.Errorf("%d bytes for the most marks there can be", n)
	}
}
