package rules

// This is the only file that imports cel-go, so that the move to its new import path is one edit.

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"lowtide/event"
	"lowtide/rules/variable"
)

// knownPrefix begins the hidden bool that known(x) becomes; no rule can write it.
const knownPrefix = "@known."

// comprehensionCost bounds an expression that loops over labels; others have no loop and need no bound.
const comprehensionCost = 100_000

var constants = map[string]float64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

// slot is what a name of the environment stands for in a sample.
type slot struct {
	id      variable.ID
	known   bool // the name asks whether the variable is known
	unknown *types.Unknown
}

type environment struct {
	cel   *cel.Env
	slots map[string]slot
}

var base = sync.OnceValues(newEnvironment)

func newEnvironment() (*environment, error) {
	e := &environment{slots: map[string]slot{}}
	options := []cel.EnvOption{
		cel.CrossTypeNumericComparisons(true),
		cel.ExtendedValidations(),
		cel.Macros(cel.GlobalMacro("known", 1, expandKnown)),
	}
	kinds := map[variable.Kind]*cel.Type{
		variable.Number: cel.DoubleType, variable.Bool: cel.BoolType, variable.String: cel.StringType,
		variable.Labels: cel.MapType(cel.StringType, cel.StringType),
	}
	for i, v := range variable.All() {
		// The id of an unknown carries the variable to the result; 0 is kept free.
		unknown := types.NewUnknown(int64(i)+1, types.NewAttributeTrail(v.Name))
		e.slots[v.Name] = slot{id: variable.ID(i), unknown: unknown}
		e.slots[knownPrefix+v.Name] = slot{id: variable.ID(i), known: true}
		options = append(options, cel.Variable(v.Name, kinds[v.Kind]), cel.Variable(knownPrefix+v.Name, cel.BoolType))
	}
	for name, value := range constants {
		options = append(options, cel.Constant(name, cel.DoubleType, types.Double(value)))
	}
	var err error
	if e.cel, err = cel.NewEnv(options...); err != nil {
		return nil, fmt.Errorf("build rule environment: %w", err)
	}
	return e, nil
}

// expandKnown turns known(live.growth) into the hidden bool beside live.growth, so that the question is never unknown itself.
func expandKnown(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *common.Error) {
	name, ok := chain(args[0])
	if !ok {
		return nil, eh.NewError(args[0].ID(), "known() asks for the name of a variable")
	}
	return eh.NewIdent(knownPrefix + name), nil
}

// chain reads a.b.c as one name.
func chain(e ast.Expr) (string, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent(), true
	case ast.SelectKind:
		if sel := e.AsSelect(); !sel.IsTestOnly() {
			if head, ok := chain(sel.Operand()); ok {
				return head + "." + sel.FieldName(), true
			}
		}
	}
	return "", false
}

func chainRoot(e ast.Expr) ast.Expr {
	for e.Kind() == ast.SelectKind {
		e = e.AsSelect().Operand()
	}
	return e
}

// program is one compiled condition. The zero value is the condition that a rule does not have: it is False.
type program struct {
	tree  *branch // gives the same without CEL; nil where it cannot
	run   cel.Program
	reads []variable.ID
}

// activation reads a sample as CEL variables; a value that is missing becomes CEL's unknown.
type activation variable.Sample

func boxCEL(v any) any {
	switch v := v.(type) {
	case float64:
		return types.Double(v)
	case bool:
		return types.Bool(v)
	case string:
		return types.String(v)
	case map[string]string:
		return types.NewStringStringMap(types.DefaultTypeAdapter, v)
	}
	return nil
}

// ResolveName is called by CEL for each name that an expression reads.
func (a *activation) ResolveName(name string) (any, bool) {
	e, err := base()
	if err != nil {
		return nil, false
	}
	s, ok := e.slots[name]
	if !ok {
		return nil, false
	}
	sample := (*variable.Sample)(a)
	if s.known {
		return types.Bool(sample.Known(s.id)), true
	}
	if v, known := sample.Boxed(s.id, boxCEL); known {
		return v, true
	}
	return s.unknown, true
}

// Parent is part of CEL's contract; a sample has none.
func (a *activation) Parent() interpreter.Activation { return nil }

// evaluate returns the outcome and, when it is Unknown, the sensor or the error that made it so.
func (p program) evaluate(s *variable.Sample) (Outcome, string) {
	if p.run == nil {
		return False, ""
	}
	if p.tree != nil {
		switch out, missing := p.tree.truth(s); out {
		case False, True:
			return out, ""
		case Unknown:
			return out, variable.All()[missing].Sensor
		}
	}
	out, _, err := p.run.Eval((*activation)(s))
	if err != nil {
		return Unknown, "evaluation: " + err.Error()
	}
	switch out := out.(type) {
	case types.Bool:
		if out {
			return True, ""
		}
		return False, ""
	case *types.Unknown:
		if ids := out.IDs(); len(ids) > 0 {
			return Unknown, variable.All()[slices.Min(ids)-1].Sensor
		}
	}
	return Unknown, "evaluation: no bool"
}

// compiler compiles the expressions of one rule, with its thresholds as constants.
type compiler struct {
	env        *environment
	thresholds map[string]float64
}

func newCompiler(thresholds map[string]float64) (*compiler, error) {
	e, err := base()
	if err != nil {
		return nil, err
	}
	return &compiler{env: e, thresholds: thresholds}, nil
}

// condition compiles a bool expression; what is wrong is reported at its place in the file.
func (c *compiler) condition(s scalar, what string) (program, bool) {
	checked, reads, loops, ok := c.check(s, what)
	if !ok {
		return program{}, false
	}
	if got := checked.OutputType(); !got.IsExactType(cel.BoolType) {
		line, column := s.at(1, 0)
		s.doc.report(line, column, "compare it with something", "%s: the expression is a %s, not a bool", what, got)
		return program{}, false
	}
	var options []cel.ProgramOption
	if loops {
		options = append(options, cel.CostLimit(comprehensionCost))
	}
	run, err := c.env.cel.Program(checked, options...)
	if err != nil {
		line, column := s.at(1, 0)
		s.doc.report(line, column, "", "%s: %v", what, err)
		return program{}, false
	}
	p := program{run: run, reads: reads}
	if tree, ok := c.tree(checked.NativeRep().Expr()); ok {
		p.tree = &tree
	}
	return p, true
}

// operations are those that a tree knows, with the kind of their result; an equality and a choice take it from their arguments.
var operations = map[string]branch{
	operators.LogicalAnd: {does: opAnd, kind: variable.Bool}, operators.LogicalOr: {does: opOr, kind: variable.Bool}, operators.LogicalNot: {does: opNot, kind: variable.Bool},
	operators.Less: {does: opLess, kind: variable.Bool}, operators.LessEquals: {does: opLessOrEqual, kind: variable.Bool},
	operators.Greater: {does: opGreater, kind: variable.Bool}, operators.GreaterEquals: {does: opGreaterOrEqual, kind: variable.Bool},
	operators.Equals: {does: opEqual, kind: variable.Bool}, operators.NotEquals: {does: opUnequal, kind: variable.Bool},
	operators.Add: {does: opPlus, kind: variable.Number}, operators.Subtract: {does: opMinus, kind: variable.Number},
	operators.Multiply: {does: opTimes, kind: variable.Number}, operators.Divide: {does: opDivided, kind: variable.Number}, operators.Negate: {does: opNegative, kind: variable.Number},
	operators.Conditional: {does: opChoice},
	operators.In:          {does: opAmong, kind: variable.Bool},
}

// tree translates a checked expression; ok is false for one that uses more of CEL than a tree has.
func (c *compiler) tree(e ast.Expr) (n branch, ok bool) {
	if name, named := chain(e); named {
		if v, is := constants[name]; is {
			return branch{kind: variable.Number, number: v}, true
		}
		slot, is := c.env.slots[name]
		if slot.known {
			return branch{does: opKnown, kind: variable.Bool, id: slot.id}, is
		}
		n = branch{does: opReading, id: slot.id}
		if is {
			n.kind = variable.All()[slot.id].Kind
		}
		return n, is && n.kind != variable.Labels
	}
	switch e.Kind() {
	case ast.LiteralKind:
		switch v := e.AsLiteral().(type) {
		case types.Double:
			return branch{kind: variable.Number, number: float64(v)}, true
		case types.Bool:
			n = branch{kind: variable.Bool}
			if v {
				n.number = 1
			}
			return n, true
		case types.String:
			return branch{kind: variable.String, text: string(v)}, true
		}
		return n, false
	case ast.CallKind:
	default:
		return n, false
	}
	call := e.AsCall()
	n, ok = operations[call.FunctionName()]
	if !ok || call.IsMemberFunction() {
		return n, false
	}
	args := call.Args()
	if n.does == opAmong && args[1].Kind() == ast.ListKind {
		args = slices.Concat(args[:1], args[1].AsList().Elements())
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

// number computes an expression of numbers and constants, such as `5 * MiB`.
func (c *compiler) number(s scalar, what string) (float64, bool) {
	checked, reads, _, ok := c.check(s, what)
	if !ok {
		return 0, false
	}
	line, column := s.at(1, 0)
	if len(reads) > 0 {
		s.doc.report(line, column, "use numbers and KiB, MiB, GiB only", "%s reads the variable %s", what, variable.All()[reads[0]].Name)
		return 0, false
	}
	var out ref.Val
	run, err := c.env.cel.Program(checked)
	if err == nil {
		out, _, err = run.Eval(map[string]any{})
	}
	if err != nil {
		s.doc.report(line, column, "", "%s: %v", what, err)
		return 0, false
	}
	v, ok := out.(types.Double)
	if !ok {
		s.doc.report(line, column, "write a number, for example 5 * MiB", "%s is a %s, not a number", what, out.Type())
		return 0, false
	}
	return float64(v), true
}

// check parses an expression, makes its whole numbers doubles (all numbers of a rule are), puts in the thresholds, and checks its
// names and types.
func (c *compiler) check(s scalar, what string) (checked *cel.Ast, reads []variable.ID, loops, ok bool) {
	if len(s.text) > maxExpressionBytes {
		s.doc.report(s.line, s.column, "split the rule", "%s has %d bytes, more than %d", what, len(s.text), maxExpressionBytes)
		return nil, nil, false, false
	}
	parsed, issues := c.env.cel.Parse(s.text)
	if issues.Err() != nil {
		c.report(s, what, issues)
		return nil, nil, false, false
	}
	reads, loops, ok = c.names(s, what, parsed.NativeRep())
	if !ok {
		return nil, nil, false, false
	}
	factory := ast.NewExprFactory()
	ast.PostOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if name, named := chain(e); named && strings.HasPrefix(name, "t.") {
			e.SetKindCase(factory.NewLiteral(e.ID(), types.Double(c.thresholds[name[2:]])))
		} else if e.Kind() == ast.LiteralKind {
			if n, whole := e.AsLiteral().(types.Int); whole {
				e.SetKindCase(factory.NewLiteral(e.ID(), types.Double(n)))
			}
		}
	}))
	checked, issues = c.env.cel.Check(parsed)
	if issues.Err() != nil {
		c.report(s, what, issues)
		return nil, nil, false, false
	}
	return checked, reads, loops, true
}

// names finds what an expression reads and reports names that nothing declares, before CEL's checker would call them
// undeclared halves of a field selection.
func (c *compiler) names(s scalar, what string, parsed *ast.AST) (reads []variable.ID, loops, ok bool) {
	locals, operands := map[string]bool{}, map[int64]bool{}
	ok = true
	report := func(e ast.Expr, hint, format string, args ...any) {
		ok = false
		place := parsed.SourceInfo().GetStartLocation(e.ID())
		line, column := s.at(place.Line(), place.Column())
		s.doc.report(line, column, hint, "%s: %s", what, fmt.Sprintf(format, args...))
	}
	ast.PreOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.ComprehensionKind {
			loop := e.AsComprehension()
			locals[loop.IterVar()], locals[loop.IterVar2()], locals[loop.AccuVar()] = true, true, true
			loops = true
			if over, named := chain(loop.IterRange()); !named || over != "labels" {
				report(e, "loop over labels only", "a macro loops over something else than labels")
			}
		}
		name, named := chain(e)
		if !named || operands[e.ID()] {
			return
		}
		for inner := e; inner.Kind() == ast.SelectKind; {
			inner = inner.AsSelect().Operand()
			operands[inner.ID()] = true
		}
		root := chainRoot(e)
		switch head := root.AsIdent(); {
		case locals[head]:
		case head == "t" && name != "t":
			if _, declared := c.thresholds[strings.TrimPrefix(name, "t.")]; !declared {
				hint := "declare it under thresholds:"
				if near := event.Nearest(name, c.thresholdNames()); near != "" {
					hint = "did you mean " + near + "?"
				}
				report(root, hint, "unknown threshold %s", name)
			}
		case head == "labels":
			id, _ := variable.Lookup("labels")
			reads = append(reads, id)
		default:
			if slot, declared := c.env.slots[name]; declared {
				reads = append(reads, slot.id)
			} else if _, constant := constants[name]; !constant {
				name = strings.TrimPrefix(name, knownPrefix)
				report(root, suggestVariable(name), "unknown variable %s", name)
			}
		}
	}))
	slices.Sort(reads)
	return slices.Compact(reads), loops, ok
}

// report moves CEL's messages to their places in the file.
func (c *compiler) report(s scalar, what string, issues *cel.Issues) {
	for _, e := range issues.Errors() {
		message, hint := strings.TrimSpace(strings.SplitN(e.Message, "\n", 2)[0]), ""
		switch {
		case strings.Contains(message, "no matching overload"):
			hint = "numbers are doubles, flags are bools: compare numbers with numbers and use flags alone"
		case strings.HasPrefix(message, "Syntax error"):
			hint = "write the whole expression under `|`, in CEL: && || ! == < >"
		}
		line, column := s.at(max(e.Location.Line(), 1), max(e.Location.Column(), 0))
		s.doc.report(line, column, hint, "%s: %s", what, message)
	}
}
