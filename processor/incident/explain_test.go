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

func TestExplaining(t *testing.T) {
	crash := rule("crash_loop", "stall", "crash_loop")
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"blocks that are held fill the cache", []step{
			{"leak", see(kvLeak, 0, when), "kv_block_leak suspected ticket"},
			{"pressure", see(kvFull, 1, when), ""}}},
		{"two troubles", []step{
			{"pressure", see(kvFull, 0, when), "kv_pressure suspected ticket"},
			{"stall", see(stalled, 1, when), "stall suspected ticket"}}},
		{"the cause is seen later and began earlier", []step{
			{"stall", see(stalled, 2, paged), "stall suspected page"},
			{"growth since hour 0", see(retention, 3, when, since(0)), "retention suspected page; stall resolved page: explained by retention"},
			{"it stalls on", see(stalled, 3.1, paged), ""}}},
		{"the cause began later, so it is none", []step{
			{"stall", see(stalled, 0, when), "stall suspected ticket"},
			{"growth since hour 1", see(retention, 4, when, since(1)), "retention suspected ticket"},
			{"a second stall opens nothing: one is open", see(stalled, 5, when), ""}}},
		{"growth that began later explains nothing that began before", []step{
			{"growth since hour 1", see(retention, 4, when, since(1)), "retention suspected ticket"},
			{"a stall since hour 0", see(stalled, 4.5, when, since(0)), "stall suspected ticket"}}},
		{"a page that is explained is still a page, once", []step{
			{"growth", see(retention, 3, when, since(0)), "retention suspected ticket"},
			{"crash loop", see(rule("crash_loop"), 4, paged), "retention suspected page"},
			{"again", see(rule("crash_loop"), 4.1, paged), ""}}},
		{"what is not known is not explained either", []step{
			{"growth", see(retention, 3, when, since(0)), "retention suspected ticket"},
			{"crash loop", see(rule("crash_loop"), 4, unknown, symptom), ""}}},
		{"the card explains what stands on it", []step{
			{"Xid 79", see(device, 1, when, at("c/h/GPU-a"), of("")), "device_fault suspected page"},
			{"a stall there", see(stalled, 1.1, when, at("c/h/u/0/0", "c/h/GPU-a")), ""},
			{"a stall elsewhere", see(stalled, 1.1, when, at("c/h/v/0/0", "c/h/GPU-b")), "stall suspected ticket"}}},
		{"the card is found out after what stands on it, at the same moment", []step{
			{"a stall", see(stalled, 1, when, at("c/h/u/0/0", "c/h/GPU-a")), "stall suspected ticket"},
			{"another", see(stalled, 1, when, at("c/h/u/1/0", "c/h/GPU-a")), "stall suspected ticket"},
			{"one elsewhere", see(stalled, 1, when, at("c/h/v/0/0", "c/h/GPU-b")), "stall suspected ticket"},
			{"Xid 79", see(device, 1, when, at("c/h/GPU-a"), of("")),
				"device_fault suspected page; stall resolved ticket: explained by device_fault; stall resolved ticket: explained by device_fault"}}},
		{"an engine takes all its ranks with it, told in any order: one incident, as grave as the gravest", []step{
			{"rank 0", see(crash, 1, when, at("c/h/u/0/0", "c/h/u/0/1")), "crash_loop suspected ticket"},
			{"rank 1, at the same moment", see(crash, 1, when, at("c/h/u/0/1", "c/h/u/0/0")), ""},
			{"rank 2, told late", see(crash, 0.9, paged, at("c/h/u/0/2", "c/h/u/0/0")), "crash_loop suspected page"},
			{"rank 1 again", see(crash, 1.1, paged, at("c/h/u/0/1", "c/h/u/0/0")), ""},
			{"another engine", see(crash, 1.1, when, at("c/h/v/0/0", "c/h/v/0/1")), "crash_loop suspected ticket"}}},
		{"a rule that does not name its own class explains no other of it", []step{
			{"rank 0", see(stalled, 1, when, at("c/h/u/0/0", "c/h/u/0/1")), "stall suspected ticket"},
			{"rank 1", see(stalled, 1.1, when, at("c/h/u/0/1", "c/h/u/0/0")), "stall suspected ticket"}}},
		{"when the cause ends the rest stands alone", []step{
			{"leak", see(retention, 0, when), "retention suspected ticket"},
			{"stall", see(stalled, 1, when), ""},
			{"the leak ends", see(retention, 2, proven), "retention resolved ticket: 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in the same release r41"},
			{"stall", see(stalled, 2.1, when), "stall suspected ticket"}}},
	} {
		t.Run(test.name, func(t *testing.T) { play(t, test.steps) })
	}
}

// What is explained shows as seen together with its explanation, with its lag from the onset.
func TestWhatIsExplainedIsASymptom(t *testing.T) {
	tracker := NewTracker()
	first := tracker.Observe(see(retention, 3, when, since(0)))[0]
	second := tracker.Observe(see(rule("crash_loop"), 4, paged))[0]
	third := tracker.Observe(see(retention, 5, confirmed, since(0), func(o *Observation) {
		o.Fill = func(f *event.Finding) {
			f.Symptoms = []event.Symptom{{Name: "oom", Time: began.Add(4 * time.Hour), LagSeconds: 4 * 3600}}
		}
	}))[0]
	if len(first.Symptoms) != 0 {
		t.Errorf("what was told before has changed: %v", first.Symptoms)
	}
	want := event.Symptom{Name: "crash_loop", Time: began.Add(4 * time.Hour), LagSeconds: 4 * 3600}
	if len(second.Symptoms) != 1 || second.Symptoms[0] != want {
		t.Errorf("symptoms %v, want %v", second.Symptoms, want)
	}
	if len(third.Symptoms) != 2 || third.Symptoms[0].Name != "oom" || third.Symptoms[1] != want {
		t.Errorf("symptoms %v, want the oom and %v", third.Symptoms, want)
	}
}

// The pairs that vocabulary.md names under Classes: whoever began first is why; at the same moment the order decides, whichever of
// the two is seen first. Each rule here says that it explains the other, so that nothing but time and order tells them apart.
func TestPrecedence(t *testing.T) {
	chain := []string{"device_fault", "software_fault", "cotenant", "retention", "native_growth", "graph_pools", "stream_backlog",
		"fragmentation", "oversize_request", "capacity"}
	var pairs [][2]string
	for i, first := range chain {
		for _, second := range chain[i+1:] {
			pairs = append(pairs, [2]string{first, second})
		}
	}
	pairs = append(pairs, [2]string{"kv_block_leak", "kv_pressure"})
	for _, first := range []string{"pinned_memory", "host_memory", "fd_leak", "thread_leak"} {
		pairs = append(pairs, [2]string{first, "external_kill"})
	}
	all := append(chain, "kv_block_leak", "kv_pressure", "pinned_memory", "host_memory", "fd_leak", "thread_leak", "external_kill")
	for _, first := range all {
		for _, last := range []string{"stall", "crash_loop", "exhaustion"} {
			pairs = append(pairs, [2]string{first, last})
		}
	}
	if len(pairs) != 45+1+4+17*3 {
		t.Fatalf("%d pairs", len(pairs))
	}
	for _, pair := range pairs {
		one, two := rule(pair[0], pair[1]), rule(pair[1], pair[0])
		opens := func(class string) string { return class + " suspected ticket" }
		takes := opens(one.Class) + "; " + two.Class + " resolved ticket: explained by " + one.Class
		back := opens(two.Class) + "; " + one.Class + " resolved ticket: explained by " + two.Class
		for _, test := range []struct {
			name  string
			steps []step
		}{
			{"at once, in order", []step{{"first", see(one, 5, when), opens(one.Class)}, {"second", see(two, 5, when), ""}}},
			{"at once, out of order", []step{{"second", see(two, 5, when), opens(two.Class)}, {"first", see(one, 5, when), takes}}},
			{"the second began first", []step{{"second", see(two, 4, when), opens(two.Class)}, {"first", see(one, 5, when), ""}}},
			{"the second began first, and is seen last", []step{{"first", see(one, 5, when), opens(one.Class)}, {"second", see(two, 6, when, since(4)), back}}},
		} {
			t.Run(strings.Join(pair[:], " before ")+"/"+test.name, func(t *testing.T) { play(t, test.steps) })
		}
	}
}

// The shipped pack leaves out nothing of what vocabulary.md orders by name.
func TestTheShippedRulesKeepThePrecedence(t *testing.T) {
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]string{}
	for _, r := range pack.Rules {
		of[r.Class] = r.Explains
	}
	all := rules.Classes()
	for _, cause := range all[:slices.Index(all, "stall")] {
		want := []string{"stall", "crash_loop"}
		switch cause {
		case "kv_block_leak":
			want = append(want, "kv_pressure")
		case "pinned_memory", "host_memory", "fd_leak", "thread_leak":
			want = append(want, "external_kill", "exhaustion")
		}
		for _, trouble := range want {
			if !slices.Contains(of[cause], trouble) {
				t.Errorf("no rule says that %s explains %s", cause, trouble)
			}
		}
	}
}

func TestRollUp(t *testing.T) {
	tracker := NewTracker()
	var last *event.Finding
	for i := range 20 {
		last = tracker.Observe(see(retention, float64(i), when, at(fmt.Sprintf("c/h%02d/u/0/0", i))))[0]
	}
	other := tracker.Observe(see(retention, 20, when, at("c/h99/u/0/0"), in("r42")))[0]
	if other.Alike != 0 || other.AlikeSlots != nil || other.Group != "c/m/r42" {
		t.Errorf("alone in its release: %d %v %q", other.Alike, other.AlikeSlots, other.Group)
	}
	if last.Alike != 20 || len(last.AlikeSlots) != 16 || last.AlikeSlots[0] != "c/h00/u/0/0" || last.AlikeSlots[15] != "c/h15/u/0/0" {
		t.Errorf("%d alike: %v", last.Alike, last.AlikeSlots)
	}
	end := tracker.Observe(see(retention, 21, proven, at("c/h03/u/0/0")))[0]
	if end.Alike != 0 || end.Group != "c/m/r41" {
		t.Errorf("a resolved one counts itself: %d", end.Alike)
	}
	// The next release leaks too: the incident is about it from then on.
	next := tracker.Observe(see(retention, 22, confirmed, at("c/h04/u/0/0"), in("r42")))[0]
	if next.Alike != 2 || strings.Join(next.AlikeSlots, " ") != "c/h04/u/0/0 c/h99/u/0/0" {
		t.Errorf("in the next release: %d %v", next.Alike, next.AlikeSlots)
	}
	if again := tracker.Observe(see(retention, 23, confirmed, at("c/h05/u/0/0")))[0]; again.Alike != 18 {
		t.Errorf("%d alike, want the 20 without the resolved one and the one that moved", again.Alike)
	}
}
