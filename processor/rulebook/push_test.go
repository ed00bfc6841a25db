package rulebook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const broken = "rules:\n  - id: mine\n    class: retention\n    scope: worker\n    when: live.grwth > 5 * MiB\n    severity: {alone: ticket}\n    summary: It grows\n"

func more(threshold string) string {
	return strings.Replace(mine, "most: 5 * MiB", "most: "+threshold+" * MiB", 1)
}

// Two processors: what is pushed runs in both, what does not compile is refused before it is stored, and one that a newer version stored
// leaves the old rules running, which both say; a rollback takes it back.
func TestPush(t *testing.T) {
	f := newFleet(t)
	one, two := f.join("p0"), f.join("p1")
	if err := f.push("ann", mine); err != nil {
		t.Fatalf("%v\n%s", err, f.said.err.String())
	}
	builtin := len(one.Pack().Rules) - 1
	if got, want := f.said.out.String(), "+ mine: class retention, scope worker\n2 of 2 processors run generation 1\n"; !strings.HasSuffix(got, want) || !strings.HasPrefix(got, "generation 1 is stored: ") {
		t.Errorf("said %q, want %q", got, want)
	}
	for _, n := range []*node{one, two} {
		if !n.has("mine") || n.metric("generation") != 1 || n.metric("reload_ok") != 1 || n.metric("count") != float64(builtin+1) || n.metric("loaded_timestamp_seconds") < float64(time.Now().Add(-time.Minute).Unix()) {
			t.Errorf("generation %v, ok %v, %v rules", n.metric("generation"), n.metric("reload_ok"), n.metric("count"))
		}
	}
	if err := f.push("ann", broken); err == nil || err.Error() != "nothing was pushed: 1 problem in the rules" {
		t.Errorf("%v", err)
	}
	if said := f.said.err.String(); !strings.Contains(said, "mine.yaml:5:") || !strings.Contains(said, "live.grwth") || !strings.Contains(said, "^") || !strings.Contains(said, "live.growth") {
		t.Errorf("said %s", said)
	}
	if history, err := f.book.History(t.Context()); err != nil || len(history) != 1 {
		t.Errorf("%d generations, %v", len(history), err)
	}

	f.force(2, broken)
	c := f.broker()
	err := c.await(t.Context(), f.book, f.js, 2, 10*time.Second)
	if err == nil || err.Error() != "generation 2 does not run everywhere: 2 of 2 processors" {
		t.Errorf("%v", err)
	}
	if said := f.said.err.String(); !strings.Contains(said, "p0 goes on with generation 1, version v1:\n    generation-2/mine.yaml:5:") || !strings.Contains(said, "p1 goes on with generation 1") {
		t.Errorf("said %s", said)
	}
	if said := f.said.out.String(); said != "0 of 2 processors run generation 2\n" {
		t.Errorf("said %s", said)
	}
	for _, n := range []*node{one, two} {
		if n.threshold() != 5 || n.metric("generation") != 1 || n.metric("pushed_generation") != 2 || n.metric("reload_ok") != 0 || n.metric("problems") != 1 {
			t.Errorf("generation %v of %v, ok %v, %v problems", n.metric("generation"), n.metric("pushed_generation"), n.metric("reload_ok"), n.metric("problems"))
		}
	}

	back := RollbackCommand{Broker: f.broker(), Author: "bob", Wait: 10 * time.Second}
	if err := back.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := f.said.out.String(); said != "generation 3 is stored, with the files of generation 1\n2 of 2 processors run generation 3\n" {
		t.Errorf("said %s", said)
	}
	if one.metric("reload_ok") != 1 || one.metric("generation") != 3 || len(one.bench.packs) != 2 {
		t.Errorf("generation %v, ok %v, %d packs: the same rules are not taken over again", one.metric("generation"), one.metric("reload_ok"), len(one.bench.packs))
	}

	two.stop()
	history := HistoryCommand{f.broker()}
	if err := history.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(f.said.out.String(), "\n")
	if len(rows) != 5 || !strings.HasPrefix(rows[1], "3  ") || !strings.Contains(rows[1], "bob") || !strings.HasSuffix(rows[1], "back to generation 1 (because)") || !strings.Contains(rows[2], "  ?  ") || !strings.Contains(rows[3], "ann") {
		t.Errorf("history\n%s", f.said.out.String())
	}
	list := ListCommand{f.broker()}
	if err := list.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := strings.Join(strings.Fields(f.said.out.String()), " "); !strings.Contains(said, "mine retention worker pushed on 3") || !strings.Contains(said, "retention retention worker built-in on -") {
		t.Errorf("list\n%s", f.said.out.String())
	}
	if o, err := f.book.Outcomes(t.Context()); err != nil || len(o) != 1 || !o["p0"].OK {
		t.Errorf("outcomes %v, %v: a processor that ends takes its own away", o, err)
	}
}

// What judges cannot take over is said too.
func TestPushThatJudgesRefuse(t *testing.T) {
	f := newFleet(t)
	n := f.join("p0")
	until(t, "it began", func() bool { return n.bench.pack() != nil })
	n.bench.mu.Lock()
	n.bench.failed = errors.New("partition 7 goes on by the rules that it had")
	n.bench.mu.Unlock()
	if err := f.push("ann", mine); err == nil || !strings.Contains(f.said.err.String(), "partition 7") || n.metric("reload_ok") != 0 {
		t.Errorf("%v, said %s, ok %v", err, f.said.err.String(), n.metric("reload_ok"))
	}
}

// Nobody overwrites what he has not seen.
func TestPushConflicts(t *testing.T) {
	f := newFleet(t)
	quick := func(c *PushCommand) { c.Wait = 0 }
	if err := f.push("ann", mine, quick); err != nil {
		t.Fatal(err)
	}
	var conflict *Conflict
	err := f.push("bob", more("6"), quick)
	if !errors.As(err, &conflict) || !strings.Contains(err.Error(), "generation 1 is in force, which ann pushed at ") || !strings.HasSuffix(conflict.Hint(), "push again with --over 1") {
		t.Errorf("bob: %v", err)
	}
	over := func(n uint64) func(*PushCommand) { return func(c *PushCommand) { c.Over, c.Wait = &n, 0 } }
	if err := f.push("bob", more("6"), over(1)); err != nil {
		t.Error(err)
	}
	if err := f.push("ann", more("7"), over(1)); !errors.As(err, &conflict) || conflict.Current.Author != "bob" {
		t.Errorf("ann over what is gone: %v", err)
	}
	if err := f.push("bob", more("7"), quick); err != nil {
		t.Errorf("bob over his own: %v", err)
	}
	// Both pull, both change, one is first.
	pull := func() string {
		dir := filepath.Join(t.TempDir(), "rules")
		c := PullCommand{Broker: f.broker(), Folder: dir}
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	ann, bob := pull(), pull()
	if got := read(t, filepath.Join(ann, "mine.yaml")); got != more("7") {
		t.Errorf("pulled %s", got)
	}
	from := func(dir string) func(*PushCommand) {
		return func(c *PushCommand) { c.Files, c.Wait = []string{dir}, 0 }
	}
	write(t, filepath.Join(ann, "mine.yaml"), more("8"))
	write(t, filepath.Join(bob, "mine.yaml"), more("9"))
	if err := f.push("ann", "", from(ann)); err != nil {
		t.Error(err)
	}
	if err := f.push("bob", "", from(bob)); !errors.As(err, &conflict) || conflict.Current.Generation != 4 {
		t.Errorf("bob was second: %v", err)
	}
	write(t, filepath.Join(ann, "mine.yaml"), more("10"))
	if err := f.push("ann", "", from(ann)); err != nil {
		t.Errorf("her folder knows what she pushed: %v", err)
	}
	again := PullCommand{Broker: f.broker(), Folder: bob}
	if err := again.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "mine.yaml is there, and differs") {
		t.Errorf("pulled over a change: %v", err)
	}
	again.Force = true
	if err := again.Run(t.Context()); err != nil || read(t, filepath.Join(bob, "mine.yaml")) != more("10") {
		t.Error(err)
	}
	// Two at the same moment: the bucket decides.
	set := Set{Author: "x", Files: []File{{Name: "a.yaml", Content: mine}}}
	ends := make(chan error, 8)
	for range 8 {
		go func() {
			_, err := f.book.Push(t.Context(), 5, set)
			ends <- err
		}()
	}
	won := 0
	for range 8 {
		if err := <-ends; err == nil {
			won++
		} else if !errors.As(err, &conflict) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d of 8 pushes over generation 5 won", won)
	}
}

func TestDiff(t *testing.T) {
	f := newFleet(t)
	quick := func(c *PushCommand) { c.Wait = 0 }
	for _, content := range []string{mine, more("6")} {
		if err := f.push("ann", content, quick); err != nil {
			t.Fatal(err)
		}
	}
	last := DiffCommand{Broker: f.broker()}
	if err := last.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	const rule = "~ mine: threshold most 5242880 (5 MiB) → 6291456 (6 MiB)\n"
	if got := f.said.out.String(); !strings.HasPrefix(got, "--- generation-1/mine.yaml\n+++ generation-2/mine.yaml\n@@ -2,7 +2,7 @@\n") || !strings.Contains(got, "-    thresholds: {most: 5 * MiB}\n+    thresholds: {most: 6 * MiB}\n") || f.said.err.String() != rule {
		t.Errorf("diff\n%s\n%s", got, f.said.err.String())
	}
	dir := f.folder(more("6") + "  - {id: thread_leak, shadow: true}\n  - {id: retention, enabled: false}\n")
	local := DiffCommand{Broker: f.broker(), Files: []string{dir}}
	if err := local.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.said.err.String(); got != "~ retention: enabled true → false\n~ thread_leak: shadow false → true\n" || !strings.Contains(f.said.out.String(), "+++ local/mine.yaml\n") {
		t.Errorf("diff\n%s\n%s", f.said.out.String(), got)
	}
	wrong := DiffCommand{Broker: f.broker(), Files: []string{f.folder(broken)}, Generation: 1}
	if err := wrong.Run(t.Context()); err != nil || !strings.Contains(f.said.err.String(), "could not be pushed") || !strings.Contains(f.said.out.String(), "--- generation-1/mine.yaml") {
		t.Errorf("%v\n%s\n%s", err, f.said.out.String(), f.said.err.String())
	}
	gone := DiffCommand{Broker: f.broker(), Generation: 9}
	if err := gone.Run(t.Context()); err == nil || err.Error() != "generation 9 is not in the bucket" {
		t.Error(err)
	}
	dry := func(c *PushCommand) { c.DryRun = true }
	if err := f.push("ann", mine, dry); err != nil || f.said.out.String() != "would replace generation 2:\n~ mine: threshold most 6291456 (6 MiB) → 5242880 (5 MiB)\n" {
		t.Errorf("%v\n%s", err, f.said.out.String())
	}
	if history, err := f.book.History(t.Context()); err != nil || len(history) != 2 {
		t.Errorf("%d generations, %v", len(history), err)
	}
}

func TestNothingToPush(t *testing.T) {
	f := newFleet(t)
	for name, change := range map[string]func(*PushCommand){
		"a push has no message":       func(c *PushCommand) { c.Message = " " },
		"no rule file in ":            func(c *PushCommand) { c.Files = []string{t.TempDir()} },
		"read rules: stat /nowhere: ": func(c *PushCommand) { c.Files = []string{"/nowhere"} },
	} {
		if err := f.push("ann", mine, change); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	back := RollbackCommand{Broker: f.broker()}
	if err := back.Run(t.Context()); err == nil || err.Error() != "no rules were ever pushed" {
		t.Error(err)
	}
	if err := f.push("ann", mine); err != nil || !strings.HasPrefix(f.said.err.String(), "no processor runs") {
		t.Errorf("%v, %s", err, f.said.err.String())
	}
	if err := f.push("ann", mine); err != nil || f.said.out.String() != "generation 1 holds the same files: nothing to push\n" {
		t.Errorf("%v, %s", err, f.said.out.String())
	}
	back = RollbackCommand{Broker: f.broker(), Author: "ann"}
	if err := back.Run(t.Context()); err != nil {
		t.Errorf("back to before the first push: %v", err)
	}
	if history, err := f.book.History(t.Context()); err != nil || len(history) != 2 || len(history[0].Files) != 0 {
		t.Errorf("%+v, %v", history, err)
	}
	if _, err := os.Stat("/nowhere"); err == nil {
		t.Error("/nowhere is somewhere")
	}
}
