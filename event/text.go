package event

import "strings"

// Shorten returns the text, or as much of its beginning as fits into so many bytes without half a character at the end.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
