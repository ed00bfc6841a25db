package rules

import (
	"math"
	"slices"

	"lowtide/rules/variable"
)

// operation is what a branch of a condition does with its arguments.
type operation uint8

const (
	opConstant operation = iota
	opReading            // of a variable
	opKnown              // whether a variable is known
	opAnd
	opOr
	opNot
	opLess
	opLessOrEqual
	opGreater
	opGreaterOrEqual
	opEqual
	opUnequal
	opPlus
	opMinus
	opTimes
	opDivided
	opNegative
	opChoice // a ? b : c
	opAmong  // a in [b, c]
)

// branch is a condition, or a part of one, in a form that is evaluated without CEL: a tenth of the time, and nothing is allocated.
// It gives what CEL gives, or gives up; conditions that use more of the language than these operations have no tree.
type branch struct {
	does   operation
	kind   variable.Kind // of the result: Number, Bool or String
	id     variable.ID
	number float64 // of a constant; bools are 0 and 1
	text   string  // of a constant
	args   []branch
}

// gaveUp is the outcome of a tree that meets what CEL makes an error of: numbers that cannot be ordered.
const gaveUp Outcome = 3

func outcome(b bool) Outcome {
	if b {
		return True
	}
	return False
}

// truth evaluates a branch of kind Bool. Where it is Unknown, missing is the first variable in the table that made it so.
func (n *branch) truth(s *variable.Sample) (out Outcome, missing variable.ID) {
	switch n.does {
	case opConstant:
		return outcome(n.number == 1), 0
	case opReading:
		b, ok := s.Bool(n.id)
		if !ok {
			return Unknown, n.id
		}
		return outcome(b), 0
	case opKnown:
		return outcome(s.Known(n.id)), 0
	case opAnd:
		return n.all(s, False)
	case opOr:
		return n.all(s, True)
	case opNot:
		switch out, missing = n.args[0].truth(s); out {
		case True:
			return False, 0
		case False:
			return True, 0
		}
		return out, missing
	case opChoice:
		which, missing := n.args[0].truth(s)
		switch which {
		case True:
			return n.args[1].truth(s)
		case False:
			return n.args[2].truth(s)
		}
		return which, missing
	case opAmong:
		return n.among(s)
	}
	switch n.args[0].kind {
	case variable.Number:
		return n.compare(s)
	case variable.Bool:
		a, first := n.args[0].truth(s)
		b, second := n.args[1].truth(s)
		if a > True || b > True {
			return unite(a, b, first, second)
		}
		return outcome((a == b) == (n.does == opEqual)), 0
	}
	a, first, one := n.args[0].words(s)
	b, second, other := n.args[1].words(s)
	if one != True || other != True {
		return unite(one, other, first, second)
	}
	return outcome((a == b) == (n.does == opEqual)), 0
}

// unite is the state of an operation on two arguments of which one at least has no value.
func unite(a, b Outcome, first, second variable.ID) (Outcome, variable.ID) {
	switch {
	case a == gaveUp || b == gaveUp:
		return gaveUp, 0
	case a != Unknown:
		return Unknown, second
	case b != Unknown:
		return Unknown, first
	}
	return Unknown, min(first, second)
}

// all evaluates the arguments of && and ||: the deciding outcome of one decides, whatever is unknown about the others.
func (n *branch) all(s *variable.Sample, deciding Outcome) (out Outcome, missing variable.ID) {
	out = True
	if deciding == True {
		out = False
	}
	for i := range n.args {
		switch one, id := n.args[i].truth(s); {
		case one == deciding:
			return one, 0
		case one == gaveUp:
			out = gaveUp
		case one == Unknown && out != gaveUp:
			if out != Unknown || id < missing {
				missing = id
			}
			out = Unknown
		}
	}
	return out, missing
}

// decides adds what makes a branch of kind Bool false, and returns false where it is not that. Of a conjunction one part is enough, best
// one of which nothing has changed lately; of a disjunction all of them are needed.
func (n *branch) decides(s *variable.Sample, by *variable.Reading) bool {
	switch n.does {
	case opAnd:
		var found *branch
		for i := range n.args {
			if steady, is := n.args[i].steadily(s); is && (steady || found == nil) {
				if found = &n.args[i]; steady {
					break
				}
			}
		}
		return found != nil && found.decides(s, by)
	case opOr:
		for i := range n.args {
			if !n.args[i].decides(s, by) {
				return false
			}
		}
		return true
	}
	if out, _ := n.truth(s); out != False {
		return false
	}
	n.reads(by)
	return true
}

// BesideReads returns the variables on which Beside and Refutes depend; some may come twice.
func (r *Rule) BesideReads() []variable.ID {
	return slices.Concat(r.confirm.reads, r.refute.reads, r.with.reads)
}

// steadily says whether a branch is false, and whether nothing has changed of what makes it so.
func (n *branch) steadily(s *variable.Sample) (steady, is bool) {
	switch n.does {
	case opAnd:
		for i := range n.args {
			if one, no := n.args[i].steadily(s); no {
				if is = true; one {
					return true, true
				}
			}
		}
		return false, is
	case opOr:
		steady = true
		for i := range n.args {
			one, no := n.args[i].steadily(s)
			if !no {
				return false, false
			}
			steady = steady && one
		}
		return steady, true
	}
	if out, _ := n.truth(s); out != False {
		return false, false
	}
	return !n.moved(s), true
}

// moved says whether anything that a branch reads has changed.
func (n *branch) moved(s *variable.Sample) bool {
	switch n.does {
	case opReading:
		return s.Changed(n.id)
	case opKnown:
		return s.Flipped(n.id)
	}
	for i := range n.args {
		if n.args[i].moved(s) {
			return true
		}
	}
	return false
}

// reads adds all that a branch reads.
func (n *branch) reads(by *variable.Reading) {
	switch n.does {
	case opReading:
		by.Values.Add(n.id)
	case opKnown:
		by.Presence.Add(n.id)
	}
	for i := range n.args {
		n.args[i].reads(by)
	}
}

func (n *branch) compare(s *variable.Sample) (Outcome, variable.ID) {
	a, first, one := n.args[0].value(s)
	b, second, other := n.args[1].value(s)
	if one != True || other != True {
		return unite(one, other, first, second)
	}
	if math.IsNaN(a) || math.IsNaN(b) {
		return gaveUp, 0
	}
	switch n.does {
	case opLess:
		return outcome(a < b), 0
	case opLessOrEqual:
		return outcome(a <= b), 0
	case opGreater:
		return outcome(a > b), 0
	case opGreaterOrEqual:
		return outcome(a >= b), 0
	case opEqual:
		return outcome(a == b), 0
	}
	return outcome(a != b), 0
}

func (n *branch) among(s *variable.Sample) (Outcome, variable.ID) {
	a, missing, state := n.args[0].value(s)
	if state != True {
		return state, missing
	}
	for i := range n.args[1:] {
		if n.args[1+i].number == a {
			return True, 0
		}
	}
	return False, 0
}

// value evaluates a branch of kind Number; it is there when state is True.
func (n *branch) value(s *variable.Sample) (v float64, missing variable.ID, state Outcome) {
	switch n.does {
	case opConstant:
		return n.number, 0, True
	case opReading:
		v, ok := s.Number(n.id)
		if !ok {
			return 0, n.id, Unknown
		}
		return v, 0, True
	case opChoice:
		which, missing := n.args[0].truth(s)
		switch which {
		case True:
			return n.args[1].value(s)
		case False:
			return n.args[2].value(s)
		}
		return 0, missing, which
	}
	a, first, one := n.args[0].value(s)
	if n.does == opNegative {
		return -a, first, one
	}
	b, second, other := n.args[1].value(s)
	if one != True || other != True {
		state, missing = unite(one, other, first, second)
		return 0, missing, state
	}
	switch n.does {
	case opPlus:
		return a + b, 0, True
	case opMinus:
		return a - b, 0, True
	case opTimes:
		return a * b, 0, True
	}
	return a / b, 0, True
}

// words evaluates a branch of kind String: a constant or a variable.
func (n *branch) words(s *variable.Sample) (text string, missing variable.ID, state Outcome) {
	if n.does == opConstant {
		return n.text, 0, True
	}
	if text, ok := s.Text(n.id); ok {
		return text, 0, True
	}
	return "", n.id, Unknown
}
