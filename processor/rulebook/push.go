package rulebook

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lowtide/rules"
)

// PushCommand is `rules push`: files become the rules of the fleet, in the place of those that were pushed before.
type PushCommand struct {
	Broker
	Files   []string      `arg:"" type:"path" help:"Rule files, or a folder of them: all that is to be in force over the built-in rules. What was pushed before and is not among them goes."`
	Message string        `short:"m" required:"" placeholder:"TEXT" help:"Why, for those who read the history."`
	Author  string        `placeholder:"NAME" help:"Who; default: user and machine."`
	DryRun  bool          `help:"Say what would change, and push nothing."`
	Over    *uint64       `placeholder:"N" help:"Replace generation N, which you have looked at; 0: nothing was pushed yet. Not needed for a folder from 'rules pull', nor over what you pushed yourself."`
	Wait    time.Duration `default:"30s" help:"How long to wait until every processor says what became of it; 0: not at all."`

	now func() time.Time
}

// Run pushes and waits. The error tells which processors do not run the rules, and why.
func (c *PushCommand) Run(ctx context.Context) error {
	if strings.TrimSpace(c.Message) == "" {
		return &wrong{what: "a push has no message", remedy: "say why with -m"}
	}
	if c.Author == "" {
		c.Author = localAuthor()
	}
	book, js, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	files, pack, err := local(c.Files)
	if err != nil {
		return c.refused(err)
	}
	if len(files) == 0 {
		return &wrong{what: "no rule file in " + strings.Join(c.Files, ", "), remedy: "rule files end in .yaml; those that end in _test.yaml hold tests. `lowtide rules rollback` takes the last push back"}
	}
	history, err := book.History(ctx)
	if err != nil {
		return err
	}
	current := standing(history)
	base, err := c.base(&current)
	if err != nil {
		return err
	}
	before, err := current.Pack()
	if err != nil { // of another version, or damaged: all is new then
		if before, err = rules.Builtin(); err != nil {
			return err
		}
	}
	if sameFiles(current.Files, files) {
		return c.say(fmt.Sprintf("generation %d holds the same files: nothing to push", current.Generation))
	}
	lines := changes(before, pack)
	if len(lines) == 0 {
		lines = []string{"no rule is judged in another way"}
	}
	if c.DryRun {
		return c.say(append([]string{fmt.Sprintf("would replace generation %d:", current.Generation)}, lines...)...)
	}
	next := Set{Files: files, Author: c.Author, Message: c.Message, Time: clock(c.now)}
	if next, err = book.Push(ctx, base, next); err != nil {
		return err
	}
	if err := c.say(append([]string{fmt.Sprintf("generation %d is stored: %s", next.Generation, counted(len(pack.Rules), "rule"))}, lines...)...); err != nil {
		return err
	}
	if _, pulled := stamped(c.Files); pulled {
		if err := writeStamp(c.Files[0], next.Generation); err != nil {
			return err
		}
	}
	return c.await(ctx, book, js, next.Generation, c.Wait)
}

func clock(now func() time.Time) time.Time {
	if now == nil {
		now = time.Now
	}
	return now().UTC()
}

// base is the generation that is to be replaced: one that whoever pushes has seen.
func (c *PushCommand) base(current *Set) (uint64, error) {
	if c.Over != nil {
		return *c.Over, nil
	}
	if generation, pulled := stamped(c.Files); pulled {
		return generation, nil
	}
	if current.Generation != 0 && current.Author != c.Author {
		return 0, &Conflict{*current}
	}
	return current.Generation, nil
}

// RollbackCommand is `rules rollback`: what a former generation held is pushed again, as a new one.
type RollbackCommand struct {
	Broker
	Generation uint64        `arg:"" optional:"" help:"Which; default: the one before the last push."`
	Message    string        `short:"m" placeholder:"TEXT" help:"Why, for those who read the history."`
	Author     string        `placeholder:"NAME" help:"Who; default: user and machine."`
	Wait       time.Duration `default:"30s" help:"How long to wait until every processor says what became of it; 0: not at all."`

	now func() time.Time
}

// Run pushes the older set and waits as PushCommand does.
func (c *RollbackCommand) Run(ctx context.Context) error {
	if c.Author == "" {
		c.Author = localAuthor()
	}
	book, js, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	history, err := book.History(ctx)
	if err != nil {
		return err
	}
	current := standing(history)
	old, err := c.pick(history)
	if err != nil {
		return err
	}
	if sameFiles(old.Files, current.Files) {
		return c.say(fmt.Sprintf("generation %d holds the same files as generation %d: nothing to roll back", current.Generation, old.Generation))
	}
	if _, err := old.Pack(); err != nil {
		return c.refused(err)
	}
	next := Set{Files: old.Files, Author: c.Author, Message: fmt.Sprintf("back to generation %d (%s)", old.Generation, plain(old.Message)), Time: clock(c.now)}
	if c.Message != "" {
		next.Message = c.Message + ": " + next.Message
	}
	next.Message = next.Message[:min(len(next.Message), maxMessage)]
	next.Message = strings.ToValidUTF8(next.Message, "")
	if next, err = book.Push(ctx, current.Generation, next); err != nil {
		return err
	}
	if err := c.say(fmt.Sprintf("generation %d is stored, with the files of generation %d", next.Generation, old.Generation)); err != nil {
		return err
	}
	return c.await(ctx, book, js, next.Generation, c.Wait)
}

// pick finds the generation to go back to. Before the first push there were no files.
func (c *RollbackCommand) pick(history []Edition) (Set, error) {
	if len(history) == 0 {
		return Set{}, &wrong{what: "no rules were ever pushed", remedy: "the built-in ones are in force; `lowtide rules push` adds to them"}
	}
	if c.Generation == 0 {
		for _, e := range history[1:] {
			if e.Err == nil {
				return e.Set, nil
			}
		}
		if history[0].Generation == 1 {
			return Set{Message: "before anything was pushed"}, nil
		}
		return Set{}, &wrong{what: "the bucket holds no generation before the last push", remedy: "push the files that you want"}
	}
	for _, e := range history {
		if e.Generation == c.Generation && e.Err == nil {
			return e.Set, nil
		}
	}
	return Set{}, &wrong{what: fmt.Sprintf("generation %d is not in the bucket", c.Generation), remedy: "`lowtide rules history` lists those that are: the last eight"}
}
