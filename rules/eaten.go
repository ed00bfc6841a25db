package rules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A line of YAML as a person writes it: indentation, list mark, key, value.
var keyed = regexp.MustCompile(`^( *)(- +)?([A-Za-z_][A-Za-z0-9_.]*):( +|$)(.*)$`)

// glued is a key whose value follows without a blank, which YAML reads as one word.
var glued = regexp.MustCompile(`^ *(- +)?([a-z_]+):[^\s:]`)

// texts are the fields whose value is one text; parents are those whose keys the author names, each with one text.
var (
	texts = []string{"id", "class", "scope", "when", "confirm", "refute", "with", "ask", "pair", "keep", "summary", "refuted", "advice",
		"enabled", "shadow", "name", "rule"}
	parents = []string{"thresholds", "against"}
)

// mend finds on the lines of a file what YAML takes for something of its own: an exclamation mark, a colon, a brace, a number sign, a
// tab, an indentation. Each is reported at its place, and the line is made harmless, so that the rest of the file can be read too. It
// returns the lines for the parser; what is lost of a line is kept in d.lost.
func (d *document) mend() []string {
	out := slices.Clone(d.lines)
	block := -1 // indentation of the key of the block scalar that is being passed over
	owner, ownerAt := "", -1
	column := -1 // of the fields of the current rule
	for i, line := range d.lines {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if strings.TrimSpace(line) == "" {
			continue
		}
		if rest := line[indent:]; strings.HasPrefix(rest, "\t") {
			d.report(i+1, indent+1, "indent with spaces, two for each level", "the line is indented with a tab")
			out[i] = strings.Repeat(" ", max(column, 0)) + strings.TrimLeft(rest, "\t ")
			d.lose(i + 1)
			continue
		}
		if block >= 0 && indent > block {
			continue
		}
		block = -1
		if strings.HasPrefix(line[indent:], "#") {
			continue
		}
		m := keyed.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		mark, key, value := len(m[2]), m[3], m[5]
		at := len(m[1]) + mark
		valueAt := len(line) - len(value)
		if mark > 0 {
			column, owner = at, ""
		}
		if owner != "" && at <= ownerAt {
			owner = ""
		}
		if strings.HasPrefix(value, "|") || strings.HasPrefix(value, ">") {
			block = at
			if mark > 0 {
				block = len(m[1])
			}
		}
		switch {
		case owner != "":
		case slices.Contains(parents, key) && (value == "" || strings.HasPrefix(value, "#")):
			owner, ownerAt = key, at
			continue
		case !slices.Contains(texts, key):
			continue
		}
		if offset, message, hint := eaten(key, value); message != "" {
			d.report(i+1, 1+len([]rune(line[:valueAt+offset])), hint, "%s", message)
			out[i] = line[:valueAt] + "lost"
			d.lose(i + 1)
		}
	}
	return out
}

func (d *document) lose(line int) {
	if d.lost == nil {
		d.lost = map[int]bool{}
	}
	d.lost[line] = true
}

// asBlock is the remedy for most of what YAML eats.
func asBlock(key, value string) string {
	return fmt.Sprintf("use `|`: write `%s: |`, and on the next line, indented deeper: %s", key, value)
}

// eaten says what YAML would take of one value, and where in it; an empty message means nothing.
func eaten(key, value string) (offset int, message, hint string) {
	whole := strings.TrimSpace(value)
	if whole == "" {
		return 0, "", ""
	}
	switch first := whole[0]; first {
	case '!':
		return 0, fmt.Sprintf("%s: YAML takes what follows `!` for a type", key), asBlock(key, whole)
	case '{':
		return 0, fmt.Sprintf("%s: YAML takes the opening brace for a mapping", key), asBlock(key, whole)
	case '[':
		return 0, fmt.Sprintf("%s: YAML takes the opening bracket for a list", key), asBlock(key, whole)
	case '&', '*':
		return 0, fmt.Sprintf("%s: YAML takes what follows `%c` for the name of an anchor", key, first), asBlock(key, whole)
	case '@', '`', '%':
		return 0, fmt.Sprintf("%s: YAML reserves `%c`", key, first), asBlock(key, strings.Trim(whole, "`"))
	case '|', '>':
		header, _, _ := strings.Cut(whole, " #")
		if rest := strings.TrimLeft(strings.TrimSpace(header)[1:], "+-0123456789"); rest != "" {
			if first == '>' {
				return 0, fmt.Sprintf("%s: YAML takes `>` for a folded block", key), asBlock(key, whole)
			}
			return len(whole) - len(strings.TrimLeft(whole[1:], " ")), fmt.Sprintf("%s: the text of a block begins on the next line", key), asBlock(key, strings.TrimSpace(rest))
		}
		return 0, "", ""
	case '"', '\'':
		end := closing(whole)
		if end < 0 {
			return 0, "", "" // it may go on; the parser tells
		}
		if rest := strings.TrimSpace(whole[end+1:]); rest != "" && !strings.HasPrefix(rest, "#") {
			return end + 1 + strings.Index(whole[end+1:], rest), fmt.Sprintf("%s: the value ends at its closing quote, and something follows", key), asBlock(key, whole)
		}
		return 0, "", ""
	}
	text, comment := whole, ""
	if i := strings.Index(whole, " #"); i >= 0 {
		text, comment = strings.TrimRight(whole[:i], " "), whole[i+1:]
	}
	if i := strings.Index(text, ": "); i >= 0 {
		return i, fmt.Sprintf("%s: YAML takes `: ` for the end of a key", key), asBlock(key, whole)
	}
	if strings.HasSuffix(text, ":") {
		return len(text) - 1, fmt.Sprintf("%s: YAML takes `:` at the end for that of a key", key), asBlock(key, whole)
	}
	if comment != "" && (strings.Contains(comment, "{{") || unfinished(text)) {
		return strings.Index(whole, " #") + 1, fmt.Sprintf("%s: YAML takes what follows ` #` for a comment", key), asBlock(key, whole)
	}
	return 0, "", ""
}

// closing returns where the quoted text that s begins with ends, -1 for one that does not.
func closing(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[0] == '"' && s[i] == '\\':
			i++
		case s[0] == '\'' && strings.HasPrefix(s[i:], "''"):
			i++
		case s[i] == s[0]:
			return i
		}
	}
	return -1
}

// unfinished says whether an expression was cut: a quote or a bracket is open, or an operator waits for what follows.
func unfinished(text string) bool {
	var open byte
	depth := 0
	for i := range len(text) {
		switch c := text[i]; {
		case open != 0:
			if c == open {
				open = 0
			}
		case c == '"':
			open = c
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		}
	}
	for _, operator := range []string{"&&", "||", "<", ">", "=", "+", "*", "/", "?"} {
		if strings.HasSuffix(text, operator) {
			return true
		}
	}
	return open != 0 || depth > 0
}

// syntaxHint words what the YAML parser complains of; line counts from 1. The message is its own unless a better one is known.
func (d *document) syntaxHint(line int, message string) (where int, words, hint string) {
	text := func(n int) string {
		if n < 1 || n > len(d.lines) {
			return ""
		}
		return d.lines[n-1]
	}
	switch {
	case strings.HasPrefix(message, "non-map value") && glued.MatchString(text(line)):
		return line, "a key without a blank after its colon", "put a blank after the colon"
	case strings.HasPrefix(message, "non-map value"), strings.HasPrefix(message, "value is not allowed"):
		if above := d.blockAbove(line); above > 0 {
			return line, fmt.Sprintf("wrong indentation: the line belongs to the block of line %d, and begins too far left", above), "indent every line of the block alike, two spaces deeper than its key"
		}
		if key := keyed.FindStringSubmatch(text(line)); key != nil {
			if column := d.ruleColumn(line); column > 0 && column != len(key[1])+len(key[2]) {
				return line, fmt.Sprintf("wrong indentation: %s begins in column %d, the fields of its rule in column %d", key[3], 1+len(key[1])+len(key[2]), 1+column),
					fmt.Sprintf("indent it by %d spaces, like the id of the rule", column)
			}
		}
		return line, "wrong indentation, or a text that belongs to no key", "indent the fields of a rule like its id; write an expression of several lines under `|`, indented deeper"
	case strings.HasPrefix(message, "mapping value is not allowed"):
		if key := keyed.FindStringSubmatch(text(line + 1)); key != nil && len(key[1])+len(key[2]) > len(text(line))-len(strings.TrimLeft(text(line), "- ")) {
			return line + 1, "wrong indentation: " + key[3] + " begins deeper than the field above it", "indent the fields of a rule alike, like its id"
		}
		return line, "YAML takes `: ` for the end of a key", "use `|`: write the text on the next line, indented deeper"
	case strings.Contains(message, "']' not found"):
		return line, "a list has no end", "close it with ]"
	case strings.Contains(message, "'}' must be specified"), strings.Contains(message, "'}' not found"):
		return line, "a mapping in braces has no end, or lacks a comma", "close it with }, or put each key on a line of its own"
	case strings.Contains(message, "quoted text"):
		return line, "a quoted text has no end", "close the quote, or use `|`"
	}
	return line, message, "use `|` for expressions and sentences: YAML eats `!`, `: `, `{` and ` #`"
}

// blockAbove returns the line of the key whose `|` block a line without a key of its own comes out of, 0 for none.
func (d *document) blockAbove(line int) int {
	for n := line - 1; n >= 1 && n >= line-100; n-- {
		if m := keyed.FindStringSubmatch(d.lines[n-1]); m != nil {
			if strings.HasPrefix(m[5], "|") {
				return n
			}
			return 0
		}
	}
	return 0
}

// ruleColumn returns the indentation of the fields of the rule that a line is in, 0 when it is in none.
func (d *document) ruleColumn(line int) int {
	for n := line - 1; n >= 1; n-- {
		if m := keyed.FindStringSubmatch(d.lines[n-1]); m != nil && m[2] != "" {
			return len(m[1]) + len(m[2])
		}
	}
	return 0
}
