package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// Outlet takes what a source saw. Publisher is the one that the agent uses.
type Outlet interface {
	// Publish takes over the events of one source. It must not block on the network. Every event has its host.
	Publish(source string, events []*event.Event) error
}

// Identity knows the processes of this host.
type Identity interface {
	// Complete fills in the worker of an event that names no more than a pid, as far as that is known, and learns from the
	// event what it tells about processes. It must not block.
	Complete(e *event.Event)
}

// Options say what Run asks, how often and where the answers go.
type Options struct {
	Sources  []Source
	Host     *event.Host              // of the agent: `source` events carry it, and every event that has none
	Outlet   Outlet                   // required
	Identity Identity                 // nil where no source names a process by its pid alone
	Interval time.Duration            // between ticks, which are aligned to its multiples; 5 s when zero
	Every    map[string]time.Duration // by name, for sources that are asked at another interval
	Deadline time.Duration            // for one Collect; the interval when zero
	Grace    time.Duration            // for calls that still run at the end; 2 s when zero
	Log      *slog.Logger             // nil discards
}

func (o *Options) fill() error {
	if o.Outlet == nil {
		return errors.New("run collector: no outlet")
	}
	if err := event.ValidateHost(o.Host); err != nil {
		return fmt.Errorf("run collector: %w", err)
	}
	if len(o.Sources) == 0 {
		return errors.New("run collector: no sources; hint: a recording, simulated hosts or the process source")
	}
	seen := make(map[string]bool)
	for _, s := range o.Sources {
		switch name := s.Name(); {
		case name == "" || name != event.Token(name):
			return fmt.Errorf("run collector: source name %q is not made of letters, digits, - and _", name)
		case seen[name]:
			return fmt.Errorf("run collector: two sources are called %q", name)
		default:
			seen[name] = true
		}
	}
	if o.Interval <= 0 {
		o.Interval = 5 * time.Second
	}
	if o.Deadline <= 0 {
		o.Deadline = o.Interval
	}
	if o.Grace <= 0 {
		o.Grace = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}

// reading is what came back from one Collect.
type reading struct {
	slot   *slot
	tick   time.Time
	woken  bool
	events []*event.Event
	err    error
	took   time.Duration
}

// slot is the loop's view of one source. Only the loop's goroutine touches it.
type slot struct {
	source  Source
	every   time.Duration
	next    time.Time // when it is asked again
	running bool
	hung    bool      // the running call is past its deadline: nobody waits for it
	started time.Time // the tick of the running call
	began   time.Time // when it was called, by the monotonic clock
	called  bool      // the running call answers a Wake
	woken   bool      // it asked to be read while it was being read
	missed  time.Time // a tick that came while a Wake was answered; zero when none did
	state   string    // as last logged
	told    time.Time // when its state was last published
}

// loop is one Run.
type loop struct {
	Options
	slots    []*slot
	readings chan reading
	wakes    chan *slot
	held     []reading // samples that wait for an earlier tick's
	xids     xids
}

// Run asks every source once per tick, and a Waker also when it calls, until the context ends, which is no error. Samples leave in
// the order of their ticks, however long a source took, since the judge closes a tick with the first event of the next one; urgent
// events leave at once. A source that hangs holds up nobody past the deadline: its one call is left running, no second one is
// started, and each tick says `timeout` for it. The error names the sources whose call had not returned when the grace was over.
func Run(ctx context.Context, o Options) error {
	if err := o.fill(); err != nil {
		return err
	}
	// Room for every call's answer: a call that outlives the loop can still hand in its reading and end.
	l := &loop{Options: o, readings: make(chan reading, len(o.Sources)), wakes: make(chan *slot, len(o.Sources))}
	now := time.Now()
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, s := range o.Sources {
		every := o.Every[s.Name()]
		if every <= 0 {
			every = o.Interval
		}
		slot := &slot{source: s, every: every, next: now} // the first tick is at once: nobody waits an interval for the first reading
		l.slots = append(l.slots, slot)
		if w, ok := s.(Waker); ok {
			watching.Go(func() { listen(ctx, w, slot, l.wakes) })
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return l.drain(ctx)
		case r := <-l.readings:
			l.finish(ctx, r)
		case s := <-l.wakes:
			l.ask(ctx, s, time.Now().UTC(), true)
		case <-timer.C:
			l.tick(ctx, time.Now())
		}
		timer.Reset(time.Until(l.due()))
	}
}

// listen hands on a source's calls for attention.
func listen(ctx context.Context, w Waker, s *slot, wakes chan<- *slot) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-w.Wake():
			if !open {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case wakes <- s:
		}
	}
}

// due is when something has to be done at the latest.
func (l *loop) due() time.Time {
	at := l.xids.due()
	for _, s := range l.slots {
		if at.IsZero() || s.next.Before(at) {
			at = s.next
		}
		if over := s.began.Add(l.Deadline); s.running && !s.hung && over.Before(at) {
			at = over
		}
	}
	return at
}

func (l *loop) tick(ctx context.Context, now time.Time) {
	for _, s := range l.slots {
		if s.next.After(now) {
			continue
		}
		l.ask(ctx, s, now.UTC(), false)
		// From the grid of the wall clock, but by the monotonic one: a clock that is set back must not stop the ticks.
		s.next = now.Add(now.Truncate(s.every).Add(s.every).Sub(now.Round(0)))
	}
	for _, s := range l.slots {
		if s.running && !s.hung && now.Sub(s.began) >= l.Deadline {
			l.hang(s, now.UTC(), now.Sub(s.began))
		}
	}
	l.release()
	l.publish(nvmlSource, l.xids.release(now))
}

// ask starts the source's call, or says that the earlier one hangs.
func (l *loop) ask(ctx context.Context, s *slot, tick time.Time, woken bool) {
	if s.running {
		took := time.Since(s.began)
		switch {
		case woken:
			s.woken = true
		case took >= l.Deadline:
			l.hang(s, tick, took)
		case s.called:
			s.missed = tick
		}
		return
	}
	s.running, s.called, s.started, s.began = true, woken, tick, time.Now()
	go func() {
		limited, cancel := context.WithTimeout(ctx, l.Deadline)
		defer cancel()
		started := time.Now()
		events, err := collect(limited, s.source, tick)
		l.readings <- reading{slot: s, tick: tick, woken: woken, events: events, err: err, took: time.Since(started)}
	}()
}

// hang says that a call is past its deadline. From then on nobody waits for it.
func (l *loop) hang(s *slot, tick time.Time, took time.Duration) {
	s.hung, s.missed = true, time.Time{}
	l.tell(s, tick, nil, status.Timeout, fmt.Sprintf("call of %s has not returned", s.started.Format(time.RFC3339)), took)
}

// collect turns a panic into an error: one broken sensor must not blind the others.
func collect(ctx context.Context, s Source, tick time.Time) (events []*event.Event, err error) {
	defer func() {
		if r := recover(); r != nil {
			events, err = nil, fmt.Errorf("collect %s: panic: %v", s.Name(), r)
		}
	}()
	return s.Collect(ctx, tick)
}

// finish takes a reading in. What is urgent leaves now, samples when nothing of an earlier tick is still being read.
func (l *loop) finish(ctx context.Context, r reading) {
	r.slot.running, r.slot.hung = false, false
	var urgent []*event.Event
	var refused error
	left := 0
	r.events = slices.DeleteFunc(r.events, func(e *event.Event) bool {
		l.complete(e)
		if err := event.Validate(e); err != nil { // the judge refuses the whole message that one such event stands in
			refused = err
			left++
			return true
		}
		if event.Lane(e) != event.LaneUrgent {
			return false
		}
		urgent = append(urgent, e)
		return true
	})
	if left > 0 {
		r.err = errors.Join(r.err, fmt.Errorf("%w: %d events left out: %w", status.ErrLost, left, refused))
	}
	if urgent = l.xids.filter(urgent, time.Now()); len(urgent) > 0 {
		l.publish(r.slot.source.Name(), urgent)
	}
	l.held = append(l.held, r)
	if s := r.slot; ctx.Err() == nil && (s.woken || !s.missed.IsZero()) {
		if tick := s.missed; !tick.IsZero() {
			s.missed = time.Time{}
			l.ask(ctx, s, tick, false)
		} else {
			s.woken = false
			l.ask(ctx, s, time.Now().UTC(), true)
		}
	}
	l.release()
}

func (l *loop) complete(e *event.Event) {
	if e.Host != nil {
		return // played or simulated: this host's processes are others
	}
	e.Host = l.Host
	if l.Identity != nil {
		l.Identity.Complete(e)
	}
}

// release publishes what no earlier tick has to come before.
func (l *loop) release() {
	slices.SortStableFunc(l.held, func(a, b reading) int { return a.tick.Compare(b.tick) })
	for len(l.held) > 0 && !l.waits(l.held[0].tick) {
		r := l.held[0]
		l.held = l.held[1:]
		state, text := status.Of(r.err), ""
		if r.err != nil {
			text = r.err.Error()
		} else if r.took > l.Deadline {
			// What was read still holds for its own time, so it is sent; that it came late is the source's trouble to tell.
			state, text = status.Timeout, fmt.Sprintf("took %v, the deadline is %v", r.took.Round(time.Millisecond), l.Deadline)
		}
		if r.woken && r.err == nil {
			l.publish(r.slot.source.Name(), r.events) // it only looked at what had called; the next tick says how it is
			continue
		}
		l.tell(r.slot, r.tick, r.events, state, text, r.took)
	}
}

func (l *loop) waits(tick time.Time) bool {
	return slices.ContainsFunc(l.slots, func(s *slot) bool { return s.running && !s.hung && s.started.Before(tick) })
}

// tell publishes the events and, last, what the source says about itself: when that changed, and once an interval.
func (l *loop) tell(s *slot, tick time.Time, events []*event.Event, state, text string, took time.Duration) {
	name := s.source.Name()
	if since := tick.Sub(s.told); state != s.state || since < 0 || since >= l.Interval-l.Interval/10 {
		s.told = tick
		events = append(events, &event.Event{Time: timestamppb.New(tick), Host: l.Host, Source: &event.SourceStatus{
			Name: name, Status: state, Error: event.Shorten(text, 4<<10), TookSeconds: event.Ptr(took.Seconds()),
		}})
	}
	if name == kernelSource {
		l.xids.kmsg = state == status.OK
	}
	if state != s.state {
		s.state = state
		if state == status.OK {
			l.Log.Info("source is read", "source", name)
		} else {
			l.Log.Warn("source is not read in full", "source", name, "status", state, "error", text)
		}
	}
	l.publish(name, events)
}

func (l *loop) publish(name string, events []*event.Event) {
	if len(events) == 0 {
		return
	}
	if err := l.Outlet.Publish(name, events); err != nil {
		l.Log.Error("events are not published", "source", name, "error", err)
	}
}

// drain waits for the running calls, which the ended context has told to return, and lets go of everything that was held.
func (l *loop) drain(ctx context.Context) error {
	over := time.NewTimer(l.Grace)
	defer over.Stop()
	defer func() {
		l.release()
		l.publish(nvmlSource, l.xids.release(time.Now().Add(xidPatience)))
	}()
	for {
		var hanging []string
		for _, s := range l.slots {
			if s.running {
				hanging = append(hanging, s.source.Name())
			}
		}
		if len(hanging) == 0 {
			return nil
		}
		select {
		case r := <-l.readings:
			if errors.Is(r.err, context.Canceled) || errors.Is(r.err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded) { // a call cut short by the end is no fault of the source
				r.err, r.woken = nil, true
			}
			l.finish(ctx, r)
		case <-over.C:
			for _, s := range l.slots {
				s.hung = true
			}
			return fmt.Errorf("stop collector: sources %v did not return within %v", hanging, l.Grace)
		}
	}
}
