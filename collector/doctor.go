package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/collector/status"
)

// DoctorCommand is `doctor`: what can be seen from here, what cannot, and how to get it.
type DoctorCommand struct {
	JSON        bool   `name:"json" help:"One array of checks, for programs."`
	NATS        string `name:"nats" placeholder:"URL" env:"LOWTIDE_NATS" help:"Check this broker; without it the embedded one of 'up' is meant and nothing is asked."`
	ProbeSocket string `env:"LOWTIDE_PROBE_SOCKET" placeholder:"PATH" help:"Where the collector listens for probes."`

	Stdout io.Writer `kong:"-"`
	Root   string    `kong:"-"` // before every path; empty is the real one
}

// Check is what was found out about one sensor or part.
type Check struct {
	Name     string `json:"name"`
	Status   string `json:"status"` // as of a source event
	Required bool   `json:"required"`
	Found    string `json:"found,omitempty"`
	Missing  string `json:"missing,omitempty"` // what cannot be told without it
	Hint     string `json:"hint,omitempty"`
}

// doctorLimit bounds a visit: a card that has to wake up takes its time.
const doctorLimit = 90 * time.Second

// ErrRequired marks the end of a doctor's visit that found something required broken.
var ErrRequired = errors.New("something required is broken")

// Run checks everything and prints the table, or with JSON the array. The error, which wraps ErrRequired, names the required
// parts that are broken; what is merely not there is no error.
func (d *DoctorCommand) Run(ctx context.Context) error {
	out := d.Stdout
	if out == nil {
		out = os.Stdout
	}
	checks := d.Checks(ctx)
	if err := d.print(out, checks); err != nil {
		return fmt.Errorf("write checks: %w", err)
	}
	var broken []error
	for _, c := range checks {
		if c.Required && c.Status != status.OK {
			broken = append(broken, fmt.Errorf("%w: %s is %s", ErrRequired, c.Name, c.Status))
		}
	}
	return errors.Join(broken...)
}

// Checks asks every sensor once.
func (d *DoctorCommand) Checks(ctx context.Context) []Check {
	ctx, cancel := context.WithTimeout(ctx, doctorLimit)
	defer cancel()
	proc, open, engines := d.process(ctx)
	checks := []Check{proc, open, d.cgroup(), d.nvml(ctx), d.kernel(ctx), engines, d.probe(ctx), d.journal(), d.pods(), d.library()}
	if d.NATS != "" {
		checks = append(checks, d.broker())
	}
	return checks
}

func (d *DoctorCommand) print(out io.Writer, checks []Check) error {
	if d.JSON {
		if err := json.MarshalWrite(out, checks, jsontext.Multiline(true)); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Name, c.Status, c.Found)
		if c.Status != status.OK {
			fmt.Fprintf(table, "\t\twithout it: %s\n\t\thint: %s\n", c.Missing, c.Hint)
		}
	}
	return table.Flush()
}
