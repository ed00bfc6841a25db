package ruletest

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"

	"lowtide/rules"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// run returns what the command prints: stdout, then stderr.
func run(t *testing.T, c Command) (string, error) {
	t.Helper()
	var out, messages bytes.Buffer
	c.Stdout, c.Stderr = &out, &messages
	err := c.Run(t.Context())
	return out.String() + messages.String(), err
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// What stands in leak_test.yaml holds: growth, a symptom beside it, a level, a restart, a peer, a device, and two recordings.
func TestScenariosThatHold(t *testing.T) {
	got, err := run(t, Command{Paths: []string{"testdata/leak.yaml"}, Verbose: true, Coverage: true})
	if err != nil {
		t.Errorf("%v\n%s", err, got)
	}
	golden(t, "testdata/leak.golden", got)
	if !strings.Contains(got, "1 tests, 10 scenarios, 21 expectations: ok") {
		t.Errorf("got %s", got)
	}
}

// Each of those files is wrong: the golden file has every place and remedy.
func TestFilesThatAreWrong(t *testing.T) {
	for _, name := range []string{"fail_expectations", "bad_scenario", "bad_top_key", "bad_yaml"} {
		t.Run(name, func(t *testing.T) {
			got, err := run(t, Command{Paths: []string{"testdata/" + name + "_test.yaml"}})
			if !errors.Is(err, ErrFailed) {
				t.Errorf("error %v", err)
			}
			golden(t, "testdata/"+name+".golden", got)
			for _, line := range strings.Split(got, "\n") {
				if strings.HasPrefix(line, "testdata/") && !strings.Contains(line, "_test.yaml:") {
					t.Errorf("a problem without a place: %s", line)
				}
			}
		})
	}
}

func TestTheJSONOfATest(t *testing.T) {
	got, err := run(t, Command{Paths: []string{"testdata/leak_test.yaml"}, JSON: true, Min: 60})
	if err != nil {
		t.Fatal(err)
	}
	var out result
	if err := json.Unmarshal([]byte(got), &out); err != nil {
		t.Fatal(err)
	}
	if !out.OK || out.Tests != 1 || len(out.Scenarios) != 10 || out.Coverage == nil || len(out.Coverage.Never) != 0 || len(out.Coverage.Clauses) != 3 {
		t.Errorf("%s", got)
	}
	// kv.now is both above and below, the engine is always vllm, and nobody asks whether it is sglang when it is.
	if out.Coverage.Seen != 4 || out.Coverage.Outcomes != 6 {
		t.Errorf("coverage %d of %d", out.Coverage.Seen, out.Coverage.Outcomes)
	}
}

func TestCoverageAsAThreshold(t *testing.T) {
	if got, err := run(t, Command{Paths: []string{"testdata/leak.yaml"}, Min: 66}); err != nil {
		t.Errorf("%v: %s", err, got)
	}
	got, err := run(t, Command{Paths: []string{"testdata/leak.yaml"}, Min: 67})
	if !errors.Is(err, ErrFailed) || !strings.Contains(got, "coverage is 66.7 %, less than 67 %") {
		t.Errorf("%v: %s", err, got)
	}
	if _, err := run(t, Command{Min: 101}); err == nil {
		t.Error("101 % is taken")
	}
}

// Without files the tests of the shipped rules are run, and every shipped rule is suspected in one.
func TestTheShippedRules(t *testing.T) {
	got, err := run(t, Command{Coverage: true, Min: 80})
	if err != nil || strings.Contains(got, "never suspected") {
		t.Errorf("%v: %s", err, got)
	}
}

// A file of both kinds of tests is still one that `rules check` takes, which runs the tests and leaves the scenarios.
func TestCheckLeavesScenarios(t *testing.T) {
	var out, messages bytes.Buffer
	check := rules.CheckCommand{Files: []string{"testdata/leak.yaml"}, Stdout: &out, Stderr: &messages}
	if err := check.Run(t.Context()); err != nil {
		t.Errorf("%v: %s", err, messages.String())
	}
}

func TestPathsThatHaveNoTests(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := run(t, Command{Paths: []string{folder}}); err == nil || !strings.Contains(err.Error(), "no rule file") {
		t.Errorf("of an empty folder: %v", err)
	}
	lonely := write("mine.yaml", "rules:\n  - id: retention\n    shadow: true\n")
	if _, err := run(t, Command{Paths: []string{lonely}}); err == nil || !strings.Contains(err.Error(), "there are no tests") {
		t.Errorf("of rules without tests: %v", err)
	}
	if _, err := run(t, Command{Paths: []string{filepath.Join(folder, "nowhere.yaml")}}); err == nil {
		t.Error("a file that is not there is taken")
	}
	write("mine_test.yaml", "scenarios:\n  - name: n\n    series: {process.threads: 5x60}\n    nothing: true\n")
	if got, err := run(t, Command{Paths: []string{folder}}); err != nil || !strings.Contains(got, "0 tests, 1 scenarios, 1 expectations: ok") {
		t.Errorf("of a folder: %v: %s", err, got)
	}
}
