package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// world is everything that one seed makes: hosts with cards, instances on them, and what a scenario lets happen.
type world struct {
	chance
	seed   uint64
	start  time.Time
	length time.Duration
	step   time.Duration
	since  time.Duration // of the tick that is being made
	hosts  []*host
	plans  []plan
	hooks  []func()
	pid    int64
	plain  bool // no jitter, nothing about sensors: whoever collects tells that
	send   func(*event.Event)
	record Recording

	network *lateness // nil delivers everything at once and in order
}

// plan is something that happens once.
type plan struct {
	at time.Duration
	do func()
}

func newWorld(seed, stream uint64, start time.Time, length, step time.Duration) *world {
	w := &world{chance: newChance(seed, stream), seed: seed, start: start, length: length, step: step}
	w.pid = int64(w.whole(800, 30_000))
	return w
}

// at lets something happen once, as soon as the tick of that hour is made. What is planned while plans run may not be in the past.
func (w *world) at(hours float64, do func()) {
	w.plans = append(w.plans, plan{time.Duration(hours * float64(time.Hour)), do})
}

// every lets something happen with each tick.
func (w *world) every(do func()) { w.hooks = append(w.hooks, do) }

// hour is the time since the start, in hours.
func (w *world) hour() float64 { return w.since.Hours() }

// clock returns the true time of the tick.
func (w *world) clock() time.Time { return w.start.Add(w.since) }

// onset notes when the trouble began, unless it is known.
func (w *world) onset() {
	if w.record.Onset.IsZero() {
		w.record.Onset = w.clock()
	}
}

// begin opens the tick at a time since the start.
func (w *world) begin(since time.Duration) {
	w.since = since
	for i := 0; i < len(w.plans); i++ {
		if p := w.plans[i]; p.do != nil && p.at <= since {
			w.plans[i].do = nil
			p.do()
		}
	}
	if len(w.plans) > 64 {
		w.plans = slices.DeleteFunc(w.plans, func(p plan) bool { return p.do == nil })
	}
	for _, do := range w.hooks {
		do()
	}
}

func (w *world) nextPid() int64 {
	w.pid += int64(w.whole(3, 700))
	return w.pid
}

// The sources whose silence a scenario can plant.
const (
	fromNVML = iota
	fromProbe
	fromEngine
	fromProcess
	allSources
)

var sourceNames = [allSources]string{"nvml", "allocator", "engine", "process"}

// host is one machine as its collector sees it.
type host struct {
	*world
	identity  *event.Host
	cards     []*card
	instances []*instance
	memory    float64       // bytes
	jitter    time.Duration // most by which a tick is late
	shift     time.Duration // by which its clock is wrong
	silent    bool          // the collector or the whole host says nothing
	status    [allSources]string
	told      [allSources]string
	toldAt    time.Duration
	stamp     *timestamppb.Timestamp
	before    time.Time // of the previous tick, on its clock
	now       time.Time
	urgent    []urgent
}

type urgent struct {
	part  float64 // of the tick's length, when it happened
	event *event.Event
}

// newHost adds a machine.
func (w *world) newHost() *host {
	h := &host{world: w, memory: gib * []float64{256, 512, 1024, 2048}[w.IntN(4)], jitter: time.Duration(w.between(0.15, 0.7) * float64(time.Second))}
	h.identity = &event.Host{Cluster: "sim", Name: fmt.Sprintf("sim-%03d", len(w.hosts)), BootId: fmt.Sprintf("sim-boot-%d-%d", w.seed, len(w.hosts))}
	w.hosts = append(w.hosts, h)
	return h
}

// advance makes what happens on the host until the tick, and sends what is told at once.
func (h *host) advance() {
	h.before = h.now
	h.now = h.clock().Add(h.shift)
	if !h.plain {
		h.now = h.now.Add(time.Duration(h.Float64() * float64(h.jitter))).Truncate(time.Millisecond)
	}
	if h.before.IsZero() {
		h.before = h.now.Add(-h.step)
	}
	h.stamp = timestamppb.New(h.now)
	for _, i := range h.instances {
		i.step(h.world.step)
	}
	h.tellUrgent()
}

// report sends what the host's collector saw at the tick.
func (h *host) report() {
	if h.silent {
		return
	}
	for _, c := range h.cards {
		c.tell()
	}
	for _, i := range h.instances {
		i.tell()
	}
	h.tellSources()
}

// tell queues what happened within the tick, at a part of its length; it goes out before the samples.
func (h *host) tell(part float64, e *event.Event) {
	e.Host = h.identity
	h.urgent = append(h.urgent, urgent{part, e})
}

// tellUrgent sends what was queued, in its order.
func (h *host) tellUrgent() {
	length := h.now.Sub(h.before)
	if length <= 0 || length > 2*h.step {
		length = h.step // the clock was set
	}
	slices.SortStableFunc(h.urgent, func(a, b urgent) int { return cmp.Compare(a.part, b.part) })
	for _, u := range h.urgent {
		if h.silent {
			break
		}
		if u.event.Time = h.stamp; h.plain { // a source has nothing before its tick
			h.send(u.event)
			continue
		}
		u.event.Time = timestamppb.New(h.now.Add(-time.Duration((1 - u.part) * float64(length))).Truncate(time.Millisecond))
		h.send(u.event)
	}
	h.urgent = h.urgent[:0]
}

// sees says whether a source works now.
func (h *host) sees(source int) bool { return h.status[source] == "" }

// tellSources publishes what each source says about itself: when that changes, and once an hour.
func (h *host) tellSources() {
	if h.plain {
		return
	}
	hourly := h.told[0] == "" || h.since-h.toldAt >= time.Hour
	for i, name := range sourceNames {
		status := cmp.Or(h.status[i], "ok")
		if !hourly && status == h.told[i] {
			continue
		}
		h.told[i] = status
		s := &event.SourceStatus{Name: name, Status: status, TookSeconds: event.Ptr(math.Round(1e4*h.between(0.001, 0.02)) / 1e4)}
		switch status {
		case "timeout":
			s.Error, s.TookSeconds = "took 10s, the deadline is 5s", event.Ptr(10.0)
		case "lost":
			s.Error = "GPU is lost"
		case "absent":
			s.Error = "nothing to read"
		}
		h.send(&event.Event{Time: h.stamp, Host: h.identity, Source: s})
	}
	if hourly {
		h.toldAt = h.since
		h.send(&event.Event{Time: h.stamp, Host: h.identity, Machine: &event.Machine{
			MemoryTotalBytes: event.Ptr(uint64(h.memory)), MemoryAvailableBytes: event.Ptr(uint64(h.memory * h.between(0.4, 0.6))), DriverVersion: "580.65.06",
		}})
	}
}
