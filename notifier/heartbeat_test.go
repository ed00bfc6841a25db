package notifier

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestHeartbeatIsMissedWhenTheProcessorIsNotWell(t *testing.T) {
	taken := make(chan string, 64)
	status := new(atomic.Int64)
	status.Store(200)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(int(status.Load()))
		taken <- r.Method + " " + r.URL.Path
	}))
	defer server.Close()
	asked := make(chan struct{}, 64)
	var unwell atomic.Bool
	var logged safeText
	h, err := NewHeartbeat(server.URL+"/ping/a-secret", func() error {
		asked <- struct{}{}
		if unwell.Load() {
			return errors.New("judge: partition 12 is catching up")
		}
		return nil
	}, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	h.every = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	if got := <-taken; got != "POST /ping/a-secret" {
		t.Fatalf("the beat is %q", got)
	}
	<-taken
	if h.last.Load() == 0 {
		t.Error("a beat that was taken is not noted")
	}
	unwell.Store(true)
	for range 3 {
		<-asked
	}
	for len(taken) > 0 {
		<-taken
	}
	for range 3 { // every question from here on finds it unwell
		<-asked
	}
	if len(taken) != 0 {
		t.Error("a processor that does not work beats")
	}
	status.Store(500)
	unwell.Store(false)
	<-taken
	<-taken
	if h.failed.Load() == 0 {
		t.Error("a beat that was refused is not counted")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	text := logged.String()
	if !strings.Contains(text, "partition 12") || !strings.Contains(text, "500 Internal") {
		t.Errorf("the log does not say why there is no heartbeat: %s", text)
	}
	if strings.Contains(text, "a-secret") {
		t.Errorf("the log has the secret address: %s", text)
	}
}

func TestHeartbeatErrorsKeepTheAddressSecret(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close() // nobody listens there now
	file := filepath.Join(t.TempDir(), "address")
	if err := os.WriteFile(file, []byte(server.URL+"/a-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := NewHeartbeat(file, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.beat(t.Context()); err == nil || strings.Contains(err.Error(), "a-secret") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	for _, address := range []string{"", "example.com/a-secret", "ftp://example.com/a-secret", "https://", "http://a b/a-secret"} {
		if _, err := NewHeartbeat(address, nil, nil); err == nil || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// safeText is a text that several goroutines write.
type safeText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *safeText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *safeText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
