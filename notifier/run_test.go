package notifier

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lowtide/event"
)

func TestOneMessagePerIncident(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	start(t, b, c, nil)
	b.publish(t, leak())
	b.awaitRecord(t, toldOf("f1"))
	if m := c.only(t); !strings.Contains(m.Get("text"), "retention suspected") || !strings.Contains(m.Get("metadata"), "inc-7f3a") || m.Get("channel") != "C1" {
		t.Errorf("posted %v", m)
	}
	b.publish(t, paged())
	b.awaitRecord(t, toldOf("f2"))
	if m := c.only(t); !strings.Contains(m.Get("text"), "retention confirmed") || strings.Contains(m.Get("blocks"), "<!channel>") {
		t.Errorf("updated to %v", m)
	}
	b.awaitRecord(t, func(d Delivery) bool { return d.Said.State == event.Confirmed && d.Saying == nil })
	b.publish(t, over())
	b.awaitRecord(t, toldOf("f3"))
	if m := c.only(t); !strings.Contains(m.Get("text"), "retention resolved") {
		t.Errorf("resolved to %v", m)
	}
	b.awaitRecord(t, func(d Delivery) bool { return d.Said.State == event.Resolved && d.Saying == nil })
	want := []string{"From suspected to confirmed.\nFrom ticket to page.",
		"Resolved: 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)."}
	if got := c.said(); !slices.Equal(got, want) {
		t.Errorf("the thread says %q, want %q", got, want)
	}
}

func TestRestartDoesNotPostAgain(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	stop := start(t, b, c, nil)
	b.publish(t, leak())
	b.awaitRecord(t, toldOf("f1"))
	stop()
	b.publish(t, leak(), paged()) // the first again, as after a judge's restart
	start(t, b, c, nil)
	b.awaitRecord(t, toldOf("f2"))
	c.only(t)
}

// A notifier that stops without a word has findings that it was given; the next one does not wait until its time to acknowledge is over.
func TestNextNotifierGetsWhatTheLastOneHad(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	consumer, err := b.js.CreateOrUpdateConsumer(t.Context(), event.StreamFindings, jetstream.ConsumerConfig{Durable: Consumer, AckPolicy: jetstream.AckExplicitPolicy,
		FilterSubject: "lowtide.finding.>", AckWait: time.Hour, MaxDeliver: -1, MaxAckPending: 256})
	if err != nil {
		t.Fatal(err)
	}
	b.publish(t, leak())
	taken, err := consumer.Next(jetstream.FetchMaxWait(10 * time.Second))
	if err != nil || len(taken.Data()) == 0 {
		t.Fatalf("the first notifier was given nothing: %v", err)
	}
	start(t, b, c, nil)
	b.awaitRecord(t, toldOf("f1"))
}

func TestCrashBetweenSendingAndNoting(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	// What a process leaves that died after Slack took the message: the mark in the outbox, the message in the channel.
	r := &record{history: history(leak()), deliveries: map[string]Delivery{"slack": {Status: posting, Since: time.Now()}}}
	if err := (outbox{kv: b.kv}).save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.post(url.Values{"metadata": {`{"event_type":"lowtide_incident","event_payload":{"incident":"inc-7f3a"}}`}})
	start(t, b, c, nil)
	b.awaitRecord(t, toldOf("f1"))
	if m := c.only(t); !strings.Contains(m.Get("text"), "retention suspected") {
		t.Errorf("found and updated to %v", m)
	}
}

func TestCrashBeforeSending(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	r := &record{history: history(leak()), deliveries: map[string]Delivery{"slack": {Status: posting, Since: time.Now()}}}
	if err := (outbox{kv: b.kv}).save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	start(t, b, c, nil)
	b.awaitRecord(t, toldOf("f1"))
	c.only(t)
}

func TestRateLimitIsRespected(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	var refused, next time.Time
	c.say(func(call string, w http.ResponseWriter) bool {
		if refused.IsZero() {
			refused = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		if next.IsZero() {
			next = time.Now()
		}
		return false
	})
	gauge := new(Gauge)
	startWith(t, b, c, nil, gauge)
	b.publish(t, leak())
	c.await(t, "chat.postMessage")
	b.publish(t, paged()) // coalesced: one message, and it says the latest
	b.awaitRecord(t, toldOf("f2"))
	if m := c.only(t); !strings.Contains(m.Get("text"), "retention confirmed") {
		t.Errorf("posted %v", m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if waited := next.Sub(refused); waited < time.Second {
		t.Errorf("called again after %s, Slack asked for 1 s", waited)
	}
	want := `
# HELP lowtide_notifier_failures_total Calls that a medium did not take, rate limits included.
# TYPE lowtide_notifier_failures_total counter
lowtide_notifier_failures_total{sender="slack"} 1
# HELP lowtide_notifier_running 1 on the one processor that announces.
# TYPE lowtide_notifier_running gauge
lowtide_notifier_running 1
# HELP lowtide_notifier_told_total Messages that a medium took, by what was done: post, update, reply or remind.
# TYPE lowtide_notifier_told_total counter
lowtide_notifier_told_total{action="post",sender="slack"} 1
`
	if err := testutil.CollectAndCompare(gauge, strings.NewReader(want), "lowtide_notifier_failures_total", "lowtide_notifier_running", "lowtide_notifier_told_total"); err != nil {
		t.Error(err)
	}
}

func TestNothingIsLostWhileSlackIsAway(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	c.say(func(_ string, w http.ResponseWriter) bool {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return true
	})
	stop := start(t, b, c, nil)
	second := leak()
	second.ID, second.Incident = "g1", "inc-0002"
	b.publish(t, leak(), paged(), second, over())
	c.await(t, "chat.postMessage")
	c.await(t, "conversations.history") // 503 leaves open whether it was sent, so it looks first
	stop()                              // and a restart in the middle
	start(t, b, c, nil)
	c.await(t, "conversations.history")
	c.say(nil)
	b.awaitRecord(t, toldOf("f3"))
	for {
		c.mu.Lock()
		posts := c.posts
		c.mu.Unlock()
		if posts == 2 {
			break
		}
		c.await(t, "chat.postMessage")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.messages) != 2 || c.posts != 2 {
		t.Errorf("%d messages from %d posts, want one for each of two incidents", len(c.messages), c.posts)
	}
}

func TestDeletedMessageIsPostedAgain(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	start(t, b, c, nil)
	b.publish(t, leak())
	b.awaitRecord(t, toldOf("f1"))
	c.mu.Lock()
	clear(c.messages)
	c.mu.Unlock()
	b.publish(t, paged())
	b.awaitRecord(t, toldOf("f2"))
	if len(c.messages) != 1 || c.posts != 2 {
		t.Errorf("%d messages, %d posts", len(c.messages), c.posts)
	}
}

func TestRefusedBlocksBecomeText(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	refused := 0
	c.say(func(_ string, w http.ResponseWriter) bool {
		if refused < 2 { // with a chart, and without
			refused++
			_, _ = w.Write([]byte(`{"ok":false,"error":"invalid_blocks"}`))
			return true
		}
		return false
	})
	start(t, b, c, nil)
	b.publish(t, leak())
	b.awaitRecord(t, toldOf("f1"))
	if m := c.only(t); m.Get("blocks") != "" || !strings.Contains(m.Get("text"), "48 GiB") {
		t.Errorf("posted %v", m)
	}
}

// A channel that refuses a chart gets the curve as text, and is not asked again.
func TestRefusedChartBecomesALine(t *testing.T) {
	c := newChannel(t)
	s, err := NewSlack(SlackOptions{Token: secret, Channel: "C1", URL: c.url})
	if err != nil {
		t.Fatal(err)
	}
	refusals := 0
	c.say(func(_ string, w http.ResponseWriter) bool {
		if refusals == 0 {
			refusals++
			_, _ = w.Write([]byte(`{"ok":false,"error":"invalid_blocks"}`))
			return true
		}
		return false
	})
	receipt, err := s.Post(t.Context(), Build(history(leak())))
	if err != nil {
		t.Fatal(err)
	}
	m := c.only(t)
	if blocks := m.Get("blocks"); strings.Contains(blocks, "data_visualization") || !strings.Contains(blocks, "42 GiB ▁▃▆█ 48 GiB") {
		t.Errorf("posted %s", blocks)
	}
	for len(c.calls) > 0 {
		<-c.calls
	}
	if err := s.Update(t.Context(), receipt, Build(history(leak(), paged()))); err != nil {
		t.Fatal(err)
	}
	if n := len(c.calls); n != 1 {
		t.Errorf("%d calls for the second card, want 1 without a chart", n)
	}
	// Of a channel that takes it, four points at the hours stand in the block.
	other, err := NewSlack(SlackOptions{Token: secret, Channel: "C2", URL: c.url})
	if err != nil {
		t.Fatal(err)
	}
	receipt, err = other.Post(t.Context(), Build(history(leak())))
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	want := `"series":[{"name":"GiB","data":[{"label":"09:00","value":42},{"label":"10:00","value":44},{"label":"11:00","value":46},{"label":"12:00","value":48}]}]`
	if blocks := c.messages[receipt.TS].Get("blocks"); !strings.Contains(blocks, `"type":"data_visualization"`) || !strings.Contains(blocks, want) {
		t.Errorf("posted %s", blocks)
	}
}

func TestInfoAndBrokenFindingsAreNotAnnounced(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	start(t, b, c, nil)
	quiet := leak()
	quiet.Incident, quiet.Severity = "inc-quiet", event.Info
	if _, err := b.js.Publish(t.Context(), "lowtide.finding.broken", []byte("{")); err != nil {
		t.Fatal(err)
	}
	b.publish(t, quiet, leak())
	b.awaitRecord(t, toldOf("f1"))
	c.only(t)
}

func TestTokenNeverLeaks(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	c.say(func(_ string, w http.ResponseWriter) bool {
		_, _ = fmt.Fprintf(w, `{"ok":false,"error":"no such token %s or %s"}`, secret, url.QueryEscape(secret))
		return true
	})
	var log bytes.Buffer
	stop := start(t, b, c, &log)
	b.publish(t, leak())
	c.await(t, "chat.postMessage")
	c.await(t, "chat.postMessage")
	stop()
	if text := log.String(); !strings.Contains(text, "[token]") || strings.Contains(text, secret) || strings.Contains(text, url.QueryEscape(secret)) {
		t.Errorf("log: %s", text)
	}

	closed, err := NewSlack(SlackOptions{Token: secret, Channel: "C1", URL: "http://127.0.0.1:1/" + url.PathEscape(secret)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = closed.Post(t.Context(), Build(history(leak()))); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error: %v", err)
	}
}

func TestReadToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadToken(path); err != nil || got != secret {
		t.Errorf("read %q, %v", got, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), "hint: chmod 600") || strings.Contains(err.Error(), "xoxb") {
		t.Errorf("a token that others can read: %v", err)
	}
}

func TestTerminalWithoutToken(t *testing.T) {
	b := newBroker(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{seen: make(chan string, 100)}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, b.js, Options{Out: out, Interval: time.Millisecond}) }()
	b.publish(t, leak())
	first := <-out.seen
	b.publish(t, paged())
	second := <-out.seen
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(first, "│ retention suspected") || !strings.Contains(second, "│ update: retention confirmed") {
		t.Errorf("printed\n%s\n%s", first, second)
	}
	if strings.Contains(first, "\x1b") {
		t.Error("colours without a terminal")
	}
}

type lines struct{ seen chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.seen <- string(p)
	return len(p), nil
}

func TestMissingBucketSaysSo(t *testing.T) {
	b := newBroker(t)
	if err := b.js.DeleteKeyValue(t.Context(), Bucket); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), b.js, Options{})
	if err == nil || !strings.Contains(err.Error(), Bucket) {
		t.Errorf("error %v", err)
	}
}
