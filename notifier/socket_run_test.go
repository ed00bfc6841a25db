package notifier

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// A whole notifier, over a socket: it connects, a button is pressed, the press is acknowledged in time and small, and the card says who it was.
func TestRunHearsButtons(t *testing.T) {
	b, c := newBroker(t), newChannel(t)
	pressed, acks := make(chan string), make(chan []byte, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := (&websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"hello","num_connections":1,"connection_info":{"app_id":"A1"}}`))
		go func() {
			for {
				_, text, err := conn.ReadMessage()
				if err != nil {
					close(acks)
					return
				}
				acks <- text
			}
		}()
		for envelope := range pressed {
			if err := conn.WriteMessage(websocket.TextMessage, []byte(envelope)); err != nil {
				t.Error(err)
			}
		}
	}))
	defer server.Close()
	defer close(pressed)
	c.say(func(call string, w http.ResponseWriter) bool {
		if call != "apps.connections.open" {
			return false
		}
		_, _ = fmt.Fprintf(w, `{"ok":true,"url":"ws%s/link/?ticket=1"}`, strings.TrimPrefix(server.URL, "http"))
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, b.js, Options{SlackToken: secret, SlackAppToken: appSecret, SlackChannel: "C1", SlackURL: c.url, Interval: time.Millisecond, Backoff: 5 * time.Millisecond})
	}()
	b.publish(t, leak())
	b.awaitRecord(t, toldOf("f1"))
	payload := fmt.Sprintf(`{"type":"block_actions","user":{"id":"U7","name":"anna"},"channel":{"id":"C1"},"container":{"type":"message","message_ts":%q,"channel_id":"C1"},"actions":[{"action_id":%q,"block_id":"b1","type":"button","value":"inc-7f3a"}]}`, firstCard, pressAcknowledge)
	select {
	case pressed <- `{"type":"interactive","envelope_id":"e-1","accepts_response_payload":true,"payload":` + payload + `}`:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody connects")
	}
	select {
	case text := <-acks:
		var ack struct {
			Envelope string `json:"envelope_id"`
		}
		if err := json.Unmarshal(text, &ack); err != nil || ack.Envelope != "e-1" || len(text) > 200 {
			t.Errorf("answered %s", text)
		}
	case <-time.After(3 * time.Second):
		t.Fatal("the press is not acknowledged within three seconds")
	}
	b.awaitRecord(t, func(d Delivery) bool { return d.Said.Acknowledged == "anna" && d.Saying == nil })
	if blocks := c.only(t).Get("blocks"); !strings.Contains(blocks, "by anna at ") {
		t.Errorf("the card says %s", blocks)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("run does not end")
	}
}
