package notifier

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"lowtide/event"
)

// Terminal prints cards. A terminal cannot be edited, so an update is printed again and marked as one.
type Terminal struct {
	name   string
	out    io.Writer
	colour bool
}

// terminalWidth is the number of columns that a card takes, borders included.
const terminalWidth = 100

// NewTerminal returns a Sender that prints to out; with colours only when out is a terminal and NO_COLOR is unset.
func NewTerminal(out io.Writer) *Terminal {
	t := &Terminal{out: out, name: "terminal"}
	if file, ok := out.(*os.File); ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		if info, err := file.Stat(); err == nil {
			t.colour = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return t
}

// Name is the key of receipts.
func (t *Terminal) Name() string { return t.name }

// Post prints the card.
func (t *Terminal) Post(_ context.Context, card Card) (Receipt, error) {
	return Receipt{Channel: "terminal"}, t.print(card, "")
}

// Update prints the card again, marked as an update.
func (t *Terminal) Update(_ context.Context, _ Receipt, card Card) error {
	return t.print(card, "update: ")
}

func (t *Terminal) print(card Card, mark string) error {
	if _, err := io.WriteString(t.out, renderText(card, mark, t.colour)); err != nil {
		return fmt.Errorf("print card: %w", err)
	}
	return nil
}

// renderText draws a card in a box.
func renderText(c Card, mark string, colour bool) string {
	b := &box{width: terminalWidth, colour: colour, tint: tint(c)}
	b.rule("╭", "╮")
	b.text("", mark+c.Title, true)
	b.text("", c.Summary, false)
	b.lines("", c.People)
	b.rule("├", "┤")
	b.lines("", c.Where)
	b.text("", "incident "+c.Incident+" · first seen "+clock(c.FirstSeen)+" · changed "+clock(c.Changed), false)
	b.lines("Workers", c.Workers)
	if line := c.Chart.Line(); line != "" {
		b.list(c.Chart.Title, []string{line})
	}
	b.lines("Evidence", c.Evidence)
	b.list("Held, by an allocator snapshot", c.Held)
	b.list("Seen together", c.Together)
	b.lines("Other explanations", c.Against)
	if c.Forecast != "" {
		b.list("Risk indicator", []string{c.Forecast})
	}
	b.lines("Could not be assessed", c.Blind)
	b.list("Advice", advice(c))
	if c.Runbook != "" {
		b.list("Runbook", []string{c.Runbook})
	}
	b.rule("╰", "╯")
	for _, command := range c.Next {
		b.b.WriteString("  $ " + plain(command) + "\n") // outside the box, so that it can be copied whole
	}
	return b.b.String()
}

func tint(c Card) string {
	switch {
	case c.State == event.Resolved:
		return "\x1b[32m"
	case c.Severity == event.Page:
		return "\x1b[31m"
	}
	return "\x1b[33m"
}

// box writes lines between two borders.
type box struct {
	b      strings.Builder
	width  int
	colour bool
	tint   string
}

func (b *box) paint(code, text string) string {
	if !b.colour {
		return text
	}
	return code + text + "\x1b[0m"
}

func (b *box) rule(left, right string) {
	b.b.WriteString(b.paint(b.tint, left+strings.Repeat("─", b.width-2)+right) + "\n")
}

// text wraps content after the indent; continuation lines align with it.
func (b *box) text(indent, content string, bold bool) {
	if content == "" {
		return
	}
	inner := b.width - 4
	pad := strings.Repeat(" ", utf8.RuneCountInString(indent))
	for i, part := range event.Wrap(plain(content), inner-utf8.RuneCountInString(indent)) {
		lead := indent
		if i > 0 {
			lead = pad
		}
		line := lead + part
		fill := strings.Repeat(" ", max(0, inner-utf8.RuneCountInString(line)))
		if bold {
			line = b.paint("\x1b[1m", line)
		}
		edge := b.paint(b.tint, "│")
		b.b.WriteString(edge + " " + line + fill + " " + edge + "\n")
	}
}

func (b *box) lines(heading string, lines []Line) {
	if len(lines) == 0 {
		return
	}
	wide := 0
	for _, line := range lines {
		wide = max(wide, utf8.RuneCountInString(line.Name))
	}
	wide = min(wide, 32)
	b.heading(heading)
	for _, line := range lines {
		name := clip(plain(line.Name), wide) // a longer name would leave its value no room
		b.text(name+strings.Repeat(" ", max(0, wide-utf8.RuneCountInString(name)))+"  ", line.Value, false)
	}
}

func (b *box) list(heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.heading(heading)
	for _, line := range lines {
		b.text("• ", line, false)
	}
}

func (b *box) heading(text string) {
	if text != "" {
		b.rule("├", "┤")
		b.text("", text, true)
	}
}

// plain drops control characters and marks that turn the direction of writing: what comes from a log line must not steer a terminal, nor
// show a command or a name as another.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || (r >= 0x7f && r < 0xa0) || bidi(r):
			return -1
		}
		return r
	}, text)
}

// bidi says that a character turns the direction of what stands behind it, and is not seen itself.
func bidi(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c
}
