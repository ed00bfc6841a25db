package rulebook

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The texts and their diff are those of `diff -u` of GNU diffutils 3.8.
func TestUnified(t *testing.T) {
	before := "rules:\n  - id: a\n    when: x > 1\n    pair: 1h\n    keep: 2h\n    summary: It grows\n  - id: b\n    when: y\n    summary: So does it\n"
	after := "rules:\n  - id: a\n    when: x > 2\n    pair: 1h\n    keep: 2h\n    summary: It grows\n  - id: b\n    when: y\n    summary: So does it\n  - id: c\n"
	want := `--- old
+++ new
@@ -1,9 +1,10 @@
 rules:
   - id: a
-    when: x > 1
+    when: x > 2
     pair: 1h
     keep: 2h
     summary: It grows
   - id: b
     when: y
     summary: So does it
+  - id: c
`
	var out strings.Builder
	if err := unified(&out, "old", "new", before, after); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("\n%s\nwant\n%s", out.String(), want)
	}
}

// Whatever two texts are, patch makes the one out of the other.
func TestPatchTakesTheDiff(t *testing.T) {
	patch, err := exec.LookPath("patch")
	if err != nil {
		t.Skip("SKIPPED: no patch on this machine; the other tests of the diff hold all the same")
	}
	random := rand.New(rand.NewPCG(1, 2))
	text := func(lines []string) string {
		s := strings.Join(lines, "\n")
		if random.IntN(4) > 0 && s != "" {
			s += "\n"
		}
		return s
	}
	for i := range 150 {
		var a []string
		for range random.IntN(40) {
			a = append(a, fmt.Sprint(random.IntN(6)))
		}
		var b []string
		for _, line := range a {
			switch random.IntN(8) {
			case 0:
			case 1:
				b = append(b, line, "new")
			default:
				b = append(b, line)
			}
		}
		before, after := text(a), text(b)
		if before == "" || after == "" {
			continue
		}
		var out strings.Builder
		if err := unified(&out, "a", "b", before, after); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "a")
		write(t, path, before)
		if before == after {
			if out.Len() > 0 {
				t.Errorf("the same differ:\n%s", out.String())
			}
			continue
		}
		command := exec.CommandContext(t.Context(), patch, "-s", "--no-backup-if-mismatch", path)
		command.Stdin = strings.NewReader(out.String())
		if said, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%d: %v %s\n%s", i, err, said, out.String())
		}
		if got := read(t, path); got != after {
			t.Fatalf("%d: got %q, want %q by\n%s", i, got, after, out.String())
		}
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Texts that have nothing in common replace each other, within bounds.
func TestDiffOfStrangers(t *testing.T) {
	var a, b strings.Builder
	for i := range 3000 {
		fmt.Fprintln(&a, "a", i)
		fmt.Fprintln(&b, "b", i)
	}
	if edits := compare(cut(a.String()), cut(b.String())); len(edits) != 1 || edits[0] != (edit{0, 3000, 0, 3000}) {
		t.Errorf("%d edits", len(edits))
	}
}
