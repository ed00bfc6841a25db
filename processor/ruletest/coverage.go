package ruletest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"lowtide/rules"
)

// coverage is what the tests saw of the rules in the files that were given, of all built-in ones without files.
type coverage struct {
	Percent   float64         `json:"percent"`   // of outcomes: each clause is to be true once and false once
	Outcomes  int             `json:"outcomes"`  // twice the clauses
	Seen      int             `json:"seen"`      // of them
	Rules     int             `json:"rules"`     // that are asked
	Suspected []string        `json:"suspected"` // whose condition was true once
	Never     []string        `json:"never_suspected"`
	Clauses   []*rules.Clause `json:"clauses"`
}

func cover(pack *rules.Pack, seen *rules.Coverage, sources []rules.Source) *coverage {
	out := &coverage{Suspected: []string{}, Never: []string{}, Clauses: []*rules.Clause{}}
	about := map[string]bool{}
	for _, r := range pack.Rules {
		mine := len(sources) == 0 || slices.ContainsFunc(sources, func(s rules.Source) bool { return s.Name == r.File })
		if !mine || !r.Enabled {
			continue
		}
		about[r.ID] = true
		out.Rules++
		if seen.Met[r.ID] > 0 {
			out.Suspected = append(out.Suspected, r.ID)
		} else {
			out.Never = append(out.Never, r.ID)
		}
	}
	for _, c := range seen.Clauses {
		if !about[c.Rule] {
			continue
		}
		out.Clauses = append(out.Clauses, c)
		out.Outcomes += 2
		if c.True > 0 {
			out.Seen++
		}
		if c.False > 0 {
			out.Seen++
		}
	}
	if out.Percent = 100; out.Outcomes > 0 {
		out.Percent = 100 * float64(out.Seen) / float64(out.Outcomes)
	}
	return out
}

// lack says what a clause never came to.
func lack(c *rules.Clause) string {
	switch {
	case c.True+c.False+c.Unknown == 0:
		return "never asked"
	case c.True+c.False == 0:
		return "always unknown"
	case c.True == 0:
		return "never true"
	case c.False == 0:
		return "never false"
	}
	return ""
}

// print writes the report: what is missing, and how much that is.
func (c *coverage) print(w io.Writer) error {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, one := range c.Clauses {
		if what := lack(one); what != "" {
			fmt.Fprintf(table, "%s:%d:%d\t%s\t%s %s\t%s\n", one.File, one.Line, one.Column, what, one.Rule, one.Condition, one.Text)
		}
	}
	table.Flush() // into memory
	if len(c.Never) > 0 {
		fmt.Fprintf(&b, "never suspected: %s\n", strings.Join(c.Never, ", "))
	}
	fmt.Fprintf(&b, "coverage: %.0f %%, %d of %d outcomes of %d clauses; %d of %d rules suspected\n", c.Percent, c.Seen, c.Outcomes, len(c.Clauses), len(c.Suspected), c.Rules)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write coverage: %w", err)
	}
	return nil
}

// print writes the result for people.
func (c *Command) print(out *result) error {
	if c.Verbose {
		for _, s := range out.Scenarios {
			verdict := "ok"
			if !s.OK {
				verdict = "failed"
			}
			fmt.Fprintf(c.Stdout, "%s: %s: %s, %d events\n", s.File, s.Name, verdict, s.Events)
			for _, line := range s.Said {
				fmt.Fprintf(c.Stdout, "  %s\n", line)
			}
			if len(s.Said) == 0 {
				fmt.Fprintln(c.Stdout, "  nothing was said")
			}
		}
	}
	for _, p := range out.Problems {
		fmt.Fprintln(c.Stderr, p.Error())
	}
	if out.Coverage != nil && c.Coverage {
		if err := out.Coverage.print(c.Stdout); err != nil {
			return err
		}
	}
	switch {
	case len(out.Problems) > 0:
		fmt.Fprintf(c.Stderr, "problems: %d\n", len(out.Problems))
	case !out.OK:
		fmt.Fprintf(c.Stderr, "coverage is %.1f %%, less than %g %%\nhint: --coverage says what no test reaches\n", out.Coverage.Percent, c.Min)
	}
	if len(out.Problems) == 0 {
		if _, err := fmt.Fprintf(c.Stdout, "%d tests, %d scenarios, %d expectations: ok\n", out.Tests, len(out.Scenarios), out.Expectations); err != nil {
			return fmt.Errorf("write test result: %w", err)
		}
	}
	return nil
}
