package processor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replayed returns what `replay` prints.
func replayed(t *testing.T, paths ...string) (out, messages string) {
	t.Helper()
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("NO_COLOR", "")
	var stdout, stderr bytes.Buffer
	if err := (&ReplayCommand{Recordings: paths, Stdout: &stdout, Stderr: &stderr}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String()
}

// The lesson's sample: 42 GiB live, 60 reserved, 66 in use, of 80. 60 − 42 = 18 are cached, 66 − 60 = 6 are outside, 80 − 66 = 14 are
// free; none of that is a finding.
func TestASingleTickOfTheLessonFindsNothing(t *testing.T) {
	const gib = 1 << 30
	line := func(body string) string {
		return `{"time":"2026-11-01T00:00:00Z","host":{"cluster":"lab","name":"a"},` + body + "}\n"
	}
	worker := `"worker":{"pid":7,"start_time":"2026-10-31T00:00:00Z","gpu_uuids":["GPU-1"]},`
	process := line(worker + fmt.Sprintf(`"gpu_process":{"gpu_uuid":"GPU-1","used_bytes":%d}`, 66*gib))
	allocator := line(worker + fmt.Sprintf(`"allocator":{"allocated_bytes":%d,"reserved_bytes":%d}`, 42*gib, 60*gib))
	told := line(fmt.Sprintf(`"gpu":{"uuid":"GPU-1","index":0,"total_bytes":%d,"used_bytes":%d,"free_bytes":%d}`, 80*gib, 66*gib, 14*gib))
	lean := line(fmt.Sprintf(`"gpu":{"uuid":"GPU-1","index":0,"total_bytes":%d,"used_bytes":%d}`, 80*gib, 66*gib))
	for _, text := range []string{told + process + allocator, allocator + process + told, lean + allocator + process} {
		path := filepath.Join(t.TempDir(), "tick.ndjson")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, messages := replayed(t, path)
		for _, want := range []string{"tick: 1 worker, 0 incidents", "insufficient", "no finding", "pid 7",
			"live 42 GiB, cached 18 GiB (reusable), outside 6 GiB (context and native), free 14 GiB of 80 GiB", "kv_block_leak, kv_pressure"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not said:\n%s", want, out)
			}
		}
		if n := strings.Count(strings.TrimSpace(out), "\n"); n != 3 {
			t.Errorf("a heading and three lines, not\n%s", out)
		}
		if messages != "" {
			t.Errorf("messages %q", messages)
		}
	}
}

// The first word of a worker's report is its verdict: a class for what was planted, one of the words that are no findings else.
func TestReplayPrintsAReportForEveryRecording(t *testing.T) {
	for name, class := range verdicts {
		out, _ := replayed(t, filepath.Join("testdata", name+".ndjson.gz"))
		lines := strings.Split(out, "\n")
		word, _, _ := strings.Cut(lines[1], " ")
		switch {
		case class != "" && word != class:
			t.Errorf("%s: %q, want %s", name, lines[1], class)
		case class == "" && (!strings.Contains(lines[1], " · no finding · ") || len(lines) != 6):
			t.Errorf("%s is well in three lines, not\n%s", name, out)
		case class != "" && (!strings.Contains(out, "What speaks against it\n") || !strings.Contains(out, "Course\n") || !strings.Contains(out, " UTC\n\nWhat speaks against it")):
			t.Errorf("%s: the plot, the course or what speaks against it is missing:\n%s", name, out)
		}
		if strings.Contains(out, "NaN") || strings.Contains(out, "Inf") {
			t.Errorf("%s: NaN or Inf\n%s", name, out)
		}
	}
}

func TestReplayInASCIIIsASCII(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if err := (&ReplayCommand{ASCII: true, Recordings: []string{"testdata/leak.ndjson.gz"}, Stdout: &stdout, Stderr: &stderr}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, b := range stdout.Bytes() {
		if b != '\n' && (b < ' ' || b > '~') {
			t.Fatalf("byte %#x is printed", b)
		}
	}
	if strings.Contains(stdout.String(), "?") {
		t.Errorf("a character has no likeness in ASCII:\n%s", stdout.String())
	}
}

// With --json stdout has finding transitions and nothing else, and the count is a message.
func TestReplayAsJSONStaysLines(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if err := (&ReplayCommand{JSON: true, Recordings: []string{"testdata/leak.ndjson.gz", "testdata/healthy.ndjson.gz"}, Stdout: &stdout, Stderr: &stderr}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	for _, line := range lines {
		if !strings.HasPrefix(line, `{"recording":"leak","id":`) {
			t.Errorf("line %s", line)
		}
	}
	if want := fmt.Sprintf("leak: %d transitions\nhealthy: 0 transitions\n", len(lines)); stderr.String() != want {
		t.Errorf("messages %q, want %q", stderr.String(), want)
	}
}
