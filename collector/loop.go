package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// Options say what Run asks, how often and where the answers go.
type Options struct {
	Sources  []Source
	Host     *event.Host   // of the agent: `source` events carry it, and every event that has none
	Outlet   Outlet        // required
	Interval time.Duration // between ticks, which are aligned to its multiples; 5 s when zero
	Deadline time.Duration // for one Collect; the interval when zero
	Grace    time.Duration // for calls that still run at the end; 2 s when zero
	Log      *slog.Logger  // nil discards
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
	events []*event.Event
	err    error
	took   time.Duration
}

// slot is the loop's view of one source. Only the loop's goroutine touches it.
type slot struct {
	source  Source
	running bool
	started time.Time // of the running call
	state   string    // as last logged
}

// Run asks every source once per tick until the context ends, which is no error. A source that hangs holds up nobody: its one
// call is left running, no second one is started, and each tick says `timeout` for it. The error names the sources whose call
// had not returned when the grace was over.
func Run(ctx context.Context, o Options) error {
	if err := o.fill(); err != nil {
		return err
	}
	slots := make([]*slot, len(o.Sources))
	for i, s := range o.Sources {
		slots[i] = &slot{source: s}
	}
	// Room for every call's answer: a call that outlives the loop can still hand in its reading and end.
	readings := make(chan reading, len(slots))
	timer := time.NewTimer(0) // the first tick is at once: nobody waits an interval for the first reading
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return o.drain(slots, readings)
		case r := <-readings:
			o.finish(r)
		case <-timer.C:
			now := time.Now()
			for _, s := range slots {
				o.ask(ctx, s, now.UTC(), readings)
			}
			timer.Reset(now.Truncate(o.Interval).Add(o.Interval).Sub(now))
		}
	}
}

// ask starts the source's call for this tick, or says that the earlier one hangs.
func (o *Options) ask(ctx context.Context, s *slot, tick time.Time, readings chan<- reading) {
	if s.running {
		if hung := tick.Sub(s.started); hung >= o.Deadline {
			o.emit(s, tick, nil, status.Timeout, fmt.Sprintf("call of %s has not returned", s.started.Format(time.RFC3339)), hung)
		}
		return
	}
	s.running, s.started = true, tick
	go func() {
		limited, cancel := context.WithTimeout(ctx, o.Deadline)
		defer cancel()
		started := time.Now()
		events, err := collect(limited, s.source, tick)
		readings <- reading{slot: s, tick: tick, events: events, err: err, took: time.Since(started)}
	}()
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

func (o *Options) finish(r reading) {
	r.slot.running = false
	state, text := status.Of(r.err), ""
	if r.err != nil {
		text = r.err.Error()
	} else if r.took > o.Deadline {
		// What was read still holds for its own time, so it is sent; that it came late is the source's trouble to tell.
		state, text = status.Timeout, fmt.Sprintf("took %v, the deadline is %v", r.took.Round(time.Millisecond), o.Deadline)
	}
	o.emit(r.slot, r.tick, r.events, state, text, r.took)
}

// emit hands on the events and, last, what the source says about itself.
func (o *Options) emit(s *slot, tick time.Time, events []*event.Event, state, text string, took time.Duration) {
	for _, e := range events {
		if e.Host == nil {
			e.Host = o.Host
		}
	}
	name := s.source.Name()
	events = append(events, &event.Event{Time: timestamppb.New(tick), Host: o.Host, Source: &event.SourceStatus{
		Name: name, Status: state, Error: text, TookSeconds: event.Ptr(took.Seconds()),
	}})
	if state != s.state {
		s.state = state
		if state == status.OK {
			o.Log.Info("source is read", "source", name)
		} else {
			o.Log.Warn("source is not read in full", "source", name, "status", state, "error", text)
		}
	}
	if err := o.Outlet.Publish(name, events); err != nil {
		o.Log.Error("events are not published", "source", name, "error", err)
	}
}

// drain waits for the running calls, which the ended context has told to return.
func (o *Options) drain(slots []*slot, readings <-chan reading) error {
	over := time.NewTimer(o.Grace)
	defer over.Stop()
	for {
		var hanging []string
		for _, s := range slots {
			if s.running {
				hanging = append(hanging, s.source.Name())
			}
		}
		if len(hanging) == 0 {
			return nil
		}
		select {
		case r := <-readings:
			r.slot.running = false
			if r.err == nil { // a call cut short by the end is no fault of the source
				o.finish(r)
			}
		case <-over.C:
			return fmt.Errorf("stop collector: sources %v did not return within %v", hanging, o.Grace)
		}
	}
}
