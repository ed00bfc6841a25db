package sink

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sql asks in every way that a query can come.
func (f fleet) sql(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "query.sql")
	if err := os.WriteFile(path, []byte("-- the newest\nSELECT class FROM incidents FINAL\nWHERE class = 'retention';\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return file
	}
	for _, test := range []struct {
		name string
		c    SQLCommand
		want string
	}{
		{"argument as JSON", SQLCommand{Query: "SELECT 1 AS a, 'x' AS b", JSON: true}, "{\"a\":1,\"b\":\"x\"}\n"},
		{"file as CSV", SQLCommand{File: path, CSV: true}, "\"class\"\n\"retention\"\n"},
		{"stdin as CSV", SQLCommand{CSV: true, Stdin: open()}, "\"class\"\n\"retention\"\n"},
		{"stdin by name", SQLCommand{File: "-", CSV: true, Stdin: open()}, "\"class\"\n\"retention\"\n"},
		{"table", SQLCommand{Query: "SELECT 1 AS one"}, "   ┌─one─┐\n1. │   1 │\n   └─────┘\n"},
	} {
		var out bytes.Buffer
		test.c.Access, test.c.Stdout = f.access, &out
		if err := test.c.Run(t.Context()); err != nil || out.String() != test.want {
			t.Errorf("%s: %v, %q, want %q", test.name, err, out.String(), test.want)
		}
	}
}

// talk types at the prompt: an error is no end, names are listed, forms change, a line may go on.
func (f fleet) talk(t *testing.T) {
	var out, messages bytes.Buffer
	c := SQLCommand{Access: f.access, Stdout: &out, Stderr: &messages}
	lines := []string{"", `\csv`, "SELECT 1 AS one", "SELECT * FROM worker_sample", `SELECT 2 \`, "AS two", `\d`, `\d host_samples`, `\json`, "SELECT 3 AS three", `\nope`, `\i`, `\?`, "quit", "SELECT 4"}
	var prompts []string
	err := c.converse(t.Context(), func(prompt string) (string, error) {
		prompts = append(prompts, prompt)
		line := lines[0]
		lines = lines[1:]
		return line, nil
	})
	if err != nil || len(lines) != 1 {
		t.Fatalf("%v with %q left", err, lines)
	}
	for _, want := range []string{"\"one\"\n1\n", "\"two\"\n2\n", "\"peers\",\"view with parameters\",", "\"worker_samples\",\"table\",", "\"memory_available_bytes\",\"Nullable(UInt64)\"", "{\"three\":3}\n", "growth-by-release"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("stdout lacks %q:\n%s", want, out.String())
		}
	}
	for _, want := range []string{"error: there is no table or view worker_sample in the store; did you mean worker_samples?\nhint: tables: ", `error: \nope is no command of this prompt`, "goes on in the next line"} {
		if !strings.Contains(messages.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, messages.String())
		}
	}
	if strings.Contains(out.String(), "schema_version") || prompts[5] != "    ...> " {
		t.Errorf("prompts %q\n%s", prompts, out.String())
	}
}

func TestPromptEnds(t *testing.T) {
	c := SQLCommand{Access: Access{DataDir: t.TempDir()}, Stdout: io.Discard, Stderr: io.Discard}
	if err := c.converse(t.Context(), func(string) (string, error) { return "", io.EOF }); err != nil {
		t.Errorf("at the end of input: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.converse(ended, func(string) (string, error) { t.Error("asked after the end"); return "", io.EOF }); err != nil {
		t.Error(err)
	}
	if err := c.converse(t.Context(), func(string) (string, error) { return "", os.ErrClosed }); err == nil {
		t.Error("a broken terminal is no error")
	}
}

func TestSQLUsage(t *testing.T) {
	empty, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	long := filepath.Join(t.TempDir(), "long.sql")
	if err := os.WriteFile(long, bytes.Repeat([]byte(" "), maxQuery+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]SQLCommand{
		"a query and a file were given": {Query: "SELECT 1", File: "x"},
		"the query is empty":            {Stdin: empty},
		"no such file":                  {File: "missing.sql", Stdin: empty},
		"longer than 1048576 bytes":     {File: long, Stdin: empty},
		"sql: the query is empty":       {Query: "  ", Stdin: empty},
	} {
		err := c.Run(t.Context())
		coded, ok := err.(interface{ ExitCode() int })
		if !ok || coded.ExitCode() != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q and exit code 2", err, want)
		}
	}
}

func TestHistoryIsKeptForTheNextTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "sql_history")
	h, err := openHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"SELECT 1", "SELECT 1", " SELECT 'secret'", "", "SELECT\x1b[2J 2", "SELECT 3"} {
		h.Add(line)
	}
	if h.err != nil {
		t.Fatal(h.err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, mode %v, want 0600", err, info.Mode())
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := openHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file that others could read has mode %v afterwards, want 0600", info.Mode())
	}
	var got []string
	for i := range again.Len() {
		got = append(got, again.At(i))
	}
	if want := []string{"SELECT 3", "SELECT [2J 2", "SELECT 1"}; !slices.Equal(got, want) {
		t.Errorf("newest first: %q, want %q", got, want)
	}
	for range 2 * historyLines {
		again.Add("SELECT 5")
		again.Add("SELECT 6")
	}
	if third, err := openHistory(path); err != nil || third.Len() != historyLines || again.Len() != historyLines {
		t.Errorf("%v, %d lines in memory, %d read, want %d", err, again.Len(), third.Len(), historyLines)
	}
	if _, err := openHistory(t.TempDir()); err == nil {
		t.Error("a folder is taken for a history")
	}
}

func FuzzHistory(f *testing.F) {
	f.Add([]byte("SELECT 1\n\x1b[31mSELECT 2\r\n\n"))
	f.Add([]byte("\xff\xfe\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		lines, _ := readHistory(bytes.NewReader(text)) // an error leaves the lines before it
		if len(lines) > historyLines {
			t.Fatalf("%d lines", len(lines))
		}
		for _, line := range lines {
			if strings.ContainsAny(line, "\x1b\r\n\x00") || strings.TrimSpace(line) == "" {
				t.Fatalf("%q reaches the terminal", line)
			}
		}
	})
}

func TestTabCompletesNames(t *testing.T) {
	complete := completer([]string{"worker_samples", "workers", "events"})
	for _, test := range []struct {
		line string
		pos  int
		want string
		at   int
	}{
		{"SELECT * FROM ev", 16, "SELECT * FROM events", 20},
		{"SELECT * FROM wo", 16, "SELECT * FROM worker", 20}, // as far as they agree
		{"SELECT * FROM wo LIMIT 1", 16, "SELECT * FROM worker LIMIT 1", 20},
		{"SELECT * FROM q", 15, "SELECT * FROM q", 15},
		{"", 0, "", 0},
	} {
		if line, pos, ok := complete(test.line, test.pos, '\t'); line != test.want || pos != test.at || !ok {
			t.Errorf("%q becomes %q at %d, want %q at %d", test.line, line, pos, test.want, test.at)
		}
	}
	if _, _, ok := complete("e", 1, 'x'); ok {
		t.Error("another key completes")
	}
}
