package scorecard

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"lowtide/collector/sim"
	"lowtide/rules"
)

var (
	leakScenario       = sim.Scenario{Name: "leak", Class: "retention"}
	undeclaredScenario = sim.Scenario{Name: "cache", Undeclared: true}
)

func builtin(t testing.TB) judging {
	t.Helper()
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return judging{pack: pack}
}

// One recording of each scenario: every class must still be found, and no healthy worker page. The bounds are loose, since one seed
// is little; `make scorecard` has the promises.
func TestEveryClassIsFound(t *testing.T) {
	r, err := builtin(t).measure(t.Context(), sim.Scenarios(), Seeds{1, 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string]ClassScore)
	for _, c := range r.Score.Classes {
		said[c.Class] = c
	}
	for _, class := range rules.Classes() {
		c := said[class]
		if c.Planted < 2 || c.Recall < 0.6 || c.Precision < 0.5 {
			t.Errorf("%s: %d of %d found, %d false", class, c.Right, c.Planted, c.False)
		}
	}
	if r.Score.MacroF1 < 0.93 {
		t.Errorf("macro-F1 %.3f, want 0.93 at least", r.Score.MacroF1)
	}
	if r.Healthy.Pages > 0 || r.Healthy.PerDay > 0.1 || r.Healthy.Days < 40 {
		t.Errorf("healthy workers: %+v", r.Healthy)
	}
	for _, h := range r.Hidden {
		if h.Told != h.Workers {
			t.Errorf("%s hides %s, which %d of %d reports tell (%s)", h.Missing, h.Class, h.Told, h.Workers, h.Instead)
		}
	}
	if t.Failed() {
		for _, m := range r.Mistakes {
			t.Logf("%s: want %s, got %s of %s: %s", m.Recording, m.Want, m.Got, m.About, m.Summary)
		}
	}
}

// The result does not depend on which recording is done first.
func TestMeasureIsDeterministic(t *testing.T) {
	var texts []string
	for range 2 {
		var out, complaints bytes.Buffer
		c := Command{Seeds: Seeds{3, 4}, Scenarios: "host-memory-*", HealthyDays: 0, Real: t.TempDir(), JSON: true, Stdout: &out, Stderr: &complaints}
		if err := c.Run(t.Context()); err != nil && !errors.Is(err, ErrMissed) {
			t.Fatal(err)
		}
		if !strings.Contains(complaints.String(), "no real recordings") {
			t.Errorf("stderr %q", complaints.String())
		}
		texts = append(texts, out.String())
	}
	if texts[0] != texts[1] || !strings.Contains(texts[0], `"class": "host_memory"`) {
		t.Errorf("two runs differ:\n%s\n%s", texts[0], texts[1])
	}
}

// Healthy days are reached with seeds beyond those that are scored.
func TestHealthyDays(t *testing.T) {
	scenarios, err := choose("healthy-s[tc]*")
	if err != nil {
		t.Fatal(err)
	}
	r, err := builtin(t).measure(t.Context(), scenarios, Seeds{1, 1}, 6)
	if err != nil {
		t.Fatal(err)
	}
	if r.Healthy.Days < 6 || r.Healthy.Days > 14 || r.Score.Recordings != len(scenarios) || r.Healthy.Recordings <= len(scenarios) {
		t.Errorf("%+v after %d scored", r.Healthy, r.Score.Recordings)
	}
}

func TestCommandLine(t *testing.T) {
	var c Command
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"--seeds", "5-6", "--scenarios", "no-such-*"}); err != nil {
		t.Fatal(err)
	}
	if c.Seeds != (Seeds{5, 6}) || c.HealthyDays != 1000 {
		t.Errorf("%+v", c)
	}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("no scenario: %v", err)
	}
	if _, err := parser.Parse([]string{"--seeds", "9-1"}); err == nil {
		t.Error("seeds that run backwards are taken")
	}
}

func TestTablesTellATargetThatWasMissed(t *testing.T) {
	r := &Result{Seeds: Seeds{1, 1}, Score: Score{Recordings: 1, MacroF1: 0.5, Classes: []ClassScore{{Class: "stall", Planted: 2, Right: 1, Precision: 1, Recall: 0.5, F1: 0.67}}}}
	r.Targets = r.targets()
	if r.Met() {
		t.Error("macro-F1 of 0.5 is enough")
	}
	var out bytes.Buffer
	if err := r.write(&out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "MISSED") || !strings.Contains(text, "stall") || !strings.Contains(text, "0.5000") {
		t.Errorf("%s", text)
	}
}

func TestRealRecordings(t *testing.T) {
	got, err := playReal(t.Context(), builtin(t).pack, "../testdata")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 14 {
		t.Errorf("%d recordings, want 14", len(got))
	}
	for _, v := range got {
		if !v.Right {
			t.Errorf("%s: got %v, want %s", v.Recording, v.Got, v.Want)
		}
	}
}
