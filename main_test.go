package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodesAndHints(t *testing.T) {
	torn := filepath.Join(t.TempDir(), "torn.ndjson")
	if err := os.WriteFile(torn, []byte("{oops\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("rules:\n  - id: x\n    class: retention\n    when: |\n      live.erly\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"version", "--json"}, 0, ""},
		{[]string{"bogus"}, 2, "hint: "},
		{[]string{"replay", "--json", "collector/demo/leak.ndjson.gz"}, 0, ""},
		{[]string{"replay", torn}, 1, "error: "},
		{[]string{"rules", "check"}, 0, ""},
		{[]string{"collect", "--match", "("}, 2, "hint: "},
		{[]string{"collect", "--nats", "ftp://x", "--sim", "1"}, 2, "hint: "},
		{[]string{"rules", "check", broken}, 1, ""},
		{[]string{"process", "--nats", "nats://127.0.0.1:1"}, 1, "error: "},
	} {
		var messages bytes.Buffer
		if code := run(t.Context(), test.args, &messages); code != test.code || !strings.Contains(messages.String(), test.want) {
			t.Errorf("%v ended with %d and %q, want %d and %q", test.args, code, messages.String(), test.code, test.want)
		}
	}
}
