package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/notifier"
)

// The stub is asked by the notifier's own client, which is what it has to please.
func TestSlackStubAsTheNotifierSeesIt(t *testing.T) {
	stub, err := newSlackStub()
	if err != nil {
		t.Fatal(err)
	}
	defer stub.close()
	slack, err := notifier.NewSlack(notifier.SlackOptions{Token: "xoxb-test", Channel: "C1", URL: stub.address()})
	if err != nil {
		t.Fatal(err)
	}
	card := func(incident, state string) notifier.Card {
		f := &event.Finding{ID: incident + state, Incident: incident, Class: "retention", State: state, Severity: event.Ticket, Time: time.Now(), Subject: event.Subject{Kind: "worker", Key: "lab/h/1"}}
		return notifier.Build(notifier.History{}.Add(f))
	}
	began := time.Now()
	receipt, err := slack.Post(t.Context(), card("a", event.Suspected))
	if err != nil {
		t.Fatal(err)
	}
	if err := slack.Update(t.Context(), receipt, card("a", event.Confirmed)); err != nil {
		t.Fatal(err)
	}
	answer := notifier.Reply{Key: "k1", Text: "From suspected to confirmed."}
	if err := slack.Reply(t.Context(), receipt, answer); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"k1": true, "k2": false} {
		if found, err := slack.Replied(t.Context(), receipt, key, began); err != nil || found != want {
			t.Errorf("reply %s is found: %v (%v)", key, found, err)
		}
	}
	if twice := stub.repeated(); len(twice) != 0 {
		t.Errorf("replies that were sent once stand twice: %q", twice)
	}
	stub.set(SlackLimit)
	var failure *notifier.Failure
	if _, err := slack.Post(t.Context(), card("b", event.Suspected)); !errors.As(err, &failure) || failure.After < time.Second {
		t.Errorf("limited: %v, want how long to wait", err)
	}
	stub.set(SlackError)
	if _, err := slack.Post(t.Context(), card("b", event.Suspected)); err == nil || errors.As(err, &failure) && failure.After == 0 {
		t.Errorf("500: %v, want an error that leaves open whether it was posted", err)
	}
	if _, found, err := slack.Find(t.Context(), "b", began); err == nil || found {
		t.Errorf("history answers %v %v while Slack is away", found, err)
	}
	stub.set(SlackHang)
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := slack.Post(limited, card("c", event.Suspected)); !errors.Is(limited.Err(), context.DeadlineExceeded) || err == nil {
		t.Errorf("hanging: %v, want no answer", err)
	}
	stub.set(SlackLost)
	if _, err := slack.Post(t.Context(), card("d", event.Suspected)); err == nil {
		t.Error("lost: it says that it was posted")
	}
	stub.set("")
	for incident, want := range map[string]bool{"a": true, "b": false, "d": true} {
		if _, found, err := slack.Find(t.Context(), incident, began); err != nil || found != want {
			t.Errorf("%s is found: %v (%v), want %v", incident, found, err, want)
		}
	}
	var said []string
	for _, m := range stub.said() {
		said = append(said, m.Incident+" "+m.State)
	}
	if got := strings.Join(said, ", "); got != "a confirmed, d suspected" {
		t.Errorf("the channel has %s", got)
	}
}

func TestStoreProxyHasBadDays(t *testing.T) {
	var asked atomic.Int32
	real := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = out.Write([]byte("1\n"))
	}))
	defer real.Close()
	proxy, err := newStoreProxy(strings.TrimPrefix(real.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.close()
	for _, c := range []struct {
		mode    Kind
		status  int // zero: no answer at all
		reaches int32
	}{{"", 200, 1}, {StoreError, 500, 0}, {StoreParts, 500, 0}, {StoreLost, 0, 1}} {
		proxy.set(c.mode)
		asked.Store(0)
		status := 0
		answer, err := http.Post("http://"+proxy.address()+"/?query=x", "text/plain", strings.NewReader("rows"))
		if err == nil {
			status = answer.StatusCode
			_ = answer.Body.Close()
		}
		if status != c.status || asked.Load() != c.reaches {
			t.Errorf("%q: status %d (%v), and the store was asked %d times; want %d and %d", c.mode, status, err, asked.Load(), c.status, c.reaches)
		}
	}
	proxy.set(StoreError)
	for turn := range 3 {
		answer, err := http.Post("http://"+proxy.address()+"/", "text/plain", strings.NewReader("rows"))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if through := answer.StatusCode == 200; through != (turn == 2) {
			t.Errorf("call %d of a bad store: %s; every third is let through", turn+1, answer.Status)
		}
	}
}
