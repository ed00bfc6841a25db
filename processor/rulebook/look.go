package rulebook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lowtide/processor/broker"
	"lowtide/rules"
)

// ListCommand is `rules list`: the rules that the fleet judges by.
type ListCommand struct{ Broker }

// Run prints the built-in rules with the pushed ones over them, and which processors have files of their own, or judge by other ones.
func (c *ListCommand) Run(ctx context.Context) error {
	book, _, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	history, err := book.History(ctx)
	if err != nil {
		return err
	}
	current := standing(history)
	pack, err := current.Pack()
	if err != nil {
		fmt.Fprintln(c.Stderr, "this version cannot read the rules of the bucket; those before are shown:")
		for _, line := range lines(err) {
			fmt.Fprintln(c.Stderr, line)
		}
		if pack, current, err = readable(history); err != nil {
			return err
		}
	}
	builtin, err := rules.Builtin()
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tCLASS\tSCOPE\tLAYER\tSTATE\tGENERATION")
	for _, r := range pack.Rules {
		layer, generation := "built-in", "-"
		switch was := builtin.Rule(r.ID); {
		case was == nil:
			layer, generation = "pushed", fmt.Sprint(current.Generation)
		case was.Fingerprint() != r.Fingerprint():
			layer, generation = "pushed over built-in", fmt.Sprint(current.Generation)
		}
		state := "on"
		switch {
		case !r.Enabled:
			state = "disabled"
		case r.Shadow:
			state = "in shadow"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Class, r.Scope, layer, state, generation)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if current.Generation > 0 {
		fmt.Fprintln(c.Stderr, told(&current))
	}
	return c.apart(ctx, book)
}

// readable returns the newest set that compiles.
func readable(history []Edition) (*rules.Pack, Set, error) {
	for _, e := range history {
		if e.Err == nil {
			if pack, err := e.Pack(); err == nil {
				return pack, e.Set, nil
			}
		}
	}
	pack, err := rules.Builtin()
	return pack, Set{}, err
}

// apart tells of processors where it is otherwise.
func (c *Broker) apart(ctx context.Context, book *Book) error {
	said, err := book.Outcomes(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		o := said[name]
		if !o.OK || len(o.Problems) > 0 { // those of a processor's own files leave the generation well
			fmt.Fprintf(c.Stderr, "%s goes on with generation %d:\n%s\n", name, o.Running, indent(o.Problems))
		}
		if len(o.Local) > 0 {
			fmt.Fprintf(c.Stderr, "%s has files of its own over these: %s\n", name, plain(strings.Join(o.Local, ", ")))
		}
	}
	return nil
}

// HistoryCommand is `rules history`: what was pushed, by whom and why.
type HistoryCommand struct{ Broker }

// Run prints the generations that the bucket holds, the newest first.
func (c *HistoryCommand) Run(ctx context.Context) error {
	book, _, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	history, err := book.History(ctx)
	if err != nil {
		return err
	}
	if len(history) == 0 {
		fmt.Fprintln(c.Stderr, "nothing was pushed yet: the built-in rules are in force")
		return nil
	}
	table := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GENERATION\tTIME\tAUTHOR\tFILES\tRULES\tMESSAGE")
	for _, e := range history {
		switch {
		case errors.Is(e.Err, errDeleted):
			fmt.Fprintln(table, "-\t\t\t\t\tdeleted from the bucket")
			continue
		case e.Err != nil:
			fmt.Fprintf(table, "%d\t\t\t\t\tcannot be read: %s\n", e.Generation, plain(e.Err.Error()))
			continue
		}
		n := "?"
		if pack, err := e.Pack(); err == nil {
			n = fmt.Sprint(len(pack.Rules))
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%s\n", e.Generation, e.Time.UTC().Format(time.RFC3339), plain(e.Author), len(e.Files), n, plain(e.Message))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// DiffCommand is `rules diff`: what a push would change, or what one did.
type DiffCommand struct {
	Broker
	Files      []string `arg:"" optional:"" type:"path" help:"Rule files or a folder, as 'rules push' would be given; left out, the last push is compared with the one before."`
	Generation uint64   `placeholder:"N" help:"Compare with generation N instead."`
}

// Run prints a unified diff of the files, and to stderr what becomes of each rule.
func (c *DiffCommand) Run(ctx context.Context) error {
	book, _, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	history, err := book.History(ctx)
	if err != nil {
		return err
	}
	after := standing(history)
	if after.Generation == 0 && len(c.Files) == 0 {
		fmt.Fprintln(c.Stderr, "nothing was pushed yet: the built-in rules are in force")
		return nil
	}
	before, toName := after, fmt.Sprintf("generation-%d", after.Generation)
	var pack *rules.Pack
	if len(c.Files) > 0 {
		toName = "local"
		sources, err := rules.ReadSources(c.Files...)
		if err != nil {
			return err
		}
		if after.Files, err = gather(sources); err != nil {
			return err
		}
		if pack, err = rules.LoadLayers(sources); err != nil {
			fmt.Fprintf(c.Stderr, "the files do not compile, and could not be pushed:\n%s\n", strings.Join(lines(err), "\n"))
		}
	} else if pack, err = after.Pack(); err != nil {
		fmt.Fprintf(c.Stderr, "generation %d cannot be read by this version:\n%s\n", after.Generation, strings.Join(lines(err), "\n"))
	}
	if len(c.Files) == 0 || c.Generation != 0 {
		if before, err = (&RollbackCommand{Generation: c.Generation}).pick(history); err != nil {
			return err
		}
	}
	if err := c.files(fmt.Sprintf("generation-%d", before.Generation), toName, &before, &after); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	was, err := before.Pack()
	if err != nil || pack == nil {
		return nil
	}
	summary := changes(was, pack)
	if len(summary) == 0 {
		summary = []string{"no rule is judged in another way"}
	}
	fmt.Fprintln(c.Stderr, strings.Join(summary, "\n"))
	return nil
}

// files prints the files of both sets that differ, and their advice.
func (c *DiffCommand) files(from, to string, before, after *Set) error {
	a, b := texts(before), texts(after)
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fromName, toName := from+"/"+name, to+"/"+name
		if _, held := a[name]; !held {
			fromName = "/dev/null"
		}
		if _, held := b[name]; !held {
			toName = "/dev/null"
		}
		if err := unified(c.Stdout, fromName, toName, a[name], b[name]); err != nil {
			return err
		}
	}
	return nil
}

func texts(s *Set) map[string]string {
	all := map[string]string{}
	for _, f := range s.Files {
		all[f.Name] = f.Content
	}
	for name, text := range s.advice() {
		all["advice/"+name+".md"] = text
	}
	return all
}

// PullCommand is `rules pull`: the pushed files as files.
type PullCommand struct {
	Broker
	Folder     string `arg:"" type:"path" help:"Where to write them; made where it is not there."`
	Generation uint64 `placeholder:"N" help:"Those of generation N instead of the newest."`
	Force      bool   `help:"Write over files that differ."`
}

// Run writes the files and their advice, and a note of the generation, by which `rules push` of the folder knows what it replaces.
func (c *PullCommand) Run(ctx context.Context) error {
	book, _, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	history, err := book.History(ctx)
	if err != nil {
		return err
	}
	set := standing(history)
	if c.Generation != 0 {
		if set, err = (&RollbackCommand{Generation: c.Generation}).pick(history); err != nil {
			return err
		}
	} else if len(history) > 0 && history[0].Err != nil && set.Generation != 0 {
		return &wrong{what: fmt.Sprintf("generation %d cannot be read: %s", set.Generation, plain(history[0].Err.Error())), remedy: "name another one of `lowtide rules history` with --generation"}
	}
	if set.Generation == 0 {
		return &wrong{what: "no rules were pushed", remedy: "the built-in ones are in force; `lowtide rules push` adds to them"}
	}
	all := texts(&set)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		there, err := os.ReadFile(filepath.Join(c.Folder, name))
		if err == nil && string(there) != all[name] && !c.Force {
			return &wrong{what: filepath.Join(c.Folder, name) + " is there, and differs", remedy: "see `lowtide rules diff " + c.Folder + "`; --force writes over it"}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path := filepath.Join(c.Folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return broker.Explain("write "+path, err)
		}
		if err := replace(path, []byte(all[name])); err != nil {
			return broker.Explain("write "+path, err)
		}
	}
	if err := c.strangers(all); err != nil {
		return err
	}
	if err := writeStamp(c.Folder, set.Generation); err != nil {
		return err
	}
	return c.say(fmt.Sprintf("%s in %s: %s", counted(len(set.Files), "file"), c.Folder, told(&set)))
}

// strangers says which rule files of the folder are not among the pushed ones: a push would add them.
func (c *PullCommand) strangers(all map[string]string) error {
	entries, err := os.ReadDir(c.Folder)
	if err != nil {
		return broker.Explain("read folder "+c.Folder, err)
	}
	for _, e := range entries {
		name := e.Name()
		if _, pushed := all[name]; pushed || rules.IsTest(name) || filepath.Ext(name) != ".yaml" && filepath.Ext(name) != ".yml" {
			continue
		}
		fmt.Fprintf(c.Stderr, "%s was not pushed; a push of the folder would add it\n", filepath.Join(c.Folder, name))
	}
	return nil
}
