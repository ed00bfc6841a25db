package rules

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"
)

// Entry is a key of a YAML file with its value, or an item of a list, at its place. Files that stand beside rules are read by it, so that
// what is wrong with them is told in the same form, with the same limits on size and nesting.
type Entry struct{ field }

// Word is a text of a file that knows where each of its characters stands.
type Word struct{ scalar }

// ReadEntries reads the keys at the top of a YAML file. What is wrong is added to the problems; then there may be none.
func ReadEntries(name string, content []byte, problems *Problems) []Entry {
	doc, root, ok := parse(name, content, problems)
	if !ok {
		return nil
	}
	return entriesOf(doc.fields(root, "the file"))
}

func entriesOf(fields []field) []Entry {
	out := make([]Entry, len(fields))
	for i, f := range fields {
		out[i] = Entry{f}
	}
	return out
}

// Name is the key; of an item of a list it is that of the list.
func (e Entry) Name() string { return e.name }

// Entries returns the keys of the value, and reports what is none.
func (e Entry) Entries() []Entry {
	if e.value == nil {
		e.report("give it a value or remove the key", "%s is empty", e.name)
		return nil
	}
	return entriesOf(e.doc.fields(e.value, e.name))
}

// Items returns the items of the value, and reports what is no list.
func (e Entry) Items() []Entry {
	nodes := e.items()
	out := make([]Entry, len(nodes))
	for i, n := range nodes {
		out[i] = Entry{field{doc: e.doc, name: e.name, key: n, value: n}}
	}
	return out
}

// IsMapping says whether the value has keys.
func (e Entry) IsMapping() bool {
	switch e.value.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

// IsList says whether the value has items.
func (e Entry) IsList() bool {
	_, is := e.value.(*ast.SequenceNode)
	return is
}

// Word returns the value as one text, and reports what is none.
func (e Entry) Word() (Word, bool) {
	s, ok := e.text()
	return Word{s}, ok
}

// Bool returns the value as a bool, and reports what is none.
func (e Entry) Bool() (value, ok bool) {
	w, ok := e.Word()
	if !ok {
		return false, false
	}
	value, err := strconv.ParseBool(w.text)
	if err != nil || w.text != "true" && w.text != "false" {
		e.Report("write true or false", "%s: %q is no bool", e.name, w.text)
		return false, false
	}
	return value, true
}

// Place returns file, line and column of the value, or of the key of one that has none.
func (e Entry) Place() (file string, line, column int) {
	n := e.value
	if n == nil {
		n = e.key
	}
	line, column = place(n)
	return e.doc.name, line, column
}

// Report adds a problem at the value.
func (e Entry) Report(hint, format string, args ...any) { e.report(hint, format, args...) }

// ReportKey adds a problem at the key.
func (e Entry) ReportKey(hint, format string, args ...any) {
	e.doc.reportAt(e.key, hint, format, args...)
}

// Unknown reports a key that is none of those.
func (e Entry) Unknown(what string, keys []string) {
	e.ReportKey(suggest(e.name, keys), "unknown key %q in %s", e.name, what)
}

// Text is the word itself.
func (w Word) Text() string { return w.text }

// Report adds a problem at so many characters behind the beginning of the word.
func (w Word) Report(offset int, hint, format string, args ...any) {
	line, column := w.at(1, offset)
	w.doc.report(line, column, hint, format, args...)
}

// Suggest makes a hint of the nearest name, else of the whole list.
func Suggest(name string, names []string) string { return suggest(name, names) }
