package rules

import (
	"fmt"
	"slices"
	"strings"

	"lowtide/event"
	"lowtide/rules/variable"
)

// Binding strength of operators, the loosest first.
var binding = map[string]int{"_?_:_": 1, "_||_": 2, "_&&_": 3, "_==_": 4, "_!=_": 4, "_<_": 4, "_<=_": 4, "_>_": 4, "_>=_": 4, "@in": 4,
	"_+_": 5, "_-_": 5, "_*_": 6, "_/_": 6, "_%_": 6, "!_": 7, "-_": 7}

// source writes an expression as it would be written in a rule, with no more brackets than it needs.
func (e *expression) source() string {
	inner := func(a *expression, least int) string {
		if strength, is := binding[a.does]; is && a.form == isCall && strength < least {
			return "(" + a.source() + ")"
		}
		return a.source()
	}
	list := func(args []*expression) string {
		parts := make([]string, len(args))
		for i, a := range args {
			parts[i] = a.source()
		}
		return strings.Join(parts, ", ")
	}
	switch e.form {
	case isCall:
		strength, operator := binding[e.does]
		switch {
		case e.does == "_?_:_":
			return inner(e.args[0], 2) + " ? " + inner(e.args[1], 2) + " : " + inner(e.args[2], 1)
		case e.does == "_[_]":
			return e.args[0].source() + "[" + e.args[1].source() + "]"
		case operator && len(e.args) == 1:
			return strings.Trim(e.does, "_") + inner(e.args[0], strength)
		case e.does == "_&&_" || e.does == "_||_": // CEL balances what is written in a row
			return inner(e.args[0], strength) + " " + strings.Trim(e.does, "_") + " " + inner(e.args[1], strength)
		case operator && len(e.args) == 2:
			return inner(e.args[0], strength) + " " + strings.Trim(strings.TrimPrefix(e.does, "@"), "_") + " " + inner(e.args[1], strength+1)
		case e.method:
			return inner(e.args[0], 8) + "." + e.does + "(" + list(e.args[1:]) + ")"
		}
		return e.does + "(" + list(e.args) + ")"
	case isList:
		return "[" + list(e.args) + "]"
	case isConstant:
		if s, is := e.constant.(string); is {
			return fmt.Sprintf("%q", s)
		}
	case isLoop:
		return "a loop over labels"
	}
	return e.written("…")
}

// flat returns the operands of a chain of one operator.
func (e *expression) flat(does string) []*expression {
	if e.form != isCall || e.does != does {
		return []*expression{e}
	}
	var out []*expression
	for _, a := range e.args {
		out = append(out, a.flat(does)...)
	}
	return out
}

// spoken writes a condition as a list for a reader: what must hold, one below the other, each with what its variables are.
func (r *Rule) spoken(e *expression, indent string) []string {
	switch {
	case e.form == isCall && (e.does == "_&&_" || e.does == "_||_"):
		word := "all of"
		if e.does == "_||_" {
			word = "any of"
		}
		lines := []string{indent + word}
		for _, a := range e.flat(e.does) {
			lines = append(lines, r.spoken(a, indent+"  ")...)
		}
		return lines
	case e.form == isCall && e.does == "!_":
		if a := e.args[0]; a.form == isCall && (a.does == "_&&_" || a.does == "_||_") {
			word := "not all of"
			if a.does == "_||_" {
				word = "none of"
			}
			lines := []string{indent + word}
			for _, one := range a.flat(a.does) {
				lines = append(lines, r.spoken(one, indent+"  ")...)
			}
			return lines
		} else if a.form == isName {
			return []string{indent + "not " + a.name + r.meaning(a)}
		} else if a.form == isKnown {
			return []string{indent + "not known(" + a.name + ")" + r.meaning(a)}
		}
	case e.form == isCall && e.does == "_?_:_":
		lines := append([]string{indent + "where"}, r.spoken(e.args[0], indent+"  ")...)
		lines = append(append(lines, indent+"then"), r.spoken(e.args[1], indent+"  ")...)
		return append(append(lines, indent+"else"), r.spoken(e.args[2], indent+"  ")...)
	}
	return []string{indent + e.source() + r.meaning(e)}
}

// meaning says what the variables of a part of a condition are, and how large its thresholds.
func (r *Rule) meaning(e *expression) string {
	var said []string
	unit := ""
	e.walk(func(one *expression) bool {
		id, found := variable.Lookup(one.name)
		if found && (one.form == isName || one.form == isKnown) {
			v := variable.All()[id]
			if unit == "" {
				unit = v.Unit
			}
			text := v.Doc
			if one.form == isKnown {
				text = "whether there is data from " + v.Sensor
			}
			if !slices.Contains(said, text) {
				said = append(said, text)
			}
		}
		return true
	})
	e.walk(func(one *expression) bool {
		if name, is := strings.CutPrefix(one.name, "t."); is && one.form == isName {
			said = append(said, one.name+" is "+event.FormatQuantity(r.Thresholds[name], unit))
		}
		return true
	})
	if len(said) == 0 {
		return ""
	}
	return ": " + strings.Join(said, "; ")
}
