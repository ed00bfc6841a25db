package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

func machine(t testing.TB, o MachineOptions) *Machine {
	t.Helper()
	m, err := NewMachine(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// identities are the keys of the workers that have a process event in some ticks, with how often.
func identities(t *testing.T, m *Machine, ticks int) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range ticks {
		for _, e := range m.Tick() {
			if err := event.Validate(e); err != nil {
				t.Fatal(err)
			}
			if e.Process != nil {
				seen[event.SlotKey(e.Host, e.Worker)+" "+event.WorkerKey(e.Host, e.Worker)]++
			}
		}
	}
	return seen
}

func TestMachinesOfAFleetAreDistinct(t *testing.T) {
	all := map[string]int{}
	for n := range 20 {
		for key, ticks := range identities(t, machine(t, MachineOptions{Number: n, Workers: 8, Seed: 3, Start: now}), 5) {
			all[key] += ticks
		}
	}
	if len(all) != 160 {
		t.Errorf("%d workers in slots, want 20 hosts of 8", len(all))
	}
	for key, ticks := range all {
		if ticks != 5 {
			t.Errorf("%s has %d ticks, want one each of 5", key, ticks)
		}
	}
}

func TestMachineIsDeterminedByItsSeed(t *testing.T) {
	for _, o := range []MachineOptions{
		{Number: 4, Workers: 3, Seed: 1, Start: now, Kinds: []Kind{Healthy, Leaking}},
		{Number: 4, Workers: 3, Seed: 1, Start: now, Scenarios: []string{"healthy-busy", "retention-2gib"}},
	} {
		a, b := machine(t, o), machine(t, o)
		o.Number++
		other, differs := machine(t, o), false
		for tick := range 50 {
			x, y, z := slices.Clone(a.Tick()), b.Tick(), other.Tick()
			if len(x) != len(y) {
				t.Fatalf("tick %d: %d and %d events", tick, len(x), len(y))
			}
			for i := range x {
				if !proto.Equal(x[i], y[i]) {
					t.Fatalf("tick %d, event %d: %v and %v", tick, i, x[i], y[i])
				}
				differs = differs || i < len(z) && !proto.Equal(x[i].Engine, z[i].Engine)
			}
		}
		if !differs || !a.Now().Equal(now.Add(49*5*time.Second)) {
			t.Errorf("another host has the same load, or it is %v", a.Now())
		}
	}
}

// A host whose workers play scenarios is one host, and each of its workers a slot and a process of its own.
func TestMachineOfScenarios(t *testing.T) {
	m := machine(t, MachineOptions{Number: 7, Workers: 6, Start: now, Scenarios: []string{"healthy-busy", "retention-abort"}})
	slots := map[string]bool{}
	for key := range identities(t, m, 30) {
		slot, _, _ := strings.Cut(key, " ")
		if !strings.HasPrefix(slot, "sim/sim-00007/") || slots[slot] {
			t.Errorf("slot %s", slot)
		}
		slots[slot] = true
	}
	if len(slots) < 6 { // a scenario may have another worker beside its own
		t.Errorf("%d slots, want 6 or more: %v", len(slots), slots)
	}
}

func TestMachineFails(t *testing.T) {
	m := machine(t, MachineOptions{Workers: 1, Kinds: []Kind{Leaking}, Start: now, Step: time.Minute})
	m.Tick()
	m.Pace(5 * time.Second)
	at := now.Add(3 * time.Second)
	told := slices.Clone(m.Fail(at))
	if len(told) != 1 || told[0].Oom == nil || !told[0].At().Equal(at) || told[0].Oom.GetRequestedBytes() <= told[0].Oom.GetFreeBytes() || event.Lane(told[0]) != event.LaneUrgent {
		t.Fatalf("told %v", told)
	}
	next := m.Tick()
	if !m.Now().Equal(now.Add(5*time.Second)) || len(next) != 5 {
		t.Errorf("the tick after it is at %v with %d events", m.Now(), len(next))
	}
	for _, e := range next {
		if e.Allocator != nil && e.Allocator.GetOomsTotal() != 1 {
			t.Errorf("ooms_total is %d", e.Allocator.GetOomsTotal())
		}
	}
}

func TestMachineRefuses(t *testing.T) {
	for _, o := range []MachineOptions{{Workers: 65}, {Workers: -1}, {Step: time.Millisecond}, {Number: -1}, {Scenarios: []string{"none"}}} {
		if _, err := NewMachine(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
