package incident

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// full has an incident with everything that one can hold.
func full() *Tracker {
	tracker := NewTracker()
	fill := func(o *Observation) {
		o.Fill = func(f *event.Finding) {
			f.Subject = event.Subject{Kind: "worker", Key: "c/h/b/7/9"}
			f.Worker = &event.Worker{Pid: 7, StartTicks: event.Ptr(uint64(9)), StartTime: timestamppb.New(began)}
			f.Evidence = event.Measures{{Name: "live.level_bytes", Value: 48 << 30, Unit: "bytes"}}
		}
	}
	tracker.Observe(see(retention, 3, when, since(0), fill, at("s", "c/h/GPU-a")))
	tracker.Observe(see(rule("crash_loop"), 4, paged))
	tracker.Observe(see(retention, 5, confirmed, fill, exits))
	tracker.Observe(see(retention, 6, fill, of("two"), at("s", "c/h/GPU-a")))
	tracker.Observe(see(kvLeak, 7, when, at("t"), fill))
	return tracker
}

func TestStateGoesRoundAsJSON(t *testing.T) {
	state := full().State()
	text, err := MarshalState(state)
	if err != nil {
		t.Fatal(err)
	}
	back, err := UnmarshalState(text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := MarshalState(back)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(text) {
		t.Errorf("written again it reads\n%s\nwant\n%s", again, text)
	}
	in := back.Incidents[0]
	if in.Quiet != time.Hour || in.Masked != 1 || in.Worker != "two" || in.Past[0] != "one" || in.Severity != event.Page || in.Related[0] != "c/h/GPU-a" ||
		!in.Onset.Equal(began) || in.Absorbed[0].Name != "crash_loop" || in.Transitions != 4 || in.Last.Worker.GetPid() != 7 {
		t.Errorf("read back %+v", in)
	}
	// What follows is told in the same way by both.
	card := rule("device_fault", "retention")
	for _, o := range []Observation{see(retention, 9, proven, of("two")), see(kvFull, 9.1, when), see(card, 9, when, since(-1), at("c/h/GPU-a"), of(""))} {
		one, two := full(), NewTracker()
		two.Restore(back)
		a, b := one.Observe(o), two.Observe(o)
		if len(a) == 0 || told(a) != told(b) || a[0].ID != b[0].ID {
			t.Errorf("the one tells %s, the restored one %s", told(a), told(b))
		}
	}
}

func TestStateIsACopy(t *testing.T) {
	tracker := full()
	state := tracker.State()
	before := tracker.State()
	tracker.Observe(see(retention, 9, when, of("three"), at("s", "c/h/GPU-b")))
	if !reflect.DeepEqual(state, before) {
		t.Error("a state changes with its tracker")
	}
}

func TestStateThatNoTrackerWrote(t *testing.T) {
	text, err := MarshalState(full().State())
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"cut off":    {`"refused"`, ``},
		"state":      {`"state":"confirmed"`, `"state":"resolved"`},
		"severity":   {`"severity":"page"`, `"severity":"loud"`},
		"never told": {`"transitions":4`, `"transitions":0`},
		"no key":     {`"key":"s"`, `"key":""`},
	} {
		bad := strings.Replace(string(text), change[0], change[1], 1)
		if name == "cut off" {
			bad = string(text[:len(text)/2])
		}
		if _, err := UnmarshalState([]byte(bad)); err == nil || !strings.HasPrefix(err.Error(), "read incident") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzUnmarshalState(f *testing.F) {
	text, err := MarshalState(full().State())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"incidents":[{"id":"a","key":"k","class":"stall","state":"suspected","severity":"page","transitions":1,"last":{}}]}`))
	f.Add([]byte(`{"incidents":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		state, err := UnmarshalState(text)
		if err != nil {
			return
		}
		tracker := NewTracker()
		tracker.Restore(state)
		tracker.Observe(see(stalled, 1, when, at("k")))
		tracker.Observe(see(device, 1, when, at("k")))
		check(t, tracker)
	})
}
