package processor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor/worker"
	"lowtide/rules"
)

// recorded reads all events of a recording. Those of one reader share what they say of their process; from a stream each message brings its own.
func recorded(t testing.TB, path string) (all []*event.Event) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, err := event.NewReader(file, path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, proto.CloneOf(e))
	}
}

// trial is a judge whose findings are kept as they are published.
type trial struct {
	t     testing.TB
	pack  *rules.Pack
	judge *Judge
	found []string
}

func newTrial(t testing.TB, pack *rules.Pack) *trial {
	r := &trial{t: t, pack: pack}
	r.judge = NewJudge(pack, r.emit)
	return r
}

func (r *trial) emit(f *event.Finding) {
	text, err := event.MarshalFinding(f)
	if err != nil {
		r.t.Error(err)
	}
	r.found = append(r.found, string(text))
}

func (r *trial) save() []byte {
	r.t.Helper()
	state, err := r.judge.Save()
	if err != nil {
		r.t.Fatal(err)
	}
	return state
}

// replace goes on with a judge that was saved and restored, in another process: nothing is shared.
func (r *trial) replace() {
	r.t.Helper()
	state := r.save()
	next, err := RestoreJudge(r.pack, NewBoard(), r.emit, state)
	if err != nil {
		r.t.Fatal(err)
	}
	r.judge = next
	if again := r.save(); !bytes.Equal(again, state) {
		r.t.Fatalf("what was restored is saved as %d bytes that differ, was %d", len(again), len(state))
	}
}

const brokerTick = 30 * time.Second

// play applies events, with the ticks of a broker whose clock is that of the events where ticked is true, and replaces the judge before the
// events of cuts.
func (r *trial) play(events []*event.Event, ticked bool, cuts ...int) {
	r.t.Helper()
	var now, told time.Time
	for i, e := range events {
		if slices.Contains(cuts, i) {
			r.replace()
		}
		r.judge.Apply(e)
		if at := e.At(); at.After(now) {
			now = at
		}
		if ticked && now.Sub(told) >= brokerTick {
			told = now
			r.judge.Tick(now)
		}
	}
}

// written is a report as text, with messages instead of their addresses.
func written(r worker.Report) string {
	messages := fmt.Sprint(r.Who, r.Host, r.Config)
	r.Who, r.Host, r.Config = nil, nil, nil
	return messages + fmt.Sprintf("%+v", r)
}

// likewise compares a judge that was interrupted with one that was not: what they told, what they would tell, and all that they know.
func likewise(t *testing.T, got, want *trial) {
	t.Helper()
	if !slices.Equal(got.found, want.found) {
		for i := range max(len(got.found), len(want.found)) {
			a, b := "nothing", "nothing"
			if i < len(got.found) {
				a = got.found[i]
			}
			if i < len(want.found) {
				b = want.found[i]
			}
			if a != b {
				t.Fatalf("finding %d of %d is\n%s\nwant\n%s", i, len(want.found), a, b)
			}
		}
	}
	if a, b := got.save(), want.save(); !bytes.Equal(a, b) {
		t.Errorf("it knows other things by now: %d bytes, want %d", len(a), len(b))
	}
	a, b := got.judge.Reports(), want.judge.Reports()
	if len(a) != len(b) {
		t.Fatalf("%d reports, want %d", len(a), len(b))
	}
	for i := range a {
		if written(a[i]) != written(b[i]) || !proto.Equal(a[i].Who, b[i].Who) {
			t.Errorf("%s reports\n%s\nwant\n%s", b[i].Key, written(a[i]), written(b[i]))
		}
	}
}

// cutAt draws the events before which a judge is replaced, and always takes the first ones and the last.
func cutAt(random *rand.Rand, events, n int) []int {
	cuts := []int{0, 1, events - 1}
	for range n {
		cuts = append(cuts, random.IntN(events))
	}
	return cuts
}

// Each recording, cut at many moments one after the other, is judged as if it had not been: the same findings, byte for byte, and at the end
// the same state.
func TestACutRecordingIsJudgedAsItWas(t *testing.T) {
	all, err := filepath.Glob("testdata/*.ndjson.gz")
	if err != nil || len(all) < 14 {
		t.Fatal(len(all), err)
	}
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	for _, path := range all {
		t.Run(filepath.Base(path), func(t *testing.T) {
			events := recorded(t, path)
			for _, ticked := range []bool{false, true} {
				want := newTrial(t, builtin(t))
				want.play(events, ticked)
				cuts := cutAt(random, len(events), 8)
				got := newTrial(t, builtin(t))
				got.play(events, ticked, cuts...)
				want.judge.Flush()
				got.judge.Flush()
				if likewise(t, got, want); t.Failed() {
					t.Fatalf("seed %d, ticked %v, cut at %v of %d", seed, ticked, cuts, len(events))
				}
			}
		})
	}
}

// The simulated worlds have what recordings lack: restarts, rollouts, kills, several cards and ranks, memory that nobody holds, sensors that
// go away, clocks that are wrong.
func TestACutWorldIsJudgedAsItWas(t *testing.T) {
	scenarios := sim.Scenarios()
	step, seeds := 5, uint64(1)
	if testing.Short() {
		step = 15
	}
	for i := 0; i < len(scenarios); i += step {
		s := scenarios[i]
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				var events []*event.Event
				if _, err := sim.Play(s, seed+7, 0, 0, func(e *event.Event) error { events = append(events, proto.CloneOf(e)); return nil }); err != nil {
					t.Fatal(err)
				}
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				want := newTrial(t, builtin(t))
				want.play(events, true)
				cuts := cutAt(random, len(events), 8)
				got := newTrial(t, builtin(t))
				got.play(events, true, cuts...)
				want.judge.Flush()
				got.judge.Flush()
				if likewise(t, got, want); t.Failed() {
					t.Fatalf("seed %d, cut at %v of %d", seed, cuts, len(events))
				}
			}
		})
	}
}

// Where everything happens at once every field counts.
func TestACutChaosIsJudgedAsItWas(t *testing.T) {
	for name, pack := range map[string]*rules.Pack{"builtin": builtin(t), "probes": probePack(t)} {
		t.Run(name, func(t *testing.T) {
			found := 0
			for seed := range uint64(2) {
				events := newChaos(seed, 6000)
				want := newTrial(t, pack)
				want.play(events, seed%2 == 0)
				cuts := cutAt(rand.New(rand.NewPCG(seed, 5)), len(events), 30)
				got := newTrial(t, pack)
				got.play(events, seed%2 == 0, cuts...)
				if likewise(t, got, want); t.Failed() {
					t.Fatalf("seed %d, cut at %v", seed, cuts)
				}
				found += len(want.found)
			}
			if t.Logf("%d findings", found); found < 200 {
				t.Errorf("%d findings: too little happened", found)
			}
		})
	}
}
