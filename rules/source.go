package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	maxFileBytes       = 1 << 20
	maxExpressionBytes = 5 << 10
	maxNesting         = 64 // the YAML parser descends once per level
)

// node is a piece of YAML at its place.
type node = ast.Node

// document is one YAML file that is being read, with the problems found so far.
type document struct {
	name     string
	lines    []string
	lost     map[int]bool // lines, from 1, whose value was reported and is gone
	problems *Problems
}

func (d *document) report(line, column int, hint, format string, args ...any) {
	p := Problem{File: d.name, Line: line, Column: column, Message: fmt.Sprintf(format, args...), Hint: hint}
	if line >= 1 && line <= len(d.lines) {
		p.Source = d.lines[line-1]
	}
	*d.problems = append(*d.problems, p)
}

func (d *document) reportAt(n ast.Node, hint, format string, args ...any) {
	line, column := place(n)
	d.report(line, column, hint, format, args...)
}

// place returns where a node begins; a literal block begins at its `|`, a mapping at its first key.
func place(n ast.Node) (line, column int) {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		return place(m.Values[0])
	}
	if v, ok := n.(*ast.MappingValueNode); ok {
		return place(v.Key)
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0, 0
	}
	p := n.GetToken().Position
	return p.Line, p.Column
}

// field is one key of a mapping.
type field struct {
	doc   *document
	name  string
	key   ast.Node
	value ast.Node // nil when the key has no value
	below *field   // the same key of the rule that this one is laid over
}

// parse reads one file's only document; ok is false when nothing can be read from it.
func parse(name string, content []byte, problems *Problems) (d *document, root ast.Node, ok bool) {
	d = &document{name: name, problems: problems}
	if len(content) > maxFileBytes {
		d.report(0, 0, "split the rules over several files", "file has %d bytes, more than %d", len(content), maxFileBytes)
		return d, nil, false
	}
	if i := invalid(content); i >= 0 {
		line, column := position(string(content), i)
		d.lines = strings.Split(strings.ToValidUTF8(string(content), "\ufffd"), "\n")
		d.report(line, column+1, "save the file as UTF-8", "the file is not UTF-8")
		return d, nil, false
	}
	d.lines = strings.Split(lineEnds.Replace(strings.TrimPrefix(string(content), "\ufeff")), "\n")
	for i, line := range d.lines {
		depth := strings.Count(line, "[") + strings.Count(line, "{") + strings.Count(line, "- ") + strings.Count(line, "? ")
		if indent := len(line) - len(strings.TrimLeft(line, " ")); depth > maxNesting || indent > 4*maxNesting {
			d.report(i+1, 1, "write one item a line", "line nests too deeply")
			return d, nil, false
		}
	}
	lines := d.lines
	if !isTest(name) {
		lines = d.mend()
	}
	file, err := parser.ParseBytes([]byte(strings.Join(lines, "\n")), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) && syntax.Token != nil && syntax.Token.Position != nil {
			p := syntax.Token.Position
			line, words, hint := d.syntaxHint(p.Line, syntax.Message)
			column := p.Column
			if line != p.Line || column <= 1 {
				column = 1 + len(d.lines[line-1]) - len(strings.TrimLeft(d.lines[line-1], " "))
			}
			d.report(line, column, hint, "not YAML: %s", words)
		} else {
			d.report(0, 0, "", "not YAML: %s", strings.SplitN(err.Error(), "\n", 2)[0])
		}
		return d, nil, false
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 1:
		return d, bodies[0], true
	case 0:
		d.report(0, 0, "begin it with `rules:`", "file is empty")
	default:
		d.reportAt(bodies[1], "put each document in a file of its own", "file holds %d documents", len(bodies))
	}
	return d, nil, false
}

// lineEnds makes every end of a line the same: YAML takes a carriage return alone for one too.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// invalid returns where a content stops being UTF-8, -1 for nowhere.
func invalid(content []byte) int {
	for i := 0; i < len(content); {
		r, n := utf8.DecodeRune(content[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// fields returns the keys of a mapping in their order; it reports what is no mapping and keys that are not plain or come twice.
func (d *document) fields(n ast.Node, what string) []field {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		if line, _ := place(n); !d.lost[line] {
			d.reportAt(n, mappingHint(what), "%s is not a mapping of keys to values", what)
		}
		return nil
	}
	seen := map[string]int{}
	var out []field
	for _, v := range values {
		key, ok := v.Key.(*ast.StringNode)
		if _, merge := v.Key.(*ast.MergeKeyNode); merge {
			d.reportAt(v.Key, "write the fields out, or lay one rule over another by its id", "%s merges an anchor: anchors are not for rules", what)
			continue
		}
		if !ok {
			d.reportAt(v.Key, "write plain keys", "%s has a key that is no plain text", what)
			continue
		}
		if first := seen[key.Value]; first > 0 {
			d.reportAt(v.Key, "keep one of them", "%s has the key %q twice, first in line %d", what, key.Value, first)
			continue
		}
		seen[key.Value], _ = place(v.Key)
		f := field{doc: d, name: key.Value, key: v.Key, value: v.Value}
		if _, null := v.Value.(*ast.NullNode); null {
			f.value = nil
		}
		out = append(out, f)
	}
	return out
}

func mappingHint(what string) string {
	switch what {
	case "the file":
		return "begin it with `rules:`, and below it a line `  - id: NAME` for each rule"
	case "a rule":
		return "begin it with `- id: NAME`, and a blank after the dash"
	case "severity":
		return "write severity: {alone: ticket, with: page}"
	case "thresholds":
		return "write thresholds: {floor: 5 * MiB}"
	case "against":
		return "write against: {name: condition}"
	}
	return "write one `key: value` a line"
}

// items returns the entries of a list.
func (f field) items() []ast.Node {
	list, ok := f.value.(*ast.SequenceNode)
	if !ok {
		hint := "write a list: `[a, b]` or lines that begin with `- `"
		if f.name == "rules" {
			hint = "begin each rule with a line `  - id: NAME`"
		}
		f.report(hint, "%s is not a list", f.name)
		return nil
	}
	return list.Values
}

func (f field) report(hint, format string, args ...any) {
	n := f.value
	if n == nil {
		n = f.key
	}
	f.doc.reportAt(n, hint, format, args...)
}

// scalar is a text of a file that knows where each of its characters stands.
type scalar struct {
	doc          *document
	text         string
	line, column int  // of the first character
	block        bool // a `|` block: line n of the text is line line+n of the file, from the same column
}

// at turns a position in the text (line from 1, column from 0) into one of the file.
func (s scalar) at(line, column int) (int, int) {
	if s.block {
		return s.line + line - 1, s.column + column
	}
	return s.line, s.column + column
}

// text reads one scalar; what names it in messages.
func (d *document) text(n ast.Node, what string) (scalar, bool) {
	if line, _ := place(n); d.lost[line] {
		return scalar{}, false
	}
	switch n := n.(type) {
	case *ast.LiteralNode:
		if !strings.HasPrefix(n.Start.Value, "|") {
			d.reportAt(n, "use `|` instead of `>`: folding moves the characters", "%s is a folded block", what)
			return scalar{}, false
		}
		if strings.TrimSpace(n.Value.Value) == "" {
			d.reportAt(n, "write the text on the next line, indented deeper", "%s is an empty block", what)
			return scalar{}, false
		}
		s := scalar{doc: d, text: strings.TrimRight(n.Value.Value, "\n "), line: n.Start.Position.Line + 1, column: 1, block: true}
		for i := n.Start.Position.Line; i < len(d.lines); i++ {
			if trimmed := strings.TrimLeft(d.lines[i], " "); trimmed != "" {
				s.column = len(d.lines[i]) - len(trimmed) + 1
				break
			}
		}
		return s, true
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		line, column := place(n)
		s := scalar{doc: d, text: n.GetToken().Value, line: line, column: column}
		if str, ok := n.(*ast.StringNode); ok {
			s.text = str.Value
		}
		if line < 1 || line > len(d.lines) {
			return s, true
		}
		rest := string([]rune(d.lines[line-1])[min(column-1, len([]rune(d.lines[line-1]))):])
		if strings.HasPrefix(rest, `"`) || strings.HasPrefix(rest, `'`) {
			s.column, rest = s.column+1, rest[1:]
		}
		if !strings.HasPrefix(rest, s.text) {
			d.reportAt(n, "use `|`: `"+what+": |`, and the text on the next line", "%s is written over several lines or with escapes", what)
			return scalar{}, false
		}
		return s, true
	}
	line, column := place(n)
	hint := "write one value"
	switch n.(type) {
	case *ast.TagNode:
		hint = "YAML takes what follows `!` for a type; use `|`: `" + what + ": |`, and the text on the next line"
	case *ast.AnchorNode, *ast.AliasNode:
		hint = "anchors are not for rules: write the value out"
	case *ast.MappingNode, *ast.MappingValueNode:
		hint = "YAML takes a brace, or `: `, for a mapping; use `|`: `" + what + ": |`, and the text on the next line"
	case *ast.SequenceNode:
		hint = "write one value, not a list"
	}
	d.report(line, column, hint, "%s is not a text", what)
	return scalar{}, false
}

func (f field) text() (scalar, bool) {
	if f.value == nil {
		hint := "give it a value or remove the key"
		if slices.Contains(conditions, f.name) {
			hint = "use `|`: write `" + f.name + ": |`, and on the next line, indented deeper, a condition such as live.early"
		}
		f.report(hint, "%s is empty", f.name)
		return scalar{}, false
	}
	return f.doc.text(f.value, f.name)
}
