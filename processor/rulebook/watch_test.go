package rulebook

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lowtide/rules"
)

// The files of a processor are loaded anew when they change; half a file, one that is gone and a folder that is empty leave the rules of before.
func TestWatchedFolder(t *testing.T) {
	f := newFleet(t)
	dir := f.folder(mine)
	path := filepath.Join(dir, "mine.yaml")
	n := f.join("p0", dir)
	until(t, "the first", func() bool { return n.threshold() == 5 })
	write(t, path, more("6"))
	until(t, "the second", func() bool { return n.threshold() == 6 })
	write(t, path, more("7")[:60])
	until(t, "half a file is told", func() bool { return n.metric("reload_ok") == 0 })
	if n.threshold() != 6 || n.metric("problems") < 1 || n.metric("generation") != 0 {
		t.Errorf("threshold %v, %v problems", n.threshold(), n.metric("problems"))
	}
	until(t, "the push command could hear of it", func() bool {
		o, err := f.book.Outcomes(t.Context())
		return err == nil && len(o["p0"].Problems) > 0 && strings.HasPrefix(o["p0"].Problems[0], path+":") && o["p0"].OK
	})
	write(t, path, more("7"))
	until(t, "the whole file", func() bool { return n.threshold() == 7 && n.metric("reload_ok") == 1 })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	until(t, "the folder is empty", func() bool { return n.metric("reload_ok") == 0 })
	write(t, path, more("7"))
	until(t, "it is there again", func() bool { return n.metric("reload_ok") == 1 })
	write(t, filepath.Join(dir, "second.yaml"), strings.ReplaceAll(mine, "mine", "second"))
	until(t, "a second file", func() bool { return n.has("second") })
	if err := os.Remove(filepath.Join(dir, "second.yaml")); err != nil {
		t.Fatal(err)
	}
	until(t, "it is taken away", func() bool { return !n.has("second") })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the folder is gone", func() bool { return n.metric("reload_ok") == 0 })
	if n.threshold() != 7 {
		t.Errorf("threshold %v", n.threshold())
	}
}

// Built-in rules lie below those of the bucket, and those below the files. Whichever is wrong, the others go on.
func TestLayers(t *testing.T) {
	f := newFleet(t)
	dir := f.folder("rules:\n  - {id: mine, thresholds: {most: 9 * MiB}}\n")
	if _, err := Watch(t.Context(), Options{JS: f.js, Paths: []string{dir}}); err == nil || !strings.Contains(err.Error(), "rule mine has no ") {
		t.Fatalf("half a rule with nothing below: %v", err)
	}
	if err := f.push("ann", mine); err != nil {
		t.Fatal(err)
	}
	n := f.join("p0", dir)
	until(t, "the file over the bucket", func() bool { return n.threshold() == 9 })
	until(t, "it says which rules are its own", func() bool {
		o, err := f.book.Outcomes(t.Context())
		return err == nil && len(o["p0"].Local) == 1 && o["p0"].Local[0] == "mine"
	})
	// What is pushed takes the rule away under the file: it does not run here, and whoever pushes hears it.
	if err := f.push("ann", strings.ReplaceAll(mine, "mine", "other")); err == nil || !strings.Contains(f.said.err.String(), "rule mine has no ") || n.threshold() != 9 || n.has("other") {
		t.Errorf("%v, said %s", err, f.said.err.String())
	}
	// Once the file fits, what was pushed runs.
	write(t, filepath.Join(dir, "mine.yaml"), more("8"))
	until(t, "both run", func() bool { return n.has("other") && n.threshold() == 8 && n.metric("reload_ok") == 1 })
	if n.metric("generation") != 2 {
		t.Errorf("generation %v", n.metric("generation"))
	}
}

// A processor that starts takes what is in the bucket; where that does not compile here, the newest that does.
func TestStartTakesTheBucket(t *testing.T) {
	f := newFleet(t)
	for _, content := range []string{mine, more("6")} {
		if err := f.push("ann", content); err != nil {
			t.Fatal(err)
		}
	}
	first := f.join("p0")
	until(t, "the newest runs", func() bool { return first.threshold() == 6 })
	first.stop()
	f.force(3, broken)
	if _, err := f.book.kv.Put(t.Context(), keyCurrent, []byte("what is this?")); err != nil {
		t.Fatal(err)
	}
	second := f.join("p0")
	until(t, "the one before runs", func() bool { return second.threshold() == 6 })
	if second.metric("generation") != 2 || second.metric("pushed_generation") != 4 || second.metric("reload_ok") != 0 {
		t.Errorf("generation %v of %v, ok %v", second.metric("generation"), second.metric("pushed_generation"), second.metric("reload_ok"))
	}
	until(t, "it says so", func() bool {
		o, err := f.book.Outcomes(t.Context())
		return err == nil && o["p0"].Running == 2 && o["p0"].Generation == 4 && !o["p0"].OK && strings.Contains(o["p0"].Problems[0], "it is no set of rules")
	})
	if err := f.push("bob", more("7"), func(c *PushCommand) { over := uint64(4); c.Over = &over }); err != nil {
		t.Errorf("%v\n%s", err, f.said.err.String())
	}
	if second.threshold() != 7 || second.metric("generation") != 5 {
		t.Errorf("generation %v", second.metric("generation"))
	}
	if err := f.book.kv.Delete(t.Context(), keyCurrent); err != nil {
		t.Fatal(err)
	}
	until(t, "what was deleted is gone", func() bool {
		return !second.has("mine") && second.metric("generation") == 0 && second.metric("reload_ok") == 1
	})
	if err := f.push("bob", more("8")); err != nil || second.metric("generation") != 6 {
		t.Errorf("generations go on: %v, %v", err, second.metric("generation"))
	}
}

func TestFilesThatAreWrongAtTheStart(t *testing.T) {
	f := newFleet(t)
	var problems rules.Problems
	if _, err := Watch(t.Context(), Options{JS: f.js, Paths: []string{f.folder(broken)}, Log: slog.New(slog.DiscardHandler)}); !errors.As(err, &problems) {
		t.Errorf("%v", err)
	}
	if _, err := Watch(t.Context(), Options{JS: f.js, Paths: []string{"/nowhere"}}); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("%v", err)
	}
}
