package rules

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"lowtide/event"
	"lowtide/rules/variable"
)

// conditions are the fields that are expressions.
var conditions = []string{"when", "confirm", "refute", "with", "ask"}

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
func compile(s *spec, shelf library, problems *Problems) (*Rule, bool) {
	before := len(*problems)
	line, _ := place(s.at.key)
	r := &Rule{ID: s.id, File: s.at.doc.name, Line: line, Pair: time.Hour, Enabled: true, Own: s.own}
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
	numbers := s.thresholds()
	r.Thresholds = make(map[string]float64, len(numbers))
	for name, t := range numbers {
		r.Thresholds[name] = t.value
	}
	c, err := newCompilerOf(numbers)
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
	s.advice(r, shelf)
	r.print = fingerprint(s, r)
	return r, len(*problems) == before
}

// advice reads the lines of the rule's advice file, each of which is a template.
func (s *spec) advice(r *Rule, shelf library) {
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
		lines, names = shelf.lines(text.text, f.doc.name)
	}
	if len(lines) == 0 {
		hint := "put it into advice/" + text.text + ".md beside the rules"
		if near := event.Nearest(text.text, names); near != "" {
			hint = "did you mean " + near + "? Otherwise " + hint
		}
		f.report(hint, "advice %q has no file with lines in it", text.text)
	}
	for _, line := range lines {
		if t, ok := parseTemplate(line, "advice"); ok {
			r.Advice, r.advice = append(r.Advice, line.text), append(r.advice, t)
		}
	}
}

// elsewhere are the fields of other rule formats, with what to write here.
var elsewhere = map[string]string{
	"alert": "write id:", "name": "write id:", "title": "write id:, and summary: for the sentence", "expr": "write when:", "expression": "write when:", "condition": "write when:",
	"if": "write when:", "for": "there is no for: what is judged at quiet points has lasted already; keep: holds a condition after it ends",
	"keep_firing_for": "write keep:", "hold": "write keep:", "labels": "labels come from the worker; match them in when: labels.team == \"search\"",
	"annotations": "write summary: and advice:", "description": "write summary:", "message": "write summary:", "output": "write summary:", "desc": "write summary:",
	"runbook": "write advice:, the name of a file in the folder advice", "runbook_url": "write advice:, the name of a file in the folder advice",
	"threshold": "write thresholds: {floor: 5 * MiB}", "inhibits": "write explains:, a list of classes", "priority": "write severity: {alone: ticket, with: page}",
	"level": "write severity: {alone: ticket, with: page}", "type": "write class:", "kind": "write class:", "disabled": "write enabled: false", "dry_run": "write shadow: true",
	"window": "write pair:, how long a symptom stays beside the condition",
}

// suggestField is the remedy for a field that rules do not have.
func suggestField(name string) string {
	if hint, known := elsewhere[name]; known {
		return hint
	}
	return suggest(name, fieldNames)
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
	switch {
	case err != nil || text.text == "0": // a number alone is a duration to nobody but Go
		f.report(durationHint(text.text), "%s: %q is no duration", name, text.text)
	case d < 0:
		f.report("write it as 90s, 15m or 2h", "%s: %q is negative", name, text.text)
	case d > maxDuration:
		f.report("write at most 720h", "%s: %q is longer than 30 days", name, text.text)
	default:
		*into = d
	}
}

// spelled is a duration as people write it.
var spelled = regexp.MustCompile(`^(\d+(?:\.\d+)?) *([a-zA-Z]*)\.?$`)

// durationHint turns what somebody wrote into a duration, where that can be told.
func durationHint(text string) string {
	m := spelled.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return "write it as 90s, 15m or 2h"
	}
	switch unit := strings.ToLower(m[2]); unit {
	case "":
		return "write the unit too: " + m[1] + "h, " + m[1] + "m or " + m[1] + "s"
	case "s", "sec", "secs", "second", "seconds":
		return "write " + m[1] + "s"
	case "m", "min", "mins", "minute", "minutes":
		return "write " + m[1] + "m"
	case "h", "hr", "hrs", "hour", "hours":
		return "write " + m[1] + "h"
	case "d", "day", "days", "w", "week", "weeks":
		if n, err := strconv.ParseFloat(m[1], 64); err == nil {
			hours := 24 * n
			if unit[0] == 'w' {
				hours *= 7
			}
			return "hours are the largest unit: write " + plain(hours) + "h"
		}
	}
	return "write it as 90s, 15m or 2h"
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
	if _, single := f.value.(*ast.StringNode); single {
		text, _ := f.text()
		hint := "write severity: {alone: ticket, with: page}"
		if slices.Contains(severities, text.text) {
			hint = "write severity: {alone: " + text.text + "}"
		}
		f.report(hint, "severity is one word, and has two parts: alone, and with a symptom beside it")
		return
	}
	for _, one := range f.doc.fields(f.value, "severity") {
		text, ok := one.text()
		if !ok {
			continue
		}
		if !slices.Contains(severities, text.text) {
			one.report(severityHint(text.text), "unknown severity %q", text.text)
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

// severityHint knows the words of others.
func severityHint(word string) string {
	switch strings.ToLower(word) {
	case "critical", "error", "high", "fatal", "emergency", "p1", "sev1":
		return "write page, for what must wake somebody; or ticket, info"
	case "warning", "warn", "medium", "low", "p2", "p3", "sev2", "sev3":
		return "write ticket, for what can wait for the day; or info, page"
	case "none", "debug", "notice":
		return "write info; a rule that only records is `shadow: true`"
	}
	return suggest(word, severities)
}

func (s *spec) list(name string) (nodes []node) {
	f, ok := s.fields[name]
	if !ok {
		return nil
	}
	return f.items()
}

// thresholds computes the constants of the rule, those of the rule below first.
func (s *spec) thresholds() map[string]threshold {
	out := map[string]threshold{}
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
				if t, ok := numbers.number(text, "threshold "+one.name); ok {
					out[one.name] = t
					continue
				}
			}
			// Declared although wrong, so that every use of it is not reported too.
			out[one.name] = threshold{}
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
