package incident

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

var began = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// rule is a rule that pages with a symptom.
func rule(class string, explains ...string) *rules.Rule {
	return &rules.Rule{ID: class, Class: class, Alone: event.Ticket, With: event.Page, Keep: 2 * time.Hour, Pair: time.Hour, Explains: explains}
}

var (
	retention = rule("retention", "oversize_request", "stall", "crash_loop", "exhaustion")
	kvLeak    = rule("kv_block_leak", "kv_pressure", "stall")
	kvFull    = rule("kv_pressure")
	device    = &rules.Rule{ID: "device_fault", Class: "device_fault", Alone: event.Page, With: event.Page, Explains: []string{"stall", "crash_loop"}}
	stalled   = rule("stall")
)

// see is an observation of slot "s" and process "one"; what is not said is false.
func see(r *rules.Rule, hours float64, change ...func(*Observation)) Observation {
	o := Observation{Time: began.Add(time.Duration(hours * float64(time.Hour))), Key: "s", Rule: r, Worker: "one", Release: "r41", Group: "c/m/r41",
		Growth: r.Class == "retention"}
	for _, f := range change {
		f(&o)
	}
	return o
}

func when(o *Observation)      { o.Result.When = rules.True }
func unknown(o *Observation)   { o.Result.When = rules.Unknown }
func confirmed(o *Observation) { o.Result.When, o.Result.Confirm = rules.True, rules.True }
func paged(o *Observation)     { o.Result.When, o.Result.With = rules.True, rules.True }
func symptom(o *Observation)   { o.Result.With = rules.True }
func axis(o *Observation)      { o.Result.Confirm = rules.True }
func exits(o *Observation)     { o.Exited = true }
func proven(o *Observation) {
	o.Proven, o.Proof = true, "5 quiet points over 3.2 h, growth at most 1.1 MiB/h"
}
func of(worker string) func(*Observation) { return func(o *Observation) { o.Worker = worker } }
func at(key string, related ...string) func(*Observation) {
	return func(o *Observation) { o.Key, o.Related = key, related }
}
func in(release string) func(*Observation) {
	return func(o *Observation) { o.Release, o.Group = release, "c/m/"+release }
}
func since(hours float64) func(*Observation) {
	return func(o *Observation) { o.Onset = began.Add(time.Duration(hours * float64(time.Hour))) }
}

// told writes transitions for people to compare.
func told(all []*event.Finding) string {
	var out []string
	for _, f := range all {
		text := f.Class + " " + f.State + " " + f.Severity
		if f.MaskedRestarts > 0 {
			text += fmt.Sprintf(" masked %d", f.MaskedRestarts)
		}
		if f.Resolution != "" {
			text += ": " + f.Resolution
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

type step struct {
	name string
	o    Observation
	want string // empty: no transition
}

func play(t *testing.T, steps []step) *Tracker {
	t.Helper()
	tracker := NewTracker()
	for _, step := range steps {
		if got := told(tracker.Observe(step.o)); got != step.want {
			t.Errorf("%s: told %q, want %q", step.name, got, step.want)
		}
	}
	return tracker
}

// The lesson's incident: 42, 44, 46, 48 GiB at hourly quiet points, an OOM in the seventh hour, restarts that hide it, a release that
// mends it.
func TestTheLessonsIncident(t *testing.T) {
	tracker := play(t, []step{
		{"one quiet point", see(retention, 0, unknown), ""},
		{"what is not known opens nothing, whatever stands beside it", see(retention, 1, unknown, axis, symptom), ""},
		{"46 GiB: still watching", see(retention, 2), ""},
		{"48 GiB: the fourth point", see(retention, 3, when, since(0)), "retention suspected ticket"},
		{"the same again", see(retention, 3.5, when, since(0)), ""},
		{"aborts explain the growth", see(retention, 4, confirmed, since(0)), "retention confirmed ticket"},
		{"the OOM", see(retention, 6.5, paged, axis, since(0)), "retention confirmed page"},
		{"the OOM once more as a class of its own", see(rule("oversize_request"), 6.5, paged), ""},
		{"the process ends of it", see(retention, 6.6, paged, axis, exits, since(0)), "retention confirmed page masked 1"},
		{"its end is told twice", see(retention, 6.6, paged, axis, exits, since(0)), ""},
		{"the next process, nothing known yet", see(retention, 6.7, unknown, of("two")), ""},
		{"no growth yet is no proof", see(retention, 9, of("two")), ""},
		{"it grows again", see(retention, 10, confirmed, of("two"), since(6.7)), ""},
		{"the symptom goes, the page stays", see(retention, 12, when, of("two"), since(6.7)), ""},
		{"it restarts again", see(retention, 13, when, of("two"), exits, since(6.7)), "retention confirmed page masked 2"},
		{"a late word of the first process, which was level once", see(retention, 13.5, of("one"), proven), ""},
		{"a fixed release", see(retention, 14, unknown, of("three"), in("r42")), ""},
		{"a crash before anything is known masks it once more", see(retention, 14.5, unknown, of("three"), in("r42"), exits), "retention confirmed page masked 3"},
		{"the same release once more", see(retention, 15, of("four"), in("r42")), ""},
		{"proof is no proof when the condition is not known", see(retention, 18, unknown, proven, of("four"), in("r42")), ""},
		{"five level quiet points", see(retention, 18.2, proven, of("four"), in("r42")),
			"retention resolved page masked 3: 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)"},
		{"and after it nothing", see(retention, 19, proven, of("four"), in("r42")), ""},
	})
	if len(tracker.Open("s")) != 0 {
		t.Error("it is still open")
	}
}

func TestOneIncidentOverAllItsTransitions(t *testing.T) {
	tracker := NewTracker()
	var all []*event.Finding
	for _, o := range []Observation{see(retention, 3, when, since(0)), see(retention, 4, confirmed), see(retention, 5, paged, exits), see(retention, 9, proven, of("two"))} {
		all = append(all, tracker.Observe(o)...)
	}
	if got, want := told(all), "retention suspected ticket; retention confirmed ticket; retention confirmed page; retention confirmed page masked 1; "+
		"retention resolved page masked 1: 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in the same release r41"; got != want {
		t.Fatalf("told %s, want %s", got, want)
	}
	ids := map[string]bool{}
	for _, f := range all {
		ids[f.ID] = true
		if f.Incident != all[0].Incident || !f.Onset.Equal(began) {
			t.Errorf("%s: incident %s since %v, want %s since %v", told([]*event.Finding{f}), f.Incident, f.Onset, all[0].Incident, began)
		}
	}
	if len(ids) != len(all) || ids[all[0].Incident] {
		t.Errorf("%d ids for %d transitions", len(ids), len(all))
	}
}

func TestPairing(t *testing.T) {
	short := &rules.Rule{ID: "kv_pressure", Class: "kv_pressure", Alone: event.Ticket, With: event.Page, Keep: 10 * time.Minute, Pair: time.Hour}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"a symptom within the window after the condition", []step{
			{"condition", see(short, 0, when), "kv_pressure suspected ticket"},
			{"it is over", see(short, 0.5), ""},
			{"symptom", see(short, 0.9, symptom), "kv_pressure suspected page"}}},
		{"a symptom after the window", []step{
			{"condition", see(short, 0, when), "kv_pressure suspected ticket"},
			{"symptom", see(short, 1.1, symptom), ""}}},
		{"a symptom while nothing is known", []step{
			{"condition", see(short, 0, when), "kv_pressure suspected ticket"},
			{"symptom", see(short, 0.1, unknown, symptom), ""}}},
		{"a second axis while the condition is kept", []step{
			{"condition", see(retention, 0, when), "retention suspected ticket"},
			{"axis", see(retention, 1.9, axis), "retention confirmed ticket"}}},
		{"a second axis after it", []step{
			{"condition", see(retention, 0, when), "retention suspected ticket"},
			{"axis", see(retention, 2.1, axis), ""}}},
		{"what cannot be seen does not use up what is kept", []step{
			{"condition", see(retention, 0, when), "retention suspected ticket"},
			{"a sensor is away", see(retention, 5, unknown), ""},
			{"it is back", see(retention, 6.5, axis), "retention confirmed ticket"}}},
		{"both at once", []step{
			{"condition and symptom", see(short, 0, paged), "kv_pressure suspected page"}}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.steps) })
	}
}

func TestEverythingElseEndsAfterADayOfSight(t *testing.T) {
	day := func(class *rules.Rule, from, to float64, change ...func(*Observation)) (steps []step) {
		for h := from; h <= to; h++ {
			steps = append(steps, step{fmt.Sprintf("hour %v", h), see(class, h, change...), ""})
		}
		return steps
	}
	opens := step{"opens", see(kvFull, 0, when), "kv_pressure suspected ticket"}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"24 h", slices.Concat([]step{opens}, day(kvFull, 1, 23), []step{{"the end", see(kvFull, 24), "kv_pressure resolved ticket: 24 h without it"}})},
		{"again in between", slices.Concat([]step{opens}, day(kvFull, 1, 23), []step{{"again", see(kvFull, 23.5, when), ""}}, day(kvFull, 24, 47),
			[]step{{"the end", see(kvFull, 47.5), "kv_pressure resolved ticket: 24 h without it"}})},
		{"blind hours do not count", slices.Concat([]step{opens}, day(kvFull, 1, 20), day(kvFull, 21, 30, unknown), day(kvFull, 31, 33),
			[]step{{"the end", see(kvFull, 34), "kv_pressure resolved ticket: 24 h without it"}})},
		{"a clock that jumps two days is no silence", []step{opens, {"the jump", see(kvFull, 48), ""}, {"and back", see(kvFull, 1), ""}, {"goes on", see(kvFull, 2), ""}}},
		{"growth does not end by silence", slices.Concat([]step{{"opens", see(retention, 0, when), "retention suspected ticket"}}, day(retention, 1, 60))},
		{"a restart empties the cache, the leak stays", slices.Concat([]step{
			{"opens", see(kvLeak, 0, when), "kv_block_leak suspected ticket"},
			{"restart", see(kvLeak, 0.5, of("one"), exits), "kv_block_leak suspected ticket masked 1"}},
			day(kvLeak, 1, 23, of("two")),
			[]step{{"the end", see(kvLeak, 24, of("two")), "kv_block_leak resolved ticket masked 1: 24 h without it"}})},
		{"a restart hides no pressure", []step{opens, {"restart", see(kvFull, 0.5, exits), ""}, {"next", see(kvFull, 1, of("two")), ""}}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.steps) })
	}
}

func TestRestarts(t *testing.T) {
	opens := step{"opens", see(retention, 3, when), "retention suspected ticket"}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"a new process shows an end that nobody saw, once", []step{opens,
			{"a new one", see(retention, 5, of("two")), "retention suspected ticket masked 1"},
			{"the same", see(retention, 6, of("two")), ""}}},
		{"two API servers share a slot and both grow", []step{opens,
			{"the other", see(retention, 3.02, when, of("two")), ""},
			{"the first", see(retention, 3.04, when), ""},
			{"the other is level", see(retention, 3.05, of("two"), proven), ""},
			{"the other ends", see(retention, 3.06, when, of("two"), exits), ""},
			{"the first", see(retention, 3.1, when), ""}}},
		{"where no process is meant there is no restart", []step{
			{"opens", see(device, 0, when, of("")), "device_fault suspected page"},
			{"a process", see(device, 1, when), ""},
			{"another", see(device, 2, when, of("two")), ""}}},
		{"an incident that opens with the end", []step{
			{"opens", see(retention, 3, paged, exits), "retention suspected page; retention suspected page masked 1"},
			{"the next", see(retention, 4, of("two")), ""}}},
		{"a sensor that sees again ends its incident at once", []step{
			{"blind", see(rule("blind"), 0, when, of("")), "blind suspected ticket"},
			{"sees", see(rule("blind"), 0.1, of(""), in(""), func(o *Observation) { o.Growth, o.Proven, o.Proof = true, true, "engine is ok again" }),
				"blind resolved ticket: engine is ok again"}}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.steps) })
	}
}

func TestAnotherRuleOfTheClassEndsNothing(t *testing.T) {
	second := rule("retention")
	second.ID = "retention_of_my_own"
	play(t, []step{
		{"opens", see(retention, 0, when), "retention suspected ticket"},
		{"the other rule sees nothing, though the series is level by its floor", see(second, 1, proven, func(o *Observation) { o.Growth = true }), ""},
		{"the first", see(retention, 2, proven), "retention resolved ticket: 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in the same release r41"},
	})
}

func TestIDsAreTheSameWhenJudgedAgain(t *testing.T) {
	one := NewTracker().Observe(see(kvLeak, 1, when))[0]
	two := NewTracker().Observe(see(kvLeak, 1, when))[0]
	if one.ID != two.ID || one.Incident != two.Incident || one.ID == one.Incident {
		t.Errorf("%s/%s and %s/%s", one.Incident, one.ID, two.Incident, two.ID)
	}
}

func TestASlotIsNamedOnlyWhereAProcessIsMeant(t *testing.T) {
	if f := NewTracker().Observe(see(device, 0, when, at("c/h/GPU-a"), of("")))[0]; f.Slot != "" {
		t.Errorf("a card has slot %q", f.Slot)
	}
	if f := NewTracker().Observe(see(kvFull, 0, when))[0]; f.Slot != "s" || f.Release != "r41" || f.Rule != "kv_pressure" {
		t.Errorf("slot %q, release %q, rule %q", f.Slot, f.Release, f.Rule)
	}
}

// Growth of a slot that nobody comes back to ends after a week by the broker's clock; whatever is said of it meanwhile begins the week
// anew, and a clock that falls back ends nothing.
func TestWhatNobodySpeaksOfIsAbandoned(t *testing.T) {
	tracker := NewTracker()
	for _, o := range []Observation{see(retention, 0, when), see(retention, 0, when, at("b"), of("x")), see(device, 1, when, at("c/h/GPU-a"), of(""))} {
		tracker.Observe(o)
	}
	broker := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC) // months ahead of the hosts
	pass := func(days float64) string {
		broker = broker.Add(time.Duration(days * 24 * float64(time.Hour)))
		return told(tracker.Abandon(broker))
	}
	for i, test := range []struct {
		days float64
		want string
	}{{0, ""}, {6.9, ""}, {-20, ""}, {6.9, ""}} {
		if got := pass(test.days); got != test.want {
			t.Fatalf("step %d: told %q, want %q", i, got, test.want)
		}
	}
	tracker.Observe(see(retention, 2, unknown, of("x"), at("b"))) // somebody is there, and nothing is known of him yet
	want := "device_fault resolved page: nothing was heard of it in seven days; retention resolved ticket: nobody came back to this slot in seven days"
	if got := pass(0.2); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if got := pass(6.9); got != "" || len(tracker.Open("b")) != 1 {
		t.Errorf("what was heard of ended too: %q", got)
	}
	if got := pass(0.2); got != "retention resolved ticket: nobody came back to this slot in seven days" {
		t.Errorf("told %q", got)
	}
}

// The new life has nothing to show yet; its card still says what was found, and that it was the life before.
func TestARestartKeepsWhatWasSaid(t *testing.T) {
	tracker := NewTracker()
	say := func(o Observation, pid int64, summary string) Observation {
		o.Fill = func(f *event.Finding) { f.Worker, f.Summary = &event.Worker{Pid: pid}, summary }
		return o
	}
	tracker.Observe(say(see(retention, 3, when), 1, "Live memory rises 2 GiB/h"))
	next := say(see(retention, 9), 2, "Live memory rises unknown/h")
	next.Worker = "two"
	told := tracker.Observe(next)
	if len(told) != 1 || told[0].MaskedRestarts != 1 || told[0].Summary != "Live memory rises 2 GiB/h" || told[0].Worker.GetPid() != 2 {
		t.Errorf("told %+v", told)
	}
}

func refuted(o *Observation) {
	o.Result.When, o.Refuted = rules.False, "by a snapshot it is something else"
}
func shows(hours float64) func(*Observation) {
	return func(o *Observation) { o.Evidence = began.Add(time.Duration(hours * float64(time.Hour))) }
}

// What was only suspected ends with the reason, at once; what was confirmed by numbers of its own stands.
func TestRefutation(t *testing.T) {
	holes := rule("fragmentation")
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"a suspicion", []step{
			{"counters", see(holes, 0, when), "fragmentation suspected ticket"},
			{"the snapshot", see(holes, 0.2, refuted), "fragmentation resolved ticket: by a snapshot it is something else"},
			{"it opens nothing either", see(holes, 0.3, refuted), ""},
			{"the next day", see(holes, 25, when), "fragmentation suspected ticket"}}},
		{"by the failed request's own numbers", []step{
			{"the OOM", see(holes, 0, confirmed), "fragmentation confirmed ticket"},
			{"a snapshot of later", see(holes, 0.2, refuted), ""}}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.steps) })
	}
}

// Evidence that comes later is told once; more of it an hour after that.
func TestEvidenceIsToldOnce(t *testing.T) {
	opens := step{"opens", see(retention, 3, when), "retention suspected ticket"}
	tells := "retention suspected ticket"
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"it arrives", []step{opens,
			{"the snapshot", see(retention, 3.2, when, shows(3.19)), tells},
			{"the same", see(retention, 3.3, when, shows(3.19)), ""},
			{"another, soon", see(retention, 3.5, when, shows(3.45)), ""},
			{"another, an hour later", see(retention, 4.3, when, shows(4.25)), tells},
			{"an older one", see(retention, 4.4, when, shows(3.5)), ""}}},
		{"it is there from the start", []step{
			{"opens", see(retention, 3, when, shows(2.9)), tells},
			{"the same", see(retention, 3.1, when, shows(2.9)), ""},
			{"with a change of state", see(retention, 3.2, confirmed, shows(3.15)), "retention confirmed ticket"},
			{"once", see(retention, 3.3, confirmed, shows(3.15)), ""}}},
		{"it arrives when nothing holds any more", []step{opens, {"the snapshot", see(retention, 9, shows(8.9)), "" /* after `keep` of two hours */}}},
		{"nobody knows whether it holds", []step{opens, {"the snapshot", see(retention, 3.5, unknown, shows(3.4)), ""}}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.steps) })
	}
}

// A snapshot of the life before is still known in the next one, until that has one of its own.
func TestHoldersOutliveTheProcess(t *testing.T) {
	tracker := NewTracker()
	with := func(file string) func(*Observation) {
		return func(o *Observation) {
			o.Fill = func(f *event.Finding) {
				if f.Snapshot = file; file != "" {
					f.Holders = []event.Holder{{Frames: []string{"a.py:1 f"}, LiveBytes: 5}}
				}
			}
		}
	}
	var last *event.Finding
	for _, o := range []Observation{see(retention, 3, when, with("one.pickle")), see(retention, 4, when, of("two"), with("")), see(retention, 5, confirmed, of("two"), with(""))} {
		for _, f := range tracker.Observe(o) {
			last = f
		}
	}
	if last.State != event.Confirmed || last.Snapshot != "one.pickle" || len(last.Holders) != 1 {
		t.Errorf("%s with %q %v", last.State, last.Snapshot, last.Holders)
	}
	for _, f := range tracker.Observe(see(retention, 6, paged, of("two"), with("two.pickle"))) {
		if f.Snapshot != "two.pickle" {
			t.Errorf("%q is still told", f.Snapshot)
		}
	}
}
