package sink

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"lowtide/processor/broker"
)

// maxQuery is the longest query that is read from a file or a pipe, in bytes.
const maxQuery = 1 << 20

// SQLCommand is `lowtide sql [QUERY]`: one query from the command line, a file or a pipe; a prompt where none of them is.
type SQLCommand struct {
	Access
	JSON  bool   `name:"json" xor:"form" help:"One JSON object a row."`
	CSV   bool   `name:"csv" xor:"form" help:"CSV with a line of names."`
	File  string `short:"f" placeholder:"FILE" help:"Read the query from a file; - is stdin."`
	Query string `arg:"" optional:"" help:"A query; tables: workers, worker_samples, gpu_samples, host_samples, events, findings, incidents. Without one it is read from stdin; on a terminal there is a prompt with history."`

	Stdin  *os.File  `kong:"-"` // nil: the process's own
	Stdout io.Writer `kong:"-"`
	Stderr io.Writer `kong:"-"`
}

// Run asks the store and copies its answer to stdout.
func (c *SQLCommand) Run(ctx context.Context) error {
	if c.Stdin == nil {
		c.Stdin = os.Stdin
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Query == "" && c.File == "" && term.IsTerminal(int(c.Stdin.Fd())) {
		return c.prompt(ctx)
	}
	query, err := c.read()
	if err != nil {
		return err
	}
	return c.ask(ctx, query, c.format(), c.Stdout)
}

func (c *SQLCommand) format() string {
	switch {
	case c.JSON:
		return "JSONEachRow"
	case c.CSV:
		return "CSVWithNames"
	}
	return "PrettyCompactNoEscapes"
}

// read takes the query from where it is; exactly one place has it.
func (c *SQLCommand) read() (string, error) {
	usage := func(what string) error {
		return &broker.Failure{What: "sql: " + what, Remedy: "for example `lowtide sql \"SELECT * FROM incidents FINAL\"`, `lowtide sql -f query.sql`, or `lowtide sql < query.sql`", Code: 2}
	}
	query := c.Query
	switch {
	case c.Query != "" && c.File != "":
		return "", usage("a query and a file were given")
	case c.Query == "-" || c.Query == "" && (c.File == "" || c.File == "-"):
		text, err := readQuery(c.Stdin)
		if err != nil {
			return "", usage("stdin: " + err.Error())
		}
		query = text
	case c.File != "":
		file, err := os.Open(c.File)
		if err != nil {
			return "", usage(err.Error())
		}
		defer file.Close()
		if query, err = readQuery(file); err != nil {
			return "", usage(c.File + ": " + err.Error())
		}
	}
	if strings.TrimSpace(query) == "" {
		return "", usage("the query is empty")
	}
	return query, nil
}

func readQuery(from io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxQuery+1))
	if err != nil {
		return "", fmt.Errorf("read query: %w", err)
	}
	if len(text) > maxQuery {
		return "", fmt.Errorf("the query is longer than %d bytes", maxQuery)
	}
	return string(text), nil
}
