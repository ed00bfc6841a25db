// Command fault runs Lowtide as a fleet does, each part a process of its own behind a proxy, lets seeded faults happen to it, and
// compares by id what the broker acknowledged with what stands in ClickHouse, what was judged, and what people were told. It knows
// Lowtide only by its commands, its streams and its tables, and mends nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"lowtide/rules"
)

type command struct {
	Seed       uint64        `default:"1" help:"Seed of the first run; each further run has the next one."`
	Runs       int           `default:"1" help:"How many runs."`
	Minutes    float64       `placeholder:"N" help:"Begin no run after so many minutes, and do runs until then where --runs is not given."`
	Only       []string      `placeholder:"KIND" help:"Only faults of these kinds, or of those with this word: kill, broker, half-open, store-lost …"`
	None       bool          `help:"No faults at all."`
	Parallel   int           `default:"2" help:"Runs at once."`
	Processors int           `help:"Processors of a run; two or three by the seed when left out."`
	Nodes      int           `default:"1" help:"Servers of the broker; three are a cluster with three replicas of everything."`
	Collectors int           `default:"3" help:"Collectors of a run."`
	Hosts      int           `default:"10" help:"Hosts whose recordings each collector plays."`
	Play       time.Duration `default:"14s" help:"How long the recordings take when nothing goes wrong; the faults begin in this time."`
	Drain      time.Duration `default:"150s" help:"How long the pipeline may take to come to rest once everything is healed."`
	Out        string        `type:"path" default:"fault.out" help:"Folder of what was built, and of runs that failed."`
	Recordings string        `type:"path" default:"processor/testdata" help:"Folder of the recordings."`
	Lowtide    string        `type:"existingfile" placeholder:"FILE" help:"The binary to test; built from this tree when left out."`
	Keep       bool          `help:"Keep the folders of runs that passed, too."`
	JSON       bool          `name:"json" help:"One JSON object a run on stdout, then the summary."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := new(command)
	kong.Parse(c, kong.Name("fault"), kong.Description("Disturbs Lowtide by a seed, and checks by id that nothing is lost and nothing told twice."))
	failed, err := c.Run(ctx, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// Run does the runs and returns how many failed. An error says that something stood in the way of doing them.
func (c *command) Run(ctx context.Context, out, messages io.Writer) (failed int, err error) {
	if c.Collectors < 1 || c.Hosts < 1 || c.Parallel < 1 {
		return 0, errors.New("--collectors, --hosts and --parallel are at least 1")
	}
	if err := os.MkdirAll(c.Out, 0o700); err != nil {
		return 0, fmt.Errorf("make folder --out: %w", err)
	}
	bins, err := build(ctx, c.Out, c.Lowtide)
	if err != nil {
		return 0, err
	}
	all, err := openLibrary(c.Recordings)
	if err != nil {
		return 0, err
	}
	pack, err := rules.Builtin()
	if err != nil {
		return 0, fmt.Errorf("load rules: %w", err)
	}
	shape := Shape{Nodes: c.Nodes, Processors: c.Processors, Collectors: c.Collectors, Hosts: c.Hosts, Play: c.Play, Only: c.Only, None: c.None, Mounts: canMount(c.Out)}
	if !shape.Mounts {
		fmt.Fprintln(messages, "NOTE: this user may not mount, so no disk is filled; as root they are")
	}
	if !c.None && len(shape.Kinds()) == 0 {
		return 0, fmt.Errorf("--only %v names no kind\nhint: the kinds are %v", c.Only, Shape{Mounts: true}.Kinds())
	}
	r := &runner{shape: shape, bins: bins, all: all, pack: pack, folder: c.Out, drain: c.Drain, keep: c.Keep, out: messages}
	total := newSummary(c.Seed, shape)
	until, runs := time.Time{}, c.Runs
	if c.Minutes > 0 {
		until = time.Now().Add(time.Duration(c.Minutes * float64(time.Minute)))
		if runs == 1 {
			runs = 1 << 30
		}
	}
	var mu sync.Mutex
	next := 0
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next >= runs || ctx.Err() != nil || err != nil || !until.IsZero() && time.Now().After(until) {
			return 0, false
		}
		next++
		return c.Seed + uint64(next-1), true
	}
	var working sync.WaitGroup
	for range min(c.Parallel, runs) {
		working.Go(func() {
			for seed, more := take(); more; seed, more = take() {
				res, runErr := r.run(ctx, seed)
				mu.Lock()
				if err = errors.Join(err, runErr); res != nil && ctx.Err() == nil { // what was interrupted says nothing
					total.add(res)
					c.print(out, res)
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	if err == nil {
		err = ctx.Err()
	}
	total.finish()
	if c.JSON {
		err = errors.Join(err, json.NewEncoder(out).Encode(total))
	} else {
		total.print(out)
	}
	text, marshalErr := json.MarshalIndent(total, "", "  ")
	return total.Failed, errors.Join(err, marshalErr, os.WriteFile(filepath.Join(c.Out, "summary.json"), append(text, '\n'), 0o600))
}
