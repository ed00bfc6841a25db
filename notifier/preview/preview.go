// Package preview draws Slack messages as HTML, near enough to how Slack shows them to see what a reader sees: what stands in the first
// line, what is cut, what runs over. It owns no card and sends nothing; it is for golden files, screenshots and the documents.
package preview

import (
	"encoding/json"
	"fmt"
	"html"
	"regexp"
	"strings"
)

// Message is one message as Slack's API takes it, of which the preview reads its blocks and its text.
type Message struct {
	Name   string  `json:"name,omitempty"` // shown above it; the channel, or which card it is
	Text   string  `json:"text,omitempty"` // of a message without blocks, and of a notification
	Blocks []block `json:"blocks"`
	Thread []Reply `json:"thread,omitempty"`
}

// Reply is one message of the thread below.
type Reply struct {
	Text string `json:"text"`
}

type block struct {
	Type      string    `json:"type"`
	Text      *text     `json:"text"`
	Fields    []text    `json:"fields"`
	Elements  []element `json:"elements"`
	Title     string    `json:"title"`
	Chart     *chart    `json:"chart"`
	Accessory *element  `json:"accessory"`
}

type text struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// element is a button, or a text of a context block: whose text is a string there, and an object on a button.
type element struct {
	Type  string          `json:"type"`
	Text  json.RawMessage `json:"text"`
	Style string          `json:"style"`
}

type chart struct {
	Type   string `json:"type"`
	Series []struct {
		Name string `json:"name"`
		Data []struct {
			Label string  `json:"label"`
			Value float64 `json:"value"`
		} `json:"data"`
	} `json:"series"`
	Axis struct {
		YLabel string `json:"y_label"`
		XLabel string `json:"x_label"`
	} `json:"axis_config"`
}

// Read reads a message from JSON. Fields that are not drawn are passed over; a block of a kind that is not known is an error of HTML.
func Read(data []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(data, &m); err != nil {
		return Message{}, fmt.Errorf("read message: %w", err)
	}
	return m, nil
}

const head = `<!doctype html><meta charset="utf-8"><title>cards</title><style>
body{font:15px/1.46 "Lato","DejaVu Sans",sans-serif;background:#fff;color:#1d1c1d;margin:16px;width:680px}
article{border-left:4px solid #ddd;padding:8px 12px;margin:0 0 28px}
h2{font:700 12px/1.2 monospace;color:#616061;margin:0 0 6px}
header{font-weight:900;font-size:18px;margin:0 0 8px}
section{margin:6px 0;white-space:pre-wrap;overflow-wrap:break-word}
.fields{display:grid;grid-template-columns:1fr 1fr;gap:4px 12px}
footer,.context{font-size:12px;color:#616061;white-space:pre-wrap}
code{font:12px monospace;background:#f6f6f6;border:1px solid #e2e2e2;border-radius:3px;padding:1px 3px;color:#c01343}
pre{font:12px/1.4 monospace;background:#f8f8f8;border:1px solid #ddd;border-radius:4px;padding:8px;white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0}
.button{display:inline-block;border:1px solid #bbb;border-radius:4px;padding:4px 10px;margin:4px 6px 0 0;font-weight:700;font-size:13px}
.primary{background:#007a5a;color:#fff;border-color:#007a5a}.danger{background:#e01e5a;color:#fff;border-color:#e01e5a}
.reply{border-left:2px solid #ddd;margin:6px 0 0 20px;padding-left:8px;font-size:14px;white-space:pre-wrap}
hr{border:0;border-top:1px solid #ddd;margin:8px 0}a{color:#1264a3}svg text{font:11px sans-serif;fill:#616061}
</style>
`

// HTML returns one page with all messages below each other. It fails on a block of a kind that Slack has and the preview does not draw,
// rather than leave out what a reader would see.
func HTML(messages ...Message) (string, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, m := range messages {
		fmt.Fprintf(&b, "<article data-name=\"%s\">", html.EscapeString(m.Name))
		if m.Name != "" {
			fmt.Fprintf(&b, "<h2>%s</h2>", html.EscapeString(m.Name))
		}
		for _, one := range m.Blocks {
			if err := one.draw(&b); err != nil {
				return "", fmt.Errorf("draw %s: %w", m.Name, err)
			}
		}
		if len(m.Blocks) == 0 {
			fmt.Fprintf(&b, "<section>%s</section>", mrkdwn(m.Text))
		}
		for _, r := range m.Thread {
			fmt.Fprintf(&b, "<div class=reply>%s</div>", mrkdwn(r.Text))
		}
		b.WriteString("</article>\n")
	}
	return b.String(), nil
}

func (o block) draw(b *strings.Builder) error {
	switch o.Type {
	case "header":
		fmt.Fprintf(b, "<header>%s</header>", emoji(html.EscapeString(o.Text.get())))
	case "section":
		if o.Text != nil {
			fmt.Fprintf(b, "<section>%s</section>", o.Text.draw())
		}
		if len(o.Fields) > 0 {
			b.WriteString("<section class=fields>")
			for _, f := range o.Fields {
				fmt.Fprintf(b, "<div>%s</div>", f.draw())
			}
			b.WriteString("</section>")
		}
		if o.Accessory != nil {
			return o.Accessory.draw(b)
		}
	case "context":
		b.WriteString("<footer>")
		for i, e := range o.Elements {
			if i > 0 {
				b.WriteString("  ")
			}
			if err := e.draw(b); err != nil {
				return err
			}
		}
		b.WriteString("</footer>")
	case "actions":
		b.WriteString("<div>")
		for _, e := range o.Elements {
			if err := e.draw(b); err != nil {
				return err
			}
		}
		b.WriteString("</div>")
	case "divider":
		b.WriteString("<hr>")
	case "data_visualization":
		return o.Chart.draw(b, o.Title)
	default:
		return fmt.Errorf("a block of type %q", o.Type)
	}
	return nil
}

func (t *text) get() string {
	if t == nil {
		return ""
	}
	return t.Text
}

func (t *text) draw() string {
	if t.Type == "plain_text" {
		return emoji(html.EscapeString(t.Text))
	}
	return mrkdwn(t.Text)
}

func (e element) draw(b *strings.Builder) error {
	var words string
	switch e.Type {
	case "mrkdwn", "plain_text":
		if err := json.Unmarshal(e.Text, &words); err != nil {
			return fmt.Errorf("a text: %w", err)
		}
		b.WriteString((&text{e.Type, words}).draw())
	case "button":
		var t text
		if err := json.Unmarshal(e.Text, &t); err != nil {
			return fmt.Errorf("a button: %w", err)
		}
		class := "button"
		if e.Style == "primary" || e.Style == "danger" {
			class += " " + e.Style
		}
		fmt.Fprintf(b, "<span class=\"%s\">%s</span>", class, t.draw())
	default:
		return fmt.Errorf("an element of type %q", e.Type)
	}
	return nil
}

// draw shows the lines of a chart; bars and pies are none of ours.
func (c *chart) draw(b *strings.Builder, title string) error {
	if c == nil || c.Type != "line" && c.Type != "area" || len(c.Series) == 0 || len(c.Series[0].Data) == 0 {
		return fmt.Errorf("a chart that is no line")
	}
	const width, height, left, bottom = 600.0, 170.0, 8.0, 24.0
	low, high := c.Series[0].Data[0].Value, c.Series[0].Data[0].Value
	for _, s := range c.Series {
		for _, p := range s.Data {
			low, high = min(low, p.Value), max(high, p.Value)
		}
	}
	if high == low {
		high = low + 1
	}
	fmt.Fprintf(b, "<section><b>%s</b>\n<svg width=%.0f height=%.0f>", html.EscapeString(title), width, height)
	fmt.Fprintf(b, "<text x=%.0f y=12>%s %.4g</text><text x=%.0f y=%.0f>%.4g</text>", left, html.EscapeString(c.Axis.YLabel), high, left, height-bottom, low)
	for _, s := range c.Series {
		var points strings.Builder
		for i, p := range s.Data {
			x := left + 40 + float64(i)*(width-left-60)/max(1, float64(len(s.Data)-1))
			y := 10 + (high-p.Value)/(high-low)*(height-bottom-20)
			fmt.Fprintf(&points, "%.1f,%.1f ", x, y)
			if i == 0 || i == len(s.Data)-1 {
				anchor := "start"
				if i > 0 {
					anchor = "end"
				}
				fmt.Fprintf(b, "<text x=%.1f y=%.0f text-anchor=%s>%s</text>", x, height-6, anchor, html.EscapeString(p.Label))
			}
		}
		fmt.Fprintf(b, "<polyline fill=none stroke=\"#1264a3\" stroke-width=2 points=\"%s\"/>", points.String())
	}
	b.WriteString("</svg></section>")
	return nil
}

var (
	fence  = regexp.MustCompile("(?s)```\n?(.*?)\n?```")
	code   = regexp.MustCompile("`([^`\n]+)`")
	bold   = regexp.MustCompile(`(^|[\s(>])\*([^*\n]+)\*`)
	italic = regexp.MustCompile(`(^|[\s(>])_([^_\n]+)_($|[\s.,;:)<])`)
	link   = regexp.MustCompile(`<(https?://[^|>]+)\|([^>]+)>`)
	plain  = regexp.MustCompile(`<(https?://[^|>]+)>`)
	short  = regexp.MustCompile(`:([a-z_+0-9]+):`)
)

// mrkdwn draws the part of Slack's markup that cards use. The text's own <, > and & came escaped.
func mrkdwn(s string) string {
	// Links are kept aside as what they become, since everything else is escaped.
	var kept []string
	keep := func(out string) string {
		kept = append(kept, out)
		return fmt.Sprintf("\x00%d\x00", len(kept)-1)
	}
	unescape := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&")
	s = fence.ReplaceAllStringFunc(s, func(m string) string {
		return keep("<pre>" + html.EscapeString(unescape.Replace(fence.FindStringSubmatch(m)[1])) + "</pre>")
	})
	s = code.ReplaceAllStringFunc(s, func(m string) string {
		return keep("<code>" + html.EscapeString(unescape.Replace(m[1:len(m)-1])) + "</code>")
	})
	s = link.ReplaceAllStringFunc(s, func(m string) string {
		parts := link.FindStringSubmatch(m)
		return keep(`<a href="` + html.EscapeString(parts[1]) + `">` + html.EscapeString(unescape.Replace(parts[2])) + `</a>`)
	})
	s = plain.ReplaceAllStringFunc(s, func(m string) string {
		at := plain.FindStringSubmatch(m)[1]
		return keep(`<a href="` + html.EscapeString(at) + `">` + html.EscapeString(at) + `</a>`)
	})
	s = html.EscapeString(unescape.Replace(s))
	s = bold.ReplaceAllString(s, "$1<b>$2</b>")
	s = italic.ReplaceAllString(s, "$1<i>$2</i>$3")
	s = emoji(s)
	for i := len(kept) - 1; i >= 0; i-- {
		s = strings.ReplaceAll(s, fmt.Sprintf("\x00%d\x00", i), kept[i])
	}
	return s
}

// emoji draws the few that cards use by name; others stay as they are written, which is how an unknown one looks in Slack.
func emoji(s string) string {
	return short.ReplaceAllStringFunc(s, func(m string) string {
		switch m {
		case ":red_circle:":
			return "🔴"
		case ":large_yellow_circle:":
			return "🟡"
		case ":white_check_mark:":
			return "✅"
		case ":mute:", ":no_bell:":
			return "🔕"
		case ":book:":
			return "📖"
		}
		return m
	})
}
