package rules

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"lowtide/event"
	"lowtide/rules/variable"
)

var caseKeys = []string{"name", "rule", "set", "unset", "expect"}

var expectKeys = []string{"when", "confirm", "with", "missing", "summary", "against", "refute", "refuted", "ask"}

// cases is one test file: what each rule must say about samples that are written down.
type cases struct {
	pack     *Pack
	numbers  *compiler
	fallback string // the rule that a case is about when it names none
	ran      int
}

// RunCases runs the `tests:` of one `_test.yaml` file against a pack, and adds what is wrong to the problems, each at its place. It
// returns how many cases were run; `scenarios:` are not its to play.
func RunCases(name string, content []byte, pack *Pack, problems *Problems) (int, error) {
	return runCases(name, content, pack, problems)
}

// runCases reads one `_test.yaml` file and reports what is wrong with it and every expectation that does not hold, at its place.
// It returns how many cases were run.
func runCases(name string, content []byte, pack *Pack, problems *Problems) (int, error) {
	numbers, err := newCompiler(nil)
	if err != nil {
		return 0, err
	}
	c := &cases{pack: pack, numbers: numbers, fallback: strings.TrimSuffix(path.Base(filepath.ToSlash(name)), "_test.yaml")}
	doc, root, ok := parse(name, content, problems)
	if !ok {
		return 0, nil
	}
	played := false
	for _, top := range doc.fields(root, "the file") {
		if top.name == "scenarios" { // of the processor, which plays them
			played = true
			continue
		}
		if top.name != "tests" {
			doc.reportAt(top.key, suggest(top.name, []string{"tests", "scenarios"}), "unknown key %q", top.name)
			continue
		}
		for _, n := range top.items() {
			c.run(doc, doc.fields(n, "a test"))
		}
	}
	if c.ran == 0 && !played && len(*problems) == 0 {
		doc.report(0, 0, "add tests: with at least one case, or remove the file", "file has no tests")
	}
	return c.ran, nil
}

func (c *cases) run(doc *document, fields []field) {
	byName := map[string]field{}
	for _, f := range fields {
		if !slices.Contains(caseKeys, f.name) {
			doc.reportAt(f.key, suggest(f.name, caseKeys), "unknown key %q", f.name)
			continue
		}
		byName[f.name] = f
	}
	if len(fields) == 0 {
		return
	}
	title, ok := "", false
	if f, exists := byName["name"]; exists {
		var text scalar
		text, ok = f.text()
		title = text.text
	}
	if !ok {
		doc.reportAt(fields[0].key, "begin it with `- name: …`", "a test has no name")
		return
	}
	id := c.fallback
	if f, exists := byName["rule"]; exists {
		if text, ok := f.text(); ok {
			id = text.text
		}
	}
	rule := c.pack.Rule(id)
	if rule == nil {
		var ids []string
		for _, r := range c.pack.Rules {
			ids = append(ids, r.ID)
		}
		byName["name"].report(suggest(id, ids)+"; a test names its rule with `rule:`", "test %q is about the rule %q, which does not exist", title, id)
		return
	}
	sample := variable.NewSample()
	if f, exists := byName["set"]; exists && f.value != nil {
		for _, one := range doc.fields(f.value, "set") {
			c.set(sample, one)
		}
	}
	if f, exists := byName["unset"]; exists {
		for _, n := range f.items() {
			if text, ok := doc.text(n, "unset"); ok {
				if at, found := variable.Lookup(text.text); found {
					sample.Unset(at)
				} else {
					doc.reportAt(n, suggestVariable(text.text), "unset: unknown variable %s", text.text)
				}
			}
		}
	}
	f, exists := byName["expect"]
	if !exists || f.value == nil {
		byName["name"].report("add expect: {when: true}", "test %q expects nothing", title)
		return
	}
	c.ran++
	c.expect(title, rule, sample, doc.fields(f.value, "expect"))
}

func (c *cases) set(sample *variable.Sample, f field) {
	id, found := variable.Lookup(f.name)
	if !found {
		f.doc.reportAt(f.key, suggestVariable(f.name), "set: unknown variable %s", f.name)
		return
	}
	if variable.All()[id].Kind == variable.Labels {
		labels := map[string]string{}
		if f.value != nil {
			for _, one := range f.doc.fields(f.value, f.name) {
				if text, ok := one.text(); ok {
					labels[one.name] = text.text
				}
			}
		}
		sample.SetLabels(id, labels)
		return
	}
	text, ok := f.text()
	if !ok {
		return
	}
	switch variable.All()[id].Kind {
	case variable.Number:
		if v, ok := c.numbers.number(text, f.name); ok {
			sample.SetNumber(id, v.value)
		}
	case variable.Bool:
		if text.text != "true" && text.text != "false" {
			f.report("write true or false", "%s: %q is no bool", f.name, text.text)
			return
		}
		sample.SetBool(id, text.text == "true")
	case variable.String:
		sample.SetString(id, text.text)
	}
}

func (c *cases) expect(title string, rule *Rule, sample *variable.Sample, wanted []field) {
	result := rule.Evaluate(sample)
	for _, f := range wanted {
		got := ""
		switch f.name {
		case "when":
			got = result.When.String()
		case "confirm":
			got = result.Confirm.String()
		case "with":
			got = result.With.String()
		case "missing":
			got = result.Missing
		case "refute":
			got = result.Refute.String()
		case "ask":
			got = rule.Asks(sample).String()
		case "refuted":
			got = rule.Refuted(sample)
		case "summary":
			got = rule.Summary(sample)
		case "against":
			if f.value != nil {
				c.expectAgainst(title, rule.Against(sample), f.doc.fields(f.value, "against"))
			}
			continue
		default:
			f.doc.reportAt(f.key, suggest(f.name, expectKeys), "unknown key %q in expect", f.name)
			continue
		}
		if text, ok := f.text(); ok && text.text != got {
			f.report("", "test %q: %s is %s, expected %s", title, f.name, got, text.text)
		}
	}
}

func (c *cases) expectAgainst(title string, got []event.CounterEvidence, wanted []field) {
	states := map[string]string{}
	var names []string
	for _, one := range got {
		states[one.Name] = one.State
		names = append(names, one.Name)
	}
	for _, f := range wanted {
		text, ok := f.text()
		if !ok {
			continue
		}
		state, exists := states[f.name]
		switch {
		case !exists:
			f.doc.reportAt(f.key, suggest(f.name, names), "test %q: nothing called %s speaks against the rule", title, f.name)
		case state != text.text:
			f.report("", "test %q: against %s is %s, expected %s", title, f.name, state, text.text)
		}
	}
}
