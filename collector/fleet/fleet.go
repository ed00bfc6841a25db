// Package fleet publishes simulated hosts: each with a Publisher of its own, one message a tick, as the collectors of as many machines do. It is how `lowtide simulate --publish` fills a broker and how `lowtide bench` loads one. It judges nothing, and it never
// makes a tick before there is room to send it, so that memory does not grow with how long it runs.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector"
	"lowtide/collector/sim"
	"lowtide/event"
)

// Bounds of a fleet.
const (
	MaxHosts   = 10_000
	MaxWorkers = 64       // of one host
	window     = 2048     // messages of the whole fleet that are not acknowledged
	hostBytes  = 64 << 20 // that one publisher may hold: more than the window can be, so that none drops anything
)

// Options say which hosts there are. Hosts, Workers and Start are required.
type Options struct {
	Cluster   string
	Hosts     int
	Workers   int           // of each host
	Kinds     []sim.Kind    // dealt out over all workers
	Scenarios []string      // of sim.Scenarios, dealt out over all workers instead of Kinds
	Seed      uint64        // the same seed gives the same workers
	Step      time.Duration // of event time between two ticks of a host; 5 s when zero
	Start     time.Time     // event time of the first tick
	Log       *slog.Logger
}

// Count is what was handed over so far. What is acknowledged is in the stream.
type Count struct {
	Samples   uint64 `json:"samples"`       // ticks of workers
	Messages  uint64 `json:"messages"`      // handed to the publishers
	Acked     uint64 `json:"acked"`         // of them that the broker stored
	Bytes     uint64 `json:"bytes"`         // of payload that was sent, sent again included
	WireBytes uint64 `json:"wire_bytes"`    // the same with subjects and headers
	Again     uint64 `json:"sent_again"`    // attempts that ended without an acknowledgement
	Max       int    `json:"largest_bytes"` // the largest payload
}

// Fleet is hosts with their publishers. Tick and Fail may be called by one goroutine for each host.
type Fleet struct {
	hosts []*host
	gate  *gate
	out   collector.Stream // the gate, as the publishers see it
}

type host struct {
	machine   *sim.Machine
	publisher *collector.Publisher
}

// New makes the hosts; nothing is sent yet. Close ends them.
func New(stream collector.Stream, o Options) (*Fleet, error) {
	if o.Hosts < 1 || o.Hosts > MaxHosts || o.Workers < 1 || o.Workers > MaxWorkers {
		return nil, fmt.Errorf("simulate %d hosts of %d workers: want 1 to %d hosts of 1 to %d", o.Hosts, o.Workers, MaxHosts, MaxWorkers)
	}
	f := &Fleet{gate: newGate(stream)}
	f.out = f.gate
	if s, ok := stream.(collector.Sender); ok {
		f.out = sendingGate{f.gate, s}
	}
	for n := range o.Hosts {
		if err := f.add(sim.MachineOptions{Cluster: o.Cluster, Number: n, Workers: o.Workers, Kinds: o.Kinds, Scenarios: o.Scenarios, Seed: o.Seed, Step: o.Step, Start: o.Start}, o.Log); err != nil {
			return nil, errors.Join(err, f.Close(context.Background()))
		}
	}
	return f, nil
}

func (f *Fleet) add(o sim.MachineOptions, log *slog.Logger) error {
	machine, err := sim.NewMachine(o)
	if err != nil {
		return err
	}
	// A tick is published whole, so that nothing has to linger.
	f.hosts = append(f.hosts, &host{machine: machine, publisher: collector.NewPublisher(f.out, collector.PublisherOptions{MaxBytes: hostBytes, Linger: -1, AckTimeout: ackTimeout, Log: log})})
	return nil
}

// Tick makes the next tick of a host and queues it, once no more than a bounded number of messages of the fleet are unacknowledged. It
// returns how many worker-samples it has; the error is ctx's end, or says what could not be encoded.
func (f *Fleet) Tick(ctx context.Context, n int) (samples int, err error) {
	if err := f.gate.enter(ctx); err != nil {
		return 0, err
	}
	h := f.hosts[n]
	events := h.machine.Tick()
	for _, e := range events {
		if e.Process != nil {
			samples++
		}
	}
	if err := f.publish(h, events); err != nil {
		return samples, err
	}
	f.gate.made(samples)
	return samples, nil
}

// Fail lets an allocation fail on the host at a time of the events' clock, and hands it over at once.
func (f *Fleet) Fail(n int, at time.Time) error {
	return f.publish(f.hosts[n], f.hosts[n].machine.Fail(at))
}

// publish hands events over, under the name that a collector gives to those of several sources.
func (f *Fleet) publish(h *host, events []*event.Event) error {
	before := messages(h.publisher)
	err := h.publisher.Publish(event.AllSources, events)
	f.gate.expect(messages(h.publisher) - before)
	return err
}

// messages is how many a publisher was given so far: nothing lingers in it.
func messages(p *collector.Publisher) int {
	s := p.Stats()
	return int(s.Sent) + int(s.Dropped) + s.PendingMessages
}

// Count returns what was handed over so far.
func (f *Fleet) Count() Count { return f.gate.count() }

// Close waits until everything is acknowledged, as long as ctx lasts, and ends the publishers.
func (f *Fleet) Close(ctx context.Context) error {
	faults := make([]error, len(f.hosts))
	var closing sync.WaitGroup
	for n, h := range f.hosts {
		closing.Go(func() { faults[n] = h.publisher.Close(ctx) })
	}
	closing.Wait()
	return errors.Join(faults...)
}

// gate counts what goes to the broker and holds back who would send more than the window.
type gate struct {
	stream collector.Stream

	mu      sync.Mutex
	changed chan struct{} // closed and made anew when there is room again
	open    int           // messages that are not acknowledged; one may be before it is counted here
	counted Count
}

func newGate(stream collector.Stream) *gate {
	return &gate{stream: stream, changed: make(chan struct{})}
}

func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		full, changed := g.open >= window, g.changed
		g.mu.Unlock()
		if !full {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gate) expect(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open += n
	g.counted.Messages += uint64(n)
}

func (g *gate) made(samples int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counted.Samples += uint64(samples)
}

func (g *gate) count() Count {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counted
}

// PublishMsg implements collector.Stream.
func (g *gate) PublishMsg(ctx context.Context, m *nats.Msg, options ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ack, err := g.stream.PublishMsg(ctx, m, options...)
	g.note(m, err)
	return ack, err
}

// note counts an attempt.
func (g *gate) note(m *nats.Msg, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counted.Bytes += uint64(len(m.Data))
	g.counted.WireBytes += uint64(wireSize(m))
	g.counted.Max = max(g.counted.Max, len(m.Data))
	if err != nil {
		g.counted.Again++
		return
	}
	g.counted.Acked++
	if g.open--; g.open == window/2 {
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// sendingGate is the gate before a stream that needs no goroutine for each message.
type sendingGate struct {
	*gate
	next collector.Sender
}

// Send implements collector.Sender.
func (g sendingGate) Send(m *nats.Msg, done func(*jetstream.PubAck, error)) {
	g.next.Send(m, func(ack *jetstream.PubAck, err error) {
		g.note(m, err)
		done(ack, err)
	})
}

// wireSize is what the client sends for a message: subject, headers and payload, without the line that announces them.
func wireSize(m *nats.Msg) int {
	size := len(m.Subject) + len(m.Data)
	if len(m.Header) > 0 {
		size += len("NATS/1.0\r\n\r\n")
		for key, values := range m.Header {
			for _, value := range values {
				size += len(key) + len(": ") + len(value) + len("\r\n")
			}
		}
	}
	return size
}
