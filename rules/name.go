package rules

import (
	"fmt"
	"slices"
	"strings"

	"lowtide/event"
	"lowtide/rules/variable"
)

// nameCheck finds what an expression reads, and reports the names that nothing declares before CEL would call them undeclared halves
// of a field selection.
type nameCheck struct {
	c      *compiler
	s      scalar
	what   string
	locals []string
	reads  []variable.ID
	loops  bool
	failed bool
}

func (n *nameCheck) report(e *expression, hint, format string, args ...any) {
	n.failed = true
	line, column := n.s.at(e.begin())
	n.s.doc.report(line, column, hint, "%s: %s", n.what, fmt.Sprintf(format, args...))
}

func (n *nameCheck) visit(e *expression) bool {
	switch e.form {
	case isLoop:
		n.loops = true
		n.locals = append(n.locals, e.locals...)
		if over := e.args[0]; over.form != isName || over.name != "labels" {
			n.report(e.args[0], "loop over labels only: labels.exists(k, k == \"team\")", "a macro loops over %s", over.written("something else than labels"))
		}
	case isHas:
		if root, _, _ := strings.Cut(e.name, "."); root == "labels" || slices.Contains(n.locals, root) {
			n.read("labels")
			return true
		}
		hint := suggestVariable(e.name)
		if _, found := variable.Lookup(e.name); found {
			hint = "write known(" + e.name + ")"
		}
		n.report(e, hint, "has(%s): has() asks for a key of labels, known() for a variable", e.name)
		return false
	case isKnown:
		if id, found := variable.Lookup(e.name); found {
			n.reads = append(n.reads, id)
		} else {
			n.report(e, suggestVariable(e.name), "unknown variable %s", e.name)
		}
	case isName:
		n.name(e)
	case isCall:
		return n.call(e)
	}
	return true
}

func (n *nameCheck) read(name string) {
	id, _ := variable.Lookup(name)
	n.reads = append(n.reads, id)
}

func (n *nameCheck) name(e *expression) {
	root, _, dotted := strings.Cut(e.name, ".")
	switch {
	case slices.Contains(n.locals, root):
	case root == "t" && dotted:
		if _, declared := n.c.thresholds[strings.TrimPrefix(e.name, "t.")]; !declared {
			hint := "declare it under thresholds:"
			if near := event.Nearest(e.name, n.c.thresholdNames()); near != "" {
				hint = "did you mean " + near + "?"
			}
			n.report(e, hint, "unknown threshold %s", e.name)
		}
	case root == "labels":
		n.read("labels")
	default:
		if id, declared := variable.Lookup(e.name); declared {
			n.reads = append(n.reads, id)
		} else if _, constant := constants[e.name]; !constant {
			hint := suggestVariable(e.name)
			if _, declared := n.c.thresholds[e.name]; declared {
				hint = "thresholds begin with t.: write t." + e.name
			}
			n.report(e, hint, "unknown variable %s", e.name)
		}
	}
}

// foreign are functions of other languages, with what to write here.
var foreign = map[string]string{
	"has": "write known(VARIABLE)", "absent": "write !known(VARIABLE)", "exists": "write known(VARIABLE)", "isnull": "write !known(VARIABLE)", "defined": "write known(VARIABLE)",
	"abs": "write (x < 0 ? -x : x)", "max": "write (a > b ? a : b)", "min": "write (a < b ? a : b)", "len": "write size(x)", "length": "write size(x)", "count": "write size(x)",
	"rate": "growth is computed already: S.growth is the slope an hour, as in live.growth", "irate": "growth is computed already: S.growth is the slope an hour, as in live.growth",
	"increase": "growth is computed already: S.growth is the slope an hour, as in live.growth", "delta": "growth is computed already: S.growth is the slope an hour, as in live.growth",
	"deriv": "growth is computed already: S.growth is the slope an hour, as in live.growth", "slope": "growth is computed already: S.growth is the slope an hour, as in live.growth",
	"predict_linear": "forecasts are computed already, as in live.hours_to_limit", "avg": "levels at quiet points are computed already, as in live.level_bytes",
	"sum": "a rule sees one worker; peers.same and peers.same_growing count others", "if": "write condition ? a : b", "iff": "write condition ? a : b", "not": "write !x",
	"lower": "compare texts as they are written", "upper": "compare texts as they are written", "now": "rules see event time only: age.hours, progress.seconds and others say how long ago",
	"time": "rules see event time only: age.hours, progress.seconds and others say how long ago",
}

// functions are those that rules may call, for `explain` and for the nearest name.
var functions = []string{"known", "has", "size", "startsWith", "endsWith", "contains", "matches", "double", "string"}

func (n *nameCheck) call(e *expression) bool {
	if !isWord(e.does) {
		return true
	}
	if e.method && e.args[0].form == isName {
		// quiet.count() is a variable that somebody calls.
		if full := e.args[0].name + "." + e.does; e.args[0].name != "labels" {
			if _, found := variable.Lookup(full); found {
				n.report(e, "leave out the brackets: "+full, "%s is a variable, not a function", full)
				return false
			}
		}
	}
	if e.does == "known" && !e.method { // the macro has taken every call that is right
		n.report(e, "write known(live.growth)", "known() asks for the name of one variable")
		return false
	}
	if n.c.env.cel.HasFunction(e.does) {
		return true
	}
	hint, known := foreign[strings.ToLower(e.does)]
	if near := event.Nearest(e.does, functions); !known && near != "" {
		hint, known = "did you mean "+near+"()?", true
	}
	if !known {
		hint = "use one of " + strings.Join(functions, ", ")
	}
	if v, declared := e.receiver(); declared {
		n.report(e, hint, "%s is a %s and has no method %s", v.Name, v.Kind, e.does)
	} else {
		n.report(e, hint, "unknown function %s", e.does)
	}
	return true
}

func (e *expression) receiver() (variable.Variable, bool) {
	if !e.method {
		return variable.Variable{}, false
	}
	return e.args[0].declared()
}

// suggestVariable makes a hint for a name that is no variable: those that it begins, the nearest, or where they are listed.
func suggestVariable(name string) string {
	switch name {
	case "True", "False", "TRUE", "FALSE":
		return "write " + strings.ToLower(name)
	case "KB", "MB", "GB", "TB", "kb", "mb", "gb", "kB", "TiB", "kib", "mib", "gib":
		return "write KiB, MiB or GiB"
	case "not", "NOT":
		return "write !"
	}
	names := variableNames()
	var below, ends []string
	for _, other := range names {
		if strings.HasPrefix(other, name+".") {
			below = append(below, other)
		}
		if strings.HasSuffix(other, "."+name) {
			ends = append(ends, other)
		}
	}
	if root, _, _ := strings.Cut(name, "."); len(below) > 0 {
		return fmt.Sprintf("%s begins %s; `lowtide rules explain %s` says what each is", name, shortList(below), root)
	}
	if len(ends) > 0 {
		return "did you mean " + shortList(ends) + "?"
	}
	if near := event.Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	if near := event.Nearest(strings.ToLower(name), names); near != "" {
		return "did you mean " + near + "?"
	}
	if root, _, dotted := strings.Cut(name, "."); dotted {
		var group []string
		for _, other := range names {
			if strings.HasPrefix(other, root+".") {
				group = append(group, other)
			}
		}
		if len(group) > 0 {
			return fmt.Sprintf("%s begins %s; `lowtide rules explain %s` says what each is", root, shortList(group), root)
		}
	}
	return "`lowtide rules explain` prints the variables that exist"
}

// shortList joins names, the first few of many.
func shortList(names []string) string {
	const most = 5
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
