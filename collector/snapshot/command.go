package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lowtide/event"
)

// Command is `snapshot`: what is in the snapshots of PyTorch's CUDA allocator.
type Command struct {
	Show ShowCommand `cmd:"" help:"Say what is in a snapshot: who holds the memory, what is free and in how many pieces, which requests failed."`
	Diff DiffCommand `cmd:"" help:"Say what grew between two snapshots of one process."`
}

// ShowCommand is `snapshot show`: one snapshot for people, or with --json for programs.
type ShowCommand struct {
	File        string      `arg:"" help:"What torch.cuda.memory._dump_snapshot wrote, as it is or gzipped; - is standard input."`
	JSON        bool        `name:"json" xor:"form" help:"As one JSON object."`
	ASCII       bool        `name:"ascii" xor:"form" help:"Maps and plots in ASCII; also with NO_COLOR or a locale that is not UTF-8."`
	Top         int         `default:"10" placeholder:"N" help:"Rows of a table."`
	Weights     *event.Size `placeholder:"SIZE" help:"Of the model on the card, for the budget: 12GiB."`
	KVPool      *event.Size `name:"kv-pool" placeholder:"SIZE" help:"That the engine took for its KV cache on the card."`
	DeviceTotal *event.Size `placeholder:"SIZE" help:"Memory of the card."`
	DeviceUsed  *event.Size `placeholder:"SIZE" help:"Used on the card by all processes."`
	ProcessUsed *event.Size `placeholder:"SIZE" help:"Used on the card by this process, as nvidia-smi tells."`

	Stdin  io.Reader `kong:"-"` // nil: the process's own
	Stdout io.Writer `kong:"-"` // nil: the process's own
}

// Run prints the snapshot.
func (c *ShowCommand) Run(ctx context.Context) error {
	if err := positive(c.Top); err != nil {
		return err
	}
	s, name, err := open(ctx, c.File, c.Stdin)
	if err != nil {
		return err
	}
	known := Known{(*uint64)(c.Weights), (*uint64)(c.KVPool), (*uint64)(c.DeviceTotal), (*uint64)(c.DeviceUsed), (*uint64)(c.ProcessUsed)}
	out, style := output(c.Stdout, c.ASCII)
	if c.JSON {
		return writeJSON(out, describe(name, s, Options{Known: known}))
	}
	p := &page{style: style}
	(&shown{name: name, s: s, cards: cards(s), known: known, top: c.Top}).write(p)
	return p.flush(out)
}

// DiffCommand is `snapshot diff`: growth by stack and by pool.
type DiffCommand struct {
	Before string `arg:"" help:"The earlier snapshot; - is standard input."`
	After  string `arg:"" help:"The later one; - is standard input."`
	JSON   bool   `name:"json" xor:"form" help:"As one JSON object."`
	ASCII  bool   `name:"ascii" xor:"form" help:"In ASCII; also with NO_COLOR or a locale that is not UTF-8."`
	Top    int    `default:"20" placeholder:"N" help:"Rows of a table."`

	Stdin  io.Reader `kong:"-"` // nil: the process's own
	Stdout io.Writer `kong:"-"` // nil: the process's own
}

// Run prints what changed.
func (c *DiffCommand) Run(ctx context.Context) error {
	if err := positive(c.Top); err != nil {
		return err
	}
	if c.Before == "-" && c.After == "-" {
		return &usage{"snapshot diff: both snapshots cannot come from standard input", "write one of them to a file"}
	}
	before, nameBefore, err := open(ctx, c.Before, c.Stdin)
	if err != nil {
		return err
	}
	after, nameAfter, err := open(ctx, c.After, c.Stdin)
	if err != nil {
		return err
	}
	d := differ(before, after)
	d.Before.File, d.After.File = nameBefore, nameAfter
	out, style := output(c.Stdout, c.ASCII)
	if c.JSON {
		return writeJSON(out, d)
	}
	p := &page{style: style}
	d.write(p, c.Top)
	return p.flush(out)
}

// usage is an error in what was asked for.
type usage struct{ what, remedy string }

func (u *usage) Error() string { return u.what }

// Hint says what to do about it.
func (u *usage) Hint() string { return u.remedy }

// ExitCode is that of wrong usage.
func (u *usage) ExitCode() int { return 2 }

func positive(top int) error {
	if top < 1 {
		return &usage{fmt.Sprintf("--top: %d rows are no table", top), "for example --top 10"}
	}
	return nil
}

// open reads the snapshot of a file and returns it with the file's name.
func open(ctx context.Context, path string, stdin io.Reader) (*Snapshot, string, error) {
	name, from := "standard input", stdin
	switch {
	case path != "-":
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", &usage{fmt.Sprintf("read snapshot: no file %s", path), "torch.cuda.memory._dump_snapshot(\"FILE\") in the worker writes one"}
		}
		if err != nil {
			return nil, "", fmt.Errorf("read snapshot: %w", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return nil, "", &usage{fmt.Sprintf("read snapshot: %s is a folder", path), "name one of the files in it"}
		}
		name, from = filepath.Base(path), file
	case stdin == nil:
		from = os.Stdin
	}
	s, err := Read(stoppable{ctx, from}, Limits{})
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	return s, name, nil
}

// stoppable is a reader that ends when its context does.
type stoppable struct {
	ctx  context.Context
	from io.Reader
}

func (s stoppable) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.from.Read(p)
}

// output is where a command prints, and what can be shown there.
func output(out io.Writer, ascii bool) (io.Writer, Style) {
	if out == nil {
		out = os.Stdout
	}
	columns := 0
	if file, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil {
			columns = int(size.Col)
		}
	}
	return out, StyleOf(ascii, os.Getenv, columns)
}
