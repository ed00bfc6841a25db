package rules

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
	"lowtide/rules/variable"
)

// ExplainCommand is `rules explain`: every variable that a rule may read, some of them, or what one rule means.
type ExplainCommand struct {
	JSON  bool     `name:"json" help:"Print one JSON object to stdout."`
	Rules []string `name:"rules" type:"path" placeholder:"PATH" help:"Rule files or folders to lay over the built-in rules."`
	What  string   `arg:"" optional:"" placeholder:"NAME" help:"The id of a rule, a variable, or the beginning of variables (live). Without it every variable is listed."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
}

// unknownName is what somebody asked for and what does not exist.
type unknownName struct{ name, hint string }

func (e *unknownName) Error() string { return fmt.Sprintf("explain: nothing is called %q", e.name) }

// Hint is the nearest name.
func (e *unknownName) Hint() string { return e.hint }

// ExitCode is that of wrong usage.
func (e *unknownName) ExitCode() int { return 2 }

// VariableInfo is one variable as `rules explain --json` prints it.
type VariableInfo struct {
	Name    string `json:"name"`
	Type    string `json:"type"`           // number, bool, string or labels
	Unit    string `json:"unit,omitempty"` // of a number
	Sensor  string `json:"sensor"`         // what it is unknown without
	Doc     string `json:"doc"`
	Example string `json:"example"`
}

// FunctionInfo is a function or a constant of conditions.
type FunctionInfo struct {
	Name    string `json:"name"`
	Doc     string `json:"doc"`
	Example string `json:"example"`
}

// explanation is the answer for programs.
type explanation struct {
	Rule      *RuleInfo      `json:"rule,omitzero"`
	Variables []VariableInfo `json:"variables,omitzero"`
	Functions []FunctionInfo `json:"functions,omitzero"`
}

var functionTable = []FunctionInfo{
	{"known(VARIABLE)", "whether there is a value; a comparison with a value that is missing is unknown, and unknown never pages", "known(live.growth)"},
	{"KiB, MiB, GiB", "sizes: 1024, 1024 * 1024 and 1024 * 1024 * 1024 bytes", "live.growth > 5 * MiB"},
	{"t.NAME", "a threshold of the rule", "live.growth_low > t.floor"},
	{"labels.KEY", "a label; has(labels.KEY) asks whether the worker has it", `has(labels.team) && labels.team == "search"`},
	{"labels.exists(k, …), labels.all(k, …)", "whether a condition holds for one label, or all; labels are the only thing to loop over", `labels.exists(k, k.startsWith("canary"))`},
	{"startsWith, endsWith, contains, matches", "of a string; matches takes a regular expression of RE2", `engine.startsWith("vllm")`},
	{"size(X)", "letters of a string, or how many labels there are; a whole number: write double(size(X)) to count with it", "size(labels) > 2"},
	{"in", "whether a value is in a list", "xid.first in [48, 63, 64, 79, 94, 95]"},
	{"CONDITION ? A : B", "a choice", "quiet.matched ? live.z > 4 : live.z > 3"},
	{"&& || ! == != < <= > >= + - * /", "all numbers are doubles, whole ones too", "!live.filling && live.now / headroom.limit_bytes > 0.9"},
}

// Run prints to stdout; what does not exist is an error with the nearest name.
func (c *ExplainCommand) Run(_ context.Context) error {
	out := c.Stdout
	if out == nil {
		out = os.Stdout
	}
	pack, err := Load(c.Rules...)
	if err != nil {
		return err
	}
	found := explanation{}
	if r := pack.Rule(c.What); r != nil {
		found.Rule = r.Info()
	}
	for _, v := range variable.All() {
		if c.What == "" || v.Name == c.What || strings.HasPrefix(v.Name, strings.TrimSuffix(c.What, ".")+".") {
			found.Variables = append(found.Variables, VariableInfo{v.Name, v.Kind.String(), v.Unit, v.Sensor, v.Doc, v.Example})
		}
	}
	for _, f := range functionTable {
		if c.What == "" || c.What == "functions" || slices.Contains(strings.FieldsFunc(f.Name, func(r rune) bool { return strings.ContainsRune(" ,()", r) }), c.What) {
			found.Functions = append(found.Functions, f)
		}
	}
	if found.Rule == nil && len(found.Variables)+len(found.Functions) == 0 {
		return &unknownName{c.What, nearestName(c.What, pack)}
	}
	if c.JSON {
		line, err := json.Marshal(found, json.Deterministic(true), jsontext.EscapeForHTML(false))
		if err != nil {
			return fmt.Errorf("write explanation: %w", err)
		}
		_, err = fmt.Fprintf(out, "%s\n", line)
		return err
	}
	var text strings.Builder
	if found.Rule != nil {
		text.WriteString(found.Rule.text)
	}
	if len(found.Variables) > 0 {
		if found.Rule != nil {
			text.WriteString("\nvariables\n\n")
		}
		writeVariables(&text, found.Variables)
	}
	if len(found.Functions) > 0 {
		if len(found.Variables) > 0 {
			text.WriteString("\nfunctions, constants and operators\n")
		}
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		for _, f := range found.Functions {
			fmt.Fprintf(w, "  %s\t%s\t%s\n", f.Name, f.Example, f.Doc)
		}
		w.Flush()
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// nearestName makes a hint out of variables, their groups and rules.
func nearestName(name string, pack *Pack) string {
	var ids, names []string
	for _, r := range pack.Rules {
		ids = append(ids, r.ID)
	}
	names = append(names, ids...)
	for _, v := range variable.All() {
		names = append(names, v.Name)
		if root, _, dotted := strings.Cut(v.Name, "."); dotted && !slices.Contains(names, root) {
			names = append(names, root)
		}
	}
	near, ends := event.Nearest(name, names), slices.ContainsFunc(names, func(other string) bool { return strings.HasSuffix(other, "."+name) })
	if hint := suggestVariable(name); ends || near == "" && strings.Contains(hint, " begins ") {
		return hint
	}
	if near != "" {
		return "did you mean " + near + "?"
	}
	return "`lowtide rules explain` lists every variable; the rules are " + strings.Join(ids, ", ")
}

// writeVariables prints a table for each group: what has the same first word.
func writeVariables(text *strings.Builder, all []VariableInfo) {
	group := func(v VariableInfo) string {
		root, _, dotted := strings.Cut(v.Name, ".")
		if !dotted {
			return "who it is"
		}
		return root
	}
	var order []string
	by := map[string][]VariableInfo{}
	for _, v := range all {
		g := group(v)
		if by[g] == nil {
			order = append(order, g)
		}
		by[g] = append(by[g], v)
	}
	for i, g := range order {
		if i > 0 {
			text.WriteString("\n")
		}
		text.WriteString(g + "\n")
		w := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "  VARIABLE\tTYPE\tUNIT\tSENSOR\tEXAMPLE\tWHAT")
		for _, v := range by[g] {
			unit := v.Unit
			switch unit {
			case "1":
				unit = "count"
			case "":
				unit = "-"
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", v.Name, v.Type, unit, v.Sensor, v.Example, v.Doc)
		}
		w.Flush()
	}
}
