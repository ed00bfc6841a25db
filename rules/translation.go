package rules

import (
	"strings"

	"lowtide/rules/variable"
)

// operations are those that a tree knows, with the kind of their result; an equality and a choice take it from their arguments.
var operations = map[string]branch{
	"_&&_": {does: opAnd, kind: variable.Bool}, "_||_": {does: opOr, kind: variable.Bool}, "!_": {does: opNot, kind: variable.Bool},
	"_<_": {does: opLess, kind: variable.Bool}, "_<=_": {does: opLessOrEqual, kind: variable.Bool},
	"_>_": {does: opGreater, kind: variable.Bool}, "_>=_": {does: opGreaterOrEqual, kind: variable.Bool},
	"_==_": {does: opEqual, kind: variable.Bool}, "_!=_": {does: opUnequal, kind: variable.Bool},
	"_+_": {does: opPlus, kind: variable.Number}, "_-_": {does: opMinus, kind: variable.Number},
	"_*_": {does: opTimes, kind: variable.Number}, "_/_": {does: opDivided, kind: variable.Number}, "-_": {does: opNegative, kind: variable.Number},
	"_?_:_": {does: opChoice},
	"@in":   {does: opAmong, kind: variable.Bool},
}

// tree translates an expression whose types were found right; ok is false for one that uses more of CEL than a tree has.
func (c *compiler) tree(e *expression) (n branch, ok bool) {
	switch e.form {
	case isName, isKnown:
		return c.leaf(e)
	case isConstant:
		switch v := e.constant.(type) {
		case float64:
			return branch{kind: variable.Number, number: v}, true
		case bool:
			n = branch{kind: variable.Bool}
			if v {
				n.number = 1
			}
			return n, true
		case string:
			return branch{kind: variable.String, text: v}, true
		}
		return n, false
	case isCall:
	default:
		return n, false
	}
	n, ok = operations[e.does]
	if !ok || e.method {
		return n, false
	}
	args := e.args
	if n.does == opAmong && args[1].form == isList {
		args = append(args[:1:1], args[1].args...)
	}
	for i, arg := range args {
		one, ok := c.tree(arg)
		if !ok || n.does == opAmong && (one.kind != variable.Number || i > 0 && one.does != opConstant) {
			return n, false
		}
		n.args = append(n.args, one)
	}
	switch last := n.args[len(n.args)-1].kind; n.does {
	case opChoice:
		n.kind = last
	case opLess, opLessOrEqual, opGreater, opGreaterOrEqual, opPlus:
		ok = last == variable.Number
	}
	// Words are compared as they are: no sums, no choices of them.
	return n, ok && n.kind != variable.String
}

// leaf translates a name: a variable, whether it is known, a size or a threshold.
func (c *compiler) leaf(e *expression) (n branch, ok bool) {
	if id, found := variable.Lookup(e.name); found {
		if e.form == isKnown {
			return branch{does: opKnown, kind: variable.Bool, id: id}, true
		}
		n = branch{does: opReading, id: id, kind: variable.All()[id].Kind}
		return n, n.kind != variable.Labels
	}
	if v, is := constants[e.name]; is {
		return branch{kind: variable.Number, number: v}, true
	}
	if name, is := strings.CutPrefix(e.name, "t."); is {
		t, declared := c.thresholds[name]
		return branch{kind: variable.Number, number: t.value}, declared
	}
	return n, false
}
