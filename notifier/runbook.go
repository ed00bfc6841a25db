package notifier

import "strings"

// Runbook is the address of what to do about a class: an anchor of a document such as docs/oncall.md, whose headings are the classes.
// Without a base, or for what is no class, it is empty. A base with an anchor of its own keeps only what stands before that.
func Runbook(base, class string) string {
	base, _, _ = strings.Cut(strings.TrimSpace(base), "#")
	if base == "" || class == "" || strings.ContainsFunc(class, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		return ""
	}
	return base + "#" + class
}
