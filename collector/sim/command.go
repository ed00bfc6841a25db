package sim

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

// Command writes simulated recordings with a known right verdict. collector/fleet publishes the same hosts.
type Command struct {
	List     bool          `help:"List the scenarios with what is planted in them."`
	Scenario string        `placeholder:"NAME" help:"The scenario to play; with --publish several, by commas."`
	Seed     uint64        `default:"1" help:"Another seed is another world; with --all the first one."`
	Hours    float64       `placeholder:"H" help:"Length of the recording; the scenario's own when left out."`
	Step     time.Duration `default:"1m" help:"Time between samples."`
	Out      string        `type:"path" placeholder:"FILE" help:"The recording, gzip when the name ends in .gz; stdout when left out."`
	All      string        `type:"path" placeholder:"DIR" help:"Write every scenario into this folder, with the right verdicts in labels.json."`
	Seeds    int           `default:"1" help:"How many recordings of each scenario --all writes."`

	Stdout io.Writer `kong:"-"`
}

// Run lists, plays one scenario, or plays all of them.
func (c *Command) Run(ctx context.Context) error {
	out := c.Stdout
	if out == nil {
		out = os.Stdout
	}
	chosen := 0
	for _, is := range []bool{c.List, c.Scenario != "", c.All != ""} {
		if is {
			chosen++
		}
	}
	switch {
	case chosen != 1:
		return errors.New("simulate: want one of --list, --scenario NAME, --all DIR and --publish\nhint: 'lowtide simulate --list' shows the names")
	case c.List:
		return list(out)
	case c.All != "":
		return c.all(ctx)
	}
	s, err := find(c.Scenario)
	if err != nil {
		return fmt.Errorf("%w\nhint: 'lowtide simulate --list' shows the names", err)
	}
	if c.Out == "" {
		_, err = c.write(ctx, out, s.Scenario, c.Seed)
		return err
	}
	_, err = c.file(ctx, c.Out, s.Scenario, c.Seed)
	return err
}

func list(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tVERDICT\tHOURS\tPLANTED")
	for _, s := range Scenarios() {
		fmt.Fprintf(table, "%s\t%s\t%g\t%s\n", s.Name, cmp.Or(s.Class, "none"), s.Hours, s.Planted)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("list scenarios: %w", err)
	}
	return nil
}

// Label is the right verdict of a recording, as labels.json has it under the recording's name.
type Label struct {
	Class      string    `json:"class"` // none where nothing is planted
	Onset      time.Time `json:"onset,omitzero"`
	Undeclared bool      `json:"undeclared,omitzero"`
	Sensors    string    `json:"sensors,omitzero"`
	Planted    string    `json:"planted"`
	Scenario   string    `json:"scenario"`
	Seed       uint64    `json:"seed"`
	Pids       []int64   `json:"pids,omitzero"`
}

func (c *Command) all(ctx context.Context) error {
	if c.Seeds < 1 || c.Seeds > 100_000 {
		return fmt.Errorf("simulate: --seeds %d: want 1 to 100000", c.Seeds)
	}
	if err := os.MkdirAll(c.All, 0o777); err != nil {
		return fmt.Errorf("make folder of recordings: %w", err)
	}
	labels := make(map[string]Label)
	for n := range uint64(c.Seeds) {
		for _, s := range Scenarios() {
			seed := c.Seed + n
			name := fmt.Sprintf("%s-%d", s.Name, seed)
			r, err := c.file(ctx, filepath.Join(c.All, name+".ndjson.gz"), s, seed)
			if err != nil {
				return err
			}
			labels[name] = Label{Class: cmp.Or(s.Class, "none"), Onset: r.Onset, Undeclared: s.Undeclared, Sensors: s.Sensors, Planted: s.Planted, Scenario: s.Name, Seed: seed, Pids: r.Pids}
		}
	}
	text, err := json.Marshal(labels, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("write labels: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.All, "labels.json"), append(text, '\n'), 0o666); err != nil {
		return fmt.Errorf("write labels: %w", err)
	}
	return nil
}

func (c *Command) file(ctx context.Context, name string, s Scenario, seed uint64) (r Recording, err error) {
	f, err := os.Create(name)
	if err != nil {
		return r, fmt.Errorf("create recording: %w", err)
	}
	defer func() {
		if closed := f.Close(); err == nil && closed != nil {
			err = fmt.Errorf("close recording: %w", closed)
		}
	}()
	if !strings.HasSuffix(name, ".gz") {
		return c.write(ctx, f, s, seed)
	}
	zip := gzip.NewWriter(f)
	if r, err = c.write(ctx, zip, s, seed); err != nil {
		return r, err
	}
	if err := zip.Close(); err != nil {
		return r, fmt.Errorf("write recording %s: %w", name, err)
	}
	return r, nil
}

func (c *Command) write(ctx context.Context, out io.Writer, s Scenario, seed uint64) (Recording, error) {
	buffered := bufio.NewWriterSize(out, 256<<10)
	w := event.NewWriter(buffered)
	r, err := Play(s, seed, c.Hours, c.Step, func(e *event.Event) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return w.Write(e)
	})
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return r, fmt.Errorf("simulate %s, seed %d: %w", s.Name, seed, err)
	}
	return r, nil
}
