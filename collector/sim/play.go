package sim

import (
	"fmt"
	"slices"
	"time"

	"lowtide/event"
)

// Scenario is something planted, and the verdict that is right for it.
type Scenario struct {
	Name       string
	Class      string  // of vocabulary.md; empty is healthy
	Planted    string  // the mechanism, in a line
	Undeclared bool    // a healthy cache that fills for more than three hours and is not declared: reported apart
	Hours      float64 // usual length
	Sensors    string  // empty is all; else what is missing: no-probe, no-engine, no-process
}

// Recording says what a played scenario has.
type Recording struct {
	Scenario Scenario
	Seed     uint64
	Start    time.Time
	Onset    time.Time // when the trouble began; zero for a healthy one
	Pids     []int64   // of the processes that the class is planted in, over all their lives; a finding about another is false
}

// Scenarios returns all there are, the classes in the order of vocabulary.md and the healthy ones last.
func Scenarios() []Scenario {
	all := scripts()
	out := make([]Scenario, len(all))
	for n := range all {
		out[n] = all[n].Scenario
	}
	return out
}

// script is a scenario with the hand that plants it.
type script struct {
	Scenario
	plant func(*world)
}

func scripts() []script {
	return slices.Concat(deviceMemory(), allocatorTrouble(), kvTrouble(), hostMemory(), faults(), ends(), configured(), healthy(), healthyOperations(), healthySensors())
}

func find(name string) (script, error) {
	for _, s := range scripts() {
		if s.Name == name {
			return s, nil
		}
	}
	return script{}, fmt.Errorf("find scenario %q: there is none of that name", name)
}

// begins is the first day of every recording; the hour is the seed's.
var begins = time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)

// Play makes the events of a scenario's recording, in the order in which they would arrive. Hours 0 is the usual length, step 0 a
// minute. The same scenario, seed, length and step give the same events. It ends with the first error of emit.
func Play(s Scenario, seed uint64, hours float64, step time.Duration, emit func(*event.Event) error) (Recording, error) {
	script, err := find(s.Name)
	if err != nil {
		return Recording{}, err
	}
	if hours == 0 {
		hours = script.Hours
	}
	if step == 0 {
		step = time.Minute
	}
	if hours < 0 || hours > 24*366 || step < 100*time.Millisecond || step > 10*time.Minute {
		return Recording{}, fmt.Errorf("play %s: %v hours in steps of %v: want up to a year in steps from 100 ms to 10 min", s.Name, hours, step)
	}
	return script.play(seed, hours, step, emit)
}

func (s script) play(seed uint64, hours float64, step time.Duration, emit func(*event.Event) error) (Recording, error) {
	hour := newChance(seed, 0x57a7).IntN(24)
	w := newWorld(seed, stream(s.Name), begins.Add(time.Duration(hour)*time.Hour), time.Duration(hours*float64(time.Hour)), step)
	w.record = Recording{Scenario: s.Scenario, Seed: seed, Start: w.start}
	var failed error
	w.send = func(e *event.Event) {
		if failed == nil {
			failed = emit(e)
		}
	}
	s.plant(w)
	if n := w.network; n != nil {
		n.send = w.send
		w.send = func(e *event.Event) { n.pass(w, e) }
	}
	for _, h := range w.hosts {
		switch s.Sensors {
		case "no-probe":
			h.status[fromProbe] = "absent"
		case "no-engine":
			h.status[fromEngine] = "absent"
		case "no-process":
			h.status[fromProcess] = "absent"
		}
	}
	for since := time.Duration(0); since <= w.length && failed == nil; since += step {
		w.begin(since)
		for _, h := range w.hosts {
			h.advance()
		}
		for _, h := range w.hosts {
			h.report()
		}
	}
	w.flushLate()
	if failed != nil {
		return w.record, fmt.Errorf("play %s: %w", s.Name, failed)
	}
	return w.record, nil
}

// stream makes a scenario's draws its own, so that another one with the same seed is not a variation of it (FNV-1a).
func stream(name string) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}
