package main

import (
	"slices"
	"testing"
	"time"
)

func TestPlanIsDrawnFromItsSeed(t *testing.T) {
	shape := Shape{Collectors: 3, Hosts: 10, Play: 14 * time.Second, Mounts: true}
	one, again := NewPlan(7, shape), NewPlan(7, shape)
	if one.String() != again.String() {
		t.Errorf("the same seed gives\n%s\nand\n%s", one.String(), again.String())
	}
	if other := NewPlan(8, shape); other.String() == one.String() {
		t.Errorf("seeds 7 and 8 give the same plan:\n%s", one.String())
	}
	drawn := map[Kind]int{}
	for seed := range uint64(400) {
		p := NewPlan(seed, shape)
		if len(p.Faults) < 4 || len(p.Faults) > 8 || p.Processors < 2 || p.Processors > 3 {
			t.Fatalf("seed %d: %d faults, %d processors", seed, len(p.Faults), p.Processors)
		}
		if !slices.IsSortedFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) }) {
			t.Fatalf("seed %d is not in the order of time: %v", seed, p.Faults)
		}
		for _, f := range p.Faults {
			drawn[f.Kind]++
			if f.At < time.Second || f.At > shape.Play {
				t.Fatalf("seed %d: %s is at no time of the run", seed, f)
			}
			if f.Kind == StopProcessor && f.For <= 10*time.Second {
				t.Fatalf("seed %d: %s is shorter than the 10 s in which a partition is taken over", seed, f)
			}
		}
	}
	for _, kind := range shape.Kinds() {
		if drawn[kind] == 0 {
			t.Errorf("%s is never drawn", kind)
		}
	}
}

func TestOnlyTakesKindsAndTheirWords(t *testing.T) {
	for _, c := range []struct {
		only []string
		want []Kind
	}{
		{[]string{"kill"}, []Kind{KillProcessor, KillCollector, KillEngine, KillBroker}},
		{[]string{"half-open"}, []Kind{HalfOpenCollector, HalfOpenProcessor}},
		{[]string{"disk"}, nil}, // this user may not mount
		{[]string{"store-lost", "clock"}, []Kind{StoreLost, ClockJump}},
		{[]string{"broker"}, []Kind{KillBroker}},
		{[]string{"tsunami"}, nil},
	} {
		if got := (Shape{Only: c.only}).Kinds(); !slices.Equal(got, c.want) {
			t.Errorf("--only %v is %v, want %v", c.only, got, c.want)
		}
	}
	if p := NewPlan(1, Shape{None: true, Processors: 1}); len(p.Faults) != 0 {
		t.Errorf("--none draws %v", p.Faults)
	}
}
