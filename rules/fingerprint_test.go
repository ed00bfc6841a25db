package rules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFingerprintChangesWithWhatIsJudged(t *testing.T) {
	const base = `
rules:
  - id: mine
    class: stall
    scope: worker
    thresholds: {floor: 5 * MiB, n: 2}
    when: |
      waiting.now > t.n
    severity: {alone: ticket, with: page}
    against: {kv: kv.growth_low > 0}
    keep: 2h
    summary: It waits
    evidence: [waiting.now]
`
	load := func(text string) *Rule {
		t.Helper()
		path := filepath.Join(t.TempDir(), "mine.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pack, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return pack.Rule("mine")
	}
	want := load(base).Fingerprint()
	for name, change := range map[string]struct {
		from, to string
		same     bool
	}{
		"nothing":           {"", "", true},
		"a comment":         {"    class: stall", "    # here it begins\n    class: stall # and there", true},
		"the order":         {"    keep: 2h\n    summary: It waits\n", "    summary: It waits\n    keep: 2h\n", true},
		"the way of 5 MiB":  {"5 * MiB", "5120 * KiB", true},
		"a threshold":       {"n: 2", "n: 3", false},
		"the condition":     {"> t.n", ">= t.n", false},
		"keep":              {"keep: 2h", "keep: 3h", false},
		"a severity":        {"alone: ticket", "alone: info", false},
		"counter-evidence":  {"kv.growth_low > 0", "kv.growth_low > 1", false},
		"the sentence":      {"It waits", "It still waits", false},
		"what is told":      {"[waiting.now]", "[waiting.now, running.now]", false},
		"in shadow":         {"    keep: 2h", "    keep: 2h\n    shadow: true", false},
		"a field that goes": {"    keep: 2h\n", "", false},
	} {
		if got := load(replaced(t, base, change.from, change.to)).Fingerprint(); (got == want) != change.same {
			t.Errorf("%s: %x, was %x", name, got, want)
		}
	}
	seen := map[uint64]string{}
	pack, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range pack.Rules {
		if other := seen[r.Fingerprint()]; other != "" || r.Fingerprint() == 0 {
			t.Errorf("%s has the fingerprint of %s", r.ID, other)
		}
		seen[r.Fingerprint()] = r.ID
	}
}

func replaced(t *testing.T, text, from, to string) string {
	t.Helper()
	if !strings.Contains(text, from) {
		t.Fatalf("%q is not there", from)
	}
	return strings.Replace(text, from, to, 1)
}
