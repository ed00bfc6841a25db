package collector_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lowtide/collector"
	"lowtide/event"
)

// readAll returns the events of a recording.
func readAll(t *testing.T, path string) (events []*event.Event) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := event.NewReader(file, path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
}

// An engine that takes longer than the interval to answer is slow and not dead: the deadline of a call is that of `collect`.
func TestRecordGivesASourceTheTimeThatCollectGives(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select { // the latency under test, of a real server on a real clock
		case <-time.After(400 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n"+
			"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1\n")
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "slow.ndjson")
	c := &collector.RecordCommand{File: path, For: time.Second, Cluster: "lab", Host: "h", Logger: slog.New(slog.DiscardHandler), Sensors: sensors(100 * time.Millisecond)}
	c.Without, c.Engine = []string{"nvml", "allocator", "kernel"}, []string{"vllm=" + server.URL + "/metrics"}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, e := range readAll(t, path) {
		if e.Source.GetName() == "engine" && e.Source.GetStatus() == "timeout" {
			t.Fatalf("the engine's source says %v", e.Source)
		}
	}
}
