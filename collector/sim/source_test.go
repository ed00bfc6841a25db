package sim

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func all(t testing.TB, o Options, tick time.Time) (events []*event.Event, calls int) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for {
		some, err := s.Collect(t.Context(), tick)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			return events, calls
		}
		if len(some) > maxEvents {
			t.Fatalf("%d events in one call", len(some))
		}
		events = append(events, some...)
		calls++
	}
}

func TestSameSeedSameEvents(t *testing.T) {
	o := Options{Hosts: 2, Seed: 7, Start: now.Add(-time.Hour), Step: time.Minute}
	a, calls := all(t, o, now)
	b, _ := all(t, o, now)
	if len(a) != 61*2*3*5+2*3 || calls != 1 {
		t.Fatalf("%d events in %d calls, want 61 steps of 2 hosts, 3 workers, 5 events, and a config of each, in one", len(a), calls)
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			t.Fatalf("event %d differs: %v and %v", i, a[i], b[i])
		}
		if err := event.Validate(a[i]); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	o.Seed = 8
	c, _ := all(t, o, now)
	same := true
	for i := range a {
		same = same && proto.Equal(a[i].Engine, c[i].Engine)
	}
	if same {
		t.Error("another seed gives the same load")
	}
}

func TestPastComesInBoundedCallsAndInOrder(t *testing.T) {
	events, calls := all(t, Options{Hosts: 10, Start: now.Add(-12 * time.Hour), Step: time.Minute}, now)
	events = slices.DeleteFunc(events, func(e *event.Event) bool { return e.Oom != nil }) // leaks come to their end
	if len(events) != 721*10*3*5+10*3 || calls < len(events)/maxEvents {
		t.Errorf("%d events in %d calls", len(events), calls)
	}
	for i := 1; i < len(events); i++ {
		if events[i].At().Before(events[i-1].At()) {
			t.Fatalf("event %d goes back in time", i)
		}
	}
}

// What each kind is called for, over eight hours: quiet levels of live memory, and the KV pool.
func TestKindsHaveWhatTheyAreCalledFor(t *testing.T) {
	events, _ := all(t, Options{Seed: 1, Start: now.Add(-8 * time.Hour), Step: time.Minute}, now)
	quiet := map[string][]uint64{}
	live := map[string]uint64{}
	full, waited, samples := 0, 0, 0
	for _, e := range events {
		switch model := e.Worker.GetModel(); {
		case e.Allocator != nil:
			a := e.Allocator
			live[model] = *a.AllocatedBytes
			if *a.AllocatedBytes > *a.ReservedBytes || *a.ReservedBytes > *a.LimitBytes {
				t.Fatalf("allocated %d, reserved %d, limit %d", *a.AllocatedBytes, *a.ReservedBytes, *a.LimitBytes)
			}
		case e.Engine != nil:
			if *e.Engine.Running == 0 && *e.Engine.Waiting == 0 {
				quiet[model] = append(quiet[model], live[model])
			}
			if model == "sim-kv-pressed" {
				samples++
				if *e.Engine.KvUsage >= 0.9 {
					full++
				}
				if *e.Engine.Waiting > 0 && *e.Engine.Running > 0 {
					waited++
				}
			}
		}
	}
	healthy := quiet["sim-healthy"]
	if len(healthy) < 48 || slices.Min(healthy) != slices.Max(healthy) {
		t.Errorf("healthy: %d quiet samples from %d to %d, must come back to the same", len(healthy), slices.Min(healthy), slices.Max(healthy))
	}
	leaking := quiet["sim-leaking"]
	rise := (leaking[len(leaking)-1] - leaking[0]) / 7 // hours, about, between the first and the last quiet level
	if rise < 512*mib || rise > 4*gib {
		t.Errorf("leaking: %d MiB/h", rise/mib)
	}
	if len(quiet["sim-kv-pressed"]) != 0 || full < samples*9/10 || waited < samples*9/10 {
		t.Errorf("kv-pressed: full in %d and waiting in %d of %d samples, quiet in %d", full, waited, samples, len(quiet["sim-kv-pressed"]))
	}
}

func TestHeldBack(t *testing.T) {
	s, err := New(Options{Ready: func() bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	if events, err := s.Collect(t.Context(), now); len(events) != 0 || err != nil {
		t.Errorf("%d events although nothing is ready, %v", len(events), err)
	}
	if _, err := New(Options{Hosts: -1}); err == nil {
		t.Error("a negative number of hosts is taken")
	}
}

func BenchmarkStep(b *testing.B) {
	s, err := New(Options{Hosts: 1, Workers: 8, Start: now, Step: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	tick := now
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Collect(b.Context(), tick); err != nil {
			b.Fatal(err)
		}
		tick = tick.Add(time.Second)
	}
}
