package rules

import (
	"fmt"
	"strconv"
	"strings"

	"lowtide/rules/variable"
)

// threshold is a constant of a rule, with what can be known of its unit.
type threshold struct {
	value  float64
	memory bool   // written with KiB, MiB or GiB
	at     scalar // where it is written
}

// minBytes is what a number of bytes, or of bytes per hour, is at least in a condition: nobody means 5 bytes of memory.
const minBytes = 1 << 10

// operand is one side of a comparison or a sum, as far as its unit is known.
type operand struct {
	of        variable.Variable // named alone; Name is empty otherwise
	constant  bool
	value     float64
	memory    bool
	threshold string
}

// unitCheck reports comparisons and sums of what has different units. It knows variables that stand alone and constants; of everything
// else it knows nothing and says nothing.
type unitCheck struct {
	c    *compiler
	s    scalar
	what string
}

func (u *unitCheck) visit(e *expression) bool {
	if e.form != isCall || len(e.args) != 2 {
		return true
	}
	switch e.does {
	case "_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_", "_+_", "_-_":
		u.pair(e, u.operand(e.args[0]), u.operand(e.args[1]))
	}
	return true
}

func (u *unitCheck) operand(e *expression) operand {
	if v, ok := e.declared(); ok && v.Kind == variable.Number {
		return operand{of: v}
	}
	if name, is := strings.CutPrefix(e.name, "t."); is && e.form == isName {
		t, declared := u.c.thresholds[name]
		return operand{constant: declared, value: t.value, memory: t.memory, threshold: name}
	}
	v, memory, ok := fold(e)
	return operand{constant: ok, value: v, memory: memory}
}

// fold computes an expression of literals and the size constants.
func fold(e *expression) (v float64, memory, ok bool) {
	switch e.form {
	case isConstant:
		v, ok = e.constant.(float64)
		return v, false, ok
	case isName:
		v, ok = constants[e.name]
		return v, ok, ok
	case isCall:
		if e.does == "-_" && len(e.args) == 1 {
			v, memory, ok = fold(e.args[0])
			return -v, memory, ok
		}
		if len(e.args) != 2 {
			return 0, false, false
		}
		a, first, one := fold(e.args[0])
		b, second, other := fold(e.args[1])
		if !one || !other {
			return 0, false, false
		}
		switch e.does {
		case "_+_":
			return a + b, first || second, true
		case "_-_":
			return a - b, first || second, true
		case "_*_":
			return a * b, first || second, true
		case "_/_":
			return a / b, first != second, true
		}
	}
	return 0, false, false
}

// dimension is what may be compared with what: "" goes with everything.
func dimension(unit string) string {
	if unit == "1" || unit == "ratio" {
		return ""
	}
	return unit
}

func (u *unitCheck) pair(e *expression, a, b operand) {
	if a.of.Name == "" {
		a, b = b, a
	}
	if a.of.Name == "" {
		return
	}
	unit := a.of.Unit
	if b.of.Name != "" {
		one, other := dimension(unit), dimension(b.of.Unit)
		if one != other && one != "" && other != "" {
			hint := "compare what has one unit"
			switch {
			case one == "hours" && other == "seconds":
				hint = fmt.Sprintf("write %s * 3600", a.of.Name)
			case one == "seconds" && other == "hours":
				hint = fmt.Sprintf("write %s * 3600", b.of.Name)
			case strings.HasPrefix(one, "bytes") && strings.HasPrefix(other, "bytes"):
				hint = "growth is an amount an hour: compare it with a threshold, such as 5 * MiB"
			}
			u.report(e, hint, "%s is in %s, %s in %s", a.of.Name, unit, b.of.Name, b.of.Unit)
		}
		return
	}
	if !b.constant {
		return
	}
	bytes := strings.HasPrefix(unit, "bytes")
	switch {
	case b.memory && !bytes:
		hint := "write a plain number"
		if unit != "1" {
			hint += ", in " + unit
		}
		u.tell(e, b, hint, "%s is %s, not bytes", a.of.Name, inUnit(unit))
	case (unit == "bytes" || unit == "bytes/h") && !b.memory && b.value > 0 && b.value < minBytes:
		u.tell(e, b, "write "+plain(b.value)+" * MiB; KiB and GiB are there too", "%s is in %s, and %s has no unit", a.of.Name, unit, plain(b.value))
	case unit == "ratio" && a.of.AtMostOne && b.value > 1:
		hint := "write " + percent(plain(b.value))
		if b.value > 100 {
			hint = "write a number from 0 to 1"
		}
		u.tell(e, b, hint, "%s is a ratio from 0 to 1, never %s", a.of.Name, plain(b.value))
	}
}

func inUnit(unit string) string {
	switch unit {
	case "1":
		return "a count"
	case "ratio":
		return "a ratio"
	}
	return "in " + unit
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (u *unitCheck) report(e *expression, hint, format string, args ...any) {
	line, column := u.s.at(e.begin())
	u.s.doc.report(line, column, hint, "%s: %s", u.what, fmt.Sprintf(format, args...))
}

// tell reports what is wrong with a constant: where it is written, which for a threshold is there, once.
func (u *unitCheck) tell(e *expression, b operand, hint, format string, args ...any) {
	if b.threshold == "" {
		at := e.args[1]
		if _, _, constant := fold(e.args[0]); constant {
			at = e.args[0]
		}
		u.report(at, hint, format, args...)
		return
	}
	t := u.c.thresholds[b.threshold]
	if t.at.doc == nil || u.c.told[b.threshold] {
		return
	}
	u.c.told[b.threshold] = true
	line, column := t.at.at(1, 0)
	t.at.doc.report(line, column, hint, "threshold %s: %s", b.threshold, fmt.Sprintf(format, args...))
}
