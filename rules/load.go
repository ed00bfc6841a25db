package rules

import (
	"embed"
	"slices"
	"strings"

	"lowtide/event"
)

//go:embed builtin
var embedded embed.FS

const maxRules = 1000

// Pack is a set of rules, built-in ones first.
type Pack struct{ Rules []*Rule }

// Rule returns the rule with an id, or nil.
func (p *Pack) Rule(id string) *Rule {
	for _, r := range p.Rules {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// load compiles layers of sources, the lowest first.
func load(layers ...[]Source) (*Pack, error) {
	var problems Problems
	var merged []*spec
	for i, sources := range layers {
		below := make([]string, len(merged))
		for i, s := range merged {
			below[i] = s.id
		}
		layer := readSpecs(sources, below, &problems)
		for _, s := range layer {
			s.own = i > 0
			for _, twin := range s.twins { // refused for its id, and what else is wrong with it is told too
				compile(twin, library{layers: layers, problems: &problems}, &problems)
			}
		}
		merged = merge(merged, layer)
	}
	pack := &Pack{}
	for _, s := range merged {
		if r, ok := compile(s, library{layers: layers, problems: &problems}, &problems); ok {
			pack.Rules = append(pack.Rules, r)
		}
	}
	if err := problems.sorted(); err != nil {
		return nil, err
	}
	return pack, nil
}

// readSpecs reads the rules of one layer; an id may come once in it.
func readSpecs(sources []Source, below []string, problems *Problems) []*spec {
	var out []*spec
	seen := map[string]*spec{}
	for _, from := range sources {
		doc, root, ok := parse(from.Name, from.Content, problems)
		if !ok {
			continue
		}
		for _, top := range doc.fields(root, "the file") {
			if top.name != "rules" {
				doc.reportAt(top.key, topHint(top.name), "unknown key %q", top.name)
				continue
			}
			for _, n := range top.items() {
				s, ok := readSpec(doc, doc.fields(n, "a rule"), below)
				if !ok {
					continue
				}
				if first := seen[s.id]; first != nil {
					line, _ := place(first.at.key)
					s.at.report("give it another id", "rule %s is already in %s:%d", s.id, first.at.doc.name, line)
					first.twins = append(first.twins, s)
					continue
				}
				if len(out) == maxRules {
					s.at.report("", "more than %d rules", maxRules)
					return out
				}
				seen[s.id] = s
				out = append(out, s)
			}
		}
	}
	return out
}

func topHint(name string) string {
	switch name {
	case "groups":
		return "there are no groups: begin the file with `rules:`"
	case "tests", "scenarios":
		return "tests belong into a file of their own, named like the rules with _test before .yaml"
	}
	return suggest(name, []string{"rules"})
}

func readSpec(doc *document, fields []field, below []string) (*spec, bool) {
	s := &spec{fields: map[string]field{}, layers: 1}
	for _, f := range fields {
		if !slices.Contains(fieldNames, f.name) {
			doc.reportAt(f.key, suggestField(f.name), "unknown field %q", f.name)
			continue
		}
		s.fields[f.name] = f
	}
	id, ok := s.fields["id"]
	if !ok {
		if len(fields) > 0 {
			doc.reportAt(fields[0].key, "begin the rule with `- id: NAME`", "a rule has no id")
		}
		return nil, false
	}
	text, ok := id.text()
	if !ok {
		return nil, false
	}
	if !validName(text.text) {
		id.report("use a-z, 0-9 and _", "id %q is not a name", text.text)
		return nil, false
	}
	s.id, s.at = text.text, id
	// A part of a rule is enough only where the rest lies below it.
	if !slices.Contains(below, s.id) {
		var lacks []string
		for _, need := range requiredFields {
			if _, ok := s.fields[need]; !ok {
				lacks = append(lacks, need)
			}
		}
		if len(lacks) > 0 {
			hint := "add " + strings.Join(lacks, ":, ") + ":"
			if near := event.Nearest(s.id, below); near != "" {
				hint += ", or did you mean the built-in rule " + near + "?"
			}
			id.report(hint, "rule %s has no %s", s.id, strings.Join(lacks, ", "))
		}
	}
	return s, true
}

func validName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i, c := range s {
		if !(c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}
