package rules

import (
	"fmt"
	"strconv"
	"strings"

	"lowtide/rules/variable"
)

// kindWords are CEL's types as a rule author knows them.
var kindWords = map[string]string{
	"double": "a number", "int": "a whole number", "uint": "an unsigned number", "string": "a string", "bool": "a bool", "bytes": "bytes",
	"map(string, string)": "the labels", "null": "null", "google.protobuf.Duration": "a duration", "google.protobuf.Timestamp": "a time",
	"list(string)": "a list of strings", "list(double)": "a list of numbers", "duration": "a duration", "timestamp": "a time",
}

func kindWord(celType string) string {
	if word, ok := kindWords[celType]; ok {
		return word
	}
	return "a " + celType
}

// described is an operand with its kind: "live.growth is a number (bytes/h)".
func (e *expression) described(side, celType string) string {
	kind := kindWord(celType)
	if v, ok := e.declared(); ok && v.Unit != "" && v.Unit != "1" {
		kind += " (" + v.Unit + ")"
	}
	return e.written(side) + " is " + kind
}

// mismatch words "no matching overload": what was given to an operator or a function that does not take it, where that is and what to
// write instead. types are CEL's, one for each argument.
func mismatch(e *expression, types []string) (at *expression, words, hint string) {
	if len(types) != len(e.args) || len(types) == 0 {
		return e, "", ""
	}
	sign := strings.Trim(strings.TrimPrefix(e.does, "@"), "_")
	switch e.does {
	case "_?_:_":
		if types[0] != "bool" {
			return e.args[0], "the condition of a choice must be a bool: " + e.args[0].described("it", types[0]), toBool(e.args[0], types[0])
		}
		return e, fmt.Sprintf("a choice between two kinds: %s, %s", e.args[1].described("the first", types[1]), e.args[2].described("the second", types[2])),
			"make both sides of `:` numbers, or both bools"
	case "!_":
		hint := toBool(e.args[0], types[0])
		if e.args[0].form == isName {
			hint += ", or !known(" + e.args[0].name + ") to ask whether it is missing"
		}
		return e.args[0], "! wants a bool: " + e.args[0].described("what follows", types[0]), hint
	case "-_":
		return e.args[0], "- wants a number: " + e.args[0].described("what follows", types[0]), "remove the sign"
	case "_%_":
		return e, "there is no remainder of such numbers", "compare them, or list the values: rank in [0, 2, 4]"
	case "@in":
		return inside(e, types)
	case "_[_]":
		return e.args[1], e.args[0].described("this", types[0]) + ", and its keys are strings", `write labels.team or labels["team"]`
	}
	if len(types) == 2 && strings.HasPrefix(e.does, "_") {
		return operands(e, sign, types)
	}
	given := make([]string, len(types))
	for i := range types {
		given[i] = kindWord(types[i])
	}
	if e.method {
		return e.args[min(1, len(e.args)-1)], fmt.Sprintf("%s of %s does not take %s", e.does, given[0], strings.Join(given[1:], ", ")), takes(e)
	}
	return e, fmt.Sprintf("%s() does not take %s", e.does, strings.Join(given, ", ")), takes(e)
}

func takes(e *expression) string {
	switch e.does {
	case "startsWith", "endsWith", "contains", "matches":
		return fmt.Sprintf(`write it with a text: engine.%s("v")`, e.does)
	case "size":
		return "size() counts the letters of a string, or the labels: size(labels)"
	}
	return "give it one string or number"
}

func inside(e *expression, types []string) (at *expression, words, hint string) {
	left := e.args[0].written("x")
	switch {
	case types[1] == "string" && types[0] == "string":
		return e.args[1], "in wants a list: " + e.args[1].described("what follows", types[1]),
			fmt.Sprintf("write %s in [%s], or %s == %s", left, e.args[1].written("…"), left, e.args[1].written("…"))
	case strings.HasPrefix(types[1], "list("):
		return e, fmt.Sprintf("%s, and what follows in is %s", e.args[0].described("what stands before in", types[0]), kindWord(types[1])), "list values of the same kind"
	}
	return e.args[1], "in wants a list: " + e.args[1].described("what follows", types[1]), "write " + left + " in [a, b]"
}

func number(t string) bool { return t == "double" || t == "int" || t == "uint" }

// operands words two operands of different kinds.
func operands(e *expression, sign string, types []string) (at *expression, words, hint string) {
	a, b := e.args[0], e.args[1]
	words = fmt.Sprintf("%s, %s: %s does not take both", a.described("the left side", types[0]), b.described("the right side", types[1]), sign)
	if number(types[0]) && number(types[1]) { // whole numbers of a rule are doubles; size() is not, and 5u is not
		for i, t := range types {
			if t == "double" {
				continue
			}
			if v, ok := e.args[i].constant.(uint64); ok && e.args[i].form == isConstant {
				return e.args[i], words, fmt.Sprintf("write %s", decimal(float64(v)))
			}
			other := e.args[1-i].written("…")
			if v, ok := e.args[1-i].constant.(float64); ok {
				other = decimal(v)
			}
			parts := []string{"double(" + e.args[i].call() + ")", other}
			if i == 1 {
				parts[0], parts[1] = parts[1], parts[0]
			}
			return e.args[i], words, "write " + strings.Join(parts, " "+sign+" ")
		}
	}
	for i := range types {
		one, other, kind, against := e.args[i], e.args[1-i], types[i], types[1-i]
		switch {
		case kind == "null":
			return one, words, "a value that is missing is unknown: write !known(" + other.written("x") + ")"
		case kind == "bool" && against != "bool":
			return one, words, fmt.Sprintf("%s is true or false by itself: write %s or !%s", one.written("a bool"), one.written("it"), one.written("it"))
		case kind == "string" && number(against) && one.form == isConstant:
			return one, words, quoted(one.constant.(string), other)
		case kind == "string" && number(against) && other.form == isConstant:
			return other, words, fmt.Sprintf("write it as a text: %q", other.written("5"))
		}
	}
	if number(types[0]) || number(types[1]) {
		return e, words, "compare numbers with numbers and strings with strings"
	}
	return e, words, "both sides must be of one kind"
}

// call is how a call reads when it is short enough to be repeated.
func (e *expression) call() string {
	if e.form == isCall && isWord(e.does) && len(e.args) == 1 {
		if e.method {
			return e.args[0].written("…") + "." + e.does + "()"
		}
		return e.does + "(" + e.args[0].written("…") + ")"
	}
	return e.written("…")
}

// decimal writes a number with a point, as a double is written in CEL.
func decimal(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// quoted is the remedy for a number that was written as a text, in the unit of what it is compared with.
func quoted(text string, with *expression) string {
	text = strings.TrimSpace(text)
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return "write it without quotes: " + text
	}
	if m := slips[len(slips)-1].pattern.FindStringSubmatch(text); m != nil && len(m[0]) == len(text) {
		if hint := quantityHint(m[2], m[3]); hint != "" {
			return hint + ", without quotes"
		}
	}
	if strings.HasSuffix(text, "%") {
		return "write " + percent(strings.TrimSuffix(text, "%")) + ", without quotes"
	}
	if v, ok := with.declared(); ok {
		return fmt.Sprintf("compare it with a number: %s > %s", v.Name, v.Example)
	}
	return compareNumber
}

const compareNumber = "compare it with a number"

// toBool is the remedy for what stands where a bool is wanted.
func toBool(e *expression, celType string) string {
	name := e.written("…")
	switch {
	case e.does == "_?_:_" && number(celType):
		return "compare it in brackets, (a ? b : c) > 0, or make both sides of `:` conditions"
	case number(celType):
		if v, ok := e.declared(); ok {
			return fmt.Sprintf("compare it: %s > %s", name, sensible(v))
		}
		return "compare it: " + name + " > 0"
	case celType == "string":
		if v, ok := e.declared(); ok {
			return fmt.Sprintf("compare it: %s == %s", name, v.Example)
		}
		return "compare it: " + name + ` == "…"`
	case celType == "map(string, string)":
		return `ask for one of them: labels.team == "search"`
	}
	return "compare it with something"
}

// sensible is a value to compare a variable with.
func sensible(v variable.Variable) string {
	if v.Unit == "bytes/h" {
		return "5 * MiB"
	}
	if v.Example == "0.0" {
		return "0"
	}
	return strings.TrimSuffix(v.Example, ".0")
}

// wanted words "expected type 'bool' but found 'string'".
func wanted(e *expression, want, found string) (words, hint string) {
	words = fmt.Sprintf("%s, where %s is wanted", e.described("this", found), kindWord(want))
	switch {
	case want == "bool":
		return words, toBool(e, found)
	case want == "string" && number(found) && e.form == isConstant:
		return words, fmt.Sprintf("write it as a text: %q", e.written("5"))
	case number(want) && found == "string" && e.form == isConstant:
		return words, quoted(e.constant.(string), &expression{form: isOther})
	}
	return words, "write values of one kind"
}

// invalid words what CEL's validators find in the arguments of functions.
func invalidArgument(e *expression, message string) (words, hint string) {
	switch {
	case strings.Contains(message, "matches"):
		return e.written("this") + " is no regular expression", "write one of RE2, such as \"^v[0-9]+\"; contains() looks for plain text"
	case strings.Contains(message, "duration"):
		return e.written("this") + " is no duration", `write "90s", "15m" or "2h"; variables in seconds or hours are plain numbers`
	case strings.Contains(message, "timestamp"):
		return e.written("this") + " is no time", "rules see event time only: age.hours, progress.seconds and others say how long ago"
	}
	return message, ""
}

// reportTypes moves CEL's messages about types to their places in the file, in the words of rules.
func reportTypes(s scalar, what string, whole *expression, all []complaint) {
	for _, one := range all {
		at, words, hint := whole.find(one.id), "", ""
		if at != nil {
			if _, given, is := strings.Cut(one.message, "' applied to '"); is {
				at, words, hint = mismatch(at, typeList(strings.TrimSuffix(given, "'")))
			} else if want, found, is := strings.Cut(one.message, "' but found '"); is {
				words, hint = wanted(at, strings.TrimPrefix(want, "expected type '"), strings.TrimSuffix(found, "'"))
			} else if strings.HasPrefix(one.message, "invalid ") {
				words, hint = invalidArgument(at, one.message)
			} else if kind, _, is := strings.Cut(one.message, "' does not support field selection"); is {
				words, hint = kindWord(strings.TrimPrefix(kind, "type '"))+" has no fields", "names with dots are variables and keys of labels only"
			}
		}
		line, column := s.at(one.line, one.column)
		if words == "" {
			words, hint = one.message, "numbers are doubles, flags are bools: compare numbers with numbers and use flags alone"
		} else {
			line, column = s.at(at.begin())
		}
		s.doc.report(line, column, hint, "%s: %s", what, words)
	}
}

// typeList cuts CEL's list of argument types, `(double, string)` or `string.(double)`, at its outer commas.
func typeList(s string) (out []string) {
	if head, rest, method := strings.Cut(s, ".("); method {
		out, s = append(out, head), "("+rest
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "("), ")")
	depth, from := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if rest := strings.TrimSpace(s[from:]); rest != "" {
		out = append(out, rest)
	}
	return out
}

// reportCost names the loop that makes an expression cost more than its bound.
func reportCost(s scalar, what string, whole *expression, steps uint64) {
	deepest, depth := whole, 0
	var look func(e *expression, loops int)
	look = func(e *expression, loops int) {
		if e.form == isLoop {
			if loops++; loops > depth {
				deepest, depth = e, loops
			}
		}
		for _, a := range e.args {
			look(a, loops)
		}
	}
	look(whole, 0)
	line, column := s.at(deepest.begin())
	passes := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%d × ", maxLabels), depth), " × ")
	hint := "ask for the labels by their names: labels.team == \"search\""
	if depth > 1 {
		hint = "take the inner loop out: " + hint
	}
	s.doc.report(line, column, hint, "%s: this loop over labels may take %s passes, and the expression %d steps, more than %d", what, passes, steps, comprehensionCost)
}
