package rules

import (
	"fmt"
	"io/fs"
	"strings"

	"lowtide/rules/variable"
)

// Clause is a part of a condition that && and || join, and how often it came to what while the judge asked.
type Clause struct {
	Rule      string `json:"rule"`
	Condition string `json:"condition"` // when, confirm, refute or with
	File      string `json:"file"`
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	Text      string `json:"text"`
	True      int    `json:"true"`
	False     int    `json:"false"`
	Unknown   int    `json:"unknown"`
}

// Coverage is what the conditions of a pack came to. It is not safe for use by several goroutines, nor is its pack.
type Coverage struct {
	Clauses []*Clause      // in the order of the rules
	Asked   map[string]int // rule → how often its condition was asked
	Met     map[string]int // rule → how often it was true
}

// watchedConditions are those whose clauses are counted, in the order of a file.
var watchedConditions = []string{"when", "confirm", "refute", "with"}

// LoadWatched is LoadSources for a pack that counts what its clauses come to, for tests: it asks CEL always, and asks again whenever
// anything changes that a condition reads.
func LoadWatched(sources []Source) (*Pack, *Coverage, error) {
	pack, err := LoadSources(sources)
	if err != nil {
		return nil, nil, err
	}
	written, err := specsOf(sources)
	if err != nil {
		return nil, nil, err
	}
	all := &Coverage{Asked: map[string]int{}, Met: map[string]int{}}
	for _, r := range pack.Rules {
		c, err := newCompiler(r.Thresholds)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range watchedConditions {
			f, ok := written[r.ID].fields[name]
			if !ok {
				continue
			}
			if text, ok := f.text(); ok {
				all.watch(r, name, c, text)
			}
		}
	}
	return pack, all, nil
}

// specsOf reads the rules again as they are written, by id.
func specsOf(sources []Source) (map[string]*spec, error) {
	builtin, err := builtinSources()
	if err != nil {
		return nil, err
	}
	var none Problems // LoadSources has told them
	var merged []*spec
	for _, layer := range [][]Source{builtin, sources} {
		below := make([]string, len(merged))
		for i, s := range merged {
			below[i] = s.id
		}
		merged = merge(merged, readSpecs(layer, below, &none))
	}
	out := make(map[string]*spec, len(merged))
	for _, s := range merged {
		out[s.id] = s
	}
	return out, nil
}

// watch has a condition of a rule tell what its clauses come to.
func (all *Coverage) watch(r *Rule, name string, c *compiler, text scalar) {
	type part struct {
		program
		counts *Clause
	}
	var parts []part
	for _, one := range clausesOf(text.text) {
		before := text.text[:one.offset]
		line := 1 + strings.Count(before, "\n")
		before = before[strings.LastIndexByte(before, '\n')+1:]
		at := scalar{doc: &document{name: text.doc.name, problems: new(Problems)}, text: one.text}
		at.line, at.column = text.at(line, len([]rune(before)))
		p, ok := c.condition(at, name)
		if !ok {
			continue // a macro may have eaten what looks like an operator
		}
		counts := &Clause{Rule: r.ID, Condition: name, File: text.doc.name, Line: at.line, Column: at.column, Text: strings.Join(strings.Fields(one.text), " ")}
		parts = append(parts, part{p, counts})
		all.Clauses = append(all.Clauses, counts)
	}
	into := map[string]*program{"when": &r.when, "confirm": &r.confirm, "refute": &r.refute, "with": &r.with}[name]
	whole := *into
	if name == "when" {
		into.tree = nil // what decides a condition is not enough to know of every clause
	}
	into.seen = func(s *variable.Sample) {
		for _, p := range parts {
			switch out, _ := p.evaluate(s); out {
			case True:
				p.counts.True++
			case False:
				p.counts.False++
			default:
				p.counts.Unknown++
			}
		}
		if name != "when" {
			return
		}
		all.Asked[r.ID]++
		if out, _ := whole.evaluate(s); out == True {
			all.Met[r.ID]++
		}
	}
}

// CountConditions has the `when` of every rule of a pack count how often it is asked. The pack is then for one goroutine only.
func CountConditions(pack *Pack) *uint64 {
	asked := new(uint64)
	for _, r := range pack.Rules {
		r.when.seen = func(*variable.Sample) { *asked++ }
	}
	return asked
}

// span is a part of a text.
type span struct {
	offset int // bytes
	text   string
}

// clausesOf cuts a condition at && and ||, within brackets too, and leaves a choice, a negation and a call as they are.
func clausesOf(text string) []span { return cut(span{0, text}, 0) }

func cut(s span, depth int) []span {
	s = bare(s)
	at, op := operatorsOf(s.text)
	if len(at) == 0 || depth > maxNesting {
		return []span{s}
	}
	var out []span
	from := 0
	for _, end := range append(at, len(s.text)) {
		out = append(out, cut(span{s.offset + from, s.text[from:end]}, depth+1)...)
		from = end + len(op)
	}
	return out
}

// bare takes off blanks, comments before, and brackets around all of it.
func bare(s span) span {
	for {
		trimmed := strings.TrimLeft(s.text, " \t\r\n")
		s.offset, s.text = s.offset+len(s.text)-len(trimmed), trimmed
		if !strings.HasPrefix(s.text, "//") {
			break
		}
		end := strings.IndexByte(s.text, '\n')
		if end < 0 {
			return s
		}
		s.offset, s.text = s.offset+end, s.text[end:]
	}
	s.text = strings.TrimRight(s.text, " \t\r\n")
	if strings.HasPrefix(s.text, "(") && closes(s.text) == len(s.text)-1 {
		return bare(span{s.offset + 1, s.text[1 : len(s.text)-1]})
	}
	return s
}

// closes returns where the bracket that a text begins with is closed.
func closes(text string) int {
	found := -1
	scan(text, func(i, depth int) bool {
		if i > 0 && depth == 0 && strings.IndexByte(")]}", text[i]) >= 0 {
			found = i
			return false
		}
		return true
	})
	return found
}

// operatorsOf returns where the loosest of || and && stands outside of all brackets; none where it is a choice.
func operatorsOf(text string) (at []int, op string) {
	var ors, ands []int
	choice := false
	skip := -1
	scan(text, func(i, depth int) bool {
		switch {
		case depth > 0 || i == skip:
		case strings.HasPrefix(text[i:], "||"):
			ors, skip = append(ors, i), i+1
		case strings.HasPrefix(text[i:], "&&"):
			ands, skip = append(ands, i), i+1
		case text[i] == '?':
			choice = true
		}
		return !choice
	})
	switch {
	case choice:
		return nil, ""
	case len(ors) > 0:
		return ors, "||"
	}
	return ands, "&&"
}

// scan visits the bytes of an expression that stand in no text and no comment, each with how many brackets are open around it.
func scan(text string, visit func(i, depth int) bool) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c == '\'':
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			continue
		case strings.HasPrefix(text[i:], "//"):
			for i < len(text) && text[i] != '\n' {
				i++
			}
			continue
		case strings.IndexByte("([{", c) >= 0:
			if !visit(i, depth) {
				return
			}
			depth++
			continue
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		}
		if !visit(i, depth) {
			return
		}
	}
}

// BuiltinTests returns the test files of the shipped rules.
func BuiltinTests() ([]Source, error) {
	names, err := fs.Glob(embedded, "builtin/*_test.yaml")
	if err != nil {
		return nil, fmt.Errorf("read built-in tests: %w", err)
	}
	out := make([]Source, len(names))
	for i, name := range names {
		content, err := embedded.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read built-in tests: %w", err)
		}
		out[i] = Source{Name: name, Content: content}
	}
	return out, nil
}

// IsTest says whether a file holds tests of rules rather than rules.
func IsTest(name string) bool { return isTest(name) }
