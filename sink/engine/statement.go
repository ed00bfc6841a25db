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

// pairs are two words in a row that lead out of the engine or beyond one statement.
var pairs = map[[2]string]string{
	{"into", "outfile"}: "INTO OUTFILE", {"from", "infile"}: "FROM INFILE", {"parallel", "with"}: "PARALLEL WITH",
	{"into", "function"}: "INSERT INTO FUNCTION", {"table", "function"}: "TABLE FUNCTION", {"on", "cluster"}: "ON CLUSTER",
	{"execute", "as"}: "EXECUTE AS", {"fetch", "partition"}: "FETCH PARTITION", {"fetch", "part"}: "FETCH PART",
	{"to", "disk"}: "TO DISK", {"to", "volume"}: "TO VOLUME", {"to", "inner"}: "TO INNER",
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

// scanner passes tokens on and refuses what leads out of the engine, whatever the statement is.
type scanner struct {
	lexer
	reach  *reach
	who    account
	kind   string
	a, b   token // the two tokens before the next one
	format string
	depth  int
	ended  bool // a semicolon was seen
	inHead bool // within the target and columns of an INSERT, where a name before a parenthesis is no call
}

// next returns the next token after judging it together with the two before it.
func (s *scanner) next() (token, *queryError) {
	t, err := s.lexer.next()
	if err != nil || t.kind == tokenEnd {
		return t, err
	}
	if s.ended && !t.mark(";") {
		return t, failure(codeSyntax, "SYNTAX_ERROR", "Multi-statements are not taken: text follows the semicolon before position %d", t.start)
	}
	if !t.mark(";") && !t.is("settings") {
		s.format = "" // the word FORMAT before was not the clause at the end
	}
	switch t.kind {
	case tokenMark:
		err = s.judgeMark(t)
	case tokenWord, tokenQuoted:
		err = s.judgeName(t)
	}
	if err != nil {
		return t, err
	}
	s.a, s.b = s.b, t
	if t.is("settings") || t.is("setting") && s.kind == "alter" {
		return t, s.settings()
	}
	return t, nil
}

func (s *scanner) judgeMark(t token) *queryError {
	switch t.text {
	case ";":
		s.ended = true
	case "(":
		s.depth++
		if s.b.name() && !s.inHead {
			if name := strings.ToLower(s.b.text); s.reach.functions[name] {
				return refuseReach("function "+name, s.b.start)
			} else if name == "format" {
				return s.judgeFormat(s.b.start)
			}
		}
		if s.b.mark("}") && !s.inHead {
			return refuseReach("a function whose name is a parameter", s.b.start)
		}
	case ")":
		s.depth--
	case "{":
		if s.b.is("engine") || s.a.is("engine") && s.b.mark("=") {
			return refuseReach("an engine whose name is a parameter", t.start)
		}
	}
	return nil
}

// judgeFormat takes format('{} …', x) and refuses the table function format(Name, …): the text of its argument would be
// SQL with the format Values. A format's name never has a brace.
func (s *scanner) judgeFormat(position int) *queryError {
	ahead := s.lexer
	t, err := ahead.next()
	if err != nil {
		return err
	}
	if t.kind == tokenString && strings.IndexByte(string(s.source[t.start:t.end]), '{') >= 0 {
		return nil
	}
	return refuseReach("table function format", position)
}

func (s *scanner) judgeName(t token) *queryError {
	name := t.text
	if t.kind == tokenQuoted {
		name = strings.ToLower(name)
	}
	if s.b.is("engine") || s.a.is("engine") && s.b.mark("=") {
		if s.reach.engines[name] {
			return refuseReach("engine "+name, t.start)
		}
	}
	if s.reach.scalars[name] && !s.b.mark(".") {
		return refuseReach("function "+name+" (a column of this name is reached as table."+name+")", t.start)
	}
	if t.kind == tokenWord {
		if s.b.kind == tokenWord {
			if what := pairs[[2]string{s.b.text, name}]; what != "" {
				return refuseReach(what, s.b.start)
			}
			if s.b.text == "format" && s.depth == 0 && !s.ended {
				s.format = string(s.source[t.start:t.end])
			}
		}
	}
	return nil
}

func refuseReach(what string, position int) *queryError {
	return failure(codeAccess, "ACCESS_DENIED", "Not taken by this engine at position %d: %s; it reaches beyond the engine's own tables", position, what)
}

// settings judges the clause name = value, … that may follow the word SETTINGS; if the word is something else, it does nothing.
func (s *scanner) settings() *queryError {
	for {
		ahead := s.lexer
		name, err := ahead.next()
		if err != nil {
			return err
		}
		if !name.name() {
			return nil
		}
		equals, err := ahead.next()
		if err != nil {
			return err
		}
		if equals.mark(".") {
			return failure(codeSetting, "UNKNOWN_SETTING", "Setting at position %d has a name with a dot", name.start)
		}
		if equals.mark(",") { // a flag without a value
			s.lexer = ahead
			s.a, s.b = name, equals
			continue
		}
		if !equals.mark("=") {
			return nil
		}
		s.lexer = ahead
		s.a, s.b = name, equals
		more, err := s.settingValue(name)
		if err != nil || !more {
			return err
		}
	}
}

// settingValue reads the value of one setting and says whether a comma follows it.
func (s *scanner) settingValue(name token) (more bool, refusal *queryError) {
	start, end, depth := -1, 0, 0
	for {
		ahead := s.lexer
		t, err := ahead.next()
		if err != nil {
			return false, err
		}
		// A number of several tokens, such as -1.5e-3, goes on after its sign and its point.
		joined := s.b.mark(".") || s.b.mark("-") || s.b.mark("+")
		over := t.kind == tokenEnd || depth == 0 && (t.mark(",") || t.mark(")") || t.mark(";") || start >= 0 && t.name() && !joined)
		if over {
			if err := s.judgeClause(name, start, end); err != nil {
				return false, err
			}
			if t.mark(",") {
				// The comma belongs to the clause only when name = follows; else it separates something outside.
				s.lexer = ahead
				s.a, s.b = s.b, t
				return true, nil
			}
			return false, nil
		}
		if t.is("default") {
			return false, failure(codeSetting, "UNKNOWN_SETTING", "Setting %s = DEFAULT is not taken; leave the setting out", name.text)
		}
		switch t.text {
		case "(", "[", "{":
			if t.kind == tokenMark {
				depth++
				if s.b.name() || s.b.mark("}") {
					return false, refuseReach("a setting whose value is a call", t.start)
				}
			}
		case ")", "]", "}":
			if t.kind == tokenMark {
				depth--
			}
		}
		if start < 0 {
			start = t.start
		}
		end = t.end
		s.lexer = ahead
		s.a, s.b = s.b, t
	}
}

func (s *scanner) judgeClause(name token, start, end int) *queryError {
	key := strings.ToLower(name.text)
	if bound, ok := s.who.bounds[key]; ok {
		value := ""
		if start >= 0 {
			value = strings.Trim(string(s.source[start:end]), "'")
		}
		if !withinBound(value, bound) {
			return failure(452, "SETTING_CONSTRAINT_VIOLATION", "Setting %s must be between 1 and %d for the account %s", key, bound, s.who.role)
		}
		return nil
	}
	verdict := judgeSetting(key)
	if verdict == settingRefused && (s.kind == "create" || s.kind == "alter") && !refusedSettings[key] && judgeTableSetting(key) {
		return nil
	}
	if verdict == settingRefused || key == "readonly" {
		return failure(codeSetting, "UNKNOWN_SETTING", "Setting %s is not passed on by this engine", key)
	}
	return nil
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
