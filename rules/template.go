package rules

import (
	"regexp"
	"strings"

	"lowtide/event"
	"lowtide/rules/variable"
)

// template is a sentence with variables, such as `Live memory rises {{live.growth}}/h`. A part in double brackets is left out when
// one of its variables is unknown: `failed[[ with {{oom.free_bytes}} free]]`.
type template struct {
	parts []part
}

// part is a piece of a template: literal, variable, literal, variable, …, literal.
type part struct {
	literals []string
	ids      []variable.ID
	optional bool
}

// parseTemplate reads a sentence; what is the name of its field in messages. It reports names that do not exist and brackets
// without an end.
func parseTemplate(s scalar, what string) (template, bool) {
	var t template
	ok := true
	report := func(offset int, hint, message string) {
		line := 1 + strings.Count(s.text[:offset], "\n")
		column := len([]rune(s.text[strings.LastIndexByte(s.text[:offset], '\n')+1 : offset]))
		atLine, atColumn := s.at(line, column)
		s.doc.report(atLine, atColumn, hint, "%s: %s", what, message)
		ok = false
	}
	var p part
	var b strings.Builder
	end := func() {
		p.literals = append(p.literals, b.String())
		b.Reset()
		t.parts = append(t.parts, p)
	}
	opened := 0
	for i := 0; i < len(s.text); {
		rest := s.text[i:]
		switch {
		case strings.HasPrefix(rest, "{{"):
			inner, _, closed := strings.Cut(rest[2:], "}}")
			if !closed {
				report(i, "close it with }}", "{{ has no end")
				return t, false
			}
			name := strings.TrimSpace(inner)
			id, found := variable.Lookup(name)
			if !found {
				hint, message := wrongPlace(name)
				report(i, hint, message)
			}
			p.literals, p.ids = append(p.literals, b.String()), append(p.ids, id)
			b.Reset()
			i += 2 + len(inner) + 2
		case strings.HasPrefix(rest, "}}"):
			report(i, "open it with {{ before the variable", "}} closes nothing")
			i += 2
		case single.MatchString(rest):
			m := single.FindStringSubmatch(rest)
			if _, found := variable.Lookup(m[1]); found {
				report(i, "write {{"+m[1]+"}}", m[0]+" stands as it is: a variable has two braces on each side")
			}
			b.WriteString(m[0])
			i += len(m[0])
		case strings.HasPrefix(rest, "[[") && !p.optional:
			end()
			p, opened = part{optional: true}, i
			i += 2
		case strings.HasPrefix(rest, "]]") && p.optional:
			if len(p.ids) == 0 {
				report(opened, "remove the brackets: the part is left out when a variable in it is unknown", "[[ ]] holds no variable")
			}
			end()
			p = part{}
			i += 2
		default:
			b.WriteByte(s.text[i])
			i++
		}
	}
	if p.optional {
		report(opened, "close it with ]]", "[[ has no end")
		return t, false
	}
	end()
	return t, ok
}

// single is a variable as other languages put it into a sentence.
var single = regexp.MustCompile(`^[$%]?\{\s*([a-z_]+\.[a-z0-9_]+)\s*\}`)

// wrongPlace says what is wrong with what stands between {{ and }}.
func wrongPlace(inner string) (hint, message string) {
	name, rest := inner, ""
	if i := strings.IndexAny(inner, "|:%"); i >= 0 {
		name, rest = strings.TrimSpace(inner[:i]), inner[i:]
	}
	_, found := variable.Lookup(name)
	bare := strings.TrimLeft(name, "$.")
	_, foundBare := variable.Lookup(bare)
	switch {
	case inner == "":
		return "write a variable between them, such as {{live.growth}}", "{{ }} holds nothing"
	case found && rest != "":
		return "write {{" + name + "}}: numbers are written with their units", inner + " asks for a format"
	case foundBare:
		return "write {{" + bare + "}}", "variables have no sign before them"
	case strings.HasPrefix(name, "t."):
		return "write its number into the sentence", "thresholds are for conditions: " + name
	case strings.HasPrefix(name, "labels"), strings.HasPrefix(name, "$labels"):
		return "name the worker's variables only: {{model}}, {{release}}, {{host}}", "labels stand on every card already: " + name
	case strings.ContainsAny(inner, " ()<>=+*/-?&!\""):
		return "name one variable, and let the condition compute", inner + " is an expression"
	}
	return suggestVariable(name), "unknown variable " + name
}

func variableNames() []string {
	all := variable.All()
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = v.Name
	}
	return out
}

// fill writes the sentence; unknown says what stands in the place of a variable without a value.
func (t template) fill(s *variable.Sample, unknown func(variable.Variable) string) string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.optional && !p.known(s) {
			continue
		}
		for i, literal := range p.literals {
			b.WriteString(literal)
			if i == len(p.ids) {
				break
			}
			if id := p.ids[i]; s.Known(id) {
				b.WriteString(quantity(s, id, p.literals[i+1]))
			} else {
				b.WriteString(unknown(variable.All()[id]))
			}
		}
	}
	return b.String()
}

func (p part) known(s *variable.Sample) bool {
	for _, id := range p.ids {
		if !s.Known(id) {
			return false
		}
	}
	return true
}

// inSummary and inAdvice are what a sentence says of a value that is missing. Advice names the sensor that would tell.
func inSummary(variable.Variable) string  { return "unknown" }
func inAdvice(v variable.Variable) string { return "not known (no data from " + v.Sensor + ")" }

// quantity writes a known value with its unit. A divisor that the sentence writes itself (`{{live.growth}}/h`) is not written twice.
func quantity(s *variable.Sample, id variable.ID, after string) string {
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
