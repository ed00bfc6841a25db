package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// filling is a memory that has rollups; the first call fails after it took effect in part.
type filling struct {
	*memory
	mutex sync.Mutex
	calls []string
	upTo  uint64
	at    map[uint64]bool // numbers of blocks that were inserted
	told  chan struct{}
}

func (f *filling) InsertRows(ctx context.Context, token string, rows Rows) error {
	err := f.memory.InsertRows(ctx, token, rows)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for row := range rows.Count {
		if number, ok := rows.Value(row, "block").(uint64); ok {
			f.at[number] = true
		}
	}
	return err
}

func (f *filling) Fill(_ context.Context, token string, after, upTo uint64) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%s %d-%d", token, after, upTo))
	if len(f.calls) == 1 {
		return errors.New("the store went away in between")
	}
	if after != f.upTo && f.upTo != 0 {
		f.calls = append(f.calls, fmt.Sprintf("gap: after %d comes %d", f.upTo, after))
	}
	for number := range f.at {
		if number > after && number <= upTo {
			delete(f.at, number)
		}
	}
	f.upTo = upTo
	select {
	case f.told <- struct{}{}:
	default:
	}
	return nil
}

// Every block comes into the rollups once, in ranges that join; a step that failed is done again as it was, and what another owner left is done
// by the next one.
func TestRollupsAreFilledBlockByBlock(t *testing.T) {
	_, _, js := brokertest.Start(t)
	fleet := fleetOf{t, js}
	store := &filling{memory: newMemory(), at: map[uint64]bool{}, told: make(chan struct{}, 1)}
	for life := range uint64(3) {
		s := NewStorer(js, store, nil)
		s.linger, s.fillEvery = 5*time.Millisecond, 20*time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, eventsSeat, 0) }()
		for n := range uint64(10) {
			fleet.publish(fleet.message("gpu-1", life*10+n+1))
			await(t, store.when(hostTick("gpu-1", life*10+n+1)), "a tick")
		}
		if life < 2 {
			await(t, store.told, "a fill")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if len(store.at) > 0 {
		t.Errorf("blocks %v are in no rollup; filled were %q", store.at, store.calls)
	}
	if len(store.calls) < 4 || store.calls[0] != store.calls[1] {
		t.Errorf("filled were %q; the first failed and must be done again", store.calls)
	}
	seen := map[string]bool{}
	for _, call := range store.calls[1:] {
		if seen[call] || call[:3] == "gap" {
			t.Errorf("%s; all were %q", call, store.calls)
		}
		seen[call] = true
	}
}

// Steps have at most fillEvents; one that was begun does not grow any more. Numbers grow though the clock runs back.
func TestNumbersAndSteps(t *testing.T) {
	var p plan
	at := time.UnixMilli(1000)
	add := func(events int, now time.Time) uint64 {
		b := &bounds{Events: events}
		p.number(b, now)
		return b.Number
	}
	if a, b, c := add(fillEvents/2, at), add(fillEvents/2, at.Add(-time.Hour)), add(1, at.Add(time.Second)); a != 1000 || b != 1001 || c != 2000 {
		t.Errorf("numbers %d, %d, %d; want 1000, 1001, 2000", a, b, c)
	}
	if p.Filled != 999 || fmt.Sprint(p.Unfilled) != fmt.Sprint([]step{{From: 1000, To: 1001, Events: fillEvents}, {From: 2000, To: 2000, Events: 1}}) {
		t.Errorf("filled up to %d, not %v", p.Filled, p.Unfilled)
	}
	now := at.Add(time.Hour)
	if since := p.behind(now); !since.Equal(at) {
		t.Errorf("behind since %v, want the first block's time %v", since, at)
	}
	if rest := (&plan{Unfilled: p.Unfilled[1:]}); !rest.behind(now).Equal(at.Add(time.Second)) {
		t.Errorf("with one step filled, behind since %v", rest.behind(now))
	}
	p.Unfilled[1].Begun = true
	add(1, at.Add(2*time.Second))
	if len(p.Unfilled) != 3 || p.Unfilled[1].To != 2000 {
		t.Errorf("a step that was begun grew: %v", p.Unfilled)
	}
}

// However long the rollups cannot be filled, the plan can be read back: storing does not end with them.
func TestStepsAreBounded(t *testing.T) {
	p := plan{Version: planVersion}
	for n := range maxSteps + 10 {
		p.number(&bounds{Events: fillEvents}, tick.Add(time.Duration(n)*time.Second))
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	back, err := decodePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	if last := back.Unfilled[len(back.Unfilled)-1]; last.To != p.Number {
		t.Errorf("the last step is up to %d, the newest block is %d", last.To, p.Number)
	}
}

// A fill that nobody waits for any more ends at the server too, rather than run beside the next one.
func TestFillsEndAtTheServer(t *testing.T) {
	statement := fill{rollup: "r", source: "s", query: "SELECT a\nFROM d.s\n"}.added("d", "token", []rollupColumn{{name: "a"}}, 1, 2)
	if want := fmt.Sprintf("max_execution_time = %d,", int(fillLimit.Seconds())); !strings.Contains(statement, want) {
		t.Errorf("%s\nwant %s", statement, want)
	}
}

// Of an instance of two ranks the first tells the engine's load, which is that of both; another instance has its own, or none.
func TestJoinTellsTheLoadOfTheInstance(t *testing.T) {
	host := &event.Host{Cluster: "lab", Name: "h", BootId: "b"}
	var batch event.Batch
	batch.Host = host
	add := func(pid int64, unit string, rank int64, engine *event.Engine) {
		w := &event.Worker{Pid: pid, StartTicks: event.Ptr(uint64(1)), Unit: unit, Rank: event.Ptr(rank), GpuUuids: []string{fmt.Sprint("GPU-", pid)}}
		batch.Events = append(batch.Events, &event.Event{Time: timestamppb.New(tick), Host: host, Worker: w, Process: &event.Process{Fds: event.Ptr(uint64(3))}})
		if engine != nil {
			batch.Events = append(batch.Events, &event.Event{Time: timestamppb.New(tick), Host: host, Worker: w, Engine: engine})
		}
	}
	add(1, "a", 0, &event.Engine{Running: event.Ptr(uint64(4)), Waiting: event.Ptr(uint64(2))})
	add(2, "a", 1, nil)
	add(3, "b", 0, &event.Engine{Running: event.Ptr(uint64(1))})
	add(4, "c", 0, nil)
	rows := table(t, Join(Block{Number: 7, Messages: []Message{{Sequence: 1, Time: tick, Batch: &batch}}}), TableWorkers)
	for row, want := range []any{uint64(6), uint64(6), uint64(1), nil} {
		if got := value(t, rows, row, "load"); got != want {
			t.Errorf("row %d: load %v, want %v", row, got, want)
		}
		if got := value(t, rows, row, "block"); got != uint64(7) {
			t.Errorf("row %d: block %v", row, got)
		}
	}
}

// slowFiller is a memory whose first fill, if it is to hang, lasts as long as it may.
type slowFiller struct {
	*memory
	hang  bool
	begun chan struct{} // closed by the first fill

	mutex sync.Mutex
	calls []string
	ends  error // why the first was over
}

func (f *slowFiller) Fill(ctx context.Context, token string, after, upTo uint64) error {
	f.mutex.Lock()
	f.calls = append(f.calls, fmt.Sprintf("%s %d-%d", token, after, upTo))
	first := len(f.calls) == 1
	f.mutex.Unlock()
	if !first {
		return nil
	}
	close(f.begun)
	if !f.hang {
		return nil
	}
	<-ctx.Done()
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.ends = ctx.Err()
	return f.ends
}

// Whatever ends the serving of a seat ends the fill beside it, too, rather than to wait for it; and the step is done again as it was.
func TestPartingEndsTheFill(t *testing.T) {
	start := func(t *testing.T, js jetstream.JetStream, store Store, fence uint64) (ended chan error, stop func()) {
		s := NewStorer(js, store, nil)
		s.linger, s.fillEvery = 5*time.Millisecond, time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		ended = make(chan error, 1)
		go func() { ended <- s.Run(ctx, eventsSeat, fence) }()
		return ended, cancel
	}
	t.Run("the broker fails", func(t *testing.T) {
		t.Parallel()
		_, _, js := brokertest.Start(t)
		fleet, shaky := fleetOf{t, js}, &faulty{JetStream: js}
		store := &slowFiller{memory: newMemory(), hang: true, begun: make(chan struct{})}
		fleet.publish(fleet.message("gpu-1", 1))
		ended, stop := start(t, shaky, store, 0)
		await(t, store.begun, "the first fill")
		shaky.fail.Store(1)
		fleet.publish(fleet.message("gpu-1", 2))
		await(t, store.when(hostTick("gpu-1", 2)), "what the broker did not let plan")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !errors.Is(store.ends, context.Canceled) {
			t.Errorf("the fill was over by %v, want that it is ended", store.ends)
		}
		if len(store.calls) < 2 || store.calls[0] != store.calls[1] {
			t.Errorf("filled were %q; the first was ended and must be done again", store.calls)
		}
	})
	t.Run("the seat is another's", func(t *testing.T) {
		t.Parallel()
		_, _, js := brokertest.Start(t)
		fleet, kept := fleetOf{t, js}, newMemory()
		former := &slowFiller{memory: kept, hang: true, begun: make(chan struct{})}
		next := &slowFiller{memory: kept, begun: make(chan struct{})}
		fleet.publish(fleet.message("gpu-1", 1))
		ended, _ := start(t, js, former, 5)
		await(t, former.begun, "the first fill")
		// Settled, nothing of its own is left to be written that would tell it whose the seat is.
		bucket, err := js.KeyValue(t.Context(), broker.BucketBlocks)
		if err != nil {
			t.Fatal(err)
		}
		for settled := false; !settled; {
			p, _, err := readPlan(t.Context(), bucket, "block."+broker.StoreName)
			if err = errors.Join(err, pause(t.Context(), 50*time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			settled = p.Block == nil
		}
		nextEnded, stop := start(t, js, next, 6)
		await(t, next.begun, "the fill of the next owner")
		fleet.publish(fleet.message("gpu-1", 2))
		if err := <-ended; !errors.Is(err, ErrFenced) {
			t.Errorf("the former owner: %v, want ErrFenced", err)
		}
		await(t, kept.when(hostTick("gpu-1", 2)), "what the next owner stores")
		stop()
		if err := <-nextEnded; err != nil {
			t.Error(err)
		}
		if !errors.Is(former.ends, context.Canceled) || len(former.calls) != 1 {
			t.Errorf("the former owner's fill was over by %v, and filled were %q; want that it is ended, and no other begun", former.ends, former.calls)
		}
		if next.calls[0] != former.calls[0] {
			t.Errorf("the next owner filled %q, want the step that was begun, %q", next.calls, former.calls)
		}
	})
}
