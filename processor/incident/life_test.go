package incident

import (
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

var (
	began     = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	retention = &rules.Rule{ID: "retention", Class: "retention", Alone: event.Ticket, With: event.Page, Keep: 2 * time.Hour, Pair: time.Hour}
	kvLeak    = &rules.Rule{ID: "kv_block_leak", Class: "kv_block_leak", Alone: event.Ticket, With: event.Page}
	kvFull    = &rules.Rule{ID: "kv_pressure", Class: "kv_pressure", Alone: event.Ticket, With: event.Page}
	oversize  = &rules.Rule{ID: "oversize_request", Class: "oversize_request", Alone: event.Ticket, With: event.Page}
)

func see(rule *rules.Rule, hours float64, when, confirm, with rules.Outcome) Observation {
	return Observation{Time: began.Add(time.Duration(hours * float64(time.Hour))), Slot: "s", Rule: rule, Worker: "one",
		Result: rules.Result{When: when, Confirm: confirm, With: with}, Fill: func(*event.Finding) {}, Growth: rule == retention}
}

func TestLifeOfAGrowthIncident(t *testing.T) {
	tracker := NewTracker()
	steps := []struct {
		name            string
		o               Observation
		state, severity string // empty: no transition
		change          func(*Observation)
	}{
		{"nothing yet", see(retention, 0, rules.False, rules.False, rules.False), "", "", nil},
		{"unknown opens nothing", see(retention, 1, rules.Unknown, rules.True, rules.True), "", "", nil},
		{"growth alone", see(retention, 3, rules.True, rules.False, rules.False), event.Suspected, event.Ticket, nil},
		{"the same again", see(retention, 3.5, rules.True, rules.False, rules.False), "", "", nil},
		{"a second axis", see(retention, 4, rules.True, rules.True, rules.False), event.Confirmed, event.Ticket, nil},
		{"a symptom", see(retention, 5, rules.True, rules.True, rules.True), event.Confirmed, event.Page, nil},
		{"the symptom goes, the page stays", see(retention, 6, rules.True, rules.True, rules.False), "", "", nil},
		{"unknown freezes", see(retention, 40, rules.Unknown, rules.Unknown, rules.Unknown), "", "", nil},
		{"a new process without proof", see(retention, 41, rules.False, rules.False, rules.False), "", "", func(o *Observation) { o.Worker = "two" }},
		{"a new process with proof", see(retention, 48, rules.False, rules.False, rules.False), event.Resolved, event.Page, func(o *Observation) { o.Worker, o.Proven = "two", true }},
	}
	incident := ""
	for _, step := range steps {
		if step.change != nil {
			step.change(&step.o)
		}
		f := tracker.Observe(step.o)
		if (f != nil) != (step.state != "") {
			t.Fatalf("%s: transition %v", step.name, f)
		}
		if f == nil {
			continue
		}
		if f.State != step.state || f.Severity != step.severity {
			t.Errorf("%s: %s %s, want %s %s", step.name, f.State, f.Severity, step.state, step.severity)
		}
		if incident == "" {
			incident = f.Incident
		}
		if f.Incident != incident {
			t.Errorf("%s: another incident", step.name)
		}
	}
	if len(tracker.Open("s")) != 0 {
		t.Error("it is still open")
	}
}

func TestEverythingElseEndsAfterADay(t *testing.T) {
	tracker := NewTracker()
	tracker.Observe(see(kvFull, 0, rules.True, rules.False, rules.False))
	if f := tracker.Observe(see(kvFull, 23.9, rules.False, rules.False, rules.False)); f != nil {
		t.Errorf("ended early: %v", f)
	}
	if f := tracker.Observe(see(kvFull, 24, rules.False, rules.False, rules.False)); f == nil || f.State != event.Resolved {
		t.Errorf("not ended: %v", f)
	}
}

func TestTheFirstCauseExplainsTheRest(t *testing.T) {
	for _, test := range []struct {
		name         string
		first, later *rules.Rule
		opens        bool
	}{
		{"blocks that are held fill the cache", kvLeak, kvFull, false},
		{"an OOM after growth", retention, oversize, false},
		{"two troubles", oversize, kvFull, true},
	} {
		tracker := NewTracker()
		tracker.Observe(see(test.first, 0, rules.True, rules.False, rules.False))
		if f := tracker.Observe(see(test.later, 1, rules.True, rules.False, rules.False)); (f != nil) != test.opens {
			t.Errorf("%s: opened is %v, want %v", test.name, f != nil, test.opens)
		}
	}
}

func TestIDsAreTheSameWhenJudgedAgain(t *testing.T) {
	one := NewTracker().Observe(see(kvLeak, 1, rules.True, rules.False, rules.False))
	two := NewTracker().Observe(see(kvLeak, 1, rules.True, rules.False, rules.False))
	if one.ID != two.ID || one.Incident != two.Incident || one.ID == one.Incident {
		t.Errorf("%s/%s and %s/%s", one.Incident, one.ID, two.Incident, two.ID)
	}
}
