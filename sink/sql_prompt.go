package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/term"
)

const promptHelp = `A line is a query and runs when it is entered; one that ends with \ goes on in the next line. Tab completes names of tables and views.
\d           the tables, and the views with parameters
\d NAME      the columns of a table
\i           the saved investigations, for lowtide investigate
\json \csv \table   how answers are written
\q           end; also Ctrl-D and Ctrl-C
A line that begins with a space is not kept in the history.`

// prompt reads queries from the terminal until it ends. An error of a query is shown and is not the end.
func (c *SQLCommand) prompt(ctx context.Context) error {
	address, password, err := c.resolve()
	if err != nil {
		return err
	}
	tables, views := c.names(ctx, address, password)
	kept, err := openHistory(filepath.Join(c.DataDir, "sql_history"))
	if err != nil {
		fmt.Fprintln(c.Stderr, "warning:", err)
	}
	fd := int(c.Stdin.Fd())
	cooked, err := term.MakeRaw(fd)
	if err != nil {
		return fmt.Errorf("prepare terminal: %w", err)
	}
	defer term.Restore(fd, cooked)
	defer context.AfterFunc(ctx, func() { term.Restore(fd, cooked) })() // a second signal ends the program at once
	terminal := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{c.Stdin, c.Stderr}, "")
	terminal.History = kept
	terminal.AutoCompleteCallback = completer(slices.Concat(tables, views))
	read := func(prompt string) (string, error) {
		if width, height, err := term.GetSize(fd); err == nil && width > 0 {
			terminal.SetSize(width, height)
		}
		terminal.SetPrompt(prompt)
		if _, err := term.MakeRaw(fd); err != nil {
			return "", err
		}
		line, err := terminal.ReadLine()
		return line, errors.Join(err, term.Restore(fd, cooked)) // a query runs with Ctrl-C as everywhere
	}
	fmt.Fprint(c.Stderr, "lowtide sql: a reader's prompt; \\? helps, \\q ends\r\n")
	err = c.converse(ctx, read)
	fmt.Fprintln(c.Stderr)
	return errors.Join(err, kept.err)
}

// converse runs what read returns until io.EOF, \q or the end of ctx.
func (c *SQLCommand) converse(ctx context.Context, read func(prompt string) (string, error)) error {
	for ctx.Err() == nil {
		line, err := read("lowtide> ")
		for err == nil && strings.HasSuffix(line, `\`) {
			var more string
			more, err = read("    ...> ")
			line = strings.TrimSuffix(line, `\`) + "\n" + more
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read prompt: %w", err)
		}
		if c.entered(ctx, strings.TrimSpace(line)) {
			return nil
		}
	}
	return nil
}

// entered runs a line and says whether it was the last.
func (c *SQLCommand) entered(ctx context.Context, line string) (last bool) {
	word, rest, _ := strings.Cut(line, " ")
	var err error
	switch strings.TrimSuffix(word, ";") {
	case "":
	case `\q`, "exit", "quit":
		return true
	case `\?`, `\h`, "help":
		fmt.Fprintln(c.Stderr, promptHelp)
	case `\json`:
		c.JSON, c.CSV = true, false
	case `\csv`:
		c.JSON, c.CSV = false, true
	case `\table`:
		c.JSON, c.CSV = false, false
	case `\i`:
		err = writeInvestigations(c.Stdout)
	case `\d`:
		if rest = strings.Trim(strings.TrimSpace(rest), "`;"); rest == "" {
			err = c.ask(ctx, tablesQuery, c.format(), c.Stdout)
		} else {
			err = c.request(ctx, question{query: columnsQuery, format: c.format(), parameters: map[string]string{"name": strings.TrimPrefix(rest, "lowtide.")}}, c.Stdout)
		}
	default:
		if strings.HasPrefix(word, `\`) {
			err = fmt.Errorf("%s is no command of this prompt\nhint: \\? lists them", word)
		} else {
			err = c.ask(ctx, line, c.format(), c.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(c.Stderr, "error: %v\n", err)
		var hinted interface{ Hint() string }
		if errors.As(err, &hinted) && hinted.Hint() != "" {
			fmt.Fprintf(c.Stderr, "hint: %s\n", hinted.Hint())
		}
	}
	return false
}

const (
	tablesQuery = `SELECT name, if(engine = 'View', if(create_table_query LIKE '%{since:%' OR create_table_query LIKE '%{incident:%', 'view with parameters', 'view'), 'table') AS kind, comment
FROM system.tables WHERE database = 'lowtide' AND name NOT LIKE '.%' AND name != 'schema_version' ORDER BY kind, name`
	columnsQuery = "SELECT name, type FROM system.columns WHERE database = 'lowtide' AND table = {name:String} ORDER BY position"
)

// completer completes the name before the cursor when Tab is pressed, as far as all that begin so agree.
func completer(names []string) func(line string, pos int, key rune) (string, int, bool) {
	return func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		start := pos
		for start > 0 && (line[start-1] == '_' || line[start-1] >= '0' && line[start-1] <= '9' || line[start-1]|0x20 >= 'a' && line[start-1]|0x20 <= 'z') {
			start--
		}
		common := ""
		for _, name := range names {
			switch {
			case start == pos || !strings.HasPrefix(name, line[start:pos]):
			case common == "":
				common = name
			default:
				for !strings.HasPrefix(name, common) {
					common = common[:len(common)-1]
				}
			}
		}
		if common == "" {
			return line, pos, true // Tab is never part of a query here
		}
		return line[:start] + common + line[pos:], start + len(common), true
	}
}
