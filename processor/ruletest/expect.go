package ruletest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

var expectKeys = []string{"at", "rule", "class", "state", "severity", "subject", "slot", "host", "cluster", "release", "labels", "summary", "count", "nothing"}

// expectation is what stands at a time. Only what is written has to hold.
type expectation struct {
	entry   rules.Entry // all of it
	at      time.Duration
	when    rules.Entry
	wanted  []wanted
	state   string // empty: any but resolved
	count   int    // exactly so many; 0: one or more
	nothing bool
}

// wanted is one field of an incident.
type wanted struct {
	entry rules.Entry
	name  string
	text  string
}

// never is a rule, a class or a severity that is not said at any time.
type never struct {
	entry rules.Entry
	text  string
}

var states = []string{event.Suspected, event.Confirmed, event.Resolved}

var severities = []string{event.Info, event.Ticket, event.Page}

func ruleNames(pack *rules.Pack) []string {
	var out []string
	for _, r := range pack.Rules {
		out = append(out, r.ID)
	}
	return out
}

// readExpected reads what has to be said of a scenario, and what not.
func (s *scenario) readExpected(given map[string]rules.Entry, pack *rules.Pack) {
	if one, ok := given["expect"]; ok {
		for _, item := range one.Items() {
			if x, ok := s.readExpectation(item, pack); ok {
				s.expected = append(s.expected, x)
			}
		}
	}
	if one, ok := given["never"]; ok {
		items := []rules.Entry{one}
		if one.IsList() {
			items = one.Items()
		}
		known := slices.Concat(ruleNames(pack), rules.Classes(), severities)
		for _, item := range items {
			word, ok := item.Word()
			if !ok {
				continue
			}
			if !slices.Contains(known, word.Text()) {
				item.Report(rules.Suggest(word.Text(), known), "never: %q is no rule, no class and no severity", word.Text())
				continue
			}
			s.never = append(s.never, never{item, word.Text()})
		}
	}
	if one, ok := given["nothing"]; ok {
		if is, ok := one.Bool(); ok && is {
			s.nothing = &one
		} else if ok {
			one.Report("write nothing: true, or leave it out", "nothing: false expects nothing at all")
		}
	}
}

func (s *scenario) readExpectation(e rules.Entry, pack *rules.Pack) (x expectation, ok bool) {
	given, all := byName(e, "expect", expectKeys)
	x.entry = e
	if len(all) == 0 {
		return x, false
	}
	when, has := given["at"]
	if !has {
		all[0].ReportKey("add at: 4h, counted from the start", "an expectation has no time")
		return x, false
	}
	if x.at, ok = span(when, 0, 365*24*time.Hour); !ok {
		return x, false
	}
	x.when = when
	if s.recording == "" && x.at > s.length && s.length > 0 {
		when.Report("make a series longer, or write for:", "the scenario ends at %s, before %s", short(s.length), short(x.at))
		return x, false
	}
	ok = true
	allowed := map[string][]string{"rule": ruleNames(pack), "class": rules.Classes(), "state": states, "severity": severities,
		"subject": {"worker", "instance", "gpu", "host", "source", "partition"}}
	for _, one := range all {
		switch name := one.Name(); name {
		case "at":
		case "labels":
			for _, label := range one.Entries() {
				if word, read := label.Word(); read {
					x.wanted = append(x.wanted, wanted{label, "labels." + label.Name(), word.Text()})
				}
			}
		case "nothing":
			is, read := one.Bool()
			if ok = ok && read && is; read && !is {
				one.Report("write nothing: true", "nothing: false expects nothing at all")
			}
			x.nothing = is
		case "count":
			word, read := one.Word()
			n, err := strconv.Atoi(word.Text())
			if read && (err != nil || n < 1 || n > maxMoments) {
				one.Report("write how many incidents stand, or nothing: true", "count: %q is no count from 1", word.Text())
				read = false
			}
			x.count, ok = n, ok && read
		default:
			word, read := one.Word()
			if !read {
				ok = false
				continue
			}
			if names := allowed[name]; names != nil && !slices.Contains(names, word.Text()) {
				one.Report(rules.Suggest(word.Text(), names), "unknown %s %q", name, word.Text())
				ok = false
				continue
			}
			if name == "state" {
				x.state = word.Text()
			}
			x.wanted = append(x.wanted, wanted{one, name, word.Text()})
		}
	}
	if len(x.wanted) == 0 && !x.nothing && ok {
		e.Report("name a rule: or a class:, or write nothing: true", "an expectation without anything in it")
		return x, false
	}
	if x.nothing && (len(x.wanted) > 0 || x.count > 0) {
		e.Report("write two expectations", "nothing: true beside something that stands")
		return x, false
	}
	return x, ok
}

// field is what an incident has under the name that it is expected by.
func field(f *event.Finding, name string) string {
	switch name {
	case "rule":
		return f.Rule
	case "class":
		return f.Class
	case "state":
		return f.State
	case "severity":
		return f.Severity
	case "subject":
		return f.Subject.Kind
	case "slot":
		return f.Slot
	case "host", "cluster":
		return f.Labels[name]
	case "release":
		return f.Release
	case "summary":
		return f.Summary
	}
	label, _ := strings.CutPrefix(name, "labels.")
	return f.Labels[label]
}

func (w wanted) holds(f *event.Finding) bool {
	got := field(f, w.name)
	if w.name == "summary" {
		return strings.Contains(got, w.text)
	}
	return got == w.text
}

// standing returns the last transition of every incident at a time, in the order in which they began.
func standing(all []*event.Finding, at time.Time) (out []*event.Finding) {
	place := map[string]int{}
	for _, f := range all {
		if f.Time.After(at) {
			break
		}
		i, seen := place[f.Incident]
		if !seen {
			place[f.Incident] = len(out)
			out = append(out, f)
			continue
		}
		out[i] = f
	}
	return out
}

// check tells what does not hold, at the place where it is expected.
func (s *scenario) check(c *course) {
	for i := range s.expected {
		s.expected[i].check(s, c)
	}
	for _, n := range s.never {
		for _, f := range c.findings {
			if f.Rule == n.text || f.Class == n.text || f.Severity == n.text && f.State != event.Resolved {
				n.entry.Report("`lowtide rules test --verbose` prints all that was said", "scenario %q: %s is never to be said, and was at %s: %s", s.name, n.text, c.since(f.Time), told(f))
				break
			}
		}
	}
	if s.nothing != nil && len(c.findings) > 0 {
		f := c.findings[0]
		s.nothing.Report("`lowtide rules test --verbose` prints all that was said", "scenario %q: nothing is expected, and at %s there was %s", s.name, c.since(f.Time), told(f))
	}
}

// told is one transition in a line.
func told(f *event.Finding) string {
	who := cmp.Or(f.Slot, f.Subject.Key)
	name := f.Rule
	if f.Rule != f.Class {
		name += " (" + f.Class + ")"
	}
	if f.Shadow {
		name += " in shadow"
	}
	return fmt.Sprintf("%s %s, %s, of %s: %s", name, f.State, f.Severity, who, f.Summary)
}

func (x *expectation) check(s *scenario, c *course) {
	at := c.start.Add(x.at)
	if at.After(c.end) {
		x.when.Report("", "scenario %q: it ends at %s, before %s", s.name, c.since(c.end), short(x.at))
		return
	}
	there := standing(c.findings, at)
	var candidates []*event.Finding
	for _, f := range there {
		if f.State != event.Resolved || x.state == event.Resolved {
			candidates = append(candidates, f)
		}
	}
	if x.nothing {
		if len(candidates) > 0 {
			x.entry.Report("`lowtide rules test --verbose` prints all that was said", "scenario %q: nothing is to stand at %s, and there is %s", s.name, short(x.at), told(candidates[0]))
		}
		return
	}
	met := 0
	for _, f := range candidates {
		if x.misses(f) == nil {
			met++
		}
	}
	switch {
	case met > 0 && (x.count == 0 || x.count == met):
	case met > 0:
		x.entry.Report("", "scenario %q: of such incidents at %s there are %d, expected %d", s.name, short(x.at), met, x.count)
	default:
		x.explain(s, c, candidates)
	}
}

// misses returns what a transition lacks.
func (x *expectation) misses(f *event.Finding) (out []wanted) {
	for _, w := range x.wanted {
		if !w.holds(f) {
			out = append(out, w)
		}
	}
	return out
}

// named says whether an incident is of the rule or class that is meant, where one is.
func (x *expectation) named(f *event.Finding) bool {
	for _, w := range x.wanted {
		if (w.name == "rule" || w.name == "class") && !w.holds(f) {
			return false
		}
	}
	return true
}

// explain says what was there instead: the incident that fits best at that time, else when one that fits stood, else what was said at all.
func (x *expectation) explain(s *scenario, c *course, there []*event.Finding) {
	var nearest *event.Finding
	var lacks []wanted
	for _, f := range there {
		if missing := x.misses(f); x.named(f) && (nearest == nil || len(missing) < len(lacks)) {
			nearest, lacks = f, missing
		}
	}
	if nearest != nil {
		for _, w := range lacks {
			hint := "it has been so since " + c.since(nearest.Time)
			if later := x.first(c, w.name, w.text); later != "" {
				hint += "; " + later
			}
			w.entry.Report(hint, "scenario %q: at %s %s is %s, expected %s", s.name, short(x.at), w.name, orNone(field(nearest, w.name)), w.text)
		}
		return
	}
	what := x.entry
	for _, w := range x.wanted {
		if w.name == "rule" || w.name == "class" {
			what = w.entry
			break
		}
	}
	what.Report(x.instead(c, there), "scenario %q: at %s there is no such incident", s.name, short(x.at))
}

func orNone(text string) string {
	if text == "" {
		return "not given"
	}
	return text
}

// first says when something of the rule was as it is expected.
func (x *expectation) first(c *course, name, text string) string {
	for _, f := range c.findings {
		if x.named(f) && (wanted{name: name, text: text}).holds(f) {
			return name + " was " + text + " at " + c.since(f.Time)
		}
	}
	return ""
}

// instead is the nearest thing to what is expected.
func (x *expectation) instead(c *course, there []*event.Finding) string {
	var parts []string
	var nearest *event.Finding
	at := c.start.Add(x.at)
	for _, f := range c.findings {
		if x.named(f) && (nearest == nil || f.Time.Sub(at).Abs() < nearest.Time.Sub(at).Abs()) {
			nearest = f
		}
	}
	if nearest != nil {
		parts = append(parts, "nearest, at "+c.since(nearest.Time)+": "+told(nearest))
	}
	for _, f := range there {
		if len(parts) < 4 {
			parts = append(parts, "there is, since "+c.since(f.Time)+": "+told(f))
		}
	}
	if nearest == nil {
		for _, r := range c.reports {
			if len(parts) == 4 {
				break
			}
			text := r.Slot + " in the end: " + r.Verdict
			if r.Why != "" {
				text += ", " + r.Why
			}
			for _, w := range x.wanted {
				if missing := r.Missing[w.text]; w.name == "class" && missing != "" {
					text += "; " + w.text + " cannot be assessed without " + missing
				}
			}
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return "nothing was said in the scenario"
	}
	return strings.Join(parts, "\n      ")
}
