// Package allocator owns the socket that the probes inside the workers write to, and turns their lines into `allocator`, `oom`,
// `config`, `lifecycle`, `mark` and `log` events. Where evidence is wanted it asks the probes for snapshots of the allocator, which
// come as `snapshot` events. It refuses to believe a line about who wrote it: the worker is the process that
// the kernel names as the socket's peer. It keeps nothing that a peer could make grow: lines, connections, events waiting and
// the rate of each are bounded, and what was dropped is counted and said.
package allocator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

const (
	// DefaultGrace is how long a tick waits for the lines of the probes that are due. They read at the same moment as the
	// collector, and a busy interpreter needs a few of its 5 ms turns to let them.
	DefaultGrace = 250 * time.Millisecond

	configEvery = 10 * time.Minute // a config event is said again, for who joined later
	lateBound   = 10 * time.Minute // an urgent event that is told later than this is dated to the tick
	deniedFor   = 2 * time.Minute  // a refused probe comes back once a minute, and the status must not flap meanwhile
	waitingEach = 64               // events a worker may leave waiting between two ticks
	waitingAll  = 4096             // and all together, however many processes come and go
)

// Options say where to listen and how often probes shall read.
type Options struct {
	Socket   string        // path of the socket; DefaultSocket when empty
	Interval time.Duration // between two ticks, whose multiples in wall-clock time the probes read at; 5 s when zero
	Grace    time.Duration // how long a tick waits for the probes that are due; DefaultGrace when zero
	ProcRoot string        // /proc when empty
	Mode     os.FileMode   // of the socket; 0666 when zero, see Listen
	Evidence *Evidence     // where snapshots go that probes are asked for; nil asks for none
}

// Source is the collector's end of the socket. Collect is called by one goroutine; the connections have their own.
type Source struct {
	o        Options
	desk     *desk // nil where no evidence is taken
	listener *net.UnixListener
	file     os.FileInfo   // of the socket, so that Close removes no other collector's
	wake     chan struct{} // capacity 1
	arrived  chan struct{} // capacity 1: something that a waiting Collect wants to look at
	done     chan struct{}
	serving  sync.WaitGroup

	mu      sync.Mutex
	peers   map[*peer]struct{}
	perPID  map[int]int // connections
	joined  map[int]int // connections by pid since the last tick, those that are over among them
	joins   int         // all of them
	queue   []waiting
	queued  map[int]int // events by pid since the last tick
	sent    int         // all of them
	urgent  bool        // the queue holds something that must not wait
	woken   bool        // wake was fired and no Collect has answered
	waits   bool        // a tick's Collect is under way, and takes what comes
	slot    int64       // of the last tick, in intervals since 1970
	tick    time.Time   // the last tick
	trouble troubles
	denied  time.Time
}

// waiting is an event that no Collect has taken yet, dated by the probe.
type waiting struct {
	at    time.Time
	event *event.Event
}

// troubles is what went wrong since the last tick.
type troubles struct {
	excess  int // lines over the rate
	bad     int // lines that are none of the protocol
	reason  string
	refused int // connections over the bounds
	churned int // connections over the bounds of new ones
	dropped int // events over the bound
	unheard int // attempts to take a connection that failed
	pid     int // of the newest of these
}

func newSource(o Options) *Source {
	if o.Interval <= 0 {
		o.Interval = 5 * time.Second
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	s := &Source{
		o: o, wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1), done: make(chan struct{}),
		peers: make(map[*peer]struct{}), perPID: make(map[int]int), joined: make(map[int]int), queued: make(map[int]int),
	}
	if o.Evidence != nil {
		s.desk = newDesk(s, *o.Evidence)
	}
	return s
}

// Name implements collector.Source.
func (s *Source) Name() string { return "allocator" }

// Wake implements collector.Waker. It fires when an allocation failed, when a worker says bye, and when a read that a tick has
// waited for in vain came after all: that one is still dated to its tick, and is of use only before the next.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect returns what the probes have sent: at a tick, once all probes that are due have reported or the grace is over, one
// `allocator` event for each device of each of them, with the tick's time; whenever it is called, the urgent events that wait,
// for which it never delays. No connected probe is no error: a host may have no worker that carries one, and `doctor` tells.
// The error wraps status.ErrDenied when a worker connected whose pid cannot be seen from here, and status.ErrLost when lines
// were dropped since the last tick; both say whose and why.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	if s.early(tick) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.reads(s.take(nil, tick)), nil // how the source is, the next tick says
	}
	s.open(tick)
	if s.desk != nil {
		kick(s.desk.wake)
	}
	over := time.NewTimer(s.o.Grace)
	defer over.Stop()
	for waits := true; waits && s.awaits(); {
		select {
		case <-ctx.Done():
			waits = false
		case <-over.C:
			waits = false
		case <-s.arrived:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		p.missed = p.due(s.slot, s.o.Interval)
	}
	s.waits = false
	s.calm()
	return s.reads(s.configs(s.take(nil, tick))), s.report(tick)
}

// early tells a call that answers Wake from a tick: the loop has emptied the channel that this source filled, or there was a
// tick in this interval already.
func (s *Source) early(tick time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	early := s.woken && len(s.wake) == 0 || s.slotOf(tick) <= s.slot
	s.calm()
	return early
}

// calm takes back a wake: the call under way hands over what it was for.
func (s *Source) calm() {
	select {
	case <-s.wake:
	default:
	}
	s.woken = false
}

// slotOf counts intervals since 1970.
func (s *Source) slotOf(at time.Time) int64 { return at.UnixNano() / int64(s.o.Interval) }

// open begins a tick: connections of processes that are gone, or whose pid is somebody else's by now, are dropped.
func (s *Source) open(tick time.Time) {
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	s.slot, s.tick, s.waits = s.slotOf(tick), tick, true
	s.queued, s.sent = make(map[int]int), 0
	s.joined, s.joins = make(map[int]int), 0
	s.mu.Unlock()
	for _, p := range peers {
		if ticks, err := startTicks(s.o.ProcRoot, p.pid); err != nil || ticks != p.ticks {
			p.conn.Close()
		}
	}
}

// awaits says whether a probe is due that has not reported, and nothing urgent is there.
func (s *Source) awaits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urgent {
		return false
	}
	for p := range s.peers {
		if !p.missed && p.due(s.slot, s.o.Interval) {
			return true
		}
	}
	return false
}

// take moves the waiting events to events. None is dated after the tick.
func (s *Source) take(events []*event.Event, tick time.Time) []*event.Event {
	for _, w := range s.queue {
		if w.at.After(tick) || w.at.Before(tick.Add(-lateBound)) {
			w.at = tick
		}
		w.event.Time = timestamppb.New(w.at)
		events = append(events, w.event)
	}
	s.queue, s.urgent = nil, false
	return events
}

// configs adds what each probe said about its process, when it is new or was said long ago.
func (s *Source) configs(events []*event.Event) []*event.Event {
	for p := range s.peers {
		if p.hello == nil || p.hello.told && s.tick.Sub(p.hello.at) < configEvery {
			continue
		}
		p.hello.told, p.hello.at = true, s.tick
		events = append(events, &event.Event{Time: timestamppb.New(s.tick), Worker: p.worker(), Config: &event.Config{
			Origin: "probe", TorchVersion: p.hello.torch, CudaVersion: p.hello.cuda, AllocConf: p.hello.allocConf,
		}})
	}
	return events
}

// reads adds the newest read of each probe, once a tick. One that belongs to the tick has its time, even when it comes late:
// the processor joins by it. A read of the tick to come stays.
func (s *Source) reads(events []*event.Event) []*event.Event {
	for p := range s.peers {
		if p.read == nil || p.emitted == s.slot {
			continue
		}
		slot := s.slotOf(p.read.at)
		if slot > s.slot {
			continue
		}
		at := s.tick
		if slot < s.slot {
			at = p.read.at
		}
		for _, a := range p.read.devices {
			if a.Backend == "" && p.hello != nil {
				a.Backend = p.hello.backend
			}
			events = append(events, &event.Event{Time: timestamppb.New(at), Worker: p.worker(), Allocator: a})
		}
		p.read, p.emitted = nil, s.slot
	}
	return events
}

// report says what went wrong since the last tick.
func (s *Source) report(tick time.Time) error {
	t := s.trouble
	s.trouble = troubles{}
	var errs []error
	if !s.denied.IsZero() && tick.Sub(s.denied) < deniedFor {
		errs = append(errs, fmt.Errorf("%w: a worker connected whose pid cannot be seen from here; hint: run the collector in the host's pid namespace (hostPID: true), and as root where /proc is mounted with hidepid",
			status.ErrDenied))
	}
	if t.unheard > 0 {
		errs = append(errs, fmt.Errorf("%w: no connection can be taken: %s", status.ErrLost, t.reason))
	}
	for _, part := range []struct {
		count int
		what  string
	}{
		{t.excess, fmt.Sprintf("lines over the limit of %d a second", lineRate)},
		{t.bad, "lines or connections that break the protocol: " + t.reason},
		{t.refused, fmt.Sprintf("connections over the limit of %d, %d of one process", maxPeers, maxPerPID)},
		{t.churned, fmt.Sprintf("connections over the limit of %d new ones a tick, %d of one process", joinsAll, joinsEach)},
		{t.dropped, fmt.Sprintf("events over the limit of %d a tick, %d of one process", waitingAll, waitingEach)},
	} {
		if part.count > 0 {
			errs = append(errs, fmt.Errorf("%w: %d %s (newest from pid %d)", status.ErrLost, part.count, part.what, t.pid))
		}
	}
	return errors.Join(errs...)
}

// enqueue leaves an event for the next Collect, and asks for one when it is urgent.
func (s *Source) enqueue(pid int, at time.Time, e *event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops(pid) {
		return
	}
	s.queued[pid]++
	s.sent++
	s.queue = append(s.queue, waiting{at: at, event: e})
	if event.Lane(e) == event.LaneUrgent {
		s.urgent = true
		s.fire()
	}
	s.notify()
}

// full says whether an event of the process would be dropped now, and counts it as such.
func (s *Source) full(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drops(pid)
}

func (s *Source) drops(pid int) bool {
	if s.queued[pid] < waitingEach && s.sent < waitingAll {
		return false
	}
	s.trouble.dropped++
	s.trouble.pid = pid
	return true
}

// fire asks for a Collect now. The lock is held.
func (s *Source) fire() {
	select {
	case s.wake <- struct{}{}:
		s.woken = true
	default:
	}
}

func (s *Source) notify() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// count notes a trouble of a peer. The reason is that of the first since the last tick.
func (s *Source) count(pid int, of func(*troubles) *int, n int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of(&s.trouble) += n
	s.trouble.pid = pid
	if s.trouble.reason == "" {
		s.trouble.reason = reason
	}
	s.notify()
}

func excess(t *troubles) *int  { return &t.excess }
func bad(t *troubles) *int     { return &t.bad }
func unheard(t *troubles) *int { return &t.unheard }

// Close stops listening, drops every connection, waits for their goroutines and removes the socket.
func (s *Source) Close() error {
	s.mu.Lock()
	select {
	case <-s.done:
		s.mu.Unlock()
		return nil
	default:
		close(s.done)
	}
	for p := range s.peers {
		p.conn.Close()
	}
	s.mu.Unlock()
	if s.desk != nil {
		s.desk.cancel()
	}
	err := s.listener.Close()
	s.serving.Wait()
	if s.desk != nil {
		s.desk.close()
	}
	if info, statErr := os.Lstat(s.o.Socket); statErr == nil && os.SameFile(info, s.file) {
		err = errors.Join(err, os.Remove(s.o.Socket))
	}
	if err != nil {
		return fmt.Errorf("close probe socket: %w", err)
	}
	return nil
}
