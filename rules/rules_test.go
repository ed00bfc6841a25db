package rules

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lowtide/event"
	"lowtide/rules/variable"
)

// shipped is how many rules there are: files that are left out of the binary would pass every other test.
const shipped = 21

var update = flag.Bool("update", false, "write the golden files anew")

func TestBuiltinRulesPassTheTestsBesideThem(t *testing.T) {
	pack, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	var problems Problems
	ran, err := runBuiltinCases(pack, &problems)
	if err != nil {
		t.Fatal(err)
	}
	if err := problems.sorted(); err != nil {
		t.Error(err)
	}
	if ran < 250 {
		t.Errorf("%d cases ran, want at least 250", ran)
	}
	for _, r := range pack.Rules {
		if _, err := embedded.Open("builtin/" + r.ID + "_test.yaml"); err != nil {
			t.Errorf("rule %s has no test beside it: %v", r.ID, err)
		}
		if len(r.Advice) < 4 || len(r.Reads()) == 0 || !r.Enabled || r.Shadow {
			t.Errorf("rule %s: %d lines of advice, %d reads, enabled %v, shadow %v", r.ID, len(r.Advice), len(r.Reads()), r.Enabled, r.Shadow)
		}
	}
	if len(pack.Rules) != shipped {
		t.Errorf("%d rules, want %d", len(pack.Rules), shipped)
	}
}

func one(t testing.TB, condition string) *Rule {
	t.Helper()
	text := "rules:\n  - id: probe\n    class: retention\n    scope: worker\n    severity: {alone: ticket}\n    summary: s\n    thresholds: {floor: 5 * MiB}\n    when: |\n      " + condition + "\n"
	pack, err := load([]Source{{Name: "probe.yaml", Content: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return pack.Rules[0]
}

// The table is Kleene's strong three-valued logic, which CEL follows: u is early of an allocator that is missing.
func TestThreeValuedLogic(t *testing.T) {
	s := variable.NewSample()
	s.SetBool(variable.Must("symptom.oom"), true)
	s.SetBool(variable.Must("symptom.slo"), false)
	s.SetNumber(variable.Must("kv.now"), 0.5)
	s.SetString(variable.Must("engine"), "vllm")
	s.SetLabels(variable.Must("labels"), map[string]string{"team": "search"})
	const u = "live.early"
	for _, c := range []struct {
		condition string
		want      Outcome
		missing   string
	}{
		{u, Unknown, "allocator"},
		{"!" + u, Unknown, "allocator"},
		{"symptom.oom || " + u, True, ""},
		{u + " || symptom.oom", True, ""},
		{"symptom.slo || " + u, Unknown, "allocator"},
		{u + " || symptom.slo", Unknown, "allocator"},
		{"symptom.slo && " + u, False, ""},
		{u + " && symptom.slo", False, ""},
		{"symptom.oom && " + u, Unknown, "allocator"},
		{u + " && symptom.oom", Unknown, "allocator"},
		{"anon.growth > 0", Unknown, "process"},
		{"anon.growth > 0 && live.early", Unknown, "allocator"}, // the first in the table is named
		{"known(live.early)", False, ""},
		{"known(kv.now)", True, ""},
		{"!known(live.growth) || live.growth > t.floor", True, ""},
		{"symptom.slo ? live.early : symptom.oom", True, ""},
		{"kv.now * 2 == 1", True, ""},
		{"kv.now > 0 && kv.now < 1", True, ""},
		{"GiB / 1024 == MiB && MiB == 1024 * KiB && t.floor == 5242880", True, ""},
		{`engine == "vllm"`, True, ""},
		{`labels.team == "search"`, True, ""},
		{`labels["team"].startsWith("se")`, True, ""},
		{`labels.exists(k, k == "team")`, True, ""},
		{`has(labels.owner)`, False, ""},
		{`labels.owner == "x"`, Unknown, "evaluation: no such key: owner"},
	} {
		got := one(t, c.condition).Evaluate(s)
		if got.When != c.want || got.Missing != c.missing {
			t.Errorf("%s: %v (%s), want %v (%s)", c.condition, got.When, got.Missing, c.want, c.missing)
		}
		if got.Confirm != False || got.With != False {
			t.Errorf("%s: a condition that was not written is %v, %v", c.condition, got.Confirm, got.With)
		}
	}
}

func TestOutcomeFollowsTheSample(t *testing.T) {
	r, s, id := one(t, "live.growth > t.floor"), variable.NewSample(), variable.Must("live.growth")
	for _, step := range []struct {
		set  func()
		want Outcome
	}{
		{func() {}, Unknown},
		{func() { s.SetNumber(id, 6<<20) }, True},
		{func() { s.SetNumber(id, 4<<20) }, False},
		{func() { s.Unset(id) }, Unknown},
		{func() { s.SetNumber(id, 6<<20) }, True},
	} {
		step.set()
		if got := r.Evaluate(s).When; got != step.want {
			t.Fatalf("got %v, want %v", got, step.want)
		}
	}
}

func TestReadsAreTheVariablesOfTheConditions(t *testing.T) {
	r := one(t, "(live.early || live.growth_low > t.floor) && !known(kv.now) && has(labels.team)")
	var got []string
	for _, id := range r.Reads() {
		got = append(got, variable.All()[id].Name)
	}
	if want := "live.growth_low live.early kv.now labels"; strings.Join(got, " ") != want {
		t.Errorf("reads %v, want %s", got, want)
	}
}

func TestEvidenceKeepsOrderAndLeavesOutTheUnknown(t *testing.T) {
	pack, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	s := variable.NewSample()
	s.SetNumber(variable.Must("kv.quiet"), 0)
	s.SetNumber(variable.Must("live.growth"), 2<<30)
	got := pack.Rule("retention").Evidence(s)
	want := event.Measures{{Name: "live.growth", Value: 2147483648, Unit: "bytes/h"}, {Name: "kv.quiet", Value: 0, Unit: "ratio"}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestUserRulesMergeOverBuiltinById(t *testing.T) {
	user := Source{Name: "mine.yaml", Content: []byte(`rules:
  - id: retention
    thresholds: {floor: 64 * MiB}
    shadow: true
  - id: kv_pressure
    enabled: false
  - id: mine
    class: fd_leak
    scope: worker
    when: |
      fds.early
    severity: {alone: info}
    summary: "{{fds.now}} files of {{engine}}"
    advice: mine
`), Advice: map[string]string{"mine": "# Mine\n\n- Close files.\n"}}
	pack, err := LoadSources([]Source{user})
	if err != nil {
		t.Fatal(err)
	}
	retention := pack.Rule("retention")
	if !retention.Shadow || !retention.Enabled || retention.Thresholds["floor"] != 67108864 || retention.Class != "retention" || len(retention.Advice) == 0 {
		t.Errorf("retention: %+v", retention)
	}
	if retention.File != "mine.yaml" || retention.Line != 2 {
		t.Errorf("retention is at %s:%d, want mine.yaml:2", retention.File, retention.Line)
	}
	if pack.Rule("kv_pressure").Enabled {
		t.Error("kv_pressure is enabled")
	}
	mine := pack.Rule("mine")
	if mine.With != event.Info || len(mine.Advice) != 1 || mine.Advice[0] != "Close files." || len(pack.Rules) != shipped+1 {
		t.Errorf("mine: %+v of %d", mine, len(pack.Rules))
	}
	s := variable.NewSample()
	s.SetNumber(variable.Must("fds.now"), 812)
	if got := mine.Summary(s); got != "812 files of unknown" {
		t.Errorf("summary %q", got)
	}
	if again, err := Builtin(); err != nil || again.Rule("retention").Thresholds["floor"] != 5242880 {
		t.Errorf("the built-in rule has changed: %v", err)
	}
}

// Each file of testdata is named by its defect and has its messages beside it.
func TestFilesAreReportedAtTheirPlaces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, name := range files {
		if isTest(name) && strings.HasPrefix(filepath.Base(name), "good_") {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := (&CheckCommand{Files: []string{name}, Stdout: &stdout, Stderr: &stderr}).Run(context.Background())
			if strings.HasPrefix(filepath.Base(name), "good_") {
				if err != nil || !strings.HasSuffix(stdout.String(), ": ok\n") {
					t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
				}
				return
			}
			if !errors.Is(err, ErrCheckFailed) || stdout.Len() > 0 {
				t.Fatalf("got %v with %q, want ErrCheckFailed", err, stdout.String())
			}
			golden := strings.TrimSuffix(name, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, stderr.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if stderr.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", stderr.String(), want)
			}
		})
	}
}

func TestCheckJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	err := (&CheckCommand{JSON: true, Files: []string{"testdata/bad_unknown_variable.yaml"}, Stdout: &stdout, Stderr: &stderr}).Run(context.Background())
	if !errors.Is(err, ErrCheckFailed) || stderr.Len() > 0 {
		t.Fatalf("got %v, stderr %q", err, stderr.String())
	}
	for _, want := range []string{`"ok":false`, `"file":"testdata/bad_unknown_variable.yaml","line":6,"column":7`, `"hint":"did you mean live.growth?"`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %s in %s", want, stdout.String())
		}
	}
	stdout.Reset()
	if err := (&CheckCommand{JSON: true, Stdout: &stdout, Stderr: &stderr}).Run(context.Background()); err != nil || !strings.HasPrefix(stdout.String(), fmt.Sprintf(`{"ok":true,"rules":%d,`, shipped)) {
		t.Errorf("got %v, %s", err, stdout.String())
	}
	if err := (&CheckCommand{Files: []string{"testdata/absent.yaml"}, Stdout: &stdout, Stderr: &stderr}).Run(context.Background()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent file: got %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "testdata/broken/*.yaml", "builtin/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content)
		}
	}
	sample := variable.NewSample()
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) > 4<<10 {
			return
		}
		pack, err := load([]Source{{Name: "fuzz.yaml", Content: content}})
		if (pack == nil) == (err == nil) {
			t.Fatalf("pack %v with error %v", pack, err)
		}
		if err != nil {
			var problems Problems
			if !errors.As(err, &problems) || len(problems) == 0 {
				t.Fatalf("error without problems: %v", err)
			}
			lines := strings.Count(lineEnds.Replace(string(content)), "\n") + 1
			for _, p := range problems {
				if p.Line < 0 || p.Column < 0 || p.Line > lines || p.Message == "" {
					t.Fatalf("a problem outside of its file: %v", p)
				}
			}
			return
		}
		for _, r := range pack.Rules {
			if got := r.Evaluate(sample); got.When == Unknown && got.Missing == "" {
				t.Fatalf("rule %s is unknown for no reason", r.ID)
			}
			r.Against(sample)
			r.Summary(sample)
			r.Info()
		}
		var problems Problems
		if _, err := runCases("fuzz_test.yaml", content, pack, &problems); err != nil {
			t.Fatal(err)
		}
	})
}

// Sentences come from files too: one that is read is filled, and says what is unknown.
func FuzzTemplate(f *testing.F) {
	for _, text := range []string{"Live memory rises {{live.growth}}/h[[ across {{quiet.count}} quiet points]]", "{{", "[[ {{live.now}}", "]] }} {live.now}", "{{live.now | x}} ${live.now}", "é {{ nothing }}"} {
		f.Add(text)
	}
	sample := variable.NewSample()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4<<10 {
			return
		}
		var problems Problems
		s, ok := parseTemplate(scalar{doc: &document{name: "fuzz.yaml", problems: &problems}, text: text, line: 1, column: 1, block: true}, "summary")
		if ok != (len(problems) == 0) {
			t.Fatalf("read %v with %v", ok, problems)
		}
		if out := s.fill(sample, inSummary); ok && strings.Contains(out, "{{live.now}}") {
			t.Fatalf("%q is not filled: %q", text, out)
		}
	})
}

// The text of a condition that CEL cannot read is told at a place within it.
func FuzzCondition(f *testing.F) {
	for _, text := range []string{"live.early && !live.filling", "live.growth > 5MiB and", `engine == "vllm`, "((", "a ? b : c", "labels.all(k, k == \"x\")", "has(live.now)", "live.now()", "5,000 ≥ kv.now", "“x”", "size(labels) + 1.5 > 2u", "// x"} {
		f.Add(text)
	}
	sample := variable.NewSample()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<10 {
			return
		}
		c, err := newCompilerOf(map[string]threshold{"floor": {value: 5}})
		if err != nil {
			t.Fatal(err)
		}
		var problems Problems
		p, ok := c.condition(scalar{doc: &document{name: "fuzz.yaml", problems: &problems}, text: text, line: 1, column: 1, block: true}, "when")
		if ok != (len(problems) == 0) {
			t.Fatalf("compiled %v with %v", ok, problems)
		}
		lines := strings.Split(text, "\n")
		for _, one := range problems {
			if one.Line < 1 || one.Line > len(lines)+1 || one.Column < 1 {
				t.Fatalf("%q: a problem outside of it: %v", text, one)
			}
		}
		if ok {
			p.evaluate(sample)
			_ = p.whole.source()
		}
	})
}

// The condition has five clauses, all of which are evaluated, on values that were boxed before.
func BenchmarkEvaluateFiveClauses(b *testing.B) {
	r := one(b, "live.growth > t.floor && quiet.count >= 4 && kv.now < 0.9 && !live.filling && symptom.oom")
	s := variable.NewSample()
	s.SetNumber(variable.Must("live.growth"), 6<<20)
	s.SetNumber(variable.Must("quiet.count"), 4)
	s.SetNumber(variable.Must("kv.now"), 0.5)
	s.SetBool(variable.Must("live.filling"), false)
	s.SetBool(variable.Must("symptom.oom"), true)
	b.ReportAllocs()
	for b.Loop() {
		if r.Evaluate(s).When != True {
			b.Fatal("not true")
		}
	}
}

// Every built-in rule on one sample in which nothing is known.
func BenchmarkEvaluateBuiltinUnknown(b *testing.B) {
	pack, err := Builtin()
	if err != nil {
		b.Fatal(err)
	}
	s := variable.NewSample()
	b.ReportAllocs()
	for b.Loop() {
		for _, r := range pack.Rules {
			r.Evaluate(s)
		}
	}
}
