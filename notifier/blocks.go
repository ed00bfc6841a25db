package notifier

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"lowtide/event"
)

// Slack's limits, each with room to spare. The total is not documented: messages are refused from about 13,200 characters on.
const (
	maxHeader  = 150
	maxSection = 2900
	maxTotal   = 9500 // bytes of the blocks as JSON
)

// dress is what a channel takes of a card beside its text.
type dress struct {
	chart   bool // the block data_visualization; else the curve is a line of text
	buttons bool // somebody listens when they are pressed
}

// blocks lays the card out. A card that is too long loses the ends of its longest parts first, and says how much is left out.
func blocks(card Card, d dress) []slack.Block {
	var list []slack.Block
	for _, limit := range []int{2800, 1400, 700, 350, 150} {
		list = layout(card, limit, d)
		if text, err := json.Marshal(slack.Blocks{BlockSet: list}); err == nil && len(text) <= maxTotal {
			break
		}
	}
	return list
}

// layout gives every part of the card at most limit runes.
func layout(card Card, limit int, d dress) []slack.Block {
	header := slack.NewTextBlockObject(slack.PlainTextType, clip(icon(card)+" "+plain(card.Title), maxHeader), true, false)
	list := []slack.Block{slack.NewHeaderBlock(header)}
	part := func(heading string, lines []string) {
		if len(lines) == 0 {
			return
		}
		if heading != "" {
			heading = "*" + heading + "*\n"
		}
		list = append(list, slack.NewSectionBlock(mrkdwn(heading+fit(lines, limit)), nil, nil))
	}
	if card.Summary != "" {
		part("", []string{clip(escape(card.Summary), limit)})
	}
	part("", pairs(card.People))
	part("", flow(card.Where))
	part("Workers", pairs(card.Workers))
	part("Seen together", bullets(card.Together))
	part("Other explanations", flow(card.Against))
	if block := chartBlock(card.Chart); block != nil && d.chart {
		list = append(list, block)
	} else if line := card.Chart.Line(); line != "" {
		part(escape(card.Chart.Title), []string{escape(line)})
	}
	if card.Forecast != "" {
		part("Risk indicator", []string{escape(card.Forecast)})
	}
	var todo []string
	for _, one := range advice(card) {
		todo = append(todo, "• "+coded(one))
	}
	part("What to do now", todo)
	if len(card.Next) > 0 {
		commands := "```" + strings.ReplaceAll(verbatim(strings.Join(card.Next, "\n")), "```", "'''") + "```"
		if utf8.RuneCountInString(commands) <= maxSection { // half a command is none
			list = append(list, slack.NewSectionBlock(mrkdwn("*Look closer*\n"+commands), nil, nil))
		}
	}
	part("Evidence", flow(card.Evidence))
	part("Held, by an allocator snapshot", bullets(card.Held))
	part("Could not be assessed", bySensor(card.Blind))
	if d.buttons {
		if block := buttons(card); block != nil {
			list = append(list, block)
		}
	}
	foot := fmt.Sprintf("incident %s · first seen %s · changed %s", escape(card.Incident), clock(card.FirstSeen), clock(card.Changed))
	foot = clip(foot, 500)
	if link := runbookLink(card.Runbook); link != "" {
		foot += " · " + link
	}
	return append(list, slack.NewContextBlock("", mrkdwn(foot)))
}

// mrkdwn is text in which nothing becomes a link by itself.
func mrkdwn(text string) *slack.TextBlockObject {
	return slack.NewTextBlockObject(slack.MarkdownType, text, false, true)
}

// advice is what to do, with how many replicas there are to do it with.
func advice(card Card) []string {
	if card.Replicas == "" || card.State == event.Resolved {
		return card.Advice
	}
	return append([]string{upper(card.Replicas) + "."}, card.Advice...)
}

func upper(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// runbookLink is a link where the runbook is an address, which a settings file gave, and text where it is a place in the documentation.
func runbookLink(place string) string {
	switch {
	case place == "":
		return ""
	case (strings.HasPrefix(place, "https://") || strings.HasPrefix(place, "http://")) && !strings.ContainsAny(place, "|<> "):
		return "<" + escape(place) + "|runbook>"
	}
	return "runbook " + escape(place)
}

// chartBlock is the curve as Slack draws it; nil when it would be refused.
func chartBlock(c Chart) slack.Block {
	if len(c.Values) < 2 {
		return nil
	}
	labels := c.Labels()
	points := make([]slack.DataVisualizationDataPoint, len(labels))
	for i, label := range labels {
		points[i] = slack.NewDataVisualizationDataPoint(label, c.Values[i])
	}
	name := c.Unit
	if name == "" {
		name = "count"
	}
	axis := slack.NewDataVisualizationAxisConfig(labels...).WithYLabel(name)
	block := slack.NewDataVisualizationBlock(c.Title, slack.NewDataVisualizationLineChart(axis, slack.NewDataVisualizationDataSeries(name, points...)))
	if block.Validate() != nil {
		return nil
	}
	return block
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
		list = append(list, "`"+escape(line.Name)+"` "+escape(line.Value))
	}
	return list
}

// flow puts short pairs beside each other and long ones on lines of their own: a card that has to be scrolled is not read.
func flow(lines []Line) []string {
	const short, wide = 44, 84 // runes of a pair that may have others beside it, and of the line they make
	var list []string
	var row []string
	used := 0
	end := func() {
		if len(row) > 0 {
			list = append(list, strings.Join(row, " · "))
		}
		row, used = nil, 0
	}
	for _, text := range pairs(lines) {
		size := utf8.RuneCountInString(text)
		if size > short || used+size > wide {
			end()
		}
		row, used = append(row, text), used+size
		if size > short {
			end()
		}
	}
	end()
	return list
}

// bySensor names the classes that a sensor is missing for beside each other.
func bySensor(lines []Line) []string {
	var order []string
	classes := map[string][]string{}
	for _, line := range lines {
		if classes[line.Value] == nil {
			order = append(order, line.Value)
		}
		classes[line.Value] = append(classes[line.Value], line.Name)
	}
	var list []string
	for _, value := range order {
		list = append(list, escape(strings.Join(classes[value], ", "))+": "+escape(value))
	}
	return list
}

// coded is escape, with what stands between accents as code: advice is written by whoever wrote the rule.
func coded(text string) string {
	parts := strings.Split(text, "`")
	if len(parts)%2 == 0 {
		return escape(text)
	}
	for i := range parts {
		if i%2 == 1 && strings.TrimSpace(parts[i]) != "" {
			parts[i] = "`" + verbatim(parts[i]) + "`"
		} else {
			parts[i] = escape(parts[i])
		}
	}
	return strings.Join(parts, "")
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

// escape keeps text from being read as Slack's control sequences and marks: <!channel> in a log line must not wake everybody, and a star or
// an accent must not make the rest of the card bold or code. Characters that look alike stand for those that would.
func escape(text string) string {
	return strings.NewReplacer("*", "∗", "~", "∼", "`", "ˋ").Replace(flat(verbatim(text)))
}

// verbatim is escape inside a block of code, where marks mean nothing.
func verbatim(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(plainLines(text))
}

// flat takes the meaning from underscores that would make what is between them italic: one at the begin of a word, where one at the end of a
// word follows.
func flat(text string) string {
	if strings.Count(text, "_") < 2 {
		return text
	}
	runes, flat := []rune(text), []rune(text)
	wordy := func(i int) bool {
		return i >= 0 && i < len(runes) && (unicode.IsLetter(runes[i]) || unicode.IsDigit(runes[i]))
	}
	closing := -1
	for i := len(runes) - 1; i >= 0; i-- {
		if runes[i] == '_' && !wordy(i+1) {
			closing = i
			break
		}
	}
	for i := range max(0, closing) {
		if runes[i] == '_' && !wordy(i-1) {
			flat[i] = 'ˍ'
		}
	}
	return string(flat)
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
