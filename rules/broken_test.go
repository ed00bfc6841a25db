package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mistake is one problem that a broken file must be told of: where, and what the remedy says.
type mistake struct {
	line, column int
	remedy       string
}

// broken is what is wrong with each file of testdata/broken, counted off by hand: a file is named by its defect. The condition of most
// begins in line 8 or, below thresholds, 9, in column 7.
var broken = map[string][]mistake{
	// names
	"typo_in_variable":       {{8, 7, "did you mean live.growth?"}},
	"half_a_variable":        {{8, 7, "live begins live.now, live.level_bytes"}},
	"typo_in_threshold":      {{9, 21, "did you mean t.floor?"}},
	"threshold_without_t":    {{9, 21, "write t.floor"}},
	"typo_in_field":          {{7, 5, "did you mean summary?"}},
	"field_of_prometheus":    {{7, 5, "there is no for"}, {8, 5, "write when:"}},
	"unknown_top_key":        {{1, 1, "begin the file with `rules:`"}},
	"unknown_function":       {{9, 7, "write (x < 0 ? -x : x)"}, {9, 37, "write (a > b ? a : b)"}},
	"variable_called":        {{8, 7, "leave out the brackets: quiet.count"}},
	"has_of_a_variable":      {{8, 11, "write known(live.growth)"}},
	"known_of_an_expression": {{8, 13, "known(live.growth) && live.growth > 0"}},
	// types
	"number_against_text":     {{8, 21, "write 5 * MiB, without quotes"}},
	"text_against_number":     {{8, 18, `write it as a text: "5"`}},
	"whole_number_and_double": {{8, 7, "write double(size(labels)) + 1.5"}},
	"unsigned_and_double":     {{8, 21, "write 24.0"}},
	"flag_against_number":     {{8, 7, "write live.early or !live.early"}},
	"number_as_condition":     {{8, 7, "live.growth > 5 * MiB"}},
	"number_beside_and":       {{8, 21, "live.growth > 5 * MiB"}},
	"not_of_a_number":         {{8, 8, "!known(live.growth)"}},
	"ternary_of_a_number":     {{8, 7, "live.growth > 5 * MiB"}},
	"ternary_of_two_kinds":    {{8, 8, "make both sides of `:` numbers"}},
	"ternary_is_no_bool":      {{8, 7, "(a ? b : c) > 0"}},
	"in_a_text":               {{8, 17, `write engine in ["vllm"]`}},
	"number_on_an_engine":     {{8, 25, `engine.startsWith("v")`}},
	"bad_regular_expression":  {{8, 22, "RE2"}},
	"null":                    {{8, 22, "write !known(live.growth)"}},
	// units
	"threshold_without_unit": {{8, 14, "write 5 * MiB"}},
	"bytes_without_unit":     {{8, 26, "write 80 * MiB"}},
	"memory_for_seconds":     {{8, 26, "write a plain number, in seconds"}},
	"seconds_against_hours":  {{8, 7, "write age.hours * 3600"}},
	"growth_against_level":   {{8, 7, "such as 5 * MiB"}},
	"percent_for_ratio":      {{8, 16, "write 0.9"}},
	"percent_sign":           {{8, 16, "write 0.9"}},
	"unit_on_a_number":       {{8, 21, "write 5 * MiB"}, {8, 48, "seconds are plain numbers: write 90"}},
	// syntax
	"words_for_operators":     {{8, 18, "write &&"}, {8, 22, "write !"}, {9, 9, "write ||"}},
	"single_operators":        {{8, 18, "write &&"}, {8, 32, "write ||"}},
	"assignment":              {{8, 19, "write =="}},
	"bracket_open":            {{8, 7, "close it with )"}},
	"text_open":               {{8, 17, `close it with "`}},
	"operator_at_the_end":     {{8, 20, "write what comes after the last operator"}},
	"two_conditions_in_a_row": {{9, 7, "put && or || between"}},
	"if_then":                 {{8, 7, "condition ? a : b"}, {8, 21, "condition ? a : b"}},
	"curly_quotes":            {{8, 17, `"vllm"`}},
	"digit_groups":            {{8, 21, "write 5000000"}},
	// loops
	"loop_over_a_list":     {{8, 7, "loop over labels only"}},
	"loop_in_loop_in_loop": {{8, 35, "take the inner loop out"}},
	// values
	"duration_without_unit":    {{7, 11, "1h"}, {8, 11, "write 48h"}},
	"duration_too_long":        {{7, 11, "at most 720h"}},
	"unknown_class":            {{3, 12, "did you mean retention?"}},
	"unknown_scope":            {{4, 12, "use one of worker, instance, gpu, host"}},
	"unknown_severity":         {{5, 23, "write page"}},
	"severity_of_one_word":     {{5, 15, "write severity: {alone: page}"}},
	"explains_unknown_class":   {{7, 16, "did you mean stall?"}},
	"unknown_advice":           {{7, 13, "did you mean retention?"}},
	"evidence_of_a_flag":       {{7, 16, "numbers"}},
	"flag_of_another_language": {{7, 14, "write true or false"}},
	"missing_fields":           {{2, 9, "add severity:, summary:"}},
	"id_with_blanks":           {{2, 9, "use a-z, 0-9 and _"}},
	"duplicate_id":             {{9, 9, "give it another id"}},
	// sentences
	"template_unknown_variable": {{6, 20, "did you mean live.growth?"}},
	"template_open":             {{6, 20, "close it with }}"}},
	"template_format":           {{6, 20, "write {{live.growth}}"}},
	"template_single_brace":     {{6, 20, "write {{live.growth}}"}},
	"template_threshold":        {{6, 20, "write its number"}},
	// what YAML eats
	"leading_exclamation_mark": {{7, 11, "use `|`"}},
	"colon_in_plain_text":      {{7, 36, "use `|`"}},
	"colon_in_summary":         {{6, 18, "use `|`"}},
	"leading_brace":            {{6, 14, "use `|`"}},
	"leading_bracket":          {{6, 14, "use `|`"}},
	"number_sign":              {{6, 25, "use `|`"}},
	"number_sign_in_condition": {{7, 28, "use `|`"}},
	"quote_then_more":          {{7, 24, "use `|`"}},
	"folded_block":             {{7, 11, "use `|`"}},
	"text_after_block_mark":    {{7, 13, "use `|`"}},
	"plain_over_two_lines":     {{7, 11, "use `|`"}},
	"empty_condition":          {{7, 5, "use `|`"}},
	"block_not_indented":       {{8, 5, "indent every line of the block"}},
	"block_dedented":           {{9, 6, "indent every line of the block"}},
	"tab":                      {{4, 1, "indent with spaces"}},
	"indented_too_deep":        {{4, 6, "indent the fields of a rule alike"}},
	"indented_too_little":      {{4, 4, "indent it by 4 spaces"}},
	"no_blank_after_colon":     {{4, 5, "put a blank after the colon"}},
	"key_twice":                {{7, 5, "keep one of them"}},
	"anchor":                   {{7, 5, "write the fields out"}},
	"braces_open":              {{6, 5, "close it with }"}},
	"two_documents":            {{10, 1, "a file of its own"}},
	"no_list":                  {{2, 3, "- id: NAME"}},
	"not_utf8":                 {{6, 15, "UTF-8"}},
}

func TestBrokenFilesAreToldTheirPlacesAndRemedies(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil || len(files) != len(broken) {
		t.Fatalf("%d files, %d in the table: %v", len(files), len(broken), err)
	}
	for _, name := range files {
		defect := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "bad_"), ".yaml")
		t.Run(defect, func(t *testing.T) {
			sources, err := ReadSources(name)
			if err != nil {
				t.Fatal(err)
			}
			_, err = load(sources) // the shipped rules below them change nothing here, and take long
			var found Problems
			if !errors.As(err, &found) {
				t.Fatalf("got %v, want problems", err)
			}
			golden(t, strings.TrimSuffix(name, ".yaml")+".txt", found.Error()+"\n")
			want := broken[defect]
			if len(found) != len(want) {
				t.Fatalf("%d problems, want %d:\n%v", len(found), len(want), found)
			}
			for i, p := range found {
				if p.File != name || p.Line != want[i].line || p.Column != want[i].column || !strings.Contains(p.Hint, want[i].remedy) {
					t.Errorf("want %d:%d with %q, got\n%v", want[i].line, want[i].column, want[i].remedy, p)
				}
				if p.Source == "" {
					t.Errorf("the line is not shown:\n%v", p)
				}
			}
		})
	}
}

// golden compares with a file, or writes it anew with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// All mistakes of all files come at once, and an id may come once in them; what YAML eats in one field hides no other.
func TestAllMistakesOfAllFilesComeAtOnce(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const rule = "rules:\n  - id: %s\n    class: retention\n    scope: worker\n    severity: {alone: ticket}\n    summary: %s\n    when: %s\n"
	write("a.yaml", fmt.Sprintf(rule, "one", "Leak: {{live.growth}}", "!live.early")+"    keep: soon\n")
	write("b.yml", fmt.Sprintf(rule, "one", "Rises", "live.groth > 0"))
	write("c.yaml", fmt.Sprintf(rule, "three", "Rises", "live.early")+"    advice: own\n")
	write("advice/own.md", "- Drain at {{live.grown}}.\n")
	write("c_test.yaml", "tests:\n  - name: early\n    rule: three\n    set: {live.early: true}\n    expect: {when: true}\n")
	write(".hidden.yaml", "nothing")
	write("notes.txt", "nothing")

	var stdout, stderr bytes.Buffer
	err := (&CheckCommand{Files: []string{folder}, Stdout: &stdout, Stderr: &stderr}).Run(context.Background())
	if !errors.Is(err, ErrCheckFailed) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a.yaml:6:18: summary: YAML takes `: `", "a.yaml:7:11: when: YAML takes what follows `!`", "a.yaml:8:11: keep: \"soon\"",
		"advice/own.md:1:12: advice: unknown variable live.grown", "b.yml:2:9: rule one is already in " + filepath.Join(folder, "a.yaml") + ":2", "b.yml:7:11: when: unknown variable live.groth", "problems: 6",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in\n%s", want, stderr.String())
		}
	}
	// Once they are mended the folder is well, its advice is found, and the test beside it runs.
	write("a.yaml", fmt.Sprintf(rule, "one", "Leaks", "live.early"))
	write("b.yml", fmt.Sprintf(rule, "two", "Rises", "live.growth > 0"))
	write("advice/own.md", "- Drain at {{live.growth}}.\n")
	stderr.Reset()
	if err := (&CheckCommand{Files: []string{folder, filepath.Join(folder, "b.yml")}, Stdout: &stdout, Stderr: &stderr}).Run(context.Background()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	sources, err := ReadSources(folder)
	if err != nil || len(sources) != 3 || sources[2].Advice["own"] == "" {
		t.Fatalf("%d sources: %v", len(sources), err)
	}
	pack, err := LoadSources(sources)
	if err != nil || len(pack.Rules) != shipped+3 || len(pack.Rule("three").Advice) != 1 {
		t.Fatalf("%v", err)
	}
	// What is not there is an error of its own, and an empty folder is told.
	if _, err := ReadSources(filepath.Join(folder, "absent.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	stderr.Reset()
	if err := (&CheckCommand{Files: []string{t.TempDir()}, Stdout: &stdout, Stderr: &stderr}).Run(context.Background()); !errors.Is(err, ErrCheckFailed) || !strings.Contains(stderr.String(), "holds no rule files") {
		t.Errorf("got %v\n%s", err, stderr.String())
	}
}

// A layer is laid over those below it, whatever their ids; within one an id comes once.
func TestLayers(t *testing.T) {
	bucket := []Source{{Name: "bucket/a.yaml", Content: []byte("rules:\n  - id: retention\n    shadow: true\n    thresholds: {floor: 8 * MiB}\n    advice: mine\n"), Advice: map[string]string{"mine": "- From the bucket.\n"}}}
	local := []Source{{Name: "a.yaml", Content: []byte("rules:\n  - id: retention\n    thresholds: {floor: 16 * MiB}\n")}}
	pack, err := LoadLayers(bucket, local)
	if err != nil {
		t.Fatal(err)
	}
	if r := pack.Rule("retention"); !r.Shadow || r.Thresholds["floor"] != 16777216 || r.Advice[0] != "From the bucket." || r.File != "a.yaml" {
		t.Errorf("%+v", r)
	}
	if _, err := LoadSources(append(bucket, local...)); err == nil || !strings.Contains(err.Error(), "rule retention is already in bucket/a.yaml:2") {
		t.Errorf("in one layer: %v", err)
	}
}

// What a rule compares in another unit is told; what has none that is known is left alone.
func TestUnits(t *testing.T) {
	for condition, want := range map[string]string{
		"live.now > 80 * GiB && live.growth > 5 * MiB && kv.now > 0.9": "",
		"live.growth > 0 && live.now >= live.level_bytes":              "",
		"live.now / headroom.limit_bytes > 0.9":                        "",
		"demand.ratio > 2 && preemptions.hour > 10":                    "",
		"live.growth * age.hours > live.now":                           "",
		"headroom.bytes < live.growth_high * 2":                        "",
		"live.per_abort > 100":                                         "", // bytes for each abort may be few
		"live.growth > -1":                                             "",
		"fds.now > 5 * MiB":                                            "fds.now is a count, not bytes",
		"5 < live.now":                                                 "live.now is in bytes, and 5 has no unit",
		"live.now - 64 > 0":                                            "live.now is in bytes, and 64 has no unit",
		"utilization.now >= 100":                                       "utilization.now is a ratio from 0 to 1, never 100",
		"live.growth > t.floor && fds.now > t.floor":                   "threshold floor: fds.now is a count, not bytes",
	} {
		text := "rules:\n  - id: probe\n    class: retention\n    scope: worker\n    severity: {alone: ticket}\n    summary: s\n    thresholds: {floor: 5 * MiB}\n    when: |\n      " + condition + "\n"
		_, err := load([]Source{{Name: "probe.yaml", Content: []byte(text)}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: want %q, got %v", condition, want, err)
		}
	}
}
