package processor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"lowtide/event"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// realCases is how many public cases there are. Some have several parts.
const realCases = 41

// realCase is one public issue: what its text gives, in numbers of that text alone, and what has to be said about it.
type realCase struct {
	ID    string // repository#number, or a repository and its pull request
	Part  string // of several readings of the same issue, as fixed and not fixed, what this one is
	Kind  string // series, oom text, order of events, accounting
	Says  string // what the text says
	Given string // what it does not, and how that is dealt with

	Worker  map[string]any   // fields of the one process
	Workers []map[string]any // or of several
	Ready   string           // "never": it does not get so far
	Steps   []step

	Want    string            // a class; "nothing": healthy; "insufficient": nothing is concluded, and it is said why
	Lacking map[string]string // class → the sensor without which it cannot be assessed, "a or b" where either would do
	Points  bool              // insufficient because of too few comparable quiet points
	May     []string          // classes that may be said too; with "nothing" or "insufficient" Want need not be said
	Never   []string          // what must not be said: a class, or one with a state or a severity
	Verdict []string          // one of these words describes the worker in the end
	Order   []string          // classes: of those that are said, which comes first

	Page      bool          // Want is a page in the end
	Incidents int           // exactly so many of Want; 0: one or more
	Since     time.Duration // and Within: when Want is first said
	Within    time.Duration
	Sees      map[string][]any // variable of the first worker at the end → its value, or the bounds of it
}

func (c *realCase) name() string {
	if c.Part == "" {
		return c.ID
	}
	return c.ID + " (" + c.Part + ")"
}

// loadCases reads the table, in the order of its files.
func loadCases(t *testing.T) (all []*realCase) {
	t.Helper()
	paths, err := filepath.Glob("testdata/cases/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Cases []*realCase }
		if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, file.Cases...)
	}
	return all
}

// TestRealCases gives each public case to the judge, with the rules that are shipped and the readers of the collector.
func TestRealCases(t *testing.T) {
	pack := builtin(t)
	for _, c := range loadCases(t) {
		t.Run(c.name(), func(t *testing.T) { c.run(t, pack) })
	}
}

func TestTheTableHasEveryRealCase(t *testing.T) {
	words := append([]string{"nothing", "insufficient"}, rules.Classes()...)
	kinds := []string{"series", "oom text", "order of events", "accounting"}
	ids, names := map[string]bool{}, map[string]bool{}
	for _, c := range loadCases(t) {
		ids[c.ID] = true
		if names[c.name()] {
			t.Errorf("%s stands there twice", c.name())
		}
		names[c.name()] = true
		if !slices.Contains(kinds, c.Kind) || c.Says == "" || len(c.Steps) == 0 {
			t.Errorf("%s: kind %q, %d steps, %q", c.name(), c.Kind, len(c.Steps), c.Says)
		}
		if !slices.Contains(words, c.Want) || c.Want == "insufficient" && len(c.Lacking) == 0 && !c.Points {
			t.Errorf("%s: want %q, and a reason where that is insufficient", c.name(), c.Want)
		}
		for _, list := range [][]string{c.May, c.Never, c.Order} {
			for _, one := range list {
				class, rest, _ := strings.Cut(one, " ")
				if !slices.Contains(words, class) || !slices.Contains([]string{"", event.Confirmed, event.Page}, rest) {
					t.Errorf("%s: %q is no class", c.name(), one)
				}
			}
		}
	}
	if len(ids) != realCases {
		t.Errorf("%d cases, want %d", len(ids), realCases)
	}
}

func (c *realCase) run(t *testing.T, pack *rules.Pack) {
	given := c.Workers
	if len(given) == 0 {
		given = []map[string]any{c.Worker}
	}
	s := &stage{at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}}
	s.judge = NewJudge(pack, func(f *event.Finding) { s.findings = append(s.findings, f) })
	p := &player{stage: s, t: t, origin: s.at, workers: workersOf(t, given)}
	for _, w := range p.workers {
		s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "started"}})
		if c.Ready != "never" {
			s.apply(w, &event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})
		}
	}
	p.play(c.Steps)
	c.check(t, p)
	if t.Failed() {
		t.Logf("%s: %s", c.Kind, c.Says)
		for _, f := range s.findings {
			t.Log(told(f, p.origin))
		}
		for _, r := range s.judge.Reports() {
			t.Logf("pid %d: %s, %s; not assessable: %v", r.Who.GetPid(), r.Verdict, r.Why, r.Missing)
		}
	}
}

func (c *realCase) check(t *testing.T, p *player) {
	incidents := map[string]bool{}
	var first *event.Finding
	for _, f := range p.findings {
		if f.Class != c.Want && !slices.Contains(c.May, f.Class) {
			t.Errorf("said %s", told(f, p.origin))
		}
		for _, one := range c.Never {
			if class, rest, _ := strings.Cut(one, " "); f.Class == class && (rest == "" || rest == f.State || rest == f.Severity) {
				t.Errorf("said %s, which is never right", told(f, p.origin))
			}
		}
		if f.Class == c.Want {
			incidents[f.Incident] = true
			if first == nil {
				first = f
			}
		}
	}
	optional := slices.Contains(c.May, "nothing") || slices.Contains(c.May, "insufficient")
	switch {
	case c.Want == "nothing" || c.Want == "insufficient":
	case first == nil && !optional:
		t.Errorf("%s was not said", c.Want)
	case first != nil && c.Incidents > 0 && len(incidents) != c.Incidents:
		t.Errorf("%d incidents of %s, want %d", len(incidents), c.Want, c.Incidents)
	case first != nil && c.Within > 0 && first.Time.Sub(p.origin.Add(c.Since)) > c.Within:
		t.Errorf("%s was said %v after it began, want %v", c.Want, first.Time.Sub(p.origin.Add(c.Since)), c.Within)
	}
	if c.Page && !slices.ContainsFunc(p.findings, func(f *event.Finding) bool { return f.Class == c.Want && f.Severity == event.Page }) {
		t.Errorf("no page of %s", c.Want)
	}
	c.checkOrder(t, p)
	c.checkLacking(t, p)
	c.checkSeen(t, p)
}

func (c *realCase) checkOrder(t *testing.T, p *player) {
	last := -1
	for _, f := range p.findings {
		at := slices.Index(c.Order, f.Class)
		if f.State == event.Resolved || at < 0 {
			continue
		}
		if at < last && !slices.ContainsFunc(p.findings, func(g *event.Finding) bool { return g.Class == f.Class && g.Time.Before(f.Time) }) {
			t.Errorf("%s was said after %s", f.Class, c.Order[last])
		}
		last = max(last, at)
	}
}

// checkLacking wants every process of the case to name the sensor that is missing, or too few points.
func (c *realCase) checkLacking(t *testing.T, p *player) {
	all := p.judge.Reports()
	if len(all) != len(p.workers) {
		t.Errorf("%d reports of %d processes", len(all), len(p.workers))
	}
	for _, r := range all {
		for class, sensor := range c.Lacking {
			if got := r.Missing[class]; !slices.Contains(strings.Split(sensor, " or "), got) {
				t.Errorf("pid %d: %s lacks %q, want %s", r.Who.GetPid(), class, got, sensor)
			}
		}
		if c.Points && !slices.ContainsFunc(r.Lacking, func(s string) bool { return strings.Contains(s, "quiet points") }) {
			t.Errorf("pid %d: %s, lacking %q, want too few quiet points to tell", r.Who.GetPid(), r.Verdict, r.Lacking)
		}
		if len(c.Verdict) > 0 && !slices.Contains(c.Verdict, r.Verdict) {
			t.Errorf("pid %d: %s (%s), want one of %v", r.Who.GetPid(), r.Verdict, r.Why, c.Verdict)
		}
	}
}

// checkSeen compares what the first worker's rules read at the end with what follows from the case's numbers.
func (c *realCase) checkSeen(t *testing.T, p *player) {
	w := p.worker(p.workers[0])
	for name, want := range c.Sees {
		id, exists := variable.Lookup(name)
		if !exists || len(want) == 0 {
			t.Errorf("no variable %s, or nothing wanted of it", name)
			continue
		}
		if flag, is := want[0].(bool); is {
			if got, known := w.Sample().Bool(id); got != flag || !known {
				t.Errorf("%s is %v (known %v), want %v", name, got, known, flag)
			}
			continue
		}
		low, ok1 := quantityOf(want[0])
		high, ok2 := quantityOf(want[len(want)-1])
		if got, known := w.Sample().Number(id); !ok1 || !ok2 || !known || math.IsNaN(got) || got < low || got > high {
			t.Errorf("%s is %v (known %v), want %s", name, got, known, fmt.Sprint(want...))
		}
	}
}
