package notifier

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestSlackWebhook(t *testing.T) {
	var bodies []map[string]any
	answers := []int{200, 400, 200}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body := map[string]any{}
		if err := json.Unmarshal(text, &body); err != nil {
			t.Error(err)
		}
		bodies = append(bodies, body)
		status := answers[0]
		answers = answers[1:]
		w.WriteHeader(status)
		if status == 400 {
			_, _ = io.WriteString(w, "invalid_blocks")
			return
		}
		_, _ = io.WriteString(w, "ok")
	}))
	defer server.Close()
	s, err := NewSlackWebhook(SlackWebhookOptions{URL: server.URL + "/services/T0/B0/very-secret"})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := any(s).(replier); ok || !s.Fixed() || s.Name() != "slack_webhook" || !strings.Contains(s.Limits(), "cannot edit") {
		t.Error("it says that it can do more than it can")
	}
	receipt, err := s.Post(t.Context(), Build(history(leak())))
	if err != nil {
		t.Fatal(err)
	}
	// It has neither buttons, which nobody would hear, nor a chart, which nobody says is refused for good; the curve is a line.
	text, _ := json.Marshal(bodies[0])
	for _, never := range []string{`"actions"`, "data_visualization", "lowtide_acknowledge"} {
		if strings.Contains(string(text), never) {
			t.Errorf("posted %s", never)
		}
	}
	if !strings.Contains(string(text), "42 GiB ▁▃▆█ 48 GiB") {
		t.Errorf("posted %s", text)
	}
	if err := s.Update(t.Context(), receipt, Build(history(leak(), paged()))); err != nil {
		t.Fatal(err)
	}
	if len(bodies) != 3 || bodies[2]["blocks"] != nil || !strings.Contains(bodies[2]["text"].(string), "changed: retention confirmed") {
		t.Errorf("after blocks were refused: %v", bodies[len(bodies)-1])
	}
}
