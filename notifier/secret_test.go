package notifier

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/slack-go/slack"
)

// shameless answers every call with all that it was given, in every way in which a call can fail.
func shameless(status int, format string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		told := ""
		for _, one := range []string{r.Form.Get("token"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), r.URL.Path} {
			told += " " + one + " " + url.QueryEscape(one) + " " + url.PathEscape(one)
		}
		if strings.Contains(r.URL.Path, "apps.connections.open") {
			told += " wss://wss.example/?ticket=tickettickt"
		}
		if status >= 300 && status < 400 {
			w.Header().Set("Location", "https://elsewhere.example/?token="+url.QueryEscape(secret))
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, format, strings.ReplaceAll(told, `"`, `'`))
	}))
}

// A token, an app token or the address of a webhook stands in no error, log, metric or card, however a call fails.
func TestSecretsNeverShow(t *testing.T) {
	const hidden = "/services/T0SECRET/B0SECRET/hooksecrethook"
	secrets := []string{secret, appSecret, url.QueryEscape(secret), url.PathEscape(secret), url.QueryEscape(appSecret), url.PathEscape(appSecret), "very+secret", "hooksecrethook", "tickettickt"}
	for name, c := range map[string]struct {
		status int
		format string
	}{
		"refused":      {200, `{"ok":false,"error":"%s"}`},
		"invalid_auth": {200, `{"ok":false,"error":"invalid_auth","needed":"%s"}`},
		"no JSON":      {200, `<html>%s`},
		"cut":          {200, `{"ok":false,"error":"%s`},
		"400":          {400, "%s"}, "401": {401, "%s"}, "403": {403, "%s"}, "404": {404, "%s"}, "429": {429, "%s"}, "500": {500, "%s"}, "302": {302, "%s"},
		"no server": {},
	} {
		t.Run(name, func(t *testing.T) {
			address := "http://127.0.0.1:1"
			if c.status > 0 {
				server := shameless(c.status, c.format)
				defer server.Close()
				address = server.URL
			}
			s, err := NewSlack(SlackOptions{Token: secret, AppToken: appSecret, Channel: "C1", URL: address + "/"})
			if err != nil {
				t.Fatal(err)
			}
			hook, err := NewSlackWebhook(SlackWebhookOptions{URL: address + hidden})
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			gauge := new(Gauge)
			o := Options{Senders: []Sender{s, hook}, Log: slog.New(slog.NewTextHandler(&log, nil)), Gauge: gauge}
			if err := o.complete(); err != nil {
				t.Fatal(err)
			}
			card := Build(history(leak()))
			r := Receipt{Channel: "C1", TS: "17.1"}
			errs := map[string]error{"update": s.Update(t.Context(), r, card), "reply": s.Reply(t.Context(), r, Reply{Key: "k", Text: "x"})}
			_, errs["post"] = s.Post(t.Context(), card)
			_, _, errs["find"] = s.Find(t.Context(), "i", noon)
			_, errs["replied"] = s.Replied(t.Context(), r, "k", noon)
			if c.format != `{"ok":false,"error":"%s"}` && c.status != 200 || c.status == 0 { // a webhook's answer of 200 is a success whatever it says
				_, errs["webhook post"] = hook.Post(t.Context(), card)
				errs["webhook update"] = hook.Update(t.Context(), Receipt{}, card)
			}
			ctx, cancel := context.WithCancel(t.Context())
			l := newListener(s, o, outbox{})
			if err := l.runOnce(ctx, cancel); err != nil {
				errs["listen"] = err
			}
			for what, err := range errs {
				if err == nil {
					t.Errorf("%s does not fail", what)
					continue
				}
				gauge.fail("slack", err, noon, noon)
				o.Log.Warn(what, "error", err)
			}
			gauge.waiting, gauge.oldest = 1, noon // unwell, so that it says why
			if err := gauge.Well(); err == nil || !strings.Contains(err.Error(), "output slack takes nothing") {
				t.Errorf("health: %v", err)
			}
			l.answer(t.Context(), press{user: "U1", channel: "C1"}, "x")
			var metrics strings.Builder
			registry := prometheus.NewRegistry()
			registry.MustRegister(gauge)
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				metrics.WriteString(f.String())
			}
			for _, one := range secrets {
				for where, text := range map[string]string{"log": log.String(), "metrics": metrics.String(), "health": fmt.Sprint(gauge.Well()), "card": renderText(card, "", false)} {
					if strings.Contains(text, one) {
						t.Errorf("%q stands in the %s: %s", one, where, text)
					}
				}
			}
		})
	}
}

// What is read from files and the environment is not told when it is wrong.
func TestSecretsOfBrokenSettings(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "token")
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() error{
		"app token that is none": func() error {
			_, err := NewSlack(SlackOptions{Token: "t", Channel: "C1", AppToken: secret})
			return err
		},
		"webhook without host": func() error { _, err := NewSlackWebhook(SlackWebhookOptions{URL: "https:" + secret}); return err },
		"file as address":      func() error { _, err := NewSlackWebhook(SlackWebhookOptions{URLFile: path}); return err },
		"no channel": func() error {
			return Options{SlackTokenFile: path}.Check()
		},
		"settings": func() error {
			file := filepath.Join(folder, "notify.yaml")
			text := "outputs:\n  a: {slack_webhook: {url: \"https:" + secret + "\"}}\n  b: {slack: {channel: C1, token_file: token, app_token_file: token}}\ndefault: []\n"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := ReadSettings(file, SettingsOptions{})
			return err
		},
	} {
		if err := open(); err == nil || strings.Contains(err.Error(), "very+secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What comes from a log line cannot wake people, become a link, or steer how the rest of a card reads.
func TestCardTextMeansOnlyItself(t *testing.T) {
	f := paged()
	f.Summary = "<!channel> <@U1> <https://evil.example|here> https://evil.example *bold* _it_ ~x~ `code` ```x``` \u202egnp.exe & <!subteam^S1>"
	f.Symptoms[0].Text, f.Advice, f.Slot = f.Summary, []string{f.Summary, "run `a <b> *c*`, then `"}, f.Summary
	f.CounterEvidence[0].Text, f.Evidence[0].Name = f.Summary, f.Summary
	f.Worker.Model = f.Summary
	h := history(leak(), f)
	card := Build(h).of([]Line{{f.Summary, f.Summary}, {"b", "c"}}, 2).standing(f, Standing([]Action{{Incident: f.Incident, Kind: Acknowledge, By: f.Summary, At: noon}}), []Silence{{By: f.Summary, Until: noon}})
	for _, block := range blocks(card, full) {
		section, ok := block.(*slack.SectionBlock)
		if !ok || section.Text.Type != slack.MarkdownType {
			continue
		}
		text := section.Text.Text
		if !section.Text.Verbatim {
			t.Errorf("links are made in %q", text)
		}
		for _, never := range []string{"<", ">", "\u202e", "*bold*", "~x~", "_it_"} {
			if strings.Contains(strings.SplitN(text, "```", 2)[0], never) {
				t.Errorf("%q stands in %q", never, text)
			}
		}
		if n := strings.Count(text, "```"); n != 0 && n != 2 {
			t.Errorf("%d fences in %q", n, text)
		}
	}
	for text, want := range map[string]string{"kv_block_leak of my_pool": "kv_block_leak of my_pool", "__init__": "ˍˍinit__", "a _b_ c": "a ˍb_ c", "x_y": "x_y", "run `ls *` now": "run ˋls ∗ˋ now"} {
		if got := escape(text); got != want {
			t.Errorf("escape(%q) = %q, want %q", text, got, want)
		}
	}
	if got, want := coded("run `ls * <a>` now"), "run `ls * &lt;a&gt;` now"; got != want {
		t.Errorf("coded: %q, want %q", got, want)
	}
}
