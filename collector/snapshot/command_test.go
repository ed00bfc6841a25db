package snapshot

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	json "github.com/go-json-experiment/json"
)

// run is the command line of `lowtide snapshot`, with what it prints.
func run(t *testing.T, ctx context.Context, stdin []byte, args ...string) (string, error) {
	t.Helper()
	var c struct {
		Show ShowCommand `cmd:""`
		Diff DiffCommand `cmd:""`
	}
	parser, err := kong.New(&c, kong.Name("snapshot"), kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	c.Show.Stdout, c.Diff.Stdout, c.Show.Stdin, c.Diff.Stdin = &out, &out, bytes.NewReader(stdin), bytes.NewReader(stdin)
	err = parsed.Run()
	return out.String(), err
}

func TestShowJSON(t *testing.T) {
	text, err := run(t, t.Context(), nil, "show", "testdata/leak-oom.pickle.gz", "--json", "--weights", "4GiB", "--kv-pool", "4.5GiB", "--process-used", "15GiB")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		File     string         `json:"file"`
		Bytes    int64          `json:"bytes"`
		Protocol int            `json:"protocol"`
		Settings map[string]any `json:"settings"`
		Devices  []struct {
			Device    *int32            `json:"device"`
			Reserved  uint64            `json:"reserved_bytes"`
			Pending   *uint64           `json:"pending_bytes"`
			Holders   []map[string]any  `json:"stacks"`
			Budget    map[string]uint64 `json:"budget"`
			LastOOM   map[string]any    `json:"last_oom"`
			Histogram []map[string]any  `json:"sizes"`
		} `json:"devices"`
		Timeline []map[string]any `json:"timeline"`
		OOMs     []map[string]any `json:"ooms"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v in %s", err, text[:200])
	}
	d := got.Devices[0]
	if got.File != "leak-oom.pickle.gz" || got.Protocol != 4 || got.Bytes != 1040102 || got.Settings["expandable_segments"] != false ||
		d.Device == nil || *d.Device != 0 || d.Reserved != 14793310208 || d.Pending == nil || *d.Pending != 0 || len(d.Holders) != 3 || len(d.Histogram) != 11 {
		t.Errorf("%s %d bytes, protocol %d, settings %v, device %+v", got.File, got.Bytes, got.Protocol, got.Settings, d)
	}
	if d.Budget["weights"] != 4<<30 || d.Budget["activations"] != 14503641088-17<<29 || d.Budget["outside"] != 15<<30-14793310208 {
		t.Errorf("budget %v", d.Budget)
	}
	if len(got.OOMs) != 1 || got.OOMs[0]["largest_free_bytes"] != 73400320.0 || got.OOMs[0]["time"] != d.LastOOM["time"] || got.OOMs[0]["time"] != "2026-11-30T02:48:52.204909Z" {
		t.Errorf("ooms %v, last %v", got.OOMs, d.LastOOM)
	}
	last := got.Timeline[len(got.Timeline)-1]
	if len(got.Timeline) != maxPoints || last["live_bytes"] != 14503641088.0 || last["reserved_bytes"] != 14793310208.0 {
		t.Errorf("%d points, the last %v", len(got.Timeline), last)
	}
}

// A file, the same unzipped on standard input, and nothing of a user's path in any form of output.
func TestShowFromAPipe(t *testing.T) {
	raw, err := os.ReadFile("testdata/stream_await.pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("NO_COLOR", "")
	fromFile, err := run(t, t.Context(), nil, "show", "testdata/stream_await.pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	fromPipe, err := run(t, t.Context(), raw, "show", "-")
	_, piped, _ := strings.Cut(fromPipe, "What stands out") // before it is the name, which is another
	_, filed, _ := strings.Cut(fromFile, "What stands out")
	if err != nil || piped != filed || !strings.Contains(fromPipe, "\nstandard input") || len(piped) < 1000 {
		t.Errorf("%v\n%s\n%s", err, fromPipe, fromFile)
	}
	want, err := os.ReadFile("testdata/pages/stream_await.txt")
	if err != nil || fromFile != string(want) {
		t.Errorf("%v: the command does not print the page:\n%s", err, fromFile)
	}
	ascii, err := run(t, t.Context(), nil, "show", "--ascii", "testdata/stream_await.pickle.gz")
	if err != nil || strings.ContainsFunc(ascii, func(r rune) bool { return r > 0x7e }) {
		t.Errorf("%v: not ASCII:\n%s", err, ascii)
	}
}

func TestPathsNameNobody(t *testing.T) {
	s := leaking(5)
	for i := 1; i < len(s.Frames); i++ {
		s.Frames[i].File = "/home/alice/work" + s.Frames[i].File
	}
	p := &page{style: Style{Width: 100}}
	(&shown{name: "a.pickle", s: s, cards: cards(s), top: 10}).write(p)
	differ(s, s).write(p, 10)
	out := bytes.NewBufferString(p.b.String())
	for _, value := range []any{describe("a.pickle", s, Options{Before: TotalsOf(s)}), differ(s, leaking(1)), TotalsOf(s)} {
		if err := writeJSON(out, value); err != nil {
			t.Fatal(err)
		}
	}
	if text := out.String(); strings.Contains(text, "alice") || !strings.Contains(text, "app/debug.py:41 keep") {
		t.Errorf("a user's name is in what is shown:\n%s", text)
	}
}

func TestDiffCommand(t *testing.T) {
	text, err := run(t, t.Context(), nil, "diff", "testdata/cache_plateau.pickle.gz", "testdata/cache_plateau.pickle.gz", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got change
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.SameProcess == nil || !*got.SameProcess || *got.Seconds != 0 || got.Devices[0].Live.Growth != 0 || got.Devices[0].Live.After != 10972561408 || got.Devices[0].Stacks[0].State != "same" {
		t.Errorf("a snapshot and itself: %s", text)
	}
	page, err := run(t, t.Context(), nil, "diff", "testdata/cache_plateau.pickle.gz", "testdata/cache_plateau.pickle.gz")
	if err != nil || !strings.Contains(page, "no place changed") || !strings.Contains(page, "1 pool is as before") {
		t.Errorf("%v\n%s", err, page)
	}
}

func TestBadInput(t *testing.T) {
	folder := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, want, hint string
		args             []string
	}{
		{"no file", "no file", "_dump_snapshot", []string{"show", filepath.Join(folder, "none")}},
		{"a folder", "is a folder", "one of the files", []string{"show", folder}},
		{"empty", "empty: read snapshot: byte 0: nothing is in it", "take another snapshot", []string{"show", file("empty", "")}},
		{"text", "text: read snapshot: byte 0", "_dump_snapshot", []string{"show", file("text", "hello world")}},
		{"a class", "class: read snapshot: byte 2", "do not open this one with Python's pickle", []string{"show", file("class", "\x80\x04cos\nsystem\n.")}},
		{"cut short", "cut: read snapshot: byte", "take another snapshot", []string{"show", file("cut", "\x80\x04}(")}},
		{"both from a pipe", "standard input", "to a file", []string{"diff", "-", "-"}},
		{"no rows", "--top: 0", "--top 10", []string{"show", "--top", "0", "-"}},
	} {
		_, err := run(t, t.Context(), nil, c.args...)
		var hinted interface{ Hint() string }
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), c.hint) {
			t.Errorf("%s: %v, want %q and the hint %q", c.name, err, c.want, c.hint)
		}
	}
	if _, err := run(t, t.Context(), nil, "show", "-", "--weights", "12 parsecs"); err == nil || !strings.Contains(err.Error(), "hint: write 12GiB") {
		t.Errorf("a strange size: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(t, ended, []byte("\x80\x04"), "show", "-"); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}
