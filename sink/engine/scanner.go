package engine

import (
	"bytes"
	"strings"
)

// pairs are two words in a row that lead out of the engine or beyond one statement.
var pairs = map[[2]string]string{
	{"into", "outfile"}: "INTO OUTFILE", {"from", "infile"}: "FROM INFILE", {"parallel", "with"}: "PARALLEL WITH",
	{"into", "function"}: "INSERT INTO FUNCTION", {"table", "function"}: "TABLE FUNCTION", {"on", "cluster"}: "ON CLUSTER",
	{"execute", "as"}: "EXECUTE AS", {"fetch", "partition"}: "FETCH PARTITION", {"fetch", "part"}: "FETCH PART",
	{"to", "disk"}: "TO DISK", {"to", "volume"}: "TO VOLUME", {"to", "inner"}: "TO INNER",
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
	if t.kind == tokenString && bytes.IndexByte(s.source[t.start:t.end], '{') >= 0 {
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
