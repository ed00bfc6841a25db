package processor

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
	"lowtide/rules"
)

// adopted waits until all partitions judge by a set.
func adopted(t testing.TB, all *Judges, pack *rules.Pack) {
	t.Helper()
	all.Adopt(pack)
	until(t, "the rules are taken over", func() bool {
		behind, failed := all.Adopted(pack)
		if failed != nil {
			t.Fatal(failed)
		}
		return behind == 0
	})
}

// Rules change again and again while two leaks are judged, none of them those that see the leaks: what is found is what an undisturbed judge
// finds, quiet points and open incidents go on, and one that is restarted goes on by the new rules.
func TestNewRulesBetweenTwoEvents(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 60, "leak", "kv_leak")
	other := changed(t, "  - {id: thread_leak, enabled: false}\n  - {id: tried, class: retention, scope: worker, shadow: true, when: known(live.now), severity: {alone: page}, summary: It is there}\n")
	all := judges(t, js)
	w := begin(t, all, testPartition, 1)
	for i := range 8 {
		w.applied(testPartition, s.send(js, len(s.batches)/9))
		adopted(t, all, []*rules.Pack{other, builtin(t)}[i%2])
	}
	if n := all.partitions()[0].gauge.read().swaps; n < 7 {
		t.Errorf("%d swaps are counted", n)
	}
	w.applied(testPartition, s.rest(js))
	w.close()
	var real []string
	shadows := 0
	for _, f := range found(t, js) {
		if f.Shadow {
			shadows++
			if f.Rule != "tried" {
				t.Errorf("rule %s is told in shadow", f.Rule)
			}
			continue
		}
		real = append(real, f.ID+" "+f.Class+" "+f.State+" "+f.Severity)
	}
	same(t, real, s.undisturbed())
	// Each of the four times it is suspected for both workers, and ended with its rule.
	if shadows != 16 {
		t.Errorf("%d transitions in shadow, want 16", shadows)
	}
}

// The rule of an open incident goes: that ends it, once, also where the processor dies right then.
func TestTheRuleOfAnOpenIncidentGoes(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 60, "leak")
	all := judges(t, js)
	w := begin(t, all, testPartition, 1)
	last := s.rest(js)
	w.applied(testPartition, last)
	until(t, "the leak is found", func() bool { return len(announced(t, js)) > 0 })
	before := announced(t, js)
	gone := changed(t, "  - {id: retention, enabled: false}\n")
	adopted(t, all, gone)
	until(t, "its end is told", func() bool { return len(announced(t, js)) > len(before) })
	w.kill()
	again := judges(t, js)
	again.Adopt(gone)
	next := begin(t, again, testPartition, 2)
	next.applied(testPartition, last)
	next.close()
	after := found(t, js)
	ends := slices.DeleteFunc(after, func(f *event.Finding) bool { return f.State != event.Resolved || f.Class != "retention" })
	if len(ends) != 1 || ends[0].Resolution != "the rule retention is not asked any more: nobody says whether it goes on" {
		t.Errorf("%d ends are told: %v", len(ends), ends)
	}
}

// A judge whose state cannot be taken over goes on as it is.
func TestRulesThatCannotBeTakenOver(t *testing.T) {
	all := &Judges{running: map[int]*partition{}}
	p := newPartition(testPartition, Options{Pack: builtin(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	p.all = all
	all.pack.Store(p.ruling.asked)
	all.running[testPartition] = p
	for _, e := range recorded(t, "testdata/leak.ndjson.gz") {
		p.judge.Apply(e)
	}
	judge, findings := p.judge, len(p.findings)
	for _, w := range judge.workers {
		w.Key += "?"
	}
	other := changed(t, "  - {id: thread_leak, enabled: false}\n")
	all.Adopt(other)
	if behind, err := all.Adopted(other); behind != 1 || err != nil {
		t.Errorf("%d behind, %v", behind, err)
	}
	if err := p.swap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if behind, err := all.Adopted(other); behind != 0 || !errors.Is(err, ErrState) || !strings.HasPrefix(err.Error(), "partition 7 goes on by the rules that it had: restore judge: ") {
		t.Errorf("%d behind, %v", behind, err)
	}
	if p.judge != judge || len(p.findings) != findings {
		t.Error("something came of it")
	}
}
