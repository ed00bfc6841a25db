package rules

import (
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

var fieldNames = []string{"id", "class", "scope", "thresholds", "when", "confirm", "refute", "with", "ask", "pair", "keep", "severity", "against",
	"explains", "summary", "refuted", "evidence", "advice", "enabled", "shadow"}

var requiredFields = []string{"class", "scope", "when", "severity", "summary"}

var scopes = []string{"worker", "instance", "gpu", "host"}

var severities = []string{event.Info, event.Ticket, event.Page}

// Classes returns the closed list that a finding's class comes from, in the order of precedence where one is defined.
func Classes() []string {
	return []string{"device_fault", "software_fault", "cotenant", "retention", "native_growth", "graph_pools", "stream_backlog",
		"fragmentation", "oversize_request", "capacity", "kv_block_leak", "kv_pressure", "pinned_memory", "host_memory", "fd_leak",
		"thread_leak", "external_kill", "stall", "crash_loop", "exhaustion", "blind"}
}

const maxDuration = 30 * 24 * time.Hour

// compile turns a rule as written into one that can be evaluated. It reports everything that is wrong with it.
func compile(s *spec, folders []folder, problems *Problems) (*Rule, bool) {
	before := len(*problems)
	line, _ := place(s.at.key)
	r := &Rule{ID: s.id, File: s.at.doc.name, Line: line, Pair: time.Hour, Enabled: true}
	r.Class = s.word("class", Classes())
	r.Scope = s.word("scope", scopes)
	s.flag("enabled", &r.Enabled)
	s.flag("shadow", &r.Shadow)
	s.duration("pair", &r.Pair)
	s.duration("keep", &r.Keep)
	s.severity(r)
	for _, n := range s.list("explains") {
		if text, ok := s.fields["explains"].doc.text(n, "explains"); ok {
			if !slices.Contains(Classes(), text.text) {
				text.doc.reportAt(n, suggest(text.text, Classes()), "explains: unknown class %q", text.text)
			}
			r.Explains = append(r.Explains, text.text)
		}
	}
	r.Thresholds = s.thresholds()
	c, err := newCompiler(r.Thresholds)
	if err != nil {
		s.at.report("", "rule %s: %v", s.id, err)
		return nil, false
	}
	for name, into := range map[string]*program{"when": &r.when, "confirm": &r.confirm, "refute": &r.refute, "with": &r.with, "ask": &r.ask} {
		if f, ok := s.fields[name]; ok {
			if text, ok := f.text(); ok {
				*into, _ = c.condition(text, name)
			}
		}
	}
	s.counters(r, c)
	if f, ok := s.fields["ask"]; ok && r.Scope != "worker" {
		f.report("a snapshot is of one process: ask in a rule of scope worker", "ask in a rule of scope %s", r.Scope)
	}
	for _, p := range []program{r.when, r.confirm, r.refute, r.with, r.ask} {
		r.reads = append(r.reads, p.reads...)
	}
	slices.Sort(r.reads)
	r.reads = slices.Compact(r.reads)
	r.condition = variable.NewReading(r.when.reads...)
	for name, into := range map[string]*template{"summary": &r.summary, "refuted": &r.refuted} {
		if f, ok := s.fields[name]; ok {
			if text, ok := f.text(); ok {
				*into, _ = parseTemplate(text, name)
			}
		}
	}
	for name, other := range map[string]string{"refute": "refuted", "refuted": "refute"} {
		if f, ok := s.fields[name]; ok {
			if _, ok := s.fields[other]; !ok {
				f.report("refute: is the condition, refuted: the sentence that says why", "%s has no %s beside it", name, other)
			}
		}
	}
	for _, n := range s.list("evidence") {
		text, ok := s.fields["evidence"].doc.text(n, "evidence")
		if !ok {
			continue
		}
		id, found := variable.Lookup(text.text)
		switch {
		case !found:
			text.doc.reportAt(n, suggestVariable(text.text), "evidence: unknown variable %s", text.text)
		case variable.All()[id].Kind != variable.Number:
			text.doc.reportAt(n, "evidence is made of numbers", "evidence: %s is a %s", text.text, variable.All()[id].Kind)
		case slices.Contains(r.evidence, id):
			text.doc.reportAt(n, "name each once", "evidence: %s is named twice", text.text)
		default:
			r.evidence = append(r.evidence, id)
		}
	}
	s.advice(r, folders, problems)
	r.print = fingerprint(s, r)
	return r, len(*problems) == before
}

// advice reads the lines of the rule's advice file, each of which is a template.
func (s *spec) advice(r *Rule, folders []folder, problems *Problems) {
	f, ok := s.fields["advice"]
	if !ok {
		return
	}
	text, ok := f.text()
	if !ok {
		return
	}
	lines, names := []scalar(nil), []string(nil)
	if validName(text.text) {
		lines, names = adviceLines(text.text, folders, problems)
	}
	if len(lines) == 0 {
		f.report("put it into advice/"+text.text+".md beside the rules"+or(names), "advice %q has no file with lines in it", text.text)
	}
	for _, line := range lines {
		if t, ok := parseTemplate(line, "advice"); ok {
			r.Advice, r.advice = append(r.Advice, line.text), append(r.advice, t)
		}
	}
}

func or(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ", or use one of " + strings.Join(names, ", ")
}

func suggestVariable(name string) string {
	if near := event.Nearest(name, variableNames()); near != "" {
		return "did you mean " + near + "?"
	}
	return "`lowtide rules explain` prints the variables that exist"
}

func (s *spec) word(name string, allowed []string) string {
	f, ok := s.fields[name]
	if !ok {
		return ""
	}
	text, ok := f.text()
	if ok && !slices.Contains(allowed, text.text) {
		f.report(suggest(text.text, allowed), "unknown %s %q", name, text.text)
	}
	return text.text
}

func (s *spec) flag(name string, into *bool) {
	f, ok := s.fields[name]
	if !ok {
		return
	}
	if text, ok := f.text(); ok {
		switch text.text {
		case "true", "false":
			*into = text.text == "true"
		default:
			f.report("write true or false", "%s: %q is no bool", name, text.text)
		}
	}
}

func (s *spec) duration(name string, into *time.Duration) {
	f, ok := s.fields[name]
	if !ok {
		return
	}
	text, ok := f.text()
	if !ok {
		return
	}
	d, err := time.ParseDuration(text.text)
	if err != nil || d < 0 || d > maxDuration {
		f.report("write it as 90s, 15m or 2h, at most 720h", "%s: %q is no duration", name, text.text)
		return
	}
	*into = d
}

func (s *spec) severity(r *Rule) {
	f, ok := s.fields["severity"]
	if !ok {
		return
	}
	if f.value == nil {
		f.report("write severity: {alone: ticket, with: page}", "severity is empty")
		return
	}
	for _, one := range f.doc.fields(f.value, "severity") {
		text, ok := one.text()
		if !ok {
			continue
		}
		if !slices.Contains(severities, text.text) {
			one.report(suggest(text.text, severities), "unknown severity %q", text.text)
		}
		switch one.name {
		case "alone":
			r.Alone = text.text
		case "with":
			r.With = text.text
		default:
			f.doc.reportAt(one.key, suggest(one.name, []string{"alone", "with"}), "unknown key %q in severity", one.name)
		}
	}
	if r.Alone == "" {
		f.report("add alone: ticket", "severity has no alone")
	}
	if r.With == "" {
		r.With = r.Alone
	}
}

func (s *spec) list(name string) (nodes []node) {
	f, ok := s.fields[name]
	if !ok {
		return nil
	}
	return f.items()
}

// thresholds computes the constants of the rule, those of the rule below first.
func (s *spec) thresholds() map[string]float64 {
	out := map[string]float64{}
	f, ok := s.fields["thresholds"]
	if !ok {
		return out
	}
	var layers []field
	for at := &f; at != nil; at = at.below {
		layers = append([]field{*at}, layers...)
	}
	numbers, err := newCompiler(nil)
	if err != nil {
		f.report("", "thresholds: %v", err)
		return out
	}
	for _, layer := range layers {
		if layer.value == nil {
			continue
		}
		for _, one := range layer.doc.fields(layer.value, "thresholds") {
			if !validName(one.name) {
				layer.doc.reportAt(one.key, "use a-z, 0-9 and _", "threshold %q is not a name", one.name)
				continue
			}
			if text, ok := one.text(); ok {
				if v, ok := numbers.number(text, "threshold "+one.name); ok {
					out[one.name] = v
					continue
				}
			}
			// Declared although wrong, so that every use of it is not reported too.
			out[one.name] = 0
		}
	}
	return out
}

func (s *spec) counters(r *Rule, c *compiler) {
	f, ok := s.fields["against"]
	if !ok || f.value == nil {
		return
	}
	for _, one := range f.doc.fields(f.value, "against") {
		if text, ok := one.text(); ok {
			if p, ok := c.condition(text, "against "+one.name); ok {
				r.against = append(r.against, counter{name: one.name, program: p})
			}
		}
	}
}

func (c *compiler) thresholdNames() []string {
	var out []string
	for name := range c.thresholds {
		out = append(out, "t."+name)
	}
	slices.Sort(out)
	return out
}
