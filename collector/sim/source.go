// Package sim owns simulated hosts and workers: a queue, a caching allocator, a heap and what a scenario plants in them, seen tick by
// tick as a collector sees them. It gives them as a source, for demonstrations, and as recordings with a known right verdict, for
// the scorecard. The same seed gives the same events. It refuses to simulate verdicts: what its workers have is only in their
// numbers, and what is right is what was planted.
package sim

import (
	"context"
	"fmt"
	"time"

	"lowtide/event"
)

// maxEvents bounds one Collect, as when the past is made up.
const maxEvents = 2000

// eventsPerWorker is what one worker yields per step.
const eventsPerWorker = 5

// Options say what is simulated.
type Options struct {
	Name    string        // the source's name; "sim" when empty
	Cluster string        // "sim" when empty
	Hosts   int           // 1 when zero
	Workers int           // per host, each with a GPU of its own; 3 when zero
	Kinds   []Kind        // dealt out in turn over all workers; Healthy, Leaking, KVPressed when empty
	Seed    uint64        // the same seed, start and step give the same events
	Step    time.Duration // between samples of a worker; 10 s when zero
	Start   time.Time     // of all workers; when in the past, what lies between is made up as fast as it is taken. First tick when zero
	Ready   func() bool   // false holds back, such as while the backlog is full; nil is always ready
}

// Source is a small fleet.
type Source struct {
	o       Options
	world   *world
	next    time.Time // of the step being emitted
	pending int       // host at which the step was cut
	events  []*event.Event
}

// New builds the fleet.
func New(o Options) (*Source, error) {
	if o.Name == "" {
		o.Name = "sim"
	}
	if o.Cluster == "" {
		o.Cluster = "sim"
	}
	if o.Hosts == 0 {
		o.Hosts = 1
	}
	if o.Workers == 0 {
		o.Workers = 3
	}
	if len(o.Kinds) == 0 {
		o.Kinds = []Kind{Healthy, Leaking, KVPressed}
	}
	if o.Step == 0 {
		o.Step = 10 * time.Second
	}
	if o.Hosts < 0 || o.Workers < 0 || o.Step < 0 {
		return nil, fmt.Errorf("simulate %d hosts of %d workers every %v: negative", o.Hosts, o.Workers, o.Step)
	}
	return &Source{o: o, next: o.Start.UTC()}, nil
}

// Name implements collector.Source.
func (s *Source) Name() string { return s.o.Name }

// Collect returns the steps up to the tick, host by host, about 2,000 events at most; the rest comes with the next call.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	if s.o.Ready != nil && !s.o.Ready() {
		return nil, nil
	}
	if s.world == nil {
		if s.next.IsZero() {
			s.next = tick.UTC().Truncate(time.Second)
		}
		s.populate(s.next)
	}
	s.events = nil
	for ; !s.next.After(tick); s.next = s.next.Add(s.o.Step) {
		if s.pending == 0 {
			s.world.begin(s.next.Sub(s.world.start))
		}
		for ; s.pending < len(s.world.hosts); s.pending++ {
			if len(s.events) > 0 && (len(s.events)+eventsPerWorker*s.o.Workers > maxEvents || ctx.Err() != nil) {
				return s.events, nil
			}
			s.world.hosts[s.pending].advance()
			s.world.hosts[s.pending].report()
		}
		s.pending = 0
	}
	return s.events, nil
}

// populate makes the fleet. Its workers are in the middle of their lives: what a collector tells is what they do.
func (s *Source) populate(start time.Time) {
	w := newWorld(s.o.Seed, 0, start, 0, s.o.Step)
	w.plain, w.send = true, func(e *event.Event) { s.events = append(s.events, e) }
	for n := range s.o.Hosts {
		h := w.newHost()
		h.identity.Cluster = event.Token(s.o.Cluster)
		for j := range s.o.Workers {
			h.demo(s.o.Kinds[(n*s.o.Workers+j)%len(s.o.Kinds)])
		}
	}
	s.world = w
}
