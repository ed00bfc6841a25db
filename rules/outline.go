package rules

import (
	"fmt"
	"strings"

	"lowtide/rules/variable"
)

// expression is a parsed expression in the terms of this package: what messages, units and clauses are worked out from.
type expression struct {
	id           int64
	form         form
	does         string   // of a call: the operator as CEL calls it, or the function
	method       bool     // of a call: args[0] is what it is called on
	name         string   // of a name and of has(): a.b.c
	constant     any      // of a constant: float64, uint64, string, bool or nil
	locals       []string // of a loop: the names that it declares
	args         []*expression
	text         string // of a whole condition: as written, on one line
	line, column int    // in the text, from 1 and from 0: of a call its operator or bracket, else where it begins
}

type form uint8

const (
	isCall     form = iota
	isName          // a variable, a threshold, a part of labels, or nothing that is declared
	isKnown         // known(name)
	isHas           // has(name)
	isConstant      // a literal
	isList          // [a, b]
	isLoop          // a macro over args[0]
	isOther
)

// begin returns the leftmost place of an expression.
func (e *expression) begin() (line, column int) {
	line, column = e.line, e.column
	if e.form == isCall && !e.method && isWord(e.does) {
		column -= len(e.does)
	}
	for _, a := range e.args {
		if l, c := a.begin(); l > 0 && (l < line || l == line && c < column) {
			line, column = l, c
		}
	}
	return line, column
}

// walk visits an expression and all within it, until visit says not to go deeper.
func (e *expression) walk(visit func(*expression) bool) {
	if !visit(e) {
		return
	}
	for _, a := range e.args {
		a.walk(visit)
	}
}

// find returns the part with an id, or nil.
func (e *expression) find(id int64) (found *expression) {
	e.walk(func(one *expression) bool {
		if one.id == id {
			found = one
		}
		return found == nil
	})
	return found
}

// written is how an expression reads in a message; side stands for one that is too long to be repeated.
func (e *expression) written(side string) string {
	switch e.form {
	case isName:
		return e.name
	case isKnown:
		return "known(" + e.name + ")"
	case isHas:
		return "has(" + e.name + ")"
	case isConstant:
		switch v := e.constant.(type) {
		case string:
			if len(v) <= 40 {
				return fmt.Sprintf("%q", v)
			}
		case float64:
			return fmt.Sprintf("%v", v)
		case uint64:
			return fmt.Sprintf("%du", v)
		case bool:
			return fmt.Sprintf("%v", v)
		case nil:
			return "null"
		}
	case isCall:
		if e.method && len(e.args) == 1 && e.args[0].form == isName {
			return e.args[0].name + "." + e.does + "()"
		}
		if !e.method && isWord(e.does) {
			return e.does + "(…)"
		}
	case isList:
		return "the list"
	}
	return side
}

// declared returns the variable that an expression names.
func (e *expression) declared() (variable.Variable, bool) {
	if e.form != isName {
		return variable.Variable{}, false
	}
	id, ok := variable.Lookup(e.name)
	if !ok {
		return variable.Variable{}, false
	}
	return variable.All()[id], true
}

func isWord(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}
