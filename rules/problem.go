package rules

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"lowtide/event"
)

// ErrCheckFailed is returned by CheckCommand when a file or a test is wrong; what is wrong has been printed by then.
var ErrCheckFailed = errors.New("rules check failed")

// Problem is one mistake in a rule or test file. Line and Column count from 1; 0 means the file as a whole.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Source  string `json:"source,omitempty"` // the line of the file
}

// Error shows the place, the message, the line with a caret, and the remedy.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": " + p.Message)
	if p.Source != "" {
		pad := strings.Map(func(r rune) rune {
			if r == '\t' {
				return r
			}
			return ' '
		}, prefix(p.Source, p.Column-1))
		fmt.Fprintf(&b, "\n  | %s\n  | %s^", p.Source, pad)
	}
	if p.Hint != "" {
		b.WriteString("\nhint: " + p.Hint)
	}
	return b.String()
}

// prefix returns the first n runes of s.
func prefix(s string, n int) string {
	r := []rune(s)
	return string(r[:min(max(n, 0), len(r))])
}

// Problems is every mistake of every file that was read, in the order of files and lines.
type Problems []Problem

// Error joins the problems, one after the other.
func (p Problems) Error() string {
	parts := make([]string, len(p))
	for i, one := range p {
		parts[i] = one.Error()
	}
	return strings.Join(parts, "\n")
}

// sorted returns the problems by file and place, and nil as an error when there are none.
func (p Problems) sorted() error {
	if len(p) == 0 {
		return nil
	}
	sort.SliceStable(p, func(i, j int) bool {
		a, b := p[i], p[j]
		if a.File != b.File {
			return a.File < b.File
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return slices.Compact(p) // two rules may share one piece of advice
}

// suggest makes a hint: the nearest name, else the whole list.
func suggest(name string, names []string) string {
	if near := event.Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "use one of " + strings.Join(names, ", ")
}
