package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"lowtide/event"
)

// row is a name and its value; one without a value is not printed.
type row struct{ name, value string }

// page collects lines.
type page struct {
	style Style
	b     strings.Builder
}

// flush prints the page in one write.
func (p *page) flush(out io.Writer) error {
	text := p.b.String()
	if p.style.ASCII {
		text = fold(text)
	}
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}

func (p *page) blank() { p.b.WriteByte('\n') }

// line wraps text behind an indent; a text that is empty is no line.
func (p *page) line(indent int, text string) { p.hang(strings.Repeat(" ", indent), text) }

// long prints text without wrapping.
func (p *page) long(indent int, text string) {
	p.b.WriteString(strings.Repeat(" ", indent) + plain(text) + "\n")
}

// hang prints text behind a lead; further lines are indented by the width of the lead.
func (p *page) hang(lead, text string) {
	if text == "" {
		return
	}
	pad := utf8.RuneCountInString(lead)
	for _, part := range event.Wrap(plain(text), width-pad) {
		p.b.WriteString(lead + part + "\n")
		lead = strings.Repeat(" ", pad)
	}
}

// heading opens a section.
func (p *page) heading(text string) {
	if text != "" {
		p.blank()
		p.b.WriteString(text + "\n")
	}
}

// table prints a section of names and values; without any value there is no section.
func (p *page) table(heading string, rows []row) {
	wide, any := 0, false
	for _, r := range rows {
		if r.value != "" {
			wide, any = max(wide, utf8.RuneCountInString(r.name)), true
		}
	}
	if !any {
		return
	}
	wide = min(wide, 32)
	p.heading(heading)
	for _, r := range rows {
		if r.value == "" {
			continue
		}
		name := []rune(plain(r.name))
		if len(name) > wide { // the name of a rule's own evidence; its value must keep some room
			name = append(name[:wide-1], '…')
		}
		p.hang("  "+string(name)+strings.Repeat(" ", wide-len(name))+"  ", r.value)
	}
}

// list prints a section of sentences.
func (p *page) list(heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.heading(heading)
	for _, line := range lines {
		p.hang("  - ", line)
	}
}

// join puts what is not empty together.
func join(between string, parts ...string) string {
	kept := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, between)
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// plain drops control characters: what comes from a log line must not steer a terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError:
			return -1
		}
		return r
	}, text)
}

// ascii has the characters that the reports use themselves.
var ascii = strings.NewReplacer("·", "-", "─", "-", "–", "-", "−", "-", "—", "-", "…", "...", "±", "+/-", "≥", ">=", "≤", "<=", "×", "x",
	"→", "->", "’", "'", "“", `"`, "”", `"`, "σ", "sigma")

// fold writes text in ASCII; a character that has no likeness there is a question mark.
func fold(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf {
			return '?'
		}
		return r
	}, ascii.Replace(text))
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// minute is a time to the minute, which is what growth over hours needs; empty for the zero time.
func minute(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

// duration has two units at most.
func duration(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d d %02d h", int(d.Hours())/24, int(d.Hours())%24)
	case d >= time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}

// lag says when a symptom came, counted from the onset of the finding.
func lag(seconds float64) string {
	d := time.Duration(math.Abs(seconds) * float64(time.Second)).Round(time.Second)
	switch {
	case d == 0:
		return "at the onset"
	case seconds < 0:
		return duration(d) + " before the onset"
	}
	return duration(d) + " after the onset"
}
