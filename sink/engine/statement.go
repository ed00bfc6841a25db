package engine

import (
	"strconv"
	"strings"
)

// statement is what the gate has found out about a text of SQL.
type statement struct {
	kind   string // first keyword, in lower case: select, insert, create, …
	reads  bool   // changes nothing, as far as the first keyword tells
	head   int    // bytes of the statement up to FORMAT or VALUES of an INSERT; all of the text without data
	data   int    // offset of the data of an INSERT; 0 without
	format string // of the FORMAT clause, "" without one; of the data of an INSERT
}

// account is what one role may do and ask for.
type account struct {
	role   string
	writes bool
	bounds map[string]int64 // greatest value of each bounded setting
}

// readingKinds are the first keywords of statements that only read.
var readingKinds = wordSet(`select with from show describe desc explain exists`)

// writingKinds are the other first keywords that are taken, and the second keywords that each may have.
var writingKinds = map[string]map[string]bool{
	"insert": nil, "optimize": wordSet("table"), "delete": wordSet("from"), "update": nil, "check": wordSet("table"),
	"create": wordSet("table database view materialized or"), "drop": wordSet("table database view"), "alter": wordSet("table"),
	"rename": wordSet("table database"), "exchange": wordSet("tables"), "truncate": nil,
}

// remedies say what to do instead of a statement that is refused by its first keyword.
var remedies = map[string]string{
	"set": "give settings as URL parameters or in a SETTINGS clause", "use": "give the database as URL parameter",
	"attach": "create the table and insert", "system": "the engine takes care of itself", "kill": "close the connection of the query",
	"backup": "stop the engine and copy its data folder", "restore": "stop the engine and copy its data folder",
}

// inspect judges text for the account: it refuses more than one statement, what the account may not do, and what leads out of
// the engine. Its judgement never rests on the text of literals. What it lets pass the library's own parser, grants and
// readonly mode judge again.
func (r *reach) inspect(text []byte, who account) (statement, *queryError) {
	s := &scanner{lexer: lexer{source: text}, reach: r, who: who}
	first, err := s.next()
	for err == nil && first.mark("(") {
		first, err = s.next()
	}
	if err != nil {
		return statement{}, err
	}
	if first.kind == tokenEnd {
		return statement{}, failure(codeSyntax, "SYNTAX_ERROR", "Empty query")
	}
	st := statement{kind: first.text, reads: readingKinds[first.text] && first.kind == tokenWord}
	seconds, writes := writingKinds[first.text]
	if !st.reads && (!writes || first.kind != tokenWord) {
		return statement{}, refuseKind(first)
	}
	if !st.reads && !who.writes {
		return statement{}, failure(codeReadonly, "READONLY", "The account %s may only read; %s needs the account %s", who.role, strings.ToUpper(st.kind), RoleWriter)
	}
	s.kind = st.kind
	if st.kind == "insert" {
		err = s.insert(&st)
	} else {
		if seconds != nil {
			err = s.second(st.kind, seconds)
		}
		if err == nil {
			err = s.rest()
		}
		st.head = len(text)
	}
	if err != nil {
		return statement{}, err
	}
	if st.data == 0 {
		st.format = s.format
	}
	return st, nil
}

func refuseKind(first token) *queryError {
	shown := first.text
	if first.kind != tokenWord || len(shown) > 32 {
		shown = "a statement that starts at position " + strconv.Itoa(first.start)
		if first.kind == tokenWord {
			shown = first.text[:32] + "…"
		}
	}
	e := failure(codeAccess, "ACCESS_DENIED", "%s is not taken by this engine", strings.ToUpper(shown))
	if remedy := remedies[first.text]; remedy != "" {
		e.message += "; " + remedy
	}
	return e
}

// rest judges everything up to the end of the text.
func (s *scanner) rest() *queryError {
	for {
		if t, err := s.next(); err != nil || t.kind == tokenEnd {
			return err
		}
	}
}

// second judges the word after the first: what CREATE, DROP, ALTER and so on are about.
func (s *scanner) second(kind string, allowed map[string]bool) *queryError {
	t, err := s.next()
	if err != nil {
		return err
	}
	if kind == "create" && t.is("or") {
		if t, err = s.next(); err == nil && t.is("replace") {
			t, err = s.next()
		}
		if err != nil {
			return err
		}
	}
	if t.kind != tokenWord || !allowed[t.text] {
		e := failure(codeAccess, "ACCESS_DENIED", "%s is taken by this engine for %s only", strings.ToUpper(kind), listed(allowed))
		if t.is("temporary") {
			e.message += "; a temporary table would live in one of several sessions"
		}
		return e
	}
	if t.is("materialized") {
		if t, err = s.next(); err != nil {
			return err
		} else if !t.is("view") {
			return failure(codeSyntax, "SYNTAX_ERROR", "Expected VIEW at position %d", t.start)
		}
	}
	return nil
}

func listed(words map[string]bool) string {
	var all []string
	for _, word := range []string{"table", "tables", "database", "view", "materialized", "from"} {
		if words[word] {
			all = append(all, strings.ToUpper(word))
		}
	}
	return strings.Join(all, ", ")
}

// insert judges INSERT INTO [TABLE] name [(columns)] [SETTINGS …] followed by FORMAT name and data, by VALUES and tuples, or by
// a query. Data of a format is not SQL and is not looked at; tuples are, because they may hold expressions.
func (s *scanner) insert(st *statement) *queryError {
	s.inHead = true
	t, err := s.next()
	if err == nil && t.is("into") {
		t, err = s.next()
	}
	if err == nil && t.is("table") {
		t, err = s.next()
	}
	if err == nil && t.is("function") {
		return refuseReach("INSERT INTO FUNCTION", t.start)
	}
	for err == nil && t.kind != tokenEnd && (t.name() || t.mark(".") || t.mark("{") || t.mark(":") || t.mark("}")) && !insertSource(t) {
		t, err = s.next()
	}
	if err == nil && t.mark("(") {
		s.inHead = false
		for floor := s.depth - 1; err == nil && t.kind != tokenEnd && s.depth > floor; {
			t, err = s.next()
		}
		if err == nil {
			t, err = s.next()
		}
	}
	s.inHead = false
	if err != nil {
		return err
	}
	if t.is("settings") { // its clause was judged with the word
		if t, err = s.next(); err != nil {
			return err
		}
	}
	st.head = t.start
	if t.is("values") && s.depth == 0 {
		st.format, st.data = "Values", t.end
		return s.rest()
	}
	if !t.is("format") || s.depth != 0 {
		st.head = len(s.source)
		return s.rest()
	}
	name, err := s.lexer.next()
	if err != nil {
		return err
	}
	if name.kind != tokenWord {
		return failure(codeSyntax, "SYNTAX_ERROR", "Expected the name of a format at position %d", name.start)
	}
	st.data = name.end
	if name.is("values") {
		st.format = "Values"
		s.a, s.b = s.b, name
		return s.rest()
	}
	st.format = string(s.source[name.start:name.end])
	// A clause here would be read as SQL by a library that is set so.
	ahead := s.lexer
	if t, err := ahead.next(); err == nil && t.is("settings") {
		return failure(codeSyntax, "SYNTAX_ERROR", "SETTINGS after FORMAT is not taken; write it before FORMAT")
	}
	return nil
}

// insertSource says whether the word ends the target of an INSERT.
func insertSource(t token) bool {
	switch t.text {
	case "format", "values", "select", "with", "settings", "from", "watch":
		return t.kind == tokenWord
	}
	return false
}
