package rules

import (
	"strings"

	"lowtide/event"
	"lowtide/rules/variable"
)

// template is a sentence with variables: literal, variable, literal, variable, …, literal.
type template struct {
	literals []string
	ids      []variable.ID
}

// parseTemplate reads `… {{live.growth}}/h …` and reports names that do not exist.
func parseTemplate(s scalar) (template, bool) {
	var t template
	rest, offset, ok := s.text, 0, true
	for {
		before, after, open := strings.Cut(rest, "{{")
		t.literals = append(t.literals, before)
		if !open {
			return t, ok
		}
		start := offset + len(before)
		inner, next, closed := strings.Cut(after, "}}")
		line := 1 + strings.Count(s.text[:start], "\n")
		column := len([]rune(s.text[strings.LastIndexByte(s.text[:start], '\n')+1 : start]))
		atLine, atColumn := s.at(line, column)
		if !closed {
			s.doc.report(atLine, atColumn, "close it with }}", "summary: {{ has no end")
			return t, false
		}
		name := strings.TrimSpace(inner)
		id, found := variable.Lookup(name)
		if !found {
			s.doc.report(atLine, atColumn, suggestVariable(name), "summary: unknown variable %s", name)
			ok = false
		}
		t.ids = append(t.ids, id)
		offset = start + 2 + len(inner) + 2
		rest = next
	}
}

func variableNames() []string {
	all := variable.All()
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = v.Name
	}
	return out
}

func (t template) fill(s *variable.Sample) string {
	var b strings.Builder
	for i, literal := range t.literals {
		b.WriteString(literal)
		if i < len(t.ids) {
			b.WriteString(quantity(s, t.ids[i], t.literals[i+1]))
		}
	}
	return b.String()
}

// quantity writes a value with its unit. A divisor that the sentence writes itself (`{{live.growth}}/h`) is not written twice.
func quantity(s *variable.Sample, id variable.ID, after string) string {
	if !s.Known(id) {
		return "unknown"
	}
	v := variable.All()[id]
	switch v.Kind {
	case variable.Number:
		unit := v.Unit
		if i := strings.IndexByte(unit, '/'); i >= 0 && strings.HasPrefix(after, unit[i:]) {
			unit = unit[:i]
		}
		n, _ := s.Number(id)
		return event.FormatQuantity(n, unit)
	case variable.Bool:
		if b, _ := s.Bool(id); b {
			return "true"
		}
		return "false"
	case variable.String:
		text, _ := s.Text(id)
		return text
	}
	return v.Name
}
