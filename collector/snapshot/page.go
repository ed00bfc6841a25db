package snapshot

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"lowtide/event"
)

// Style says what the reader's terminal can show.
type Style struct {
	ASCII bool
	Width int // columns, 80 to 120
}

// StyleOf returns the style for an environment, asked for by getenv, and a terminal of so many columns (0: not known): ASCII when it is
// wanted, with NO_COLOR, and where LC_ALL, LC_CTYPE or LANG, the first of them that is set, names no UTF-8 locale.
func StyleOf(ascii bool, getenv func(string) string, columns int) Style {
	s := Style{ASCII: true, Width: 100}
	if columns > 0 {
		s.Width = min(max(columns, 80), 120)
	}
	if ascii || getenv("NO_COLOR") != "" {
		return s
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(getenv(name)); locale != "" {
			s.ASCII = !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
			break
		}
	}
	return s
}

// page collects lines. There are no colours and no cursor movements.
type page struct {
	style Style
	b     strings.Builder
}

func (p *page) flush(out io.Writer) error {
	text := p.b.String()
	if p.style.ASCII {
		text = fold(text)
	}
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("print snapshot: %w", err)
	}
	return nil
}

// line prints text as it is.
func (p *page) line(text string) { p.b.WriteString(strings.TrimRight(text, " ") + "\n") }

// hang prints text behind a lead; further lines are indented by the width of the lead.
func (p *page) hang(lead, text string) {
	pad := utf8.RuneCountInString(lead)
	for _, part := range event.Wrap(printable(text), p.style.Width-pad) {
		p.line(lead + part)
		lead = strings.Repeat(" ", pad)
	}
}

func (p *page) heading(text string) {
	p.line("")
	p.hang("", text)
}

func (p *page) list(heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.heading(heading)
	for _, line := range lines {
		p.hang("  - ", line)
	}
}

// column is one of a table. One whose values are all empty or zero is not printed.
type column struct {
	title string
	left  bool // aligned; the last column always is, and takes the rest of the width
	spare int  // columns with the largest number go first when the table is too wide
}

// table prints rows of as many values as there are columns.
func (p *page) table(columns []column, rows [][]string) {
	wide := make([]int, len(columns))
	for i, c := range columns {
		used := false
		for _, row := range rows {
			used = used || row[i] != "" && row[i] != "0" && row[i] != "0 B"
			wide[i] = max(wide[i], utf8.RuneCountInString(row[i]))
		}
		wide[i] = max(wide[i], utf8.RuneCountInString(c.title))
		if !used {
			wide[i] = 0
		}
	}
	last := len(columns) - 1
	for {
		total, worst := 0, 0
		for i, w := range wide {
			switch {
			case w == 0:
			case i == last:
				total += 2 + min(w, 40)
			default:
				total += 2 + w
			}
			if w > 0 && columns[i].spare > columns[worst].spare || wide[worst] == 0 {
				worst = i
			}
		}
		if total <= p.style.Width || columns[worst].spare == 0 {
			break
		}
		wide[worst] = 0
	}
	print := func(values []string) {
		var lead strings.Builder
		for i, value := range values[:last] {
			if wide[i] == 0 {
				continue
			}
			pad := strings.Repeat(" ", max(0, wide[i]-utf8.RuneCountInString(value)))
			if columns[i].left {
				lead.WriteString("  " + value + pad)
			} else {
				lead.WriteString("  " + pad + value)
			}
		}
		switch {
		case wide[last] == 0 || values[last] == "":
			p.line(lead.String())
		case columns[last].left:
			p.hang(lead.String()+"  ", values[last])
		default:
			p.line(lead.String() + "  " + strings.Repeat(" ", max(0, wide[last]-utf8.RuneCountInString(values[last]))) + values[last])
		}
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	print(titles)
	for _, row := range rows {
		print(row)
	}
}

// ascii has the characters that the pages use themselves.
var ascii = strings.NewReplacer("·", ".", "─", "-", "−", "-", "–", "-", "…", "...", "×", "x", "←", "<-", "≤", "<=", "→", "->", "│", "|", "┤", "+", "└", "+",
	"█", "#", "▓", "=", "▒", "~", "░", "-", "✕", "x", "▔", "-")

// fold writes text in ASCII; a character that has no likeness there is a question mark.
func fold(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf {
			return '?'
		}
		return r
	}, ascii.Replace(text))
}

// where is a stack in one line: the innermost frame first, a file that is the same as before left out.
func where(frames []string) string {
	var b strings.Builder
	file := ""
	for i, frame := range frames {
		if i > 0 {
			b.WriteString(" ← ")
		}
		name, rest, found := strings.Cut(frame, ":")
		if found && i > 0 && name == file {
			frame = ":" + rest
		}
		if found {
			file = name
		}
		b.WriteString(frame)
	}
	return b.String()
}

// seconds is a duration as a person says it.
func seconds(d time.Duration) string {
	switch d = d.Abs(); {
	case d >= 2*time.Hour:
		return event.FormatQuantity(d.Hours(), "hours")
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return event.FormatQuantity(d.Seconds(), "seconds")
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05") + " UTC" }

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

// bar is a share of so many columns, at least one of them for what is more than nothing.
func bar(part, whole uint64, columns int) string {
	if part == 0 || whole == 0 {
		return ""
	}
	return strings.Repeat("█", max(1, int(float64(part)/float64(whole)*float64(columns)+0.5)))
}
