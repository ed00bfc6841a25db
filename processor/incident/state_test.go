package incident

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/layout"
	"lowtide/rules"
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

var stateLayout = layout.New(layout.Options{Magic: "LTI", Version: 1, Most: 1 << 20}, new(State))

// around writes a state and reads it again.
func around(t *testing.T, s State) (back State) {
	t.Helper()
	parts, err := stateLayout.Write(&s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stateLayout.Read(parts, &back); err != nil {
		t.Fatal(err)
	}
	if err := back.Check(); err != nil {
		t.Fatal(err)
	}
	again, err := stateLayout.Write(&back)
	if err != nil || !bytes.Equal(again, parts) {
		t.Errorf("written again it is %d bytes that differ, was %d: %v", len(again), len(parts), err)
	}
	return back
}

func TestStateGoesRound(t *testing.T) {
	back := around(t, full().State())
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
	for name, change := range map[string]func(*Incident){
		"state":      func(in *Incident) { in.State = event.Resolved },
		"severity":   func(in *Incident) { in.Severity = "loud" },
		"never told": func(in *Incident) { in.Transitions = 0 },
		"no finding": func(in *Incident) { in.Last = nil },
		"no key":     func(in *Incident) { in.Key = "" },
	} {
		state := full().State()
		if change(&state.Incidents[1]); state.Check() == nil || !strings.HasPrefix(state.Check().Error(), "read incident 2 of 2: ") {
			t.Errorf("%s: %v", name, state.Check())
		}
	}
	if state := (State{Refused: -1}); state.Check() == nil {
		t.Error("fewer than none were refused")
	}
}

// The rule retention is gone and another one watches its class; of kv_block_leak none is left.
func TestIncidentsFollowAChangeOfRules(t *testing.T) {
	tracker := full()
	other := *retention
	other.ID, other.Explains = "mine", []string{"stall"}
	got := tracker.Reassign(func(in *Incident) string {
		if in.Class == "retention" {
			return "mine"
		}
		return ""
	}, map[string]*rules.Rule{"mine": &other})
	if len(got) != 1 || got[0].Class != "kv_block_leak" || got[0].State != event.Resolved || !strings.Contains(got[0].Resolution, "the rule "+kvLeak.ID+" is not asked any more") {
		t.Fatalf("told %s", told(got))
	}
	in := tracker.Open("s")[0]
	if in.Rule != "mine" || len(in.Explains) != 1 || in.State != event.Confirmed || in.Transitions != 4 || len(tracker.Open("t")) != 0 {
		t.Errorf("left is %+v", in)
	}
	check(t, tracker)
}
