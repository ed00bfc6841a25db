package rules

// This is the only file that imports cel-go, so that the move to its new import path is one edit.

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"lowtide/rules/variable"
)

// knownPrefix begins the hidden bool that known(x) becomes; no rule can write it.
const knownPrefix = "@known."

// comprehensionCost bounds an expression that loops over labels; others have no loop and need no bound.
const comprehensionCost = 100_000

// What a worker's labels are taken to be at most when the cost of a loop is worked out.
const (
	maxLabels     = 64
	maxLabelBytes = 256
)

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
		return nil, eh.NewError(leftmost(args[0]).ID(), "known() asks for the name of a variable")
	}
	return eh.NewIdent(knownPrefix + name), nil
}

// leftmost returns the part of an expression that begins it.
func leftmost(e ast.Expr) ast.Expr {
	for {
		switch e.Kind() {
		case ast.SelectKind:
			e = e.AsSelect().Operand()
			continue
		case ast.CallKind:
			if call := e.AsCall(); call.IsMemberFunction() {
				e = call.Target()
				continue
			} else if strings.Count(call.FunctionName(), "_") > 1 && len(call.Args()) > 1 {
				e = call.Args()[0]
				continue
			}
		}
		return e
	}
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
	whole *expression            // as written, for explanations
	seen  func(*variable.Sample) // of who counts what is asked; nil otherwise
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
	if p.seen != nil {
		p.seen(s)
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
	thresholds map[string]threshold
	units      bool            // whether units are looked at
	told       map[string]bool // thresholds whose unit was found wrong
}

func newCompiler(thresholds map[string]float64) (*compiler, error) {
	written := make(map[string]threshold, len(thresholds))
	for name, v := range thresholds {
		written[name] = threshold{value: v}
	}
	c, err := newCompilerOf(written)
	if err == nil {
		c.units = false
	}
	return c, err
}

// newCompilerOf knows how the thresholds are written, and looks at units.
func newCompilerOf(thresholds map[string]threshold) (*compiler, error) {
	e, err := base()
	if err != nil {
		return nil, err
	}
	return &compiler{env: e, thresholds: thresholds, units: true, told: map[string]bool{}}, nil
}

// condition compiles a bool expression; what is wrong is reported at its place in the file.
func (c *compiler) condition(s scalar, what string) (program, bool) {
	checked, whole, names, ok := c.check(s, what)
	if !ok {
		return program{}, false
	}
	reads, loops := names.reads, names.loops
	if got := checked.OutputType(); !got.IsExactType(cel.BoolType) {
		line, column := s.at(whole.begin())
		s.doc.report(line, column, toBool(whole, got.String()), "%s: the condition is %s, not a bool", what, kindWord(got.String()))
		return program{}, false
	}
	var options []cel.ProgramOption
	if loops {
		if !c.affordable(s, what, checked) {
			return program{}, false
		}
		options = append(options, cel.CostLimit(comprehensionCost))
	}
	run, err := c.env.cel.Program(checked, options...)
	if err != nil {
		line, column := s.at(1, 0)
		s.doc.report(line, column, "", "%s: %v", what, err)
		return program{}, false
	}
	p := program{run: run, reads: reads, whole: whole}
	whole.text = strings.Join(strings.Fields(s.text), " ")
	if tree, ok := c.tree(whole); ok {
		p.tree = &tree
	}
	return p, true
}

// number computes an expression of numbers and constants, such as `5 * MiB`.
func (c *compiler) number(s scalar, what string) (threshold, bool) {
	checked, whole, names, ok := c.check(s, what)
	if !ok {
		return threshold{}, false
	}
	reads := names.reads
	line, column := s.at(1, 0)
	if len(reads) > 0 {
		s.doc.report(line, column, "use numbers and KiB, MiB, GiB only", "%s reads the variable %s", what, variable.All()[reads[0]].Name)
		return threshold{}, false
	}
	var out ref.Val
	run, err := c.env.cel.Program(checked)
	if err == nil {
		out, _, err = run.Eval(map[string]any{})
	}
	if err != nil {
		s.doc.report(line, column, "", "%s: %v", what, err)
		return threshold{}, false
	}
	v, ok := out.(types.Double)
	if !ok {
		hint := "write a number, for example 5 * MiB"
		if text, is := out.(types.String); is {
			hint = quoted(string(text), &expression{form: isOther})
			if hint == compareNumber {
				hint = "write a number, for example 5 * MiB"
			}
		}
		s.doc.report(line, column, hint, "%s is %s, not a number", what, kindWord(out.Type().TypeName()))
		return threshold{}, false
	}
	_, memory, _ := fold(whole)
	return threshold{value: float64(v), memory: memory, at: s}, true
}

// check parses an expression, makes its whole numbers doubles (all numbers of a rule are), puts in the thresholds, and checks its
// names and types.
func (c *compiler) check(s scalar, what string) (checked *cel.Ast, whole *expression, names nameCheck, ok bool) {
	if len(s.text) > maxExpressionBytes {
		s.doc.report(s.line, s.column, "split the rule", "%s has %d bytes, more than %d", what, len(s.text), maxExpressionBytes)
		return nil, nil, names, false
	}
	parsed, issues := c.env.cel.Parse(s.text)
	if issues.Err() != nil {
		reportSyntax(s, what, complaints(issues)[0])
		return nil, nil, names, false
	}
	whole = outline(parsed.NativeRep())
	names = nameCheck{c: c, s: s, what: what}
	whole.walk(names.visit)
	if names.failed {
		return nil, nil, names, false
	}
	slices.Sort(names.reads)
	names.reads = slices.Compact(names.reads)
	before := len(*s.doc.problems)
	if c.units {
		whole.walk((&unitCheck{c: c, s: s, what: what}).visit)
	}
	factory := ast.NewExprFactory()
	ast.PostOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if name, named := chain(e); named && strings.HasPrefix(name, "t.") {
			e.SetKindCase(factory.NewLiteral(e.ID(), types.Double(c.thresholds[name[2:]].value)))
		} else if e.Kind() == ast.LiteralKind {
			if n, whole := e.AsLiteral().(types.Int); whole {
				e.SetKindCase(factory.NewLiteral(e.ID(), types.Double(n)))
			}
		}
	}))
	checked, issues = c.env.cel.Check(parsed)
	if issues.Err() != nil {
		reportTypes(s, what, whole, complaints(issues))
		return nil, nil, names, false
	}
	return checked, whole, names, len(*s.doc.problems) == before
}

// outline copies a parsed expression into the terms of this package.
func outline(parsed *ast.AST) *expression {
	var copied func(e ast.Expr) *expression
	copied = func(e ast.Expr) *expression {
		place := parsed.SourceInfo().GetStartLocation(e.ID())
		out := &expression{id: e.ID(), form: isOther, line: place.Line(), column: place.Column()}
		add := func(es ...ast.Expr) {
			for _, one := range es {
				out.args = append(out.args, copied(one))
			}
		}
		if name, named := chain(e); named {
			out.form, out.name = isName, name
			if known, is := strings.CutPrefix(name, knownPrefix); is {
				out.form, out.name = isKnown, known
			}
			root := parsed.SourceInfo().GetStartLocation(chainRoot(e).ID())
			out.line, out.column = root.Line(), root.Column()
			switch {
			case out.form == isKnown: // the macro stands at its bracket
				out.column++
			case e.Kind() == ast.IdentKind: // one that was checked stands at its last dot
				out.column -= max(strings.LastIndexByte(out.name, '.'), 0)
			}
			return out
		}
		switch e.Kind() {
		case ast.CallKind:
			call := e.AsCall()
			out.form, out.does, out.method = isCall, call.FunctionName(), call.IsMemberFunction()
			if out.method {
				add(call.Target())
			}
			add(call.Args()...)
		case ast.LiteralKind:
			out.form = isConstant
			switch v := e.AsLiteral().(type) {
			case types.Double:
				out.constant = float64(v)
			case types.Int:
				out.constant = float64(v)
			case types.Uint:
				out.constant = uint64(v)
			case types.String:
				out.constant = string(v)
			case types.Bool:
				out.constant = bool(v)
			case types.Null:
			default:
				out.form = isOther
			}
		case ast.ListKind:
			out.form = isList
			add(e.AsList().Elements()...)
		case ast.SelectKind:
			sel := e.AsSelect()
			if name, named := chain(sel.Operand()); named && sel.IsTestOnly() {
				out.form, out.name = isHas, name+"."+sel.FieldName()
				root := parsed.SourceInfo().GetStartLocation(chainRoot(sel.Operand()).ID())
				out.line, out.column = root.Line(), root.Column()
				return out
			}
			add(sel.Operand())
		case ast.ComprehensionKind:
			loop := e.AsComprehension()
			out.form, out.locals = isLoop, []string{loop.IterVar(), loop.IterVar2(), loop.AccuVar()}
			add(loop.IterRange(), loop.AccuInit(), loop.LoopCondition(), loop.LoopStep(), loop.Result())
		case ast.MapKind:
			for _, entry := range e.AsMap().Entries() {
				add(entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
			}
		}
		return out
	}
	return copied(parsed.Expr())
}

// complaint is one of CEL's messages at its place in a text, line from 1 and column from 0; id is that of the expression it is about.
type complaint struct {
	id           int64
	line, column int
	message      string
}

func complaints(issues *cel.Issues) []complaint {
	var out []complaint
	for _, e := range issues.Errors() {
		out = append(out, complaint{e.ExprID, max(e.Location.Line(), 1), max(e.Location.Column(), 0), strings.TrimSpace(strings.SplitN(e.Message, "\n", 2)[0])})
	}
	return out
}

// labelSizes bounds what CEL cannot know: how many labels there are and how long a text is.
type labelSizes struct{}

// EstimateSize is part of CEL's contract.
func (labelSizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	if element.Type().Kind() == types.MapKind {
		return &checker.SizeEstimate{Max: maxLabels}
	}
	return &checker.SizeEstimate{Max: maxLabelBytes}
}

// EstimateCallCost is part of CEL's contract; CEL's own figures hold.
func (labelSizes) EstimateCallCost(_, _ string, _ *checker.AstNode, _ []checker.AstNode) *checker.CallEstimate {
	return nil
}

// affordable refuses loops that may cost more than their bound, and names them.
func (c *compiler) affordable(s scalar, what string, checked *cel.Ast) bool {
	estimate, err := c.env.cel.EstimateCost(checked, labelSizes{})
	if err != nil || estimate.Max <= comprehensionCost {
		return err == nil
	}
	reportCost(s, what, outline(checked.NativeRep()), estimate.Max)
	return false
}
