package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
)

func read(t *testing.T, in io.Reader, name string) (events []*event.Event) {
	t.Helper()
	r, err := event.NewReader(in, name)
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if w := r.Warnings(); len(w) > 0 {
		t.Errorf("%v", w)
	}
	return events
}

func TestCommandLists(t *testing.T) {
	var out bytes.Buffer
	if err := (&Command{List: true, Stdout: &out}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != len(Scenarios())+1 || !strings.Contains(out.String(), "kv-leak-stops") {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
}

func TestCommandWritesARecording(t *testing.T) {
	var out bytes.Buffer
	c := Command{Scenario: "healthy-busy", Seed: 3, Hours: 0.5, Step: time.Minute, Stdout: &out}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain := read(t, &out, "stdout")
	c.Out = filepath.Join(t.TempDir(), "r.ndjson.gz")
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped := read(t, f, c.Out)
	if len(plain) < 31*4 || len(plain) != len(zipped) {
		t.Errorf("%d events, zipped %d", len(plain), len(zipped))
	}
}

func TestCommandWritesAllWithLabels(t *testing.T) {
	c := Command{All: filepath.Join(t.TempDir(), "all"), Seed: 7, Seeds: 1, Hours: 0.05, Step: time.Minute}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(c.All, "labels.json"))
	if err != nil {
		t.Fatal(err)
	}
	var labels map[string]Label
	if err := json.Unmarshal(text, &labels); err != nil {
		t.Fatal(err)
	}
	if len(labels) != len(Scenarios()) {
		t.Errorf("%d labels", len(labels))
	}
	l := labels["retention-abort-7"]
	if l.Class != "retention" || l.Scenario != "retention-abort" || l.Seed != 7 || len(l.Pids) != 1 || l.Onset.IsZero() {
		t.Errorf("%+v", l)
	}
	if h := labels["healthy-gc-7"]; h.Class != "none" || !h.Onset.IsZero() {
		t.Errorf("%+v", h)
	}
	if _, err := os.Stat(filepath.Join(c.All, "retention-abort-7.ndjson.gz")); err != nil {
		t.Error(err)
	}
}

func TestCommandSaysWhatIsWrong(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		ctx  context.Context
		c    Command
		want string
	}{
		{t.Context(), Command{}, "--list"},
		{t.Context(), Command{List: true, Scenario: "x"}, "want one of"},
		{t.Context(), Command{Scenario: "nothing"}, "hint:"},
		{t.Context(), Command{All: t.TempDir(), Seeds: 0}, "--seeds 0"},
		{t.Context(), Command{Scenario: "healthy-gc", Hours: -1}, "-1 hours"},
		{stopped, Command{Scenario: "healthy-gc"}, "canceled"},
	} {
		c.c.Stdout = io.Discard
		if err := c.c.Run(c.ctx); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
}
