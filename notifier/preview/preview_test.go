package preview

import (
	"strings"
	"testing"
)

func page(t *testing.T, message string) string {
	t.Helper()
	m, err := Read([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	out, err := HTML(m)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(out, head)
}

func TestBlocksAreDrawn(t *testing.T) {
	got := page(t, `{"name":"retention","blocks":[
		{"type":"header","text":{"type":"plain_text","text":":red_circle: retention confirmed"}},
		{"type":"section","text":{"type":"mrkdwn","text":"*Advice*\n• a &lt;b&gt; `+"`lowtide sql`"+`"}},
		{"type":"actions","elements":[{"type":"button","style":"danger","text":{"type":"plain_text","text":"Silence"}}]},
		{"type":"data_visualization","title":"live","chart":{"type":"line","series":[{"name":"live","data":[{"label":"00:00","value":42},{"label":"03:00","value":48}]}]}},
		{"type":"context","elements":[{"type":"mrkdwn","text":"incident 1 · <https://example.org/a|book>"}]}]}`)
	for _, want := range []string{
		"<header>🔴 retention confirmed</header>",
		"<b>Advice</b>\n• a &lt;b&gt; <code>lowtide sql</code>",
		`<span class="button danger">Silence</span>`,
		`points="48.0,136.0 580.0,10.0 "`,
		`<a href="https://example.org/a">book</a>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

// What a log line brought along is text, in whichever markup it hides.
func TestTextIsNeverMarkup(t *testing.T) {
	for _, evil := range []string{"&lt;script&gt;alert(1)&lt;/script&gt;", "<script>alert(1)</script>", "`<script>`", "```<script>```", `<https://x.example/"onload=|<script>>`} {
		if got := page(t, `{"blocks":[{"type":"section","text":{"type":"mrkdwn","text":`+quote(evil)+`}}]}`); strings.Contains(got, "<script") || strings.Contains(got, `"onload=`) {
			t.Errorf("%s became %s", evil, got)
		}
	}
}

func quote(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }

func TestUnknownBlockIsAnError(t *testing.T) {
	m, err := Read([]byte(`{"name":"x","blocks":[{"type":"carousel"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := HTML(m); err == nil || !strings.Contains(err.Error(), `"carousel"`) {
		t.Errorf("error is %v", err)
	}
}
