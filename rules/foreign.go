package rules

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// slip is a piece of an expression that is right in another language.
type slip struct {
	pattern *regexp.Regexp // matched where no text and no comment is
	message string         // with the piece as %s
	hint    func(piece []string) string
}

func always(hint string) func([]string) string { return func([]string) string { return hint } }

// slips are looked for only in what CEL cannot parse, so that none is a rule's own right.
var slips = []slip{
	{regexp.MustCompile(`^\b(and|AND|And)\b`), "%s is not an operator", always("write &&")},
	{regexp.MustCompile(`^\b(or|OR|Or)\b`), "%s is not an operator", always("write ||")},
	{regexp.MustCompile(`^\b(not|NOT|Not)\b`), "%s is not an operator", always("write !")},
	{regexp.MustCompile(`^\b(is not)\b`), "%s is not an operator", always("write !=")},
	{regexp.MustCompile(`^\b(is)\b`), "%s is not an operator", always("write ==")},
	{regexp.MustCompile(`^\b(if|then|else|elif|unless|for|let|while)\b`), "%s is no word of CEL", always("write a choice as condition ? a : b; what must hold for a while is `keep:` beside `when:`")},
	{regexp.MustCompile(`^(\{\{)`), "%s belongs into sentences", always("write the variable without braces")},
	{regexp.MustCompile(`^(=~|!~)`), "%s is not an operator", always(`write engine.matches("^v"), or !engine.matches("^v")`)},
	{regexp.MustCompile(`^(===|!==)`), "%s is not an operator", always("write == or !=")},
	{regexp.MustCompile(`^(=>)`), "%s is not an operator", always("write >=")},
	{regexp.MustCompile(`^(=<)`), "%s is not an operator", always("write <=")},
	{regexp.MustCompile(`^(<>)`), "%s is not an operator", always("write !=")},
	{regexp.MustCompile(`^(==|!=|>=|<=|&&|\|\|)`), "", nil}, // right, and longer than what follows
	{regexp.MustCompile(`^(=)`), "%s is no comparison", always("write ==")},
	{regexp.MustCompile(`^(&)`), "%s is not an operator", always("write &&")},
	{regexp.MustCompile(`^(\|)`), "%s is not an operator", always("write ||")},
	{regexp.MustCompile(`^(≥|⩾)`), "%s is not an operator", always("write >=")},
	{regexp.MustCompile(`^(≤|⩽)`), "%s is not an operator", always("write <=")},
	{regexp.MustCompile(`^(≠)`), "%s is not an operator", always("write !=")},
	{regexp.MustCompile(`^(×|·)`), "%s is not an operator", always("write *")},
	{regexp.MustCompile(`^([“”„«»‘’])`), "%s is no quote of CEL", always(`write straight quotes: "vllm"`)},
	{regexp.MustCompile("^([\u00a0\u2007\u202f\u3000])"), "the blank%.0s here is a special one", always("write an ordinary blank")},
	{regexp.MustCompile(`^(#)`), "%s begins no comment in CEL", always("begin a comment with //, or put it above the field")},
	{regexp.MustCompile(`^([$@~^;\x60])`), "%s is no sign of CEL", always("variables stand as they are: live.growth")},
	{regexp.MustCompile(`^(\d{1,3}(?:,\d{3})+)\b`), "%s is no number", func(m []string) string { return "write " + strings.ReplaceAll(m[1], ",", "") }},
	{regexp.MustCompile(`^(\d+_\d[\d_]*)\b`), "%s is no number", func(m []string) string { return "write " + strings.ReplaceAll(m[1], "_", "") }},
	{regexp.MustCompile(`^(\d+(?:\.\d+)?) ?(%)\s*(?:$|\n|\)|&&|\|\||,|\?|:)`), "%s%% is no number", func(m []string) string { return "a ratio is a number from 0 to 1: write " + percent(m[1]) }},
	{regexp.MustCompile(`^((\d+(?:\.\d+)?) ?([A-Za-z]+))\b`), "%s is no number", func(m []string) string { return quantityHint(m[2], m[3]) }},
}

// percent turns 90 into 0.9.
func percent(s string) string {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return "0.9"
	}
	return strconv.FormatFloat(v/100, 'f', -1, 64)
}

// quantityHint says how a number with a unit is written: sizes with KiB, MiB, GiB, times as plain numbers. An empty hint means that the
// letters are no unit.
func quantityHint(number, unit string) string {
	switch strings.ToLower(unit) {
	case "k", "kb", "kib", "ki":
		return "write " + number + " * KiB"
	case "m", "mb", "mib", "mi":
		return "write " + number + " * MiB"
	case "g", "gb", "gib", "gi":
		return "write " + number + " * GiB"
	case "t", "tb", "tib", "ti":
		return "write " + number + " * 1024 * GiB"
	case "b", "byte", "bytes":
		return "bytes are plain numbers: write " + number
	case "ms":
		return "seconds are plain numbers: write " + number + " / 1000"
	case "s", "sec", "second", "seconds":
		return "seconds are plain numbers: write " + number
	case "min", "minute", "minutes":
		return "seconds are plain numbers: write " + number + " * 60"
	case "h", "hour", "hours":
		return "hours are plain numbers: write " + number + ", or " + number + " * 3600 where the variable is in seconds"
	case "d", "day", "days":
		return "hours are plain numbers: write " + number + " * 24"
	}
	return ""
}

// slipped reports every slip of a text that CEL cannot parse, at its place; it returns how many there are.
func (s scalar) slipped(what string) (found int) {
	say := func(offset int, hint, message string) {
		found++
		line, column := s.at(position(s.text, offset))
		s.doc.report(line, column, hint, "%s: %s", what, message)
	}
	var open []int
	word := false // the byte before is part of a word, so that no word begins here
	for i := 0; i < len(s.text); {
		c := s.text[i]
		switch {
		case c == '"' || c == '\'':
			end := closing(s.text[i:])
			if line := strings.IndexByte(s.text[i:], '\n'); end < 0 || line >= 0 && line < end {
				say(i, "close it with "+string(c), "a text has no end")
				return found
			}
			i += end + 1
			word = false
			continue
		case strings.HasPrefix(s.text[i:], "//"):
			if end := strings.IndexByte(s.text[i:], '\n'); end >= 0 {
				i += end
				continue
			}
			i = len(s.text)
			continue
		case c == '(' || c == '[' || c == '{' && !strings.HasPrefix(s.text[i:], "{{"):
			open = append(open, i)
		case c == ')' || c == ']':
			if len(open) == 0 || strings.IndexByte("([", s.text[open[len(open)-1]]) != strings.IndexByte(")]", c) {
				say(i, "remove it, or open one before", fmt.Sprintf("%c closes nothing", c))
				return found
			}
			open = open[:len(open)-1]
		}
		matched := 0
		if !word {
			for _, one := range slips {
				m := one.pattern.FindStringSubmatch(s.text[i:])
				if m == nil {
					continue
				}
				if one.hint == nil {
					matched = len(m[1])
					break
				}
				if hint := one.hint(m); hint != "" {
					say(i, hint, fmt.Sprintf(one.message, m[1]))
					matched = len(m[1])
					break
				}
			}
		}
		if strings.HasPrefix(s.text[i:], "{{") && matched > 0 {
			return found // the braces that close would be told too
		}
		i += max(matched, 1)
		last := s.text[i-1]
		word = last == '_' || last == '.' || last >= '0' && last <= '9' || last >= 'a' && last <= 'z' || last >= 'A' && last <= 'Z'
		if last >= 0x80 && matched == 0 {
			word = false
		}
	}
	if found == 0 && len(open) > 0 {
		at := open[len(open)-1]
		say(at, fmt.Sprintf("close it with %c", ")]}"[strings.IndexByte("([{", s.text[at])]), fmt.Sprintf("%c is never closed", s.text[at]))
	}
	return found
}

// position turns an offset in bytes into a line from 1 and a column from 0.
func position(text string, offset int) (line, column int) {
	before := text[:offset]
	return 1 + strings.Count(before, "\n"), len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))
}

// syntax words CEL's message about a text that it cannot parse and in which no slip is.
func syntax(message, text string, line, column int) (words, hint string) {
	lines := strings.Split(text, "\n")
	var rest, before string
	if line >= 1 && line <= len(lines) {
		runes := []rune(lines[line-1])
		column = min(max(column, 0), len(runes))
		rest, before = string(runes[column:]), strings.TrimSpace(string(runes[:column]))
	}
	first := rest
	if i := strings.IndexAny(rest, " \t()[]{},<>=!&|+-*/?:"); i > 0 {
		first = rest[:i]
	} else if i == 0 {
		first = rest[:1]
	}
	switch {
	case strings.TrimSpace(text) == "":
		return "the expression is empty", "write a condition, such as live.early"
	case strings.Contains(message, "expecting ':'"):
		return "a choice has no `:`", "write condition ? a : b"
	case strings.Contains(message, "'<EOF>'"):
		return "the expression ends where something must follow", "write what comes after the last operator, or remove it"
	case first == "?" || first == ":":
		return fmt.Sprintf("%s is not expected here", first), "write a choice as condition ? a : b, in brackets within a larger expression"
	case strings.Contains(message, "expecting <EOF>") && first != "" && (before == "" || strings.IndexByte("&|<>=!+-*/?:(,", before[len(before)-1]) < 0):
		return fmt.Sprintf("%s follows without an operator", first), "put && or || between two conditions"
	case first != "":
		return fmt.Sprintf("%s is not expected here", first), "look at what stands before it: two operators in a row, or a bracket too few"
	}
	return strings.ToLower(message[:1]) + message[1:], "the expression is CEL: && || ! == != < > + - * / and condition ? a : b"
}

// reportSyntax says what cannot be parsed: what is right in another language at each of its places, else the first of CEL's complaints,
// since the others follow from it.
func reportSyntax(s scalar, what string, first complaint) {
	if s.slipped(what) > 0 {
		return
	}
	line, column := s.at(first.line, first.column)
	words, hint := first.message, "ask for one variable, and compare beside it: known(live.growth) && live.growth > 0"
	switch {
	case strings.HasPrefix(words, "reserved identifier"):
		words, hint = strings.TrimPrefix(words, "reserved identifier: ")+" is a reserved word of CEL", "name something else; conditions are made of variables, && || ! and comparisons"
	case strings.HasPrefix(words, "invalid argument to has()"):
		words, hint = "has() asks for a key of labels, known() for a variable", "write known(VARIABLE), or has(labels.team)"
	case strings.HasPrefix(words, "Syntax error: "):
		words, hint = syntax(words[len("Syntax error: "):], s.text, first.line, first.column)
	}
	s.doc.report(line, column, hint, "%s: %s", what, words)
}
