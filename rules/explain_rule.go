package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

// RuleInfo is what a rule means, as `rules explain ID --json` prints it.
type RuleInfo struct {
	ID         string            `json:"id"`
	Class      string            `json:"class"`
	Scope      string            `json:"scope"`
	File       string            `json:"file"`
	Line       int               `json:"line"`
	Enabled    bool              `json:"enabled"`
	Shadow     bool              `json:"shadow"`
	Conditions map[string]string `json:"conditions"` // when, confirm, refute, with, ask → as written
	Against    []NamedCondition  `json:"against,omitempty"`
	Alone      string            `json:"severity_alone"`
	With       string            `json:"severity_with"`
	PairHours  float64           `json:"pair_hours"`
	KeepHours  float64           `json:"keep_hours"`
	Thresholds event.Measures    `json:"thresholds,omitempty"`
	Explains   []string          `json:"explains,omitempty"`
	Evidence   []string          `json:"evidence,omitempty"`
	Sensors    []SensorUse       `json:"sensors"`
	Advice     []string          `json:"advice,omitempty"`

	text string
}

// NamedCondition is an explanation that would speak against a rule.
type NamedCondition struct {
	Name      string `json:"name"`
	Condition string `json:"condition"`
}

// SensorUse is a sensor that a rule needs, and what the rule says without it.
type SensorUse struct {
	Sensor  string   `json:"sensor"`
	For     []string `json:"for"`     // when, confirm, refute, with, ask, against NAME
	Without string   `json:"without"` // what is said when it is missing
}

var scopeWords = map[string]string{"worker": "each worker", "instance": "each instance, which is an engine with its processes", "gpu": "each GPU", "host": "each host"}

// named returns the conditions of a rule that are written, in the order of a file.
func (r *Rule) named() []struct {
	name string
	program
} {
	var out []struct {
		name string
		program
	}
	for _, name := range conditions {
		p := map[string]program{"when": r.when, "confirm": r.confirm, "refute": r.refute, "with": r.with, "ask": r.ask}[name]
		if p.whole != nil {
			out = append(out, struct {
				name string
				program
			}{name, p})
		}
	}
	return out
}

// written is a condition on one line; a loop is no longer what was written once CEL has read it.
func (p program) written() string {
	loops := false
	p.whole.walk(func(e *expression) bool {
		loops = loops || e.form == isLoop
		return !loops
	})
	if loops {
		return p.whole.text
	}
	return p.whole.source()
}

// Info describes a rule for a reader.
func (r *Rule) Info() *RuleInfo {
	out := &RuleInfo{ID: r.ID, Class: r.Class, Scope: r.Scope, File: r.File, Line: r.Line, Enabled: r.Enabled, Shadow: r.Shadow, Conditions: map[string]string{},
		Alone: r.Alone, With: r.With, PairHours: r.Pair.Hours(), KeepHours: r.Keep.Hours(), Explains: r.Explains, Advice: r.Advice, Sensors: r.sensors()}
	for _, c := range r.named() {
		out.Conditions[c.name] = c.written()
	}
	for _, c := range r.against {
		out.Against = append(out.Against, NamedCondition{c.name, c.written()})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Thresholds)) {
		out.Thresholds = append(out.Thresholds, event.Measure{Name: name, Value: r.Thresholds[name], Unit: r.thresholdUnit(name)})
	}
	for _, id := range r.evidence {
		out.Evidence = append(out.Evidence, variable.All()[id].Name)
	}
	out.text = r.inWords(out)
	return out
}

// thresholdUnit is that of what a threshold is compared with, 1 where nothing is.
func (r *Rule) thresholdUnit(name string) string {
	unit := ""
	look := func(p program) {
		if p.whole == nil {
			return
		}
		p.whole.walk(func(e *expression) bool {
			if len(e.args) == 2 && e.form == isCall {
				for i, a := range e.args {
					if v, ok := e.args[1-i].declared(); ok && a.form == isName && a.name == "t."+name && unit == "" {
						unit = v.Unit
					}
				}
			}
			return true
		})
	}
	for _, c := range r.named() {
		look(c.program)
	}
	for _, c := range r.against {
		look(c.program)
	}
	if unit == "" {
		return "1"
	}
	return unit
}

// sensors returns what feeds the conditions, in the order of the table of variables.
func (r *Rule) sensors() []SensorUse {
	uses := map[string][]string{}
	add := func(p program, what string) {
		for _, id := range p.reads {
			if sensor := variable.All()[id].Sensor; !slices.Contains(uses[sensor], what) {
				uses[sensor] = append(uses[sensor], what)
			}
		}
	}
	for _, c := range r.named() {
		add(c.program, c.name)
	}
	for _, c := range r.against {
		add(c.program, "against "+c.name)
	}
	var out []SensorUse
	for _, v := range variable.All() {
		if uses[v.Sensor] == nil {
			continue
		}
		out = append(out, SensorUse{Sensor: v.Sensor, For: uses[v.Sensor], Without: r.without(v.Sensor, uses[v.Sensor])})
		delete(uses, v.Sensor)
	}
	return out
}

// without says what a rule says when a sensor is missing, from the most to the least that is lost.
func (r *Rule) without(sensor string, uses []string) string {
	var said []string
	against := 0
	for _, use := range uses {
		switch use {
		case "when":
			said = append(said, fmt.Sprintf("where it decides, the class is not assessable (no data from %s): nothing is called, and what stands stays", sensor))
		case "confirm":
			said = append(said, "what it would prove stays suspected")
		case "refute":
			said = append(said, "nothing is refuted by it")
		case "with":
			if r.With != r.Alone {
				said = append(said, "its symptoms raise nothing to "+r.With)
			}
		case "ask":
			said = append(said, "no snapshot is asked for because of it")
		default:
			against++
		}
	}
	if against > 0 {
		said = append(said, "what speaks against it is not assessable")
	}
	return strings.Join(said, "; ")
}

// inWords is the page that `rules explain ID` prints.
func (r *Rule) inWords(info *RuleInfo) string {
	var b strings.Builder
	state := ""
	switch {
	case !r.Enabled:
		state = ", not enabled"
	case r.Shadow:
		state = ", shadow: stored and never announced"
	}
	fmt.Fprintf(&b, "%s: class %s, judged for %s%s\n%s:%d\n", r.ID, r.Class, scopeWords[r.Scope], state, r.File, r.Line)
	heads := map[string]string{
		"when": "suspected when", "confirm": "confirmed when, beside it", "refute": "something else, whatever was seen, when", "ask": "a snapshot of the allocator is asked for when",
		"with": fmt.Sprintf("a %s instead of a %s when, within %s of it", r.With, r.Alone, short(r.Pair)),
	}
	if r.With == r.Alone {
		heads["with"] = fmt.Sprintf("a symptom beside it, within %s, when", short(r.Pair))
	}
	for _, c := range r.named() {
		fmt.Fprintf(&b, "\n%s\n%s\n", heads[c.name], strings.Join(r.spoken(c.whole, "  "), "\n"))
	}
	b.WriteString("\nhow loud\n")
	fmt.Fprintf(&b, "  alone: %s; with a symptom: %s\n", r.Alone, r.With)
	if r.Keep > 0 {
		fmt.Fprintf(&b, "  it holds for %s after the condition ends\n", short(r.Keep))
	}
	if len(r.against) > 0 {
		b.WriteString("\nwhat speaks against it\n")
		for _, c := range r.against {
			fmt.Fprintf(&b, "  %s: %s%s\n", c.name, c.whole.source(), r.meaning(c.whole))
		}
	}
	if len(info.Thresholds) > 0 {
		b.WriteString("\nthresholds\n")
		for _, t := range info.Thresholds {
			fmt.Fprintf(&b, "  t.%s = %s\n", t.Name, event.FormatQuantity(t.Value, t.Unit))
		}
	}
	if len(r.Explains) > 0 {
		fmt.Fprintf(&b, "\nexplains\n  %s: told as its consequences, in its incident\n", strings.Join(r.Explains, ", "))
	}
	b.WriteString("\nsensors, and what is said when one is missing\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range info.Sensors {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", s.Sensor, strings.Join(s.For, ", "), s.Without)
	}
	w.Flush()
	if len(r.evidence) > 0 {
		b.WriteString("\nevidence\n")
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, id := range r.evidence {
			fmt.Fprintf(w, "  %s\t%s\n", variable.All()[id].Name, variable.All()[id].Doc)
		}
		w.Flush()
	}
	if len(r.Advice) > 0 {
		b.WriteString("\nadvice\n")
		for _, line := range r.Advice {
			fmt.Fprintf(&b, "  - %s\n", line)
		}
	}
	return b.String()
}

// short writes a duration without the units that are nought: 1h, 90m.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
