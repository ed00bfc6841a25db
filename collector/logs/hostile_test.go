package logs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// The stamp in front of a line is the worker's to write. One of long ago is no time of an event: the processor refuses a batch
// with a time before 1970 as a whole, and judges one of last year as if it came late.
func TestStampsOfLongAgo(t *testing.T) {
	const text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
	for stamp, want := range map[string]time.Time{
		"1969-12-31T23:59:59.000000000Z": noon,
		"2001-01-01T00:00:00.000000000Z": noon,
		"2026-05-12T11:55:00.000000000Z": noon.Add(-5 * time.Minute),
		"2026-05-12T12:05:00.000000000Z": noon,
	} {
		s, out := recorder(nil)
		read(s, stamp+" stderr F "+text)
		read(s, fmt.Sprintf(`{"log":"%s\n","stream":"stderr","time":"%s"}`, strings.Replace(text, "2.00", "3.00", 1), stamp))
		if len(*out) != 2 {
			t.Fatalf("%s: %v", stamp, *out)
		}
		for _, e := range *out {
			if err := event.Validate(e); err != nil || !e.At().Equal(want) {
				t.Errorf("%s: at %v, %v", stamp, e.At(), err)
			}
		}
	}
}

// Ten a minute are ten by the clock of this host, whatever the lines say.
func TestRatesAreOfTheTimeOfReading(t *testing.T) {
	s, out := recorder(nil)
	now := noon
	for i := range 100 {
		now = now.Add(250 * time.Millisecond)
		for j := range 10 {
			stamp := now.Add(-4 * time.Minute).Format("2006-01-02T15:04:05.000000000Z")
			s.region(fmt.Appendf(nil, "%s stderr F Sequence group %d is preempted by PreemptionMode.SWAP mode because\n", stamp, 10*i+j), now)
		}
		s.settle(now)
	}
	if len(*out) != perMinute {
		t.Errorf("%d events in 25 seconds", len(*out))
	}
}

// A log that was deleted takes up its disk for as long as it is open anywhere.
func TestADeletedFileIsLetGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine.log")
	add(t, path, "before\n")
	s := reader(t, Options{Files: []File{{Path: path}}})
	writer, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	collect(t, s, status.Absent, 0)
	if _, err := writer.WriteString(dead + " last words\n"); err != nil {
		t.Fatal(err)
	}
	collect(t, s, status.Absent, 1) // who has it open may write on
	f := s.files[0]
	look := func(after time.Duration) { f.scan(time.Now().Add(after), s.buffer) }
	if look(unlinkedFor / 2); f.file == nil {
		t.Error("let go too early")
	}
	if look(2 * unlinkedFor); f.file != nil {
		t.Error("held for ever")
	}
	add(t, path, dead+" anew\n")
	collect(t, s, status.OK, 1)
}

// Lines that have to be parsed cost up to 20 ms each, and a flood of them must not hold up a look at the logs: the rest waits.
func TestALookIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine.log")
	add(t, path, "before\n")
	s := reader(t, Options{Files: []File{{Path: path}}})
	line := "CUDA out of memory " + strings.Repeat("x", 16000) + "\n"
	add(t, path, strings.Repeat(line, 500))
	if _, err := s.Collect(t.Context(), time.Now()); err != nil && status.Of(err) != status.Lost {
		t.Error(err)
	}
	if read := s.files[0].offset; read == 0 || read > 4<<20 {
		t.Errorf("%d bytes read in one look", read)
	}
}
