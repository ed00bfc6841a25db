package engine

import (
	"bytes"
	"fmt"
	"strings"
)

// tokenKind says what a token of ClickHouse SQL is.
type tokenKind uint8

const (
	tokenEnd    tokenKind = iota
	tokenWord             // keyword, bare identifier or number
	tokenQuoted           // identifier in backquotes or double quotes
	tokenString           // literal in single quotes, or a heredoc
	tokenMark             // one punctuation character
)

// token is one lexical element; start and end are byte offsets into the source.
type token struct {
	kind       tokenKind
	start, end int
	text       string // word: lower case; quoted: the name without quotes; mark: the character; string: empty
}

func (t token) is(word string) bool   { return t.kind == tokenWord && t.text == word }
func (t token) mark(char string) bool { return t.kind == tokenMark && t.text == char }
func (t token) name() bool            { return t.kind == tokenWord || t.kind == tokenQuoted }

// lexer splits ClickHouse SQL as ClickHouse's own lexer does: nested comments do not exist, '#' starts a comment before a
// space or '!', $tag$ … $tag$ is a string. Where a text is ambiguous it refuses instead of guessing: bytes outside ASCII and
// stray dollars outside of literals, and backslashes within quoted identifiers.
type lexer struct {
	source []byte
	at     int
}

// next returns the next token, or a token of kind tokenEnd at the end of the text.
func (l *lexer) next() (token, *queryError) {
	if err := l.skipTrivia(); err != nil {
		return token{}, err
	}
	start := l.at
	if start >= len(l.source) {
		return token{kind: tokenEnd, start: start, end: start}, nil
	}
	c := l.source[start]
	switch {
	case wordByte(c):
		for l.at < len(l.source) && (wordByte(l.source[l.at]) || l.source[l.at] == '$') {
			l.at++
		}
		return token{tokenWord, start, l.at, lower(l.source[start:l.at])}, nil
	case c == '\'':
		return l.quoted('\'', tokenString)
	case c == '`' || c == '"':
		return l.quoted(c, tokenQuoted)
	case c == '$':
		return l.heredoc()
	case c >= 0x80:
		return token{}, refuseSyntax("byte 0x%02x at position %d is outside ASCII and not in quotes; write names in backquotes and text in single quotes", c, start)
	case c < ' ' || c == 0x7f:
		return token{}, refuseSyntax("control character 0x%02x at position %d", c, start)
	}
	l.at++
	return token{tokenMark, start, l.at, marks[c]}, nil
}

// skipTrivia moves past white space and comments.
func (l *lexer) skipTrivia() *queryError {
	for l.at < len(l.source) {
		rest := l.source[l.at:]
		switch c := rest[0]; {
		case c == ' ' || c >= '\t' && c <= '\r':
			l.at++
		case c == '-' && len(rest) > 1 && rest[1] == '-', c == '#' && len(rest) > 1 && (rest[1] == ' ' || rest[1] == '!'):
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			l.at += end
		case c == '/' && len(rest) > 1 && rest[1] == '*':
			end := bytes.Index(rest[2:], []byte("*/"))
			if end < 0 {
				return refuseSyntax("comment at position %d is not closed", l.at)
			}
			l.at += 2 + end + 2
		default:
			return nil
		}
	}
	return nil
}

func (l *lexer) quoted(quote byte, kind tokenKind) (token, *queryError) {
	start := l.at
	for i := start + 1; i < len(l.source); i++ {
		switch l.source[i] {
		case '\\':
			if kind == tokenQuoted {
				return token{}, refuseSyntax("quoted name at position %d holds a backslash; escapes in names are not taken", start)
			}
			i++
		case quote:
			if i+1 < len(l.source) && l.source[i+1] == quote {
				i++
				continue
			}
			l.at = i + 1
			t := token{kind: kind, start: start, end: l.at}
			if kind == tokenQuoted {
				t.text = strings.ReplaceAll(string(l.source[start+1:i]), string([]byte{quote, quote}), string(quote))
			}
			return t, nil
		}
	}
	return token{}, refuseSyntax("quote at position %d is not closed", start)
}

func (l *lexer) heredoc() (token, *queryError) {
	start := l.at
	i := start + 1
	for i < len(l.source) && wordByte(l.source[i]) {
		i++
	}
	if i < len(l.source) && l.source[i] == '$' {
		tag := l.source[start : i+1]
		if end := bytes.Index(l.source[i+1:], tag); end >= 0 {
			l.at = i + 1 + end + len(tag)
			return token{kind: tokenString, start: start, end: l.at}, nil
		}
	}
	return token{}, refuseSyntax("dollar at position %d starts no $tag$ … $tag$ text", start)
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// lower returns the word in lower case; the words of a data block are numbers mostly, so short ones do not allocate twice.
func lower(word []byte) string {
	for _, c := range word {
		if c >= 'A' && c <= 'Z' {
			return string(bytes.ToLower(word))
		}
	}
	return string(word)
}

// marks holds every ASCII character as a string, so that a punctuation token allocates nothing.
var marks = func() (all [128]string) {
	for i := range all {
		all[i] = string(rune(i))
	}
	return all
}()

func refuseSyntax(format string, values ...any) *queryError {
	return &queryError{code: codeSyntax, name: "SYNTAX_ERROR", message: "Statement not taken: " + fmt.Sprintf(format, values...)}
}
