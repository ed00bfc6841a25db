package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	json "github.com/go-json-experiment/json"
)

// Command groups what can be done with rules.
type Command struct {
	Check   CheckCommand   `cmd:"" help:"Check rule files and run the tests beside them."`
	Explain ExplainCommand `cmd:"" help:"List every variable that a rule may read, or say what a rule means."`
	Schema  SchemaCommand  `cmd:"" help:"Print the JSON schema of a rule file, for editors."`
}

// CheckCommand is `rules check`: it compiles the built-in rules with the files laid over them and runs every test,
// those of a file X.yaml from X_test.yaml beside it. It returns ErrCheckFailed when something is wrong.
type CheckCommand struct {
	JSON  bool     `name:"json" help:"Print one JSON object to stdout."`
	Files []string `arg:"" optional:"" type:"path" help:"Rule files, folders of them, and test files (*_test.yaml), to lay over the built-in rules."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// report is the answer for programs.
type report struct {
	OK       bool      `json:"ok"`
	Rules    int       `json:"rules"`
	Tests    int       `json:"tests"`
	Problems []Problem `json:"problems"`
}

// Run checks and prints: the result to stdout, what is wrong to stderr (or all of it to stdout as JSON).
func (c *CheckCommand) Run(ctx context.Context) error {
	stdout, stderr := c.Stdout, c.Stderr
	if stdout == nil {
		stdout = os.Stdout
	}
	if stderr == nil {
		stderr = os.Stderr
	}
	out, err := check(ctx, c.Files)
	if err != nil {
		return err
	}
	switch {
	case c.JSON:
		line, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("write check result: %w", err)
		}
		if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
			return fmt.Errorf("write check result: %w", err)
		}
	case out.OK:
		if _, err := fmt.Fprintf(stdout, "%d rules, %d tests: ok\n", out.Rules, out.Tests); err != nil {
			return fmt.Errorf("write check result: %w", err)
		}
	default:
		for _, p := range out.Problems {
			fmt.Fprintln(stderr, p.Error())
		}
		fmt.Fprintf(stderr, "problems: %d\n", len(out.Problems))
	}
	if !out.OK {
		return ErrCheckFailed
	}
	return nil
}

// check loads everything and runs the tests; only what is no mistake in a file is an error.
func check(ctx context.Context, files []string) (report, error) {
	var named, testFiles []string
	var problems Problems
	for _, name := range files {
		if isTest(name) {
			testFiles = append(testFiles, name)
			continue
		}
		inside, err := ruleFiles(name)
		if err != nil {
			return report{}, err
		}
		if len(inside) == 0 {
			problems = append(problems, Problem{File: name, Message: "the folder holds no rule files", Hint: "name one that holds .yaml files"})
		}
		for _, one := range inside {
			named = append(named, one)
			beside := strings.TrimSuffix(strings.TrimSuffix(one, ".yaml"), ".yml") + "_test.yaml"
			if _, err := os.Stat(beside); err == nil {
				testFiles = append(testFiles, beside)
			}
		}
	}
	out := report{Problems: []Problem{}}
	pack, err := Load(named...)
	if err != nil {
		var found Problems
		if !errors.As(err, &found) {
			return report{}, err
		}
		out.Problems = append(problems, found...)
		return out, nil
	}
	out.Rules = len(pack.Rules)
	seen := map[string]bool{}
	for _, name := range testFiles {
		if seen[name] {
			continue
		}
		seen[name] = true
		if err := ctx.Err(); err != nil {
			return report{}, fmt.Errorf("check rules: %w", err)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return report{}, fmt.Errorf("read rule tests: %w", err)
		}
		n, err := runCases(name, content, pack, &problems)
		if err != nil {
			return report{}, err
		}
		out.Tests += n
	}
	// The built-in tests are about the built-in rules, whatever a user lays over them.
	builtin, err := Builtin()
	if err != nil {
		return report{}, err
	}
	n, err := runBuiltinCases(builtin, &problems)
	if err != nil {
		return report{}, err
	}
	out.Tests += n
	if len(problems) == 0 {
		out.OK = true
		return out, nil
	}
	errors.As(problems.sorted(), &problems)
	out.Problems = problems
	return out, nil
}

func runBuiltinCases(pack *Pack, problems *Problems) (int, error) {
	names, err := fs.Glob(embedded, "builtin/*_test.yaml")
	if err != nil {
		return 0, fmt.Errorf("read built-in tests: %w", err)
	}
	ran := 0
	for _, name := range names {
		content, err := embedded.ReadFile(name)
		if err != nil {
			return 0, fmt.Errorf("read built-in tests: %w", err)
		}
		n, err := runCases(name, content, pack, problems)
		if err != nil {
			return 0, err
		}
		ran += n
	}
	return ran, nil
}
