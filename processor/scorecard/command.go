// Package scorecard measures how well the processor judges: it plays simulated recordings with a known right verdict, and the real
// ones, through the judge's own code, and counts. It owns the promises that are measured, the counts and the calibration of
// confidence. It refuses to judge anything itself and to know how a verdict comes about.
package scorecard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/collector/sim"
	"lowtide/rules"
)

// Command is `scorecard`.
type Command struct {
	Seeds       Seeds    `default:"1000-1009" placeholder:"FROM-TO" help:"Play each scenario with these seeds. 1 to 999 are for tuning, those from 1000 on for reports."`
	Scenarios   string   `default:"*" placeholder:"GLOB" help:"Only scenarios of such names."`
	HealthyDays float64  `default:"1000" placeholder:"N" help:"Play healthy look-alikes with further seeds until so many healthy worker-days are reached; 0 for none beside the seeds."`
	Real        string   `default:"processor/testdata" type:"path" placeholder:"DIR" help:"Where the real recordings with a known verdict are."`
	Rules       []string `help:"Rule files over the built-in ones." type:"existingfile"`
	Calibrate   bool     `xor:"form" help:"Measure what confidence is worth, and write processor/calibration.go to stdout; uses seeds 1-30 unless others are given."`
	JSON        bool     `xor:"form" help:"One JSON object on stdout instead of tables."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// ErrMissed says that a promise was not kept; the tables say which.
var ErrMissed = errors.New("scorecard: a target was missed\nhint: the recordings at the end can be made again and replayed")

var calibrationSeeds = Seeds{1, 30}

// Run plays, counts and prints. It fails when a target is missed.
func (c *Command) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	pack, err := rules.Load(c.Rules...)
	if err != nil {
		return err
	}
	scenarios, err := choose(c.Scenarios)
	if err != nil {
		return err
	}
	if c.HealthyDays < 0 || c.HealthyDays > 100_000 {
		return fmt.Errorf("scorecard: --healthy-days %g: want 0 to 100000", c.HealthyDays)
	}
	j := judging{pack: pack}
	if c.Calibrate {
		seeds := c.Seeds
		if seeds.From > lastTuningSeed {
			seeds = calibrationSeeds
			fmt.Fprintf(c.Stderr, "calibrating on seeds %s: those from %d on are for reports\n", seeds, lastTuningSeed+1)
		}
		return calibrate(ctx, c.Stdout, scenarios, seeds, j)
	}
	result, err := j.measure(ctx, scenarios, c.Seeds, c.HealthyDays)
	if err != nil {
		return err
	}
	if result.Real, err = playReal(ctx, pack, c.Real); err != nil {
		return err
	}
	if len(result.Real) == 0 {
		fmt.Fprintf(c.Stderr, "no real recordings in %s: they are left out\n", c.Real)
	}
	result.Targets = result.targets()
	if c.JSON {
		err = json.MarshalWrite(c.Stdout, result, json.Deterministic(true), jsontext.WithIndent("  "))
		if err == nil {
			_, err = fmt.Fprintln(c.Stdout)
		}
	} else {
		err = result.write(c.Stdout)
	}
	if err != nil {
		return fmt.Errorf("write scorecard: %w", err)
	}
	if !result.Met() {
		return ErrMissed
	}
	return nil
}

// choose returns the scenarios whose names match.
func choose(glob string) (out []sim.Scenario, err error) {
	for _, s := range sim.Scenarios() {
		is, err := path.Match(glob, s.Name)
		if err != nil {
			return nil, fmt.Errorf("scorecard: --scenarios %q: %w", glob, err)
		}
		if is {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("scorecard: --scenarios %q: no scenario has such a name\nhint: 'lowtide simulate --list' shows the names", glob)
	}
	return out, nil
}
