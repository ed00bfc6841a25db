// Package sim owns the source that simulates hosts and workers, in the form of the recordings: per tick a gpu, a gpu_process, an
// allocator, an engine and a process event. The same options give the same values. It refuses to simulate verdicts: what its
// workers have is only in their numbers.
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
	hosts   []*host
	next    time.Time // of the step being emitted
	pending int       // host at which the step was cut
}

type host struct {
	identity *event.Host
	workers  []*worker
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
	if s.hosts == nil {
		if s.next.IsZero() {
			s.next = tick.UTC().Truncate(time.Second)
		}
		s.populate(s.next)
	}
	var events []*event.Event
	for ; !s.next.After(tick); s.next = s.next.Add(s.o.Step) {
		for ; s.pending < len(s.hosts); s.pending++ {
			if len(events) > 0 && (len(events)+eventsPerWorker*s.o.Workers > maxEvents || ctx.Err() != nil) {
				return events, nil
			}
			h := s.hosts[s.pending]
			for _, w := range h.workers {
				events = append(events, w.step(h.identity, s.next, s.o.Step)...)
			}
		}
		s.pending = 0
	}
	return events, nil
}

func (s *Source) populate(start time.Time) {
	for i := range s.o.Hosts {
		h := &host{identity: &event.Host{Cluster: event.Token(s.o.Cluster), Name: fmt.Sprintf("sim-%03d", i), BootId: fmt.Sprintf("sim-boot-%d-%d", s.o.Seed, i)}}
		for j := range s.o.Workers {
			n := i*s.o.Workers + j
			h.workers = append(h.workers, newWorker(s.o.Seed, n, j, s.o.Kinds[n%len(s.o.Kinds)], start))
		}
		s.hosts = append(s.hosts, h)
	}
}
