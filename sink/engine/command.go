package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"lowtide/event"
)

// Command is `lowtide engine`: the embedded ClickHouse engine alone, until it is interrupted.
type Command struct {
	Listen  string     `default:"127.0.0.1:8123" placeholder:"HOST:PORT" help:"Loopback address of the ClickHouse HTTP interface."`
	Data    string     `default:"lowtide-engine" type:"path" placeholder:"DIR" help:"Folder of tables and password files."`
	Library string     `placeholder:"FILE" help:"Path of libchdb.so; default: where make engine puts it. Also LOWTIDE_CHDB_LIBRARY."`
	Memory  event.Size `default:"2GiB" placeholder:"SIZE" help:"Memory of the whole engine."`
}

// Run starts the engine, prints where it answers and how to ask it, and ends it in order when ctx ends.
func (c *Command) Run(ctx context.Context) error { return c.run(ctx, os.Stdout, os.Stderr) }

func (c *Command) run(ctx context.Context, out, messages io.Writer) error {
	if c.Memory == 0 {
		return errors.New("an engine without memory\nhint: give --memory 2GiB, 512MiB or digits")
	}
	e, err := Start(ctx, Options{Library: c.Library, DataDir: c.Data, Listen: c.Listen, MemoryLimit: int64(c.Memory),
		Log: slog.New(slog.NewTextHandler(messages, nil))})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "address   http://%s\nwriter    user %s, password in %s\nreader    user %s, password in %s\n\ncurl -u \"%s:$(cat %s)\" http://%s/ --data-binary 'SELECT version()'\n",
		e.Addr(), RoleWriter, e.PasswordFile(RoleWriter), RoleReader, e.PasswordFile(RoleReader), RoleReader, shellQuote(e.PasswordFile(RoleReader)), e.Addr())
	if err := e.Wait(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return errors.Join(err, e.Close())
	}
	return e.Close()
}

func shellQuote(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }
