package rules

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"lowtide/event"
)

//go:embed builtin
var embedded embed.FS

const maxRules = 1000

// Pack is a set of rules, built-in ones first.
type Pack struct{ Rules []*Rule }

// Rule returns the rule with an id, or nil.
func (p *Pack) Rule(id string) *Rule {
	for _, r := range p.Rules {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// file is one rule file with the folder that its advice lies beside.
type file struct {
	name    string
	content []byte
	advice  folder
}

// folder holds advice as NAME.md. The zero value holds nothing.
type folder struct {
	name  string // for messages
	files fs.FS
}

const maxAdviceBytes = 64 << 10

// Builtin returns the shipped rules.
func Builtin() (*Pack, error) { return Load() }

// Load returns the built-in rules with the rules of the files laid over them by id. The error is Problems when files are wrong:
// every mistake of every file at once.
func Load(paths ...string) (*Pack, error) {
	builtin, err := builtinFiles()
	if err != nil {
		return nil, err
	}
	var user []file
	var failed []error
	for _, p := range paths {
		f, err := readFile(p)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		user = append(user, f)
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return load(builtin, user)
}

// readFile reads a rule file of the user; its advice is the folder `advice` beside it.
func readFile(p string) (file, error) {
	content, err := os.ReadFile(p)
	if err != nil {
		return file{}, fmt.Errorf("read rules: %w", err)
	}
	beside := filepath.Join(filepath.Dir(p), "advice")
	return file{name: p, content: content, advice: folder{beside, os.DirFS(beside)}}, nil
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.yaml") }

func builtinFiles() ([]file, error) {
	advice, err := fs.Sub(embedded, "builtin/advice")
	if err != nil {
		return nil, fmt.Errorf("read built-in advice: %w", err)
	}
	names, err := fs.Glob(embedded, "builtin/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("read built-in rules: %w", err)
	}
	var out []file
	for _, name := range names {
		if isTest(name) {
			continue
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read built-in rules: %w", err)
		}
		out = append(out, file{name: name, content: content, advice: folder{"builtin/advice", advice}})
	}
	return out, nil
}

func load(builtin, user []file) (*Pack, error) {
	var problems Problems
	below := readSpecs(builtin, nil, &problems)
	names := make([]string, len(below))
	for i, s := range below {
		names[i] = s.id
	}
	above := readSpecs(user, names, &problems)
	var advice []folder
	for _, f := range slices.Concat(user, builtin) {
		if f.advice.files != nil && !slices.ContainsFunc(advice, func(other folder) bool { return other.name == f.advice.name }) {
			advice = append(advice, f.advice)
		}
	}
	pack := &Pack{}
	for _, s := range merge(below, above) {
		if r, ok := compile(s, advice, &problems); ok {
			pack.Rules = append(pack.Rules, r)
		}
	}
	if err := problems.sorted(); err != nil {
		return nil, err
	}
	return pack, nil
}

// readSpecs reads the rules of one layer; an id may come once in it.
func readSpecs(files []file, below []string, problems *Problems) []*spec {
	var out []*spec
	seen := map[string]*spec{}
	for _, f := range files {
		doc, root, ok := parse(f.name, f.content, problems)
		if !ok {
			continue
		}
		for _, top := range doc.fields(root, "the file") {
			if top.name != "rules" {
				doc.reportAt(top.key, suggest(top.name, []string{"rules"}), "unknown key %q", top.name)
				continue
			}
			for _, n := range top.items() {
				s, ok := readSpec(doc, doc.fields(n, "a rule"), below)
				if !ok {
					continue
				}
				if first := seen[s.id]; first != nil {
					line, _ := place(first.at.key)
					s.at.report("give it another id", "rule %s is already in %s:%d", s.id, first.at.doc.name, line)
					continue
				}
				if len(out) == maxRules {
					s.at.report("", "more than %d rules", maxRules)
					return out
				}
				seen[s.id] = s
				out = append(out, s)
			}
		}
	}
	return out
}

func readSpec(doc *document, fields []field, below []string) (*spec, bool) {
	s := &spec{fields: map[string]field{}, layers: 1}
	for _, f := range fields {
		if !slices.Contains(fieldNames, f.name) {
			doc.reportAt(f.key, suggest(f.name, fieldNames), "unknown field %q", f.name)
			continue
		}
		s.fields[f.name] = f
	}
	id, ok := s.fields["id"]
	if !ok {
		if len(fields) > 0 {
			doc.reportAt(fields[0].key, "begin the rule with `- id: NAME`", "a rule has no id")
		}
		return nil, false
	}
	text, ok := id.text()
	if !ok {
		return nil, false
	}
	if !validName(text.text) {
		id.report("use a-z, 0-9 and _", "id %q is not a name", text.text)
		return nil, false
	}
	s.id, s.at = text.text, id
	// A part of a rule is enough only where the rest lies below it.
	if !slices.Contains(below, s.id) {
		for _, need := range requiredFields {
			if _, ok := s.fields[need]; !ok {
				hint := "add " + need + ":"
				if near := event.Nearest(s.id, below); near != "" {
					hint += ", or did you mean the built-in rule " + near + "?"
				}
				id.report(hint, "rule %s has no %s", s.id, need)
			}
		}
	}
	return s, true
}

func validName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i, c := range s {
		if !(c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}

// adviceLines reads NAME.md from the first folder that holds it: imperative lines, each at its place, list marks and headings taken
// off. Where no folder does, it returns the names that there are.
func adviceLines(name string, folders []folder, problems *Problems) (lines []scalar, names []string) {
	for _, folder := range folders {
		content, err := fs.ReadFile(folder.files, name+".md")
		if err != nil {
			if all, err := fs.Glob(folder.files, "*.md"); err == nil {
				for _, one := range all {
					names = append(names, strings.TrimSuffix(path.Base(one), ".md"))
				}
			}
			continue
		}
		doc := &document{name: filepath.Join(folder.name, name+".md"), problems: problems}
		if len(content) > maxAdviceBytes {
			doc.report(0, 0, "keep what an on-call engineer has time to read", "file has %d bytes, more than %d", len(content), maxAdviceBytes)
			return nil, nil
		}
		doc.lines = strings.Split(strings.ReplaceAll(string(content), "\r\n", "\n"), "\n")
		for i, line := range doc.lines {
			text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "- "))
			if text != "" && !strings.HasPrefix(text, "#") {
				before, _, _ := strings.Cut(line, text)
				lines = append(lines, scalar{doc: doc, text: text, line: i + 1, column: 1 + len([]rune(before))})
			}
		}
		return lines, nil
	}
	slices.Sort(names)
	return nil, slices.Compact(names)
}
