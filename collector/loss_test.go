package collector

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// seconds returns when the samples of a source that machineAt made belong to, in the order in which they left.
func (o *outlet) seconds(origin time.Time) []float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []float64
	for _, e := range o.events {
		if e.Machine != nil {
			out = append(out, e.At().Sub(origin).Seconds())
		}
	}
	return out
}

// A source that is asked once a minute and hangs holds the others up until its deadline, not until its next turn.
func TestHangOfARareSourceHoldsUpNobodyPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		rare := fake{"rare", func(context.Context, time.Time) ([]*event.Event, error) {
			time.Sleep(50 * time.Second)
			return nil, nil
		}}
		often := fake{"often", func(_ context.Context, tick time.Time) ([]*event.Event, error) { return machineAt(tick), nil }}
		out := &outlet{}
		ctx, cancel := context.WithTimeout(t.Context(), 55*time.Second)
		defer cancel()
		var early []float64
		var states []string
		looked := make(chan struct{})
		go func() {
			defer close(looked)
			time.Sleep(12 * time.Second)
			early, states = out.seconds(origin), out.states("rare", origin)
		}()
		o := Options{Sources: []Source{rare, often}, Host: testHost, Outlet: out, Interval: 5 * time.Second, Every: map[string]time.Duration{"rare": time.Minute}}
		if err := Run(ctx, o); err != nil {
			t.Fatal(err)
		}
		<-looked
		if want := []float64{0, 5, 10}; !slices.Equal(early, want) {
			t.Errorf("samples that had left after 12 s: %v, want %v", early, want)
		}
		if want := []string{"5 timeout"}; !slices.Equal(states, want) {
			t.Errorf("the hanging source said %v after 12 s, want %v", states, want)
		}
	})
}

// A call that a source asked for is under way when its tick comes: the tick is read right after it, as of its time.
func TestTickThatFallsIntoAWokenCallIsReadAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now().UTC()
		wake := make(chan struct{}, 1)
		source := waking{fake{"urgent", func(_ context.Context, tick time.Time) ([]*event.Event, error) {
			if tick.Sub(origin)%(5*time.Second) != 0 {
				time.Sleep(time.Second)
				return nil, nil
			}
			return machineAt(tick), nil
		}}, wake}
		often := fake{"often", func(_ context.Context, tick time.Time) ([]*event.Event, error) { return machineAt(tick), nil }}
		out := &outlet{}
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		go func() {
			time.Sleep(4500 * time.Millisecond)
			wake <- struct{}{}
		}()
		if err := Run(ctx, Options{Sources: []Source{source, often}, Host: testHost, Outlet: out, Interval: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if got, want := out.seconds(origin), []float64{0, 0, 5, 5, 10, 10}; !slices.Equal(got, want) {
			t.Errorf("samples of the seconds %v, want %v", got, want)
		}
	})
}

// What a call brings along when the end cuts it short is not lost.
func TestWhatTheLastCallSawIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fake{"s", func(ctx context.Context, tick time.Time) ([]*event.Event, error) {
			<-ctx.Done()
			return []*event.Event{{Time: timestamppb.New(tick), Oom: &event.Oom{Kind: "cuda"}}}, fmt.Errorf("read: %w", ctx.Err())
		}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		out := &outlet{}
		if err := Run(ctx, Options{Sources: []Source{s}, Host: testHost, Outlet: out}); err != nil {
			t.Fatal(err)
		}
		if len(out.events) != 1 || out.events[0].Oom == nil {
			t.Errorf("published: %v, want the failed allocation and no status", out.events)
		}
	})
}

// At the end one source hangs: the others' samples that waited for it, and the Xid that waited for the kernel log, leave all the same.
func TestNothingIsKeptBackByASourceThatHangsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		release := make(chan struct{})
		stuck := fake{"stuck", func(context.Context, time.Time) ([]*event.Event, error) { <-release; return nil, nil }}
		kernel := fake{kernelSource, func(context.Context, time.Time) ([]*event.Event, error) { return nil, nil }}
		often := fake{"nvml", func(_ context.Context, tick time.Time) ([]*event.Event, error) {
			if tick.Sub(origin) < 3*time.Second {
				return machineAt(tick), nil
			}
			return append(machineAt(tick), &event.Event{Time: timestamppb.New(tick), Xid: &event.Xid{Source: "nvml", GpuUuid: "GPU-a", Code: event.Ptr(uint64(79))}}), nil
		}}
		out := &outlet{}
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		err := Run(ctx, Options{Sources: []Source{stuck, kernel, often}, Host: testHost, Outlet: out, Interval: time.Second, Deadline: time.Minute})
		if err == nil || !strings.Contains(err.Error(), "stuck") || strings.Contains(err.Error(), "nvml") {
			t.Errorf("error %v, want one that names the source that hangs", err)
		}
		if got, want := out.seconds(origin), []float64{0, 1, 2, 3}; !slices.Equal(got, want) {
			t.Errorf("samples of the seconds %v, want %v", got, want)
		}
		if !slices.ContainsFunc(out.events, func(e *event.Event) bool { return e.Xid != nil }) {
			t.Error("the Xid is lost")
		}
		close(release)
	})
}

// One event that nobody could judge, such as that of an engine whose process is not known, would have its whole message refused.
func TestAnEventThatIsNoneCostsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fake{"engine", func(_ context.Context, tick time.Time) ([]*event.Event, error) {
			return append(machineAt(tick), &event.Event{Time: timestamppb.New(tick), Worker: &event.Worker{Engine: "vllm"}, Engine: &event.Engine{Running: event.Ptr(uint64(1))}}), nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out := &outlet{}
		if err := Run(ctx, Options{Sources: []Source{s}, Host: testHost, Outlet: out}); err != nil {
			t.Fatal(err)
		}
		if len(out.events) != 2 || out.events[0].Machine == nil || out.events[1].Source.GetStatus() != "lost" || !strings.Contains(out.events[1].Source.GetError(), "worker.pid") {
			t.Errorf("published: %v, want the sample and a status that says what is left out", out.events)
		}
		for _, e := range out.events {
			if err := event.Validate(e); err != nil {
				t.Error(err)
			}
		}
	})
}

// The next tick is a moment of the monotonic clock: a wall clock that is set back an hour must not blind the collector for one.
func TestNextTickDoesNotFollowTheWallClock(t *testing.T) {
	s := fake{"s", func(context.Context, time.Time) ([]*event.Event, error) { return nil, nil }}
	l := &loop{Options: Options{Sources: []Source{s}, Host: testHost, Outlet: &outlet{}}, readings: make(chan reading, 1)}
	if err := l.fill(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	l.slots = []*slot{{source: s, every: 5 * time.Second, next: now}}
	l.tick(t.Context(), now)
	<-l.readings
	next := l.slots[0].next
	if next == next.Round(0) {
		t.Errorf("the next tick, %v, has no reading of the monotonic clock", next)
	}
	if !next.Equal(now.Truncate(5 * time.Second).Add(5 * time.Second)) {
		t.Errorf("the next tick after %v is %v", now, next)
	}
}
