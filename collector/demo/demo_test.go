package demo

import (
	"errors"
	"io"
	"testing"
	"time"

	"lowtide/event"
)

// The numbers were counted outside with zcat and python.
func TestLeakIsWhatWasRecorded(t *testing.T) {
	reader, err := event.NewReader(Leak(), Name)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]int{}
	var first, last time.Time
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if bodies[e.Body()]++; first.IsZero() {
			first = e.At()
		}
		last = e.At()
	}
	want := map[string]int{"gpu": 423, "gpu_process": 423, "allocator": 423, "engine": 423, "process": 423}
	for body, n := range want {
		if bodies[body] != n {
			t.Errorf("%d %s events, want %d", bodies[body], body, n)
		}
	}
	if got := last.Sub(first).Round(time.Minute); got != 7*time.Hour+3*time.Minute {
		t.Errorf("spans %s, want 7h3m", got)
	}
	if len(reader.Warnings()) > 0 {
		t.Errorf("warnings %q", reader.Warnings())
	}
}
