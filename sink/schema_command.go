package sink

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/processor/broker"
)

// SchemaCommand is `lowtide schema`: the tables and views of the store.
type SchemaCommand struct {
	Up     SchemaUpCommand     `cmd:"" help:"Bring the store's schema up to date; 'up' and 'process' do that when they start."`
	Status SchemaStatusCommand `cmd:"" help:"List the files of the schema, and which the store has."`
}

// SchemaUpCommand is `lowtide schema up`.
type SchemaUpCommand struct {
	Owner
	KeepSamples string `placeholder:"DAYS" help:"How long samples and events are kept, such as 30d; nothing changes where it is left out."`
	KeepMinutes string `placeholder:"DAYS" help:"The same for the rollups by minute, 90d at first."`
	KeepHours   string `placeholder:"DAYS" help:"The same for the rollups by hour, 730d at first."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// Run applies what is missing, fills new rollups from samples that are older than they are, and says what it did.
func (c *SchemaUpCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	keep, err := c.keep()
	if err != nil {
		return err
	}
	store, err := c.open(ctx, slog.New(slog.NewTextHandler(c.Stderr, nil)))
	if err != nil {
		return err
	}
	defer store.Close()
	before, err := store.Schema(ctx)
	if err != nil {
		return c.reachable(err)
	}
	if err := refuseChanged(before); err != nil {
		return err
	}
	if newer := filesIn(before, SchemaUnknown); len(newer) > 0 {
		return &broker.Failure{What: fmt.Sprintf("%v: it has %s", ErrSchemaNewer, strings.Join(newer, ", ")),
			Remedy: "use the newer lowtide, whose schema this is; this one can go on storing into it", Err: ErrSchemaNewer}
	}
	if err := store.Migrate(ctx); err != nil {
		return c.reachable(err)
	}
	if err := store.Backfill(ctx); err != nil {
		return err
	}
	for _, k := range keep {
		if err := store.keep(ctx, k.tables, k.days); err != nil {
			return err
		}
	}
	pending := filesIn(before, SchemaPending)
	if len(pending) == 0 {
		_, err = fmt.Fprintf(c.Stdout, "the schema is up to date: %d files\n", len(before))
	} else {
		_, err = fmt.Fprintf(c.Stdout, "applied %d of %d files, to %s\n", len(pending), len(before), pending[len(pending)-1])
	}
	return err
}

// kept is how long some tables keep their rows.
type kept struct {
	tables []string
	days   int
}

// The tables that forget together. The time of a table is its partition key's column.
var (
	keptSamples = []string{TableWorkers, TableGpus, TableHosts, TableEvents}
	keptMinutes = []string{"worker_minute_rollup", "instance_minute_rollup", "gpu_minute_rollup"}
	keptHours   = []string{"worker_hour_rollup", "gpu_hour_rollup"}
)

func (c *SchemaUpCommand) keep() (out []kept, err error) {
	for _, one := range []struct {
		flag, value string
		tables      []string
	}{{"--keep-samples", c.KeepSamples, keptSamples}, {"--keep-minutes", c.KeepMinutes, keptMinutes}, {"--keep-hours", c.KeepHours, keptHours}} {
		if one.value == "" {
			continue
		}
		days, err := strconv.Atoi(strings.TrimSuffix(one.value, "d"))
		if err != nil || days < 1 || days > 10000 {
			return nil, &broker.Failure{What: "schema up: " + one.flag + " " + strconv.Quote(one.value) + " is no number of days within 1 and 10000", Remedy: "for example " + one.flag + " 90d", Code: 2}
		}
		out = append(out, kept{one.tables, days})
	}
	return out, nil
}

func (c *ClickHouse) keep(ctx context.Context, tables []string, days int) error {
	for _, table := range tables {
		column := "toDateTime(time)"
		if by, ok := strings.CutSuffix(table, "_rollup"); ok {
			column = by[strings.LastIndexByte(by, '_')+1:]
		}
		if err := c.exec(ctx, fmt.Sprintf("ALTER TABLE %s.%s MODIFY TTL %s + INTERVAL %d DAY", c.database, table, column, days)); err != nil {
			return c.explain("change how long "+table+" keeps its rows", err)
		}
	}
	return nil
}

// SchemaStatusCommand is `lowtide schema status`.
type SchemaStatusCommand struct {
	Owner
	JSON bool `name:"json" help:"One JSON object a file."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// Run prints one line a file. What is pending, changed or unknown is said below, and is no failure of this command.
func (c *SchemaStatusCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	store, err := c.open(ctx, slog.New(slog.NewTextHandler(c.Stderr, nil)))
	if err != nil {
		return err
	}
	defer store.Close()
	files, err := store.Schema(ctx)
	if err != nil {
		return c.reachable(err)
	}
	if c.JSON {
		return writeSchemaJSON(c.Stdout, files)
	}
	w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "number\tname\tapplied\tchecksum")
	for _, f := range files {
		at := ""
		if !f.Applied.IsZero() {
			at = f.Applied.UTC().Format("2006-01-02 15:04:05")
		}
		fmt.Fprintf(w, "%04d\t%s\t%s\t%s\n", f.Number, f.Name, at, f.State)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	for _, one := range []struct{ state, remark string }{
		{SchemaPending, "%d to be applied: `lowtide schema up`, or the next start of `lowtide up` or `lowtide process`\n"},
		{SchemaChanged, "%d changed after they were applied: undo the change in sink/schema and add a new numbered file\n"},
		{SchemaUnknown, "%d of a newer program: the store is newer than this one, which can still store into it\n"},
	} {
		if n := len(filesIn(files, one.state)); n > 0 {
			fmt.Fprintf(c.Stderr, one.remark, n)
		}
	}
	return nil
}

func writeSchemaJSON(out io.Writer, files []SchemaFile) error {
	for _, f := range files {
		row := struct {
			Number   int        `json:"number"`
			Name     string     `json:"name"`
			Applied  *time.Time `json:"applied,omitempty"`
			Checksum string     `json:"checksum"`
		}{f.Number, f.Name, nil, f.State}
		if !f.Applied.IsZero() {
			at := f.Applied.UTC()
			row.Applied = &at
		}
		text, err := json.Marshal(row)
		if err == nil {
			_, err = out.Write(append(text, '\n'))
		}
		if err != nil {
			return fmt.Errorf("write status: %w", err)
		}
	}
	return nil
}
