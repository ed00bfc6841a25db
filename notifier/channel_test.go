package notifier

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/slack-go/slack/slacktest"

	"lowtide/event"
	store "lowtide/processor/broker"
)

const secret = "xoxb-1-very+secret/token"

// channel is a Slack channel: what stands in it now, and every call that was made.
type channel struct {
	mu       sync.Mutex
	messages map[string]url.Values // ts → latest form
	posts    int
	replies  []url.Values                                  // of threads, in their order
	private  []url.Values                                  // that one person sees
	answer   func(call string, w http.ResponseWriter) bool // true: it answered instead of the channel
	calls    chan string                                   // name of each call, after it was answered
	url      string
}

func newChannel(t *testing.T) *channel {
	c := &channel{messages: map[string]url.Values{}, calls: make(chan string, 1000)}
	handle := func(name string, do func(url.Values) any) (string, http.HandlerFunc) {
		return "/" + name, func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			c.mu.Lock()
			defer func() {
				c.mu.Unlock()
				c.calls <- name
			}()
			if c.answer != nil && c.answer(name, w) {
				return
			}
			_ = json.NewEncoder(w).Encode(do(r.PostForm))
		}
	}
	s := slacktest.NewTestServer(func(s slacktest.Customize) {
		s.Handle(handle("chat.postMessage", func(form url.Values) any { return c.post(form) }))
		s.Handle(handle("chat.update", func(form url.Values) any {
			if c.messages[form.Get("ts")] == nil {
				return map[string]any{"ok": false, "error": "message_not_found"}
			}
			c.messages[form.Get("ts")] = form
			return map[string]any{"ok": true, "channel": form.Get("channel"), "ts": form.Get("ts")}
		}))
		s.Handle(handle("chat.postEphemeral", func(form url.Values) any {
			c.private = append(c.private, form)
			return map[string]any{"ok": true, "message_ts": "1.1"}
		}))
		s.Handle(handle("conversations.replies", func(form url.Values) any {
			var list []any
			for i, m := range c.replies {
				if m.Get("thread_ts") == form.Get("ts") {
					list = append(list, map[string]any{"type": "message", "ts": fmt.Sprintf("18.%06d", i), "metadata": json.RawMessage(m.Get("metadata"))})
				}
			}
			return map[string]any{"ok": true, "messages": list}
		}))
		s.Handle(handle("apps.connections.open", func(url.Values) any { return map[string]any{"ok": false, "error": "not_allowed"} }))
		s.Handle(handle("conversations.history", func(form url.Values) any {
			var list []any
			for ts, m := range c.messages {
				list = append(list, map[string]any{"type": "message", "ts": ts, "metadata": json.RawMessage(m.Get("metadata"))})
			}
			return map[string]any{"ok": true, "messages": list}
		}))
	})
	s.Start()
	t.Cleanup(s.Stop)
	c.url = s.GetAPIURL()
	return c
}

func (c *channel) post(form url.Values) any {
	if form.Get("thread_ts") != "" {
		c.replies = append(c.replies, form)
		return map[string]any{"ok": true, "channel": form.Get("channel"), "ts": fmt.Sprintf("18.%06d", len(c.replies))}
	}
	c.posts++
	ts := fmt.Sprintf("17.%06d", c.posts)
	c.messages[ts] = form
	return map[string]any{"ok": true, "channel": form.Get("channel"), "ts": ts}
}

func (c *channel) await(t *testing.T, name string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case got := <-c.calls:
			if got == name {
				return
			}
		case <-limit:
			t.Fatalf("no call of %s", name)
		}
	}
}

// only returns the one message of the channel.
func (c *channel) only(t *testing.T) url.Values {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.posts != 1 || len(c.messages) != 1 {
		t.Fatalf("%d posts, %d messages, want one", c.posts, len(c.messages))
	}
	for _, m := range c.messages {
		return m
	}
	return nil
}

// said are the replies of all threads.
func (c *channel) said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var texts []string
	for _, m := range c.replies {
		texts = append(texts, m.Get("text"))
	}
	return texts
}

func (c *channel) say(answer func(call string, w http.ResponseWriter) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

type bus struct {
	js jetstream.JetStream
	kv jetstream.KeyValue
}

func newBroker(t *testing.T) *bus {
	s, err := server.NewServer(&server.Options{ServerName: "test", DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("nats-server does not start")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	b := &bus{js: js}
	if _, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: event.StreamFindings, Subjects: []string{"lowtide.finding.>"}}); err != nil {
		t.Fatal(err)
	}
	if b.kv, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: Bucket}); err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{store.BucketActions, store.BucketSilences} {
		if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: bucket}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bus) publish(t *testing.T, findings ...*event.Finding) {
	t.Helper()
	for _, f := range findings {
		text, err := event.MarshalFinding(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.js.Publish(t.Context(), event.FindingSubject(f), text); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitRecord waits until the record of the incident satisfies want.
func (b *bus) awaitRecord(t *testing.T, want func(Delivery) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w, err := b.kv.Watch(ctx, "inc-7f3a")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for {
		select {
		case e := <-w.Updates():
			if e == nil {
				continue
			}
			r, err := decodeRecord(e.Value())
			if err != nil {
				t.Fatal(err)
			}
			if want(r.deliveries["slack"]) {
				return
			}
		case <-ctx.Done():
			t.Fatal("the outbox does not get there")
		}
	}
}

func toldOf(finding string) func(Delivery) bool {
	return func(d Delivery) bool { return d.Status == told && d.Finding == finding && d.Receipt.TS != "" }
}

// start runs the notifier; the returned function stops it and waits for it.
func start(t *testing.T, b *bus, c *channel, log *bytes.Buffer) (stop func()) {
	t.Helper()
	return startWith(t, b, c, log, nil)
}

func startWith(t *testing.T, b *bus, c *channel, log *bytes.Buffer, gauge *Gauge) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	o := Options{SlackToken: secret, SlackChannel: "C1", SlackURL: c.url, Interval: time.Millisecond, Backoff: 5 * time.Millisecond, Gauge: gauge}
	if log != nil {
		o.Log = slog.New(slog.NewTextHandler(log, nil)) // one goroutine logs at a time, and it has ended when stop returns
	}
	go func() { done <- Run(ctx, b.js, o) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("run: %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("run does not end")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}
