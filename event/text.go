package event

import "strings"

// Shorten returns the text, or as much of its beginning as fits into so many bytes without half a character at the end.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// Wrap breaks a text at spaces into lines of at most width runes, sixteen at least; a longer word is cut.
func Wrap(text string, width int) []string {
	width = max(width, 16)
	var lines []string
	var line []rune
	for word := range strings.FieldsSeq(text) {
		runes := []rune(word)
		if len(line) > 0 && len(line)+1+len(runes) > width {
			lines = append(lines, string(line))
			line = line[:0]
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for len(runes) > width {
			lines = append(lines, string(runes[:width]))
			runes = runes[width:]
		}
		line = append(line, runes...)
	}
	if len(line) > 0 {
		lines = append(lines, string(line))
	}
	return lines
}
