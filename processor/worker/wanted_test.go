package worker

import (
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/rules/variable"
)

// What is left for later is, whenever somebody looks, what it would have been had it been set at each tick: also where a sensor stops to
// tell something, a tick holds a part of the sensors only, or what it is worked out from changes between the tick and the look.
func TestWhatIsLeftForLaterIsAsItWas(t *testing.T) {
	some := variable.NewSet(variable.Must("kv.now"), variable.Must("headroom.ratio"), variable.Must("live.hours_to_limit_low"))
	for _, of := range []struct {
		scenario string
		step     time.Duration
		read     variable.Set
	}{
		{"healthy-steady", 5 * time.Second, variable.NewSet()},
		{"healthy-steady", time.Minute, some},
		{"retention-oom", time.Minute, variable.NewSet()},
		{"kv-pressure-demand", 20 * time.Second, some},
	} {
		t.Run(of.scenario+" "+of.step.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, uint64(of.step)))
			var at, later *Worker
			looks := 0
			_, err := sim.Play(sim.Scenario{Name: of.scenario}, 3, 6, of.step, func(e *event.Event) error {
				if e.Worker == nil && e.Gpu == nil || e.Worker != nil && at != nil && e.Worker.GetPid() != at.Who.GetPid() || at == nil && e.Worker == nil {
					return nil
				}
				e = proto.CloneOf(e)
				if at == nil {
					at, later = New("w", e.Host, e.Worker, e.At()), New("w", e.Host, e.Worker, e.At())
					later.Wanted(NewWanted(of.read))
				}
				forgetSome(random, e)
				if random.IntN(20) == 0 {
					return nil // lost
				}
				if a, b := at.Apply(e), later.Apply(e); a != b {
					t.Errorf("a tick was closed: %v, want %v", b, a)
				}
				if random.IntN(97) == 0 && !t.Failed() {
					looks++
					same(t, later, at)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if at.End() != later.End() {
				t.Error("one had more to close")
			}
			same(t, later, at)
			if looks < 10 {
				t.Errorf("looked %d times only", looks)
			}
		})
	}
}

// forgetSome takes fields out of an event that are read now and then only.
func forgetSome(random *rand.Rand, e *event.Event) {
	rarely := func() bool { return random.IntN(30) == 0 }
	if g := e.Engine; g != nil {
		if rarely() {
			g.KvUsage = nil
		}
		if rarely() {
			g.Running = nil
		}
		if rarely() {
			g.Waiting = nil
		}
	}
	if a := e.Allocator; a != nil && rarely() {
		a.ActiveBytes, a.ReservedPeakBytes = nil, nil
	}
	if g := e.Gpu; g != nil && rarely() {
		g.FreeBytes, g.Utilization = nil, nil
	}
	if p := e.Process; p != nil && rarely() {
		p.CgroupBytes, p.Fds, p.AnonBytes = nil, nil, nil
	}
}
