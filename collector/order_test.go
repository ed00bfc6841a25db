package collector

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// waking is a source that can ask to be read.
type waking struct {
	fake
	wake chan struct{}
}

func (w waking) Wake() <-chan struct{} { return w.wake }

// A slow source's samples of one tick leave before a fast one's of the next; after its deadline nobody waits for it.
func TestSamplesLeaveInTheOrderOfTheirTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now().UTC()
		fast := fake{"fast", func(_ context.Context, tick time.Time) ([]*event.Event, error) { return machineAt(tick), nil }}
		slow := fake{"slow", func(_ context.Context, tick time.Time) ([]*event.Event, error) {
			if tick.Equal(origin) {
				time.Sleep(2500 * time.Millisecond)
			} else {
				time.Sleep(8 * time.Second)
			}
			return machineAt(tick), nil
		}}
		out := &outlet{}
		ctx, cancel := context.WithTimeout(t.Context(), 12500*time.Millisecond)
		defer cancel()
		o := Options{Sources: []Source{fast, slow}, Host: testHost, Outlet: out, Interval: 5 * time.Second, Every: map[string]time.Duration{"fast": time.Second}}
		if err := Run(ctx, o); err != nil {
			t.Fatal(err)
		}
		var seconds []int
		for _, e := range out.events {
			if e.Machine != nil {
				seconds = append(seconds, int(e.At().Sub(origin).Seconds()))
			}
		}
		// Twice 0 (both sources), then 1 and 2, which waited for slow. At 5 slow hangs: its deadline is 10, when 6 to 10 may leave; its reading of 5 comes late.
		if want := []int{0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 5}; !slices.Equal(seconds, want) {
			t.Errorf("seconds left as %v, want %v", seconds, want)
		}
	})
}

// What a source calls for is read at once, as urgent events leave at once, also while another source is still being read.
func TestWakerIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now().UTC()
		wake := make(chan struct{}, 1)
		var ticks []time.Duration
		source := waking{fake{"urgent", func(_ context.Context, tick time.Time) ([]*event.Event, error) {
			ticks = append(ticks, tick.Sub(origin))
			if tick.Equal(origin) {
				return nil, nil
			}
			return []*event.Event{{Time: timestamppb.New(tick), Oom: &event.Oom{Kind: "cuda"}}}, nil
		}}, wake}
		slow := fake{"slow", func(context.Context, time.Time) ([]*event.Event, error) { time.Sleep(4 * time.Second); return nil, nil }}
		out := &outlet{}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var early int
		go func() {
			time.Sleep(1200 * time.Millisecond)
			wake <- struct{}{}
			time.Sleep(10 * time.Millisecond)
			out.mu.Lock()
			defer out.mu.Unlock()
			for _, e := range out.events {
				if e.Oom != nil {
					early++
				}
			}
		}()
		if err := Run(ctx, Options{Sources: []Source{source, slow}, Host: testHost, Outlet: out, Interval: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{0, 1200 * time.Millisecond}; !slices.Equal(ticks, want) {
			t.Errorf("read at %v, want %v", ticks, want)
		}
		if early != 1 {
			t.Errorf("%d failed allocations had left 10 ms after the call, want 1", early)
		}
	})
}

// The cases are the orders in which two accounts of device errors can arrive.
func TestOneEventOfTwoAccountsOfAnError(t *testing.T) {
	kmsg := func(code uint64) *event.Event {
		return &event.Event{Xid: &event.Xid{Source: "kmsg", Pci: "0000:48:00", GpuUuid: "GPU-a", Code: event.Ptr(code)}}
	}
	nvml := func(code uint64, uuid string) *event.Event {
		return &event.Event{Xid: &event.Xid{Source: "nvml", Pci: "0000:48:00", GpuUuid: uuid, Code: event.Ptr(code)}}
	}
	origin := time.Unix(1_790_000_000, 0)
	type step struct {
		after time.Duration
		event *event.Event // nil only lets time pass
	}
	for name, test := range map[string]struct {
		kmsg  bool
		steps []step
		want  []string // source and code of what left
	}{
		"kernel log first":      {true, []step{{0, kmsg(31)}, {time.Second, nvml(31, "GPU-a")}, {3 * time.Second, nil}}, []string{"kmsg 31"}},
		"nvml first":            {true, []step{{0, nvml(31, "GPU-a")}, {300 * time.Millisecond, kmsg(31)}, {3 * time.Second, nil}}, []string{"kmsg 31"}},
		"kernel log misses it":  {true, []step{{0, nvml(79, "GPU-a")}, {999 * time.Millisecond, nil}, {time.Second, nil}}, []string{"nvml 79"}},
		"no kernel log":         {false, []step{{0, nvml(79, "GPU-a")}}, []string{"nvml 79"}},
		"another code":          {true, []step{{0, kmsg(31)}, {0, nvml(43, "GPU-a")}, {2 * time.Second, nil}}, []string{"kmsg 31", "nvml 43"}},
		"without uuid, by slot": {true, []step{{0, kmsg(31)}, {0, nvml(31, "")}, {2 * time.Second, nil}}, []string{"kmsg 31"}},
		"a minute later":        {true, []step{{0, kmsg(31)}, {time.Minute, nvml(31, "GPU-a")}, {62 * time.Second, nil}}, []string{"kmsg 31", "nvml 31"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := xids{kmsg: test.kmsg}
			var got []string
			for _, s := range test.steps {
				var events []*event.Event
				if s.event != nil {
					events = append(events, s.event)
				}
				now := origin.Add(s.after)
				for _, e := range append(x.filter(events, now), x.release(now)...) {
					got = append(got, e.Xid.Source+" "+strconv.FormatUint(e.Xid.GetCode(), 10))
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("left: %v, want %v", got, test.want)
			}
			if !x.due().IsZero() {
				t.Error("something is still held")
			}
		})
	}
}
