package notifier

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slack-go/slack"
	"github.com/slack-go/slack/socketmode"

	"lowtide/event"
)

const appSecret = "xapp-1-very+secret/app"

// pressing runs a notifier's desk and the listener of its buttons, without a socket: events are dispatched as Slack's would be.
type pressing struct {
	*listener
	handler *socketmode.SocketmodeHandler
	channel *channel
	desk    *desk
	bus     *bus
}

func newPressing(t *testing.T) *pressing {
	t.Helper()
	b, c := newBroker(t), newChannel(t)
	s, err := NewSlack(SlackOptions{Token: secret, AppToken: appSecret, Channel: "C1", URL: c.url})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Senders: []Sender{s}, Interval: time.Nanosecond, Now: func() time.Time { return noon.Add(5 * time.Minute) }}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if o.actions, err = OpenActions(t.Context(), b.js, nil); err != nil {
		t.Fatal(err)
	}
	if o.silences, err = OpenSilences(t.Context(), b.js, nil); err != nil {
		t.Fatal(err)
	}
	p := &pressing{channel: c, bus: b, desk: newDesk(o, outbox{kv: b.kv}), listener: newListener(s, o, outbox{kv: b.kv})}
	p.handler = p.listener.handler(t.Context(), socketmode.New(s.client))
	return p
}

// tell folds findings and delivers all that they make due.
func (p *pressing) tell(t *testing.T, findings ...*event.Finding) {
	t.Helper()
	p.desk.foldAll(t, findings...)
	p.deliver(t)
}

func (p *pressing) deliver(t *testing.T) {
	t.Helper()
	p.desk.heed(t.Context())
	if err := p.desk.review(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		p.desk.deliver(t.Context())
		for _, out := range p.desk.outlets {
			out.notBefore = time.Time{}
		}
	}
	if len(p.desk.pending) > 0 {
		t.Fatalf("%d incidents are never told", len(p.desk.pending))
	}
}

// press dispatches one press and waits until it is noted; it returns what the person was told.
func (p *pressing) press(t *testing.T, action, incident, channel, message string) string {
	t.Helper()
	callback := slack.InteractionCallback{Type: slack.InteractionTypeBlockActions, User: slack.User{ID: "U7", Name: "anna"},
		Container: slack.Container{MessageTs: message, ChannelID: channel}}
	callback.Channel.ID = channel
	callback.ActionCallback.BlockActions = []*slack.BlockAction{{ActionID: action, Value: incident}}
	before := len(p.channel.private)
	p.handler.DispatchEvent(socketmode.Event{Type: socketmode.EventTypeInteractive, Data: callback, Request: &socketmode.Request{Type: "interactive", EnvelopeID: "e1"}})
	select {
	case one := <-p.presses:
		p.note(t.Context(), one)
	case <-time.After(20 * time.Second):
		t.Fatal("the press is not handed on")
	}
	p.channel.mu.Lock()
	defer p.channel.mu.Unlock()
	if len(p.channel.private) == before {
		return ""
	}
	m := p.channel.private[len(p.channel.private)-1]
	if m.Get("user") != "U7" || m.Get("channel") != channel {
		t.Errorf("told to %v", m)
	}
	return m.Get("text")
}

// labels are those of the card's buttons.
func (p *pressing) labels(t *testing.T) (all []string) {
	t.Helper()
	var list []struct {
		Type     string
		Elements []struct {
			Text  json.RawMessage
			Value string
		}
	}
	if err := json.Unmarshal([]byte(p.channel.only(t).Get("blocks")), &list); err != nil {
		t.Fatal(err)
	}
	for _, block := range list {
		if block.Type != "actions" {
			continue
		}
		for _, e := range block.Elements {
			var text struct{ Text string }
			if err := json.Unmarshal(e.Text, &text); err != nil || e.Value != "inc-7f3a" {
				t.Fatalf("button %s of %s", e.Text, e.Value)
			}
			all = append(all, text.Text)
		}
	}
	return all
}

const firstCard = "17.000001"

func TestButtonAcknowledges(t *testing.T) {
	p := newPressing(t)
	f := leak()
	f.Release = "r41"
	p.tell(t, f)
	if got := p.labels(t); !slices.Equal(got, []string{"Acknowledge", "Silence 4 h", "Silence until next release", "Not a leak", "Was right"}) {
		t.Fatalf("buttons %q", got)
	}
	if said := p.press(t, pressAcknowledge, "inc-7f3a", "C1", firstCard); said != "" {
		t.Errorf("told %q", said)
	}
	want := Action{Incident: "inc-7f3a", Kind: Acknowledge, By: "anna", Via: "slack", At: noon.Add(5 * time.Minute), Class: "retention", State: event.Suspected, Severity: event.Ticket}
	if got := p.o.actions.Of("inc-7f3a"); len(got) != 1 || got[0] != want {
		t.Fatalf("noted %+v", got)
	}
	p.deliver(t)
	if blocks := p.channel.only(t).Get("blocks"); !strings.Contains(blocks, "`acknowledged` by anna at 2026-11-03 12:05:00 UTC") {
		t.Errorf("the card says %s", blocks)
	}
	if got := p.labels(t); slices.Contains(got, "Acknowledge") {
		t.Errorf("buttons %q", got)
	}
	if got := p.channel.said(); !slices.Equal(got, []string{"Acknowledged by anna."}) {
		t.Errorf("the thread says %q", got)
	}
	if said := p.press(t, pressAcknowledge, "inc-7f3a", "C1", firstCard); said != "It is acknowledged already, by anna." {
		t.Errorf("told %q", said)
	}
	// What becomes worse needs somebody again.
	p.tell(t, paged())
	if got := p.labels(t); !slices.Contains(got, "Acknowledge") {
		t.Errorf("buttons of what became worse: %q", got)
	}
	if blocks := p.channel.only(t).Get("blocks"); !strings.Contains(blocks, "before it became worse") {
		t.Errorf("the card says %s", blocks)
	}
}

func TestButtonSilences(t *testing.T) {
	p := newPressing(t)
	f := leak()
	f.Release = "r41"
	p.tell(t, f)
	said := p.press(t, pressSilence, "inc-7f3a", "C1", firstCard)
	all := p.o.silences.List()
	if len(all) != 1 || all[0].Matchers() != "class=retention,slot=prod/gpu-07/vllm-a/0/1" || !all[0].Until.Equal(noon.Add(5*time.Minute+4*time.Hour)) || all[0].By != "anna" {
		t.Fatalf("silences %+v", all)
	}
	if !strings.Contains(said, "until 2026-11-03 16:05:00 UTC, by anna") || !strings.Contains(said, "lowtide silence end "+all[0].ID) {
		t.Errorf("told %q", said)
	}
	p.deliver(t)
	p.tell(t, paged())
	if got := p.channel.said(); len(got) != 1 || !strings.HasPrefix(got[0], "Silenced until 2026-11-03 16:05:00 UTC, by anna") {
		t.Errorf("the thread says %q", got)
	}
	if said := p.press(t, pressNextRelease, "inc-7f3a", "C1", firstCard); !strings.Contains(said, "silenced already") && !strings.Contains(said, "is not known") {
		t.Errorf("told %q", said)
	}
}

func TestButtonSilencesUntilTheNextRelease(t *testing.T) {
	p := newPressing(t)
	f := leak()
	f.Release = "r41"
	p.tell(t, f)
	p.press(t, pressNextRelease, "inc-7f3a", "C1", firstCard)
	all := p.o.silences.List()
	if len(all) != 1 || all[0].NotRelease != "r41" || !all[0].Until.Equal(noon.Add(5*time.Minute+30*24*time.Hour)) {
		t.Fatalf("silences %+v", all)
	}
	next := leak()
	next.Release = "r42"
	if at := noon.Add(time.Hour); !all[0].Covers(f, at) || all[0].Covers(next, at) {
		t.Errorf("covers r41 %v and r42 %v", all[0].Covers(f, at), all[0].Covers(next, at))
	}
}

// The silence of a card that tells about several workers covers what joins them.
func TestButtonSilencesAlikeWorkers(t *testing.T) {
	first, second := alike(0), alike(1)
	first.Release, second.Release = "r41", "r41"
	r := &record{history: history(first), members: map[string]member{"inc-0001": memberOf(history(second))}}
	s := silenceOf(press{action: pressSilence, by: "anna", at: noon}, r)
	if s.Matchers() != "class=retention,cluster=prod,model=llama-70b,release=r41" || !s.Covers(alike(7), noon) {
		t.Errorf("matches %s", s.Matchers())
	}
}

func TestButtonFeedback(t *testing.T) {
	p := newPressing(t)
	p.tell(t, leak())
	for action, kind := range map[string]ActionKind{pressNotALeak: NotALeak, pressWasRight: WasRight} {
		if said := p.press(t, action, "inc-7f3a", "C1", firstCard); !strings.HasPrefix(said, "Noted.") {
			t.Errorf("told %q", said)
		}
		if said := p.press(t, action, "inc-7f3a", "C1", firstCard); said != "That is noted already. Thank you." {
			t.Errorf("told %q", said)
		}
		all := p.o.actions.Of("inc-7f3a")
		if last := all[len(all)-1]; last.Kind != kind || last.By != "anna" {
			t.Errorf("noted %+v", last)
		}
	}
}

// A button counts only on the card that is kept up to date, in the channel that is ours.
func TestButtonOfAnotherCardIsRefused(t *testing.T) {
	p := newPressing(t)
	p.tell(t, leak())
	for name, c := range map[string]struct{ incident, channel, message, want string }{
		"unknown incident": {"inc-none", "C1", firstCard, "nothing is known of its incident"},
		"another channel":  {"inc-7f3a", "C9", firstCard, "its buttons do nothing"},
		"an older card":    {"inc-7f3a", "C1", "16.000001", "has a newer one"},
	} {
		if said := p.press(t, pressAcknowledge, c.incident, c.channel, c.message); !strings.Contains(said, c.want) {
			t.Errorf("%s: told %q", name, said)
		}
	}
	p.tell(t, over())
	for _, action := range []string{pressAcknowledge, pressSilence} {
		if said := p.press(t, action, "inc-7f3a", "C1", firstCard); said != "It is resolved already." {
			t.Errorf("told %q", said)
		}
	}
	if n := len(p.o.actions.All()) + len(p.o.silences.List()); n != 0 {
		t.Errorf("%d things were noted", n)
	}
}

// What is not ours is acknowledged and passed over; a flood is bounded.
func TestButtonsOfOthers(t *testing.T) {
	callback := slack.InteractionCallback{Type: slack.InteractionTypeBlockActions}
	callback.ActionCallback.BlockActions = []*slack.BlockAction{nil, {ActionID: "other", Value: "x"}, {ActionID: pressAcknowledge}, {ActionID: pressAcknowledge, Value: strings.Repeat("x", 5000)}}
	if got := pressesOf(callback, noon); len(got) != 0 {
		t.Errorf("presses %+v", got)
	}
	callback.ActionCallback.BlockActions = []*slack.BlockAction{{ActionID: pressAcknowledge, Value: "a"}}
	callback.User.Name = "anna\u202e\x1b" + strings.Repeat("x", 500)
	got := pressesOf(callback, noon)
	if len(got) != 1 || len(got[0].by) > maxBy || strings.ContainsAny(got[0].by, "\u202e\x1b") {
		t.Errorf("presses %+v", got)
	}
}

// A socket that cannot be opened says so without the token, and the cards go on.
func TestSocketThatIsRefused(t *testing.T) {
	c := newChannel(t)
	s, err := NewSlack(SlackOptions{Token: secret, AppToken: appSecret, Channel: "C1", URL: c.url})
	if err != nil {
		t.Fatal(err)
	}
	answer := fmt.Sprintf(`{"ok":false,"error":"no such token %s at wss://wss-primary.slack.com/link/?ticket=1234"}`, appSecret)
	c.say(func(_ string, w http.ResponseWriter) bool {
		_, _ = w.Write([]byte(answer))
		return true
	})
	var log bytes.Buffer
	gauge := new(Gauge)
	o := Options{Senders: []Sender{s}, Log: slog.New(slog.NewTextHandler(&log, nil)), Gauge: gauge}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- newListener(s, o, outbox{}).run(ctx) }()
	c.await(t, "apps.connections.open")
	c.await(t, "apps.connections.open") // it is tried again
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "buttons are not listened to") || strings.Contains(text, "very+secret") || strings.Contains(text, "ticket") {
		t.Errorf("log %s", text)
	}
	if gauge.listens["slack"] {
		t.Error("it says that it listens")
	}
	// A token that is refused for good ends it.
	answer = `{"ok":false,"error":"invalid_auth"}`
	if err := newListener(s, o, outbox{}).run(t.Context()); err == nil || err.Error() != "listen to buttons: invalid_auth" {
		t.Errorf("error %v", err)
	}
}

// runOnce listens until the first word about the connection is logged, or the listener ends by itself.
func (l *listener) runOnce(ctx context.Context, cancel func()) error {
	done := make(chan error, 1)
	l.o.Log = slog.New(stopper{l.o.Log.Handler(), cancel})
	go func() { done <- l.run(ctx) }()
	return <-done
}

// stopper calls stop with the first record.
type stopper struct {
	slog.Handler
	stop func()
}

func (s stopper) Handle(ctx context.Context, r slog.Record) error {
	defer s.stop()
	return s.Handler.Handle(ctx, r)
}
