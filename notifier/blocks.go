package notifier

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"lowtide/event"
)

// Slack's limits, each with room to spare. The total is not documented: messages are refused from about 13,200 characters on.
const (
	maxHeader = 150
	maxTotal  = 9500 // bytes of the blocks as JSON
)

// blocks lays the card out. A card that is too long loses the ends of its longest parts first, and says how much is left out.
func blocks(card Card) []slack.Block {
	var list []slack.Block
	for _, limit := range []int{2800, 1400, 700, 350, 150} {
		list = layout(card, limit)
		if text, err := json.Marshal(slack.Blocks{BlockSet: list}); err == nil && len(text) <= maxTotal {
			break
		}
	}
	return list
}

// layout gives every part of the card at most limit runes.
func layout(card Card, limit int) []slack.Block {
	header := slack.NewTextBlockObject(slack.PlainTextType, clip(icon(card)+" "+plain(card.Title), maxHeader), true, false)
	list := []slack.Block{slack.NewHeaderBlock(header)}
	part := func(heading string, lines []string) {
		if len(lines) == 0 {
			return
		}
		if heading != "" {
			heading = "*" + heading + "*\n"
		}
		text := slack.NewTextBlockObject(slack.MarkdownType, heading+fit(lines, limit), false, false)
		list = append(list, slack.NewSectionBlock(text, nil, nil))
	}
	if card.Summary != "" {
		part("", []string{clip(escape(card.Summary), limit)})
	}
	part("", pairs(card.Where))
	part("Evidence", pairs(card.Evidence))
	part("Held, by an allocator snapshot", bullets(card.Held))
	part("Seen together", bullets(card.Together))
	part("Other explanations", pairs(card.Against))
	if card.Forecast != "" {
		part("Risk indicator", []string{escape(card.Forecast)})
	}
	part("Could not be assessed", pairs(card.Blind))
	part("Advice", bullets(card.Advice))
	for _, command := range card.Next {
		part("Look closer", []string{"```" + strings.ReplaceAll(escape(command), "```", "'''") + "```"})
	}
	foot := fmt.Sprintf("incident %s · first seen %s · changed %s", escape(card.Incident), clock(card.FirstSeen), clock(card.Changed))
	return append(list, slack.NewContextBlock("", slack.NewTextBlockObject(slack.MarkdownType, clip(foot, 500), false, false)))
}

func icon(card Card) string {
	switch {
	case card.State == event.Resolved:
		return "✅"
	case card.Severity == event.Page:
		return "🔴"
	}
	return "🟡"
}

// fallback is what notifications and screen readers show.
func fallback(card Card) string {
	return clip(escape(card.Title+": "+card.Summary), 1000)
}

func pairs(lines []Line) []string {
	var list []string
	for _, line := range lines {
		list = append(list, "`"+strings.ReplaceAll(escape(line.Name), "`", "'")+"` "+escape(line.Value))
	}
	return list
}

func bullets(lines []string) []string {
	var list []string
	for _, line := range lines {
		list = append(list, "• "+escape(line))
	}
	return list
}

// fit joins as many lines as there is room for, at least the first, and says how many are left out.
func fit(lines []string, limit int) string {
	var kept []string
	used := 0
	for i, line := range lines {
		line = clip(line, limit)
		size := utf8.RuneCountInString(line) + 1
		if i > 0 && used+size > limit {
			return strings.Join(kept, "\n") + fmt.Sprintf("\n… and %d more", len(lines)-i)
		}
		used += size
		kept = append(kept, line)
	}
	return strings.Join(kept, "\n")
}

// escape keeps text from being read as Slack's control sequences: <!channel> in a log line must not wake everybody.
func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(plainLines(text))
}

// plainLines is plain, line by line.
func plainLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = plain(lines[i])
	}
	return strings.Join(lines, "\n")
}

// clip cuts text to at most limit runes, the last an ellipsis, and never inside an escape.
func clip(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	text = string([]rune(text)[:limit-1])
	if at := strings.LastIndexByte(text, '&'); at >= 0 && !strings.Contains(text[at:], ";") && len(text)-at < 6 {
		text = text[:at]
	}
	return text + "…"
}
