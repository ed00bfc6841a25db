package incident

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

// story is a long random run of observations: some keys that are related, rules that explain each other, restarts, gaps, clocks that
// go back, and sensors that go away.
func story(seed uint64, n int) []Observation {
	r := rand.New(rand.NewPCG(seed, 1))
	var pack []*rules.Rule
	for _, class := range rules.Classes() {
		one := rule(class)
		for _, other := range rules.Classes() {
			if other != class && r.IntN(4) == 0 {
				one.Explains = append(one.Explains, other)
			}
		}
		if r.IntN(5) == 0 {
			one.Alone = event.Page
		}
		pack = append(pack, one)
	}
	keys := []string{"c/h/a/0/0", "c/h/a/0/1", "c/h/GPU-a", "c/g/b/0/0", "c/g/c/0/0"}
	lives := make([]int, len(keys))
	outcome := func() rules.Outcome { return rules.Outcome(r.IntN(3)) }
	now, out := began, make([]Observation, 0, n)
	for range n {
		now = now.Add(time.Duration(r.IntN(1200)) * time.Second)
		if r.IntN(100) == 0 {
			now = now.Add(time.Duration(r.IntN(60)-30) * time.Hour)
		}
		k := r.IntN(len(keys))
		o := Observation{Time: now, Key: keys[k], Rule: pack[r.IntN(len(pack))], Worker: fmt.Sprint(keys[k], lives[k]),
			Result: rules.Result{When: outcome(), Confirm: outcome(), With: outcome()}, Release: "r1", Group: "c/m/r1"}
		o.Growth = precedence(o.Rule.Class)%2 == 0
		o.Proven = o.Growth && r.IntN(8) == 0
		if r.IntN(2) == 0 {
			o.Related = []string{keys[r.IntN(len(keys))], keys[2]}
		}
		if r.IntN(3) == 0 {
			o.Onset = now.Add(-time.Duration(r.IntN(10)) * time.Hour)
		}
		if o.Exited = r.IntN(60) == 0; o.Exited || r.IntN(200) == 0 {
			lives[k]++
		}
		out = append(out, o)
	}
	return out
}

func TestWhateverIsSeen(t *testing.T) {
	for seed := range uint64(40) {
		one, two := NewTracker(), NewTracker()
		one.limit, two.limit = 30, 30
		state, severity, at := map[string]string{}, map[string]string{}, map[string]time.Time{}
		for i, o := range story(seed, 3000) {
			was := len(one.Open(o.Key))
			got, again := one.Observe(o), two.Observe(o)
			if !reflect.DeepEqual(got, again) {
				t.Fatalf("seed %d, observation %d: the same observations gave %s and %s", seed, i, told(got), told(again))
			}
			if i%500 == 250 {
				saved := one.State()
				one = NewTracker()
				one.limit = 30
				one.Restore(saved)
			}
			for _, f := range got {
				switch {
				case state[f.Incident] == event.Resolved:
					t.Fatalf("seed %d, observation %d: %s after its end", seed, i, f.Incident)
				case rank(f.Severity) < rank(severity[f.Incident]):
					t.Fatalf("seed %d, observation %d: severity fell from %s to %s", seed, i, severity[f.Incident], f.Severity)
				case o.Result.When == rules.Unknown && (state[f.Incident] != f.State || severity[f.Incident] != f.Severity):
					t.Fatalf("seed %d, observation %d: unknown made %s of %s %s", seed, i, told(got), state[f.Incident], severity[f.Incident])
				case f.Time.Before(at[f.Incident]):
					t.Fatalf("seed %d, observation %d: a transition at %v after one at %v", seed, i, f.Time, at[f.Incident])
				case (f.State == event.Resolved) != (f.Resolution != ""):
					t.Fatalf("seed %d, observation %d: %s says why it ended: %q", seed, i, f.State, f.Resolution)
				}
				state[f.Incident], severity[f.Incident], at[f.Incident] = f.State, f.Severity, f.Time
			}
			if o.Result.When != rules.True && len(one.Open(o.Key)) > was {
				t.Fatalf("seed %d, observation %d: opened while %v", seed, i, o.Result.When)
			}
			check(t, one)
		}
		if len(state) < 25 {
			t.Errorf("seed %d: only %d incidents", seed, len(state))
		}
	}
}

// check looks at what must hold between observations: one open incident a key and class, its indices, and the bound that only pages
// may pass.
func check(t *testing.T, tracker *Tracker) {
	t.Helper()
	total, pages, related, grouped := 0, 0, 0, 0
	for key, all := range tracker.open {
		seen := map[string]bool{}
		for _, in := range all {
			if in.Key != key || seen[in.Class] || in.State == event.Resolved {
				t.Fatalf("%s holds %s of %s in state %s", key, in.Class, in.Key, in.State)
			}
			seen[in.Class] = true
			total++
			related += len(in.Related)
			if in.Severity == event.Page {
				pages++
			}
		}
	}
	for _, all := range tracker.related {
		related -= len(all)
	}
	for _, keys := range tracker.groups {
		grouped += len(keys)
	}
	if total != tracker.count || related != 0 || grouped != total || total > tracker.limit && pages < total {
		t.Fatalf("%d open, counted %d, grouped %d, of them %d pages, %d too many related", total, tracker.count, grouped, pages, related)
	}
}

// A full tracker gives up what it has not seen for the longest time, says so, and never a page.
func TestAFullTrackerGivesUpNoPage(t *testing.T) {
	tracker := NewTracker()
	tracker.limit = 2
	tracker.Observe(see(retention, 0, paged, at("page")))
	tracker.Observe(see(retention, 1, when, at("ticket")))
	got := tracker.Observe(see(retention, 2, when, at("new")))
	want := "retention resolved ticket: given up unresolved: too many incidents are open, and this one was not seen since 2026-11-01T01:00:00Z; retention suspected ticket"
	if told(got) != want {
		t.Errorf("told %s, want %s", told(got), want)
	}
	tracker.Observe(see(retention, 3, paged, at("new")))
	if got := tracker.Observe(see(retention, 4, when, at("late"))); got != nil || tracker.Refused() != 1 {
		t.Errorf("a ticket among pages: %s, %d refused", told(got), tracker.Refused())
	}
	if got := told(tracker.Observe(see(retention, 5, paged, at("late")))); got != "retention suspected page" {
		t.Errorf("a page among pages: %q", got)
	}
	if len(tracker.Open("page")) != 1 || len(tracker.Open("new")) != 1 {
		t.Error("a page was given up")
	}
}

// What a slot without trouble costs: every rule of a worker asks at every tick.
func BenchmarkObserveNothing(b *testing.B) {
	tracker := NewTracker()
	tracker.Observe(see(kvLeak, 0, when))
	o := see(retention, 1)
	b.ReportAllocs()
	for b.Loop() {
		tracker.Observe(o)
	}
}

// What an open incident costs that goes on as it was, and what one costs that is explained at every tick.
func BenchmarkObserveOpen(b *testing.B) {
	tracker := NewTracker()
	tracker.Observe(see(kvLeak, 0, when))
	o, pressure := see(kvLeak, 1, when), see(kvFull, 1, when, at("s", "c/h/GPU-a", "c/h/u/0/1"))
	b.ReportAllocs()
	for b.Loop() {
		tracker.Observe(o)
		tracker.Observe(pressure)
	}
}
