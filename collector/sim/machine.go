package sim

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// MachineOptions say which host is simulated.
type MachineOptions struct {
	Cluster   string        // "sim" when empty
	Name      string        // "sim-" and the number when empty
	Number    int           // which of a fleet: its draws, process ids, cards and units are its own
	Workers   int           // 3 when zero
	Kinds     []Kind        // dealt out in turn over the workers of the fleet; Healthy when empty
	Scenarios []string      // of Scenarios, dealt out likewise, instead of Kinds
	Release   string        // of workers of kinds; that of their kind when empty
	Seed      uint64        // the same seed, number, start and step give the same events
	Step      time.Duration // between ticks; 5 s when zero
	Start     time.Time     // of the first tick
}

// Machine is one host that makes its ticks one by one, in a world of its own: many of them can be made at once, each by one
// goroutine, and none holds more than its present.
type Machine struct {
	worlds []*world // one where its workers are of kinds; one for each worker that plays a scenario
	step   time.Duration
	next   time.Duration // since the start
	out    []*event.Event
	last   time.Time
}

// NewMachine builds a host. Its workers are in the middle of their lives.
func NewMachine(o MachineOptions) (*Machine, error) {
	if o.Cluster == "" {
		o.Cluster = "sim"
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("sim-%05d", o.Number)
	}
	if o.Workers == 0 {
		o.Workers = 3
	}
	if len(o.Kinds) == 0 {
		o.Kinds = []Kind{Healthy}
	}
	if o.Step == 0 {
		o.Step = 5 * time.Second
	}
	if o.Workers < 1 || o.Workers > 64 || o.Step < 100*time.Millisecond || o.Number < 0 {
		return nil, fmt.Errorf("simulate host %d with %d workers every %v: want 1 to 64 workers, at least every 100 ms", o.Number, o.Workers, o.Step)
	}
	m := &Machine{step: o.Step}
	identity := &event.Host{Cluster: event.Token(o.Cluster), Name: event.Token(o.Name), BootId: fmt.Sprintf("sim-boot-%d-%d", o.Seed, o.Number)}
	seed := o.Seed + uint64(o.Number)<<20 // each host draws its own
	if len(o.Scenarios) == 0 {
		w := m.world(seed, 0, o)
		w.plain = true
		h := w.newHost()
		h.identity = identity
		for n := range o.Workers {
			h.demo(o.Kinds[(o.Number*o.Workers+n)%len(o.Kinds)])
		}
		for _, i := range h.instances {
			if o.Release != "" {
				i.release = o.Release
			}
		}
		return m, nil
	}
	for n := range o.Workers {
		script, err := find(o.Scenarios[(o.Number*o.Workers+n)%len(o.Scenarios)])
		if err != nil {
			return nil, err
		}
		w := m.world(seed+uint64(n), stream(script.Name), o)
		w.pid += int64(n) * 100_000 // one kernel deals them out
		script.plant(w)
		if w.network != nil {
			w.network = nil // what comes late would be another host's matter
		}
		w.hosts = slices.Clip(w.hosts[:1]) // a scenario of several hosts plays its first
		h := w.hosts[0]
		h.identity, h.jitter = identity, 0
		for _, i := range h.instances {
			i.unit = fmt.Sprintf("%s-%d", i.unit, n)
		}
	}
	return m, nil
}

func (m *Machine) world(seed, stream uint64, o MachineOptions) *world {
	w := newWorld(seed, stream, o.Start.UTC(), 0, o.Step)
	w.send = func(e *event.Event) { m.out = append(m.out, e) }
	m.worlds = append(m.worlds, w)
	return w
}

// Tick makes the next tick and returns what the host's collector saw at it, what is urgent first. The slice is good until the next
// call, the events for ever.
func (m *Machine) Tick() []*event.Event {
	m.out = m.out[:0]
	for _, w := range m.worlds {
		w.begin(m.next)
		for _, h := range w.hosts {
			h.advance()
		}
	}
	for _, w := range m.worlds {
		for _, h := range w.hosts {
			h.report()
			m.last = h.now
		}
	}
	m.next += m.step
	return m.out
}

// Now returns the event time of the newest tick, zero before the first.
func (m *Machine) Now() time.Time { return m.last }

// Pace makes the next ticks come at another step, from the newest one on.
func (m *Machine) Pace(step time.Duration) {
	if m.next > 0 {
		m.next += step - m.step
	}
	m.step = step
	for _, w := range m.worlds {
		w.step = step
	}
}

// Fail lets an allocation of the first worker fail at a time, and returns what is told of it: the card has no room left for twice
// what is free.
func (m *Machine) Fail(at time.Time) []*event.Event {
	m.out = m.out[:0]
	h := m.worlds[0].hosts[0]
	r := h.instances[0].ranks[0]
	a := &r.allocator
	free := max(r.room(), 2*mib)
	a.ooms++
	was, before := h.now, h.before
	h.before, h.now = h.now, at.UTC()
	stamp := h.stamp
	h.stamp = timestamppb.New(h.now)
	r.tellOOM(1, &failure{requested: 2 * free, free: free, allocated: a.live, unallocated: max(0, a.reserved-a.live)})
	h.tellUrgent()
	h.now, h.before, h.stamp = was, before, stamp
	return m.out
}
