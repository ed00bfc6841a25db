package notifier

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/event"
)

const (
	hookPath   = "/services/T0/B0/very-private-path"
	hookQuery  = "key=query-secret"
	hookSecret = "0123456789abcdef-signing"
)

// receiver is the other side of a webhook: it keeps what it got, and answers as it is told.
type receiver struct {
	mu     sync.Mutex
	bodies [][]byte
	heads  []http.Header
	answer func(n int, w http.ResponseWriter, r *http.Request) // n counts from 1; nil answers 200
	got    chan int                                            // the number of each call, after it was answered
	url    string
}

func newReceiver(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	c := &receiver{answer: answer, got: make(chan int, 1000)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		c.bodies, c.heads = append(c.bodies, body), append(c.heads, r.Header)
		n := len(c.bodies)
		c.mu.Unlock()
		if c.answer != nil {
			c.answer(n, w, r)
		}
		c.got <- n
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

func (c *receiver) body(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bodies[n-1]
}

func (c *receiver) head(n int) http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heads[n-1]
}

// secretFile is a file that only its owner can read.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func webhookTo(t *testing.T, c *receiver) *Webhook {
	t.Helper()
	w, err := NewWebhook(WebhookOptions{Name: "hook", URLFile: secretFile(t, c.url+hookPath+"?"+hookQuery), SecretFile: secretFile(t, hookSecret), Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWebhookDocument(t *testing.T) {
	c := newReceiver(t, nil)
	w := webhookTo(t, c)
	f := paged()
	f.Labels = map[string]string{"team": "ml", "cluster": "prod", "host": "gpu-07"}
	receipt, err := w.Post(t.Context(), Build(history(leak(), f)).ready(Hints{Runbooks: "https://wiki.example/oncall"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Update(t.Context(), receipt, Build(history(leak(), f, over()))); err != nil {
		t.Fatal(err)
	}
	var d struct {
		Version    int
		Event      string
		Incident   string
		State      string
		Confidence float64
		Labels     map[string]string
		Links      map[string]string
		Finding    json.RawMessage
	}
	if err := json.Unmarshal(c.body(1), &d); err != nil {
		t.Fatal(err)
	}
	if d.Version != 1 || d.Event != "post" || d.Incident != "inc-7f3a" || d.State != "confirmed" || d.Confidence != 0.9 {
		t.Errorf("document %+v", d)
	}
	for name, want := range map[string]string{"team": "ml", "cluster": "prod", "host": "gpu-07", "model": "llama-70b", "release": "r41", "slot": "prod/gpu-07/vllm-a/0/1"} {
		if d.Labels[name] != want {
			t.Errorf("label %s is %q, want %q", name, d.Labels[name], want)
		}
	}
	if d.Links["runbook"] != "https://wiki.example/oncall#retention" {
		t.Errorf("links %v", d.Links)
	}
	if found, err := event.UnmarshalFinding(d.Finding); err != nil || found.ID != "f2" || found.Growth.Value != 2<<30 {
		t.Errorf("finding %+v, %v", found, err)
	}
	if err := json.Unmarshal(c.body(2), &d); err != nil || d.Event != "update" || d.State != "resolved" {
		t.Errorf("second document %+v, %v", d, err)
	}
}

// The document of docs/webhook.md, from a card of which every part is known.
func TestWebhookGolden(t *testing.T) {
	card := Card{Incident: "inc-7f3a", Class: "retention", State: event.Confirmed, Severity: event.Page, Title: "retention confirmed", Summary: "Live memory rises",
		People: []Line{{"acknowledged", "by ann at 2026-11-03 12:05:00 UTC"}}, Replicas: "7 of 8 replicas of this release that can be compared are healthy",
		Runbook: "https://wiki.example/oncall#retention",
		Where:   []Line{{"worker", "prod/gpu-07/vllm-a/0/1"}}, Evidence: []Line{{"live.level_bytes", "48 GiB"}}, Held: []string{"4 GiB at cache.py:12 put"},
		Together: []string{"oom, 3 h 50 min after the onset"}, Against: []Line{{"kv", "ruled out"}}, Forecast: "limit reached in 6.5 h to 11 h",
		Blind: []Line{{"fragmentation", "needs snapshot"}}, Advice: []string{"Drain the worker."}, Next: []string{"lowtide incidents show inc-7f3a"},
		FirstSeen: noon, Changed: noon.Add(time.Hour),
		Finding: &event.Finding{ID: "f2", Incident: "inc-7f3a", Time: noon.Add(time.Hour), Subject: event.Subject{Kind: "worker", Key: "prod/gpu-07/boot/4242/99"},
			Slot: "prod/gpu-07/vllm-a/0/1", Labels: map[string]string{"cluster": "prod", "host": "gpu-07", "team": "ml"}, Rule: "retention", Class: "retention",
			State: event.Confirmed, Severity: event.Page, Confidence: 0.9, Summary: "Live memory rises", Evidence: event.Measures{{Name: "live.level_bytes", Value: 48 << 30, Unit: "bytes"}},
			Growth: &event.Growth{Value: 2 << 30, Low: 1.5 * (1 << 30), High: 2.5 * (1 << 30), Unit: "bytes"}, Release: "r41"}}
	body, err := document("post", card)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "webhook.json", indented(t, body))
}

func indented(t *testing.T, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	return out.String() + "\n"
}

// The signature is checked as docs/webhook.md tells a receiver to.
func TestWebhookIsSigned(t *testing.T) {
	c := newReceiver(t, nil)
	if _, err := webhookTo(t, c).Post(t.Context(), Build(history(leak()))); err != nil {
		t.Fatal(err)
	}
	head := c.head(1)
	// printf %s 'TIMESTAMP.BODY' | openssl dgst -sha256 -hmac SECRET, by the standard library.
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte("1793707200.")) // 2026-11-03T12:00:00Z
	mac.Write(c.body(1))
	if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); head.Get("X-Lowtide-Signature") != want || head.Get("X-Lowtide-Timestamp") != "1793707200" {
		t.Errorf("signed %q at %q, want %q", head.Get("X-Lowtide-Signature"), head.Get("X-Lowtide-Timestamp"), want)
	}
	if head.Get("Content-Type") != "application/json" || head.Get("X-Lowtide-Event") != "post" || head.Get("X-Lowtide-Incident") != "inc-7f3a" {
		t.Errorf("headers %v", head)
	}
	unsigned, err := NewWebhook(WebhookOptions{URL: c.url})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unsigned.Post(t.Context(), Build(history(leak()))); err != nil {
		t.Fatal(err)
	}
	if got := c.head(2).Get("X-Lowtide-Signature"); got != "" || unsigned.Name() != "webhook" {
		t.Errorf("signed %q without a secret", got)
	}
}

// The sum is that of: printf %s '1793707200.{}' | openssl dgst -sha256 -hmac Jefe
func TestSignIsHMAC(t *testing.T) {
	if got, want := sign([]byte("Jefe"), "1793707200", []byte("{}")), "sha256=7e5ce12efd9f4432ec92d46fa12cee5022dec63a9ec236ccc8d782364d0dcb12"; got != want {
		t.Errorf("signed %s, want %s", got, want)
	}
}

func TestWebhookAnswers(t *testing.T) {
	card := Build(history(leak()))
	for name, c := range map[string]struct {
		status int
		head   map[string]string
		body   string
		proven bool // that it was not taken
		after  time.Duration
		says   string
	}{
		"200":                {200, nil, "ok", false, 0, ""},
		"202":                {202, nil, "", false, 0, ""},
		"204":                {204, nil, "", false, 0, ""},
		"400":                {400, nil, "no field `team`\x1b[31m", true, 0, "answered 400 Bad Request: no field `team`"},
		"401":                {401, nil, "", true, 0, "hint: the address, or the secret"},
		"404":                {404, nil, "", true, 0, "hint: is the path"},
		"410":                {410, nil, "", true, 0, "hint: is the path"},
		"429":                {429, map[string]string{"Retry-After": "7"}, "", true, 7 * time.Second, "429 Too Many Requests"},
		"429 without a time": {429, nil, "", true, time.Second, "429"},
		"429 with a date":    {429, map[string]string{"Retry-After": "Tue, 03 Nov 2026 12:00:30 GMT"}, "", true, 30 * time.Second, "429"},
		"429 for a day":      {429, map[string]string{"Retry-After": "86400"}, "", true, time.Hour, "429"},
		"429 with nonsense":  {429, map[string]string{"Retry-After": "soon"}, "", true, time.Second, "429"},
		"500":                {500, nil, "stack trace", false, 0, "answered 500 Internal Server Error: stack trace"},
		"503 with a time":    {503, map[string]string{"Retry-After": "3"}, "", true, 3 * time.Second, "503"},
		"502":                {502, nil, strings.Repeat("x", 1<<20), false, 0, "502"},
		"302":                {302, map[string]string{"Location": "https://elsewhere.example/" + hookQuery}, "", true, 0, "hint: redirects are not followed"},
		"307":                {307, map[string]string{"Location": "/again"}, "", true, 0, "redirect"},
		"it echoes secrets":  {400, nil, "bad " + hookPath + " " + hookSecret + " query-secret " + hookQuery, true, 0, "[redacted]"},
	} {
		r := newReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			for name, value := range c.head {
				w.Header().Set(name, value)
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		_, err := webhookTo(t, r).Post(t.Context(), card)
		var failure *Failure
		proven := errors.As(err, &failure)
		switch {
		case (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		case proven != c.proven:
			t.Errorf("%s: proven not taken: %v, want %v", name, proven, c.proven)
		case proven && failure.After != c.after:
			t.Errorf("%s: wait %s, want %s", name, failure.After, c.after)
		}
		if err != nil {
			private(t, name, err.Error(), r.url)
			if len(err.Error()) > 500 || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s: error of %d bytes: %.600q", name, len(err.Error()), err)
			}
		}
		if r.mu.Lock(); len(r.bodies) != 1 {
			t.Errorf("%s: called %d times", name, len(r.bodies))
		}
		r.mu.Unlock()
	}
}

// private checks that text holds no part of an address or a secret.
func private(t *testing.T, name, text, address string) {
	t.Helper()
	for _, secret := range []string{address + hookPath, hookPath, "very-private-path", hookSecret, hookQuery, "query-secret", address + "/"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s: %q stands in %q", name, secret, text)
		}
	}
}

func TestWebhookThatCannotBeReached(t *testing.T) {
	r := newReceiver(t, nil)
	w, err := NewWebhook(WebhookOptions{URL: "http://127.0.0.1:1" + hookPath + "?" + hookQuery, SecretFile: secretFile(t, hookSecret)})
	if err != nil {
		t.Fatal(err)
	}
	var failure *Failure
	_, err = w.Post(t.Context(), Build(history(leak())))
	if !errors.As(err, &failure) {
		t.Errorf("refused connection: %v is no proof that it was not taken", err)
	}
	private(t, "refused", err.Error(), "http://127.0.0.1:1")

	entered := make(chan struct{})
	r.answer = func(_ int, _ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	limited, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	_, err = webhookTo(t, r).Post(limited, Build(history(leak())))
	<-entered
	if err == nil || errors.As(err, &failure) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("a receiver that says nothing: %v", err)
	}
	private(t, "timeout", err.Error(), r.url)

	r.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	}
	_, err = webhookTo(t, r).Post(t.Context(), Build(history(leak())))
	if err == nil || errors.As(err, &failure) {
		t.Errorf("a connection that broke: %v; nobody knows whether it was taken", err)
	}
	private(t, "broken", err.Error(), r.url)
}

func TestWebhookOptionsAreChecked(t *testing.T) {
	readable := secretFile(t, hookSecret)
	if err := os.Chmod(readable, 0o644); err != nil {
		t.Fatal(err)
	}
	fine := secretFile(t, "https://hooks.example"+hookPath)
	for want, o := range map[string]WebhookOptions{
		"no address":             {},
		"a url and a url_file":   {URL: "https://hooks.example" + hookPath, URLFile: fine},
		"is no address":          {URL: "hooks.example" + hookPath},
		"is no addres":           {URL: "ftp://hooks.example" + hookPath},
		"is no addre":            {URL: "https://" + hookPath},
		"is no addr":             {URL: "https://hooks.example:port" + hookPath},
		"others can read it":     {URLFile: readable},
		"no such file":           {URLFile: "/nowhere/at/all"},
		"is a folder":            {URLFile: t.TempDir()},
		"others can read i":      {URL: "https://hooks.example" + hookPath, SecretFile: readable},
		"it needs 16":            {URL: "https://hooks.example" + hookPath, SecretFile: secretFile(t, "short")},
		"is empty":               {URL: "https://hooks.example" + hookPath, SecretFile: secretFile(t, "")},
		"the limit is 4096":      {URLFile: secretFile(t, "https://hooks.example"+hookPath+strings.Repeat("x", 4096))},
		"of webhook hook: /nowh": {Name: "hook", URL: "https://hooks.example" + hookPath, SecretFile: "/nowhere"},
	} {
		_, err := NewWebhook(o)
		if err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(strings.ReplaceAll(err.Error(), "stat ", ""), want) {
			t.Errorf("%s: %v", want, err)
			continue
		}
		private(t, want, err.Error(), "https://hooks.example")
	}
	if _, err := NewWebhook(WebhookOptions{URLFile: fine}); err != nil {
		t.Error(err)
	}
}

func TestWebhookDocumentIsBounded(t *testing.T) {
	f := leak()
	f.Labels = map[string]string{"long": strings.Repeat("x", maxDocument)}
	card := Build(history(f))
	if _, err := document("post", card); err == nil {
		t.Error("a document without bounds")
	}
	f = leak()
	for range 4000 {
		f.Advice = append(f.Advice, strings.Repeat("x", 30))
	}
	body, err := document("post", Build(history(f)))
	if err != nil || len(body) > maxDocument || bytes.Contains(body, []byte(`"finding"`)) || !bytes.Contains(body, []byte(`"summary":"Live memory`)) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	f = leak()
	f.Summary = "half \xff a letter"
	if body, err := document("post", Build(history(f))); err != nil || !json.Valid(body) {
		t.Errorf("%s, %v", body, err)
	}
}

// The real desk retries what was refused, in order, and tells nobody the address.
func TestWebhookBehindTheDesk(t *testing.T) {
	b := newBroker(t)
	c := newReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, b.js, Options{Senders: []Sender{webhookTo(t, c)}, Interval: time.Millisecond, Backoff: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	b.publish(t, leak())
	for n := range c.got {
		if n == 3 {
			break
		}
	}
	b.publish(t, paged())
	<-c.got
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{1: `"event":"post"`, 2: `"event":"post"`, 3: `"event":"post"`, 4: `"event":"update"`} {
		if !bytes.Contains(c.body(n), []byte(want)) {
			t.Errorf("call %d has no %s", n, want)
		}
	}
	private(t, "log", log.String(), c.url)
}

// Every field of the document stands in docs/webhook.md.
func TestWebhookIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/webhook.md")
	if err != nil {
		t.Fatal(err)
	}
	form := reflect.TypeFor[webhookDocument]()
	for i := range form.NumField() {
		name, _, _ := strings.Cut(form.Field(i).Tag.Get("json"), ",")
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("docs/webhook.md does not explain %s", name)
		}
	}
	f := leak()
	f.Labels = map[string]string{"team": "ml"}
	card := Build(history(f))
	for name := range annotations(card) {
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("docs/webhook.md does not explain the annotation %s", name)
		}
	}
	for name := range alertLabels(card) {
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("docs/webhook.md does not explain the label %s", name)
		}
	}
}
