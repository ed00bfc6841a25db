package recording

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// The first 500 events of a real recording: 100 ticks of five, from 2026-11-01T00:00:00Z on, the second at 00:01:00.476.
const real = "testdata/leak_first_100_minutes.ndjson.gz"

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func openReal(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := Open(real, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func take(t *testing.T, s *Source, tick time.Time) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), tick)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func TestPastIsSentAtOnceAndTheRestAtItsTime(t *testing.T) {
	s := openReal(t, Options{Start: now.Add(-50 * time.Minute)})
	if s.Name() != "recording-leak_first_100_minutes" {
		t.Errorf("name %q", s.Name())
	}
	events := take(t, s, now)
	// Ticks come a little later than every minute, so 50 minutes hold 50 of them, not 51.
	if len(events) != 250 {
		t.Fatalf("%d events lie in the past, want 250", len(events))
	}
	if at := events[0].At(); !at.Equal(now.Add(-50 * time.Minute)) {
		t.Errorf("first event at %v", at)
	}
	if at, want := events[5].At(), now.Add(-49*time.Minute+476*time.Millisecond); !at.Equal(want) {
		t.Errorf("second tick at %v, want %v", at, want)
	}
	if start := events[1].Worker.StartTime.AsTime(); !start.Equal(now.Add(-50 * time.Minute)) {
		t.Errorf("the worker started at %v, want it moved along", start)
	}
	if more := take(t, s, now.Add(2*time.Minute)); len(more) != 10 {
		t.Errorf("two minutes later %d events are due, want 10", len(more))
	}
	rest := take(t, s, now.Add(24*time.Hour))
	if len(rest) != 240 || !s.Done() || len(take(t, s, now.Add(25*time.Hour))) != 0 {
		t.Errorf("the rest is %d events, want 240, and then nothing", len(rest))
	}
}

func TestSpeed(t *testing.T) {
	s := openReal(t, Options{Start: now, Speed: 60})
	events := take(t, s, now.Add(10*time.Second)) // ten recorded minutes: ticks 0 to 9, the eleventh is a little late
	if len(events) != 50 {
		t.Fatalf("%d events in ten seconds at speed 60, want 50", len(events))
	}
	if at, want := events[5].At(), now.Add(60476*time.Millisecond/60); at.Sub(want).Abs() > time.Microsecond {
		t.Errorf("second tick at %v, want %v", at, want)
	}
}

func TestCallsAreBoundedAndHeldBack(t *testing.T) {
	ready := false
	s := openReal(t, Options{Start: now.Add(-12 * time.Hour), Max: 200, Ready: func() bool { return ready }})
	if got := take(t, s, now); len(got) != 0 {
		t.Errorf("%d events although nothing is ready", len(got))
	}
	ready = true
	var sizes []int
	for !s.Done() {
		sizes = append(sizes, len(take(t, s, now)))
	}
	if len(sizes) != 3 || sizes[0] != 200 || sizes[1] != 200 || sizes[2] != 100 {
		t.Errorf("calls gave %v, want 200, 200, 100", sizes)
	}
}

func TestTimesStayWithoutStart(t *testing.T) {
	s := openReal(t, Options{Suffix: "leak"})
	events := take(t, s, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	if len(events) != 500 || !events[0].At().Equal(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)) || events[0].Host.Name != "h200-a-leak" {
		t.Errorf("%d events, the first at %v of %s", len(events), events[0].At(), events[0].Host.Name)
	}
}

func TestEndedContextLosesNothing(t *testing.T) {
	s := openReal(t, Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if events, err := s.Collect(ended, now); len(events) != 0 || err != nil {
		t.Errorf("%d events, %v", len(events), err)
	}
	if events := take(t, s, now); len(events) != 500 {
		t.Errorf("%d events afterwards, want 500", len(events))
	}
}

const line = `{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"h"},"machine":{"fds":1}}` + "\n"

func TestCorruptLineEndsTheRecordingAndIsNamed(t *testing.T) {
	s, err := New(strings.NewReader(line+line+"{\"time\":\n"+line), "bad.ndjson", Options{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.Collect(t.Context(), now)
	if len(events) != 2 || !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "bad.ndjson:3") {
		t.Errorf("%d events and %v, want the 2 before and bad.ndjson:3", len(events), err)
	}
	if _, again := s.Collect(t.Context(), now); !errors.Is(again, status.ErrLost) {
		t.Errorf("the next call says %v", again)
	}
}

func TestWhatIsNoRecordingIsRefusedAtOnce(t *testing.T) {
	for text, want := range map[string]string{"": "no events", "hello\n": "x.ndjson:1", line[:40] + "\n": "x.ndjson:1"} {
		if _, err := New(strings.NewReader(text), "x.ndjson", Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := New(strings.NewReader(line), "x", Options{Speed: -1}); err == nil {
		t.Error("a negative speed is taken")
	}
	if _, err := Open("testdata/none.gz", Options{}); status.Of(err) != status.Absent {
		t.Errorf("no file: %v", err)
	}
}
