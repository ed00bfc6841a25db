// Package ruletest owns the tests of rules that play in time: what the sensors of made-up workers read, or a recording, and what has to be
// said of it when. It gives them to the judge of the live path and reads no clock; it judges nothing itself, and nothing leaves it.
package ruletest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	json "github.com/go-json-experiment/json"

	"lowtide/processor/broker"
	"lowtide/rules"
)

// Command is `rules test`: the tests in X_test.yaml beside each rule file X.yaml. It returns ErrFailed when one fails.
type Command struct {
	JSON     bool     `name:"json" help:"Print one JSON object to stdout."`
	Coverage bool     `help:"Say which rules were never suspected, and which parts of their conditions were never true or never false."`
	Min      float64  `name:"min-coverage" placeholder:"PERCENT" help:"Fail below it: of all parts of conditions, how many were true once and false once."`
	Verbose  bool     `short:"v" help:"Print what was said in each scenario."`
	Paths    []string `arg:"" optional:"" name:"files" help:"Rule files, test files (*_test.yaml) and folders of them; without any the tests of the built-in rules."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// ErrFailed says that a test failed, or that the coverage is too small; why has been printed by then.
var ErrFailed = errors.New("rules test failed")

// result is the answer for programs.
type result struct {
	OK           bool            `json:"ok"`
	Tests        int             `json:"tests"`
	Scenarios    []played        `json:"scenarios"`
	Expectations int             `json:"expectations"`
	Problems     []rules.Problem `json:"problems"`
	Coverage     *coverage       `json:"coverage,omitempty"`
}

// played is one scenario and what was said in it.
type played struct {
	File   string   `json:"file"`
	Name   string   `json:"name"`
	OK     bool     `json:"ok"`
	Events int      `json:"events"`
	Said   []string `json:"said,omitempty"`
}

// Run tests and prints: the result to stdout, what is wrong to stderr (or all of it to stdout as JSON).
func (c *Command) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Min < 0 || c.Min > 100 {
		return &broker.Failure{What: fmt.Sprintf("rules test: --min-coverage %g is no percentage", c.Min), Remedy: "for example --min-coverage 80", Code: 2}
	}
	out, err := c.test(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		line, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("write test result: %w", err)
		}
		if _, err := fmt.Fprintf(c.Stdout, "%s\n", line); err != nil {
			return fmt.Errorf("write test result: %w", err)
		}
	} else if err := c.print(out); err != nil {
		return err
	}
	if !out.OK {
		return ErrFailed
	}
	return nil
}

// test runs everything; only what is no mistake in a file is an error.
func (c *Command) test(ctx context.Context) (*result, error) {
	out := &result{Scenarios: []played{}, Problems: []rules.Problem{}}
	sources, tests, err := c.files()
	if err != nil {
		return nil, err
	}
	pack, clauses, err := rules.LoadWatched(sources)
	if err != nil {
		var problems rules.Problems
		if !errors.As(err, &problems) {
			return nil, err
		}
		out.Problems = problems
		return out, nil
	}
	var problems rules.Problems
	for _, test := range tests {
		n, err := rules.RunCases(test.Name, test.Content, pack, &problems)
		if err != nil {
			return nil, err
		}
		out.Tests += n
		if err := c.scenarios(ctx, test, pack, out, &problems); err != nil {
			return nil, err
		}
	}
	out.Problems = append(out.Problems, tidy(problems)...)
	out.OK = len(problems) == 0
	if c.Coverage || c.Min > 0 {
		out.Coverage = cover(pack, clauses, sources)
		if out.Coverage.Percent < c.Min {
			out.OK = false
		}
	}
	return out, nil
}

func (c *Command) scenarios(ctx context.Context, test rules.Source, pack *rules.Pack, out *result, problems *rules.Problems) error {
	for _, s := range readScenarios(test.Name, test.Content, pack, problems) {
		before := len(*problems)
		course, err := s.play(ctx, pack)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		one := played{File: test.Name, Name: s.name}
		if err != nil {
			s.at.Report("", "scenario %q cannot be played: %v", s.name, err)
		} else {
			s.check(course)
			one.Events = course.events
			for _, f := range course.findings {
				one.Said = append(one.Said, course.since(f.Time)+" "+told(f))
			}
		}
		one.OK = len(*problems) == before
		out.Scenarios = append(out.Scenarios, one)
		out.Expectations += len(s.expected) + len(s.never)
		if s.nothing != nil {
			out.Expectations++
		}
	}
	return nil
}

// tidy sorts problems by place and leaves out what is told twice, as both readers of a file do of one that is no YAML.
func tidy(all rules.Problems) rules.Problems {
	slices.SortStableFunc(all, func(a, b rules.Problem) int {
		if order := strings.Compare(a.File, b.File); order != 0 {
			return order
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return slices.Compact(all)
}

// files reads the rules and their tests: beside each rule file its tests, beside each test file its rules.
func (c *Command) files() (sources, tests []rules.Source, err error) {
	if len(c.Paths) == 0 {
		tests, err = rules.BuiltinTests()
		return nil, tests, err
	}
	var ruleFiles, testFiles []string
	add := func(list *[]string, path string) {
		if path = filepath.Clean(path); !slices.Contains(*list, path) {
			*list = append(*list, path)
		}
	}
	for _, path := range c.Paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, nil, &broker.Failure{What: "rules test: " + err.Error(), Remedy: "name rule files, test files (*_test.yaml) or folders of them", Code: 2, Err: err}
		}
		found := []string{path}
		if info.IsDir() {
			if found, err = yamlFiles(path); err != nil {
				return nil, nil, err
			}
			if len(found) == 0 {
				return nil, nil, &broker.Failure{What: "rules test: no rule file in " + path, Remedy: "they end in .yaml, their tests in _test.yaml", Code: 2}
			}
		}
		for _, name := range found {
			if rules.IsTest(name) {
				add(&testFiles, name)
				for _, end := range []string{"_test.yaml", "_test.yml"} {
					for _, ending := range []string{".yaml", ".yml"} {
						if base, is := strings.CutSuffix(name, end); is && exists(base+ending) {
							add(&ruleFiles, base+ending)
						}
					}
				}
				continue
			}
			add(&ruleFiles, name)
			base := strings.TrimSuffix(strings.TrimSuffix(name, ".yaml"), ".yml")
			for _, end := range []string{"_test.yaml", "_test.yml"} {
				if exists(base + end) {
					add(&testFiles, base+end)
				}
			}
		}
	}
	if sources, err = rules.ReadSources(ruleFiles...); err != nil {
		return nil, nil, err
	}
	for _, name := range testFiles {
		content, err := readBounded(name)
		if err != nil {
			return nil, nil, fmt.Errorf("read rule tests: %w", err)
		}
		tests = append(tests, rules.Source{Name: name, Content: content})
	}
	if len(tests) == 0 {
		return nil, nil, &broker.Failure{What: "rules test: there are no tests beside " + strings.Join(c.Paths, ", "), Remedy: "those of mine.yaml are in mine_test.yaml, under tests: or scenarios:", Code: 1}
	}
	return sources, tests, nil
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func yamlFiles(folder string) (out []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("read folder of rules: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if path := filepath.Join(folder, name); !strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")) && exists(path) {
			out = append(out, path)
		}
	}
	return out, nil
}

// maxTestBytes is more than a file may have, so that whoever reads it says so.
const maxTestBytes = 1<<20 + 1

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxTestBytes))
}
