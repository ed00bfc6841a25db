package collector

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

var testHost = &event.Host{Cluster: "lab", Name: "h1", BootId: "b"}

// fake answers with what its function says.
type fake struct {
	name    string
	collect func(ctx context.Context, tick time.Time) ([]*event.Event, error)
}

func (f fake) Name() string { return f.name }
func (f fake) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	return f.collect(ctx, tick)
}

// outlet keeps what was published.
type outlet struct {
	mu     sync.Mutex
	events []*event.Event
}

func (o *outlet) Publish(_ string, events []*event.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, events...)
	return nil
}

// states returns the statuses of one source, with the second of the tick.
func (o *outlet) states(name string, origin time.Time) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for _, e := range o.events {
		if e.Source.GetName() == name {
			out = append(out, fmt.Sprintf("%v %s", e.At().Sub(origin).Seconds(), e.Source.Status))
		}
	}
	return out
}

func machineAt(tick time.Time) []*event.Event {
	return []*event.Event{{Time: timestamppb.New(tick), Machine: &event.Machine{Fds: event.Ptr(uint64(3))}}}
}

// A source that ignores its deadline for 32 s: the other one keeps its ticks, the hanging one is called once and says timeout.
func TestHangingSourceBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		calls := 0
		hanging := fake{"hanging", func(context.Context, time.Time) ([]*event.Event, error) {
			calls++
			if calls == 1 {
				time.Sleep(32 * time.Second) // of the bubble's clock
			}
			return nil, nil
		}}
		healthy := fake{"healthy", func(_ context.Context, tick time.Time) ([]*event.Event, error) { return machineAt(tick), nil }}
		ctx, cancel := context.WithTimeout(t.Context(), 46*time.Second)
		defer cancel()
		out := &outlet{}
		if err := Run(ctx, Options{Sources: []Source{hanging, healthy}, Host: testHost, Outlet: out, Interval: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if got, want := out.states("healthy", origin), []string{"0 ok", "10 ok", "20 ok", "30 ok", "40 ok"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("healthy source: %v, want %v", got, want)
		}
		// Three ticks say so, then the late answer of tick 0, then tick 40 is in time again.
		want := []string{"10 timeout", "20 timeout", "30 timeout", "0 timeout", "40 ok"}
		if got := out.states("hanging", origin); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("hanging source: %v, want %v", got, want)
		}
		if calls != 2 {
			t.Errorf("the hanging source was called %d times, want 2", calls)
		}
		for _, e := range out.events {
			if event.HostKey(e.Host) != "lab/h1" {
				t.Fatalf("event without the agent's host: %v", e)
			}
		}
	})
}

func TestTicksAreAlignedAndTheFirstIsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(3 * time.Second) // off the grid; synctest starts on a full second
		origin := time.Now()
		var ticks []string
		s := fake{"s", func(_ context.Context, tick time.Time) ([]*event.Event, error) {
			ticks = append(ticks, tick.Sub(origin).String())
			return nil, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 13*time.Second)
		defer cancel()
		if err := Run(ctx, Options{Sources: []Source{s}, Host: testHost, Outlet: &outlet{}, Interval: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(ticks, " "); got != "0s 2s 7s 12s" {
			t.Errorf("ticks at %s, want 0s 2s 7s 12s", got)
		}
	})
}

// What never returns is named when the grace is over, and its goroutine ends when the call does.
func TestCallThatOutlivesTheEndIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := fake{"stuck", func(context.Context, time.Time) ([]*event.Event, error) { <-release; return nil, nil }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Run(ctx, Options{Sources: []Source{s}, Host: testHost, Outlet: &outlet{}, Interval: 5 * time.Second})
		if err == nil || !strings.Contains(err.Error(), "stuck") {
			t.Errorf("error %v does not name the source", err)
		}
		close(release) // synctest fails the test if the goroutine stays
	})
}

func TestErrorsBecomeStatuses(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "ok"},
		{fmt.Errorf("%w: no driver", status.ErrAbsent), "absent"},
		{fmt.Errorf("%w: old driver", status.ErrUnsupported), "unsupported"},
		{fmt.Errorf("%w: not root", status.ErrDenied), "denied"},
		{fmt.Errorf("%w: fell off the bus", status.ErrLost), "lost"},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), "timeout"},
		{&os.PathError{Op: "open", Path: "/dev/kmsg", Err: os.ErrPermission}, "denied"},
		{&os.PathError{Op: "open", Path: "/dev/kmsg", Err: os.ErrNotExist}, "absent"},
		{errors.New("what ever"), "lost"},
	} {
		if got := status.Of(c.err); got != c.want {
			t.Errorf("status of %v is %s, want %s", c.err, got, c.want)
		}
	}
}

func TestPanicIsTheSourcesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fake{"broken", func(context.Context, time.Time) ([]*event.Event, error) { panic("index out of range") }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out := &outlet{}
		if err := Run(ctx, Options{Sources: []Source{s}, Host: testHost, Outlet: out}); err != nil {
			t.Fatal(err)
		}
		if len(out.events) != 1 || out.events[0].Source.Status != "lost" || !strings.Contains(out.events[0].Source.Error, "index out of range") {
			t.Errorf("a panic gave %v", out.events)
		}
	})
}

func TestOptionsThatCannotRun(t *testing.T) {
	s := fake{name: "s"}
	for name, o := range map[string]Options{
		"no outlet":          {Sources: []Source{s}, Host: testHost},
		"no sources":         {Host: testHost, Outlet: &outlet{}},
		"two sources":        {Sources: []Source{s, s}, Host: testHost, Outlet: &outlet{}},
		"not made of":        {Sources: []Source{fake{name: "a.b"}}, Host: testHost, Outlet: &outlet{}},
		"field host.cluster": {Sources: []Source{s}, Host: &event.Host{Name: "h"}, Outlet: &outlet{}},
	} {
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not say %q", err, name)
		}
	}
}
