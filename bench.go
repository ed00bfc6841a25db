package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/collector/fleet"
	"lowtide/processor/bench"
	"lowtide/processor/broker"
)

const (
	benchPast   = 48 * time.Hour // where the fleet's time begins: it runs faster than the clock and must not pass it
	benchStep   = 50 * time.Millisecond
	benchLook   = 5      // steps between two readings of the backlog
	benchRest   = 4      // readings for which nothing waits, until everything is judged
	windowTime  = 2.5    // seconds of what is read that may wait unread
	windowLeast = 64_000 // worker-samples: more than the block that is filled, or stored, and what comes meanwhile
	drainLimit  = 3 * time.Minute
	cardLimit   = time.Minute // until the card of the last planted failure
	stageTime   = 3 * time.Second
)

// BenchCommand is `bench`: the whole pipeline under a simulated fleet, in this process and its children.
type BenchCommand struct {
	Hosts    int           `default:"250" placeholder:"N" help:"Simulated hosts."`
	Workers  int           `default:"8" placeholder:"N" help:"Workers of a host."`
	Rate     float64       `placeholder:"N" help:"Worker-samples a second; left out, as many as are judged and stored."`
	Duration time.Duration `default:"60s" help:"How long is measured."`
	Warmup   time.Duration `default:"20s" help:"How long before nothing counts."`
	NoStore  bool          `help:"Leave ClickHouse down: what is to be stored waits in the stream."`
	OOMEvery time.Duration `name:"oom-every" default:"3s" help:"How often an allocation fails in a worker that grows, to time its card at Slack; 0 for never. Slack takes one message a second."`
	NoStages bool          `help:"Leave out each stage alone and the ceilings."`
	JSON     bool          `name:"json" help:"As a JSON object."`
	Data     string        `type:"path" placeholder:"DIR" help:"An empty folder for broker and store, which stays; one that is removed when left out."`
	Library  string        `placeholder:"FILE" help:"libchdb.so; default: where make engine puts it."`
	Seed     uint64        `default:"1" help:"Seed of the fleet."`
	Profile  string        `name:"cpu-profile" type:"path" placeholder:"FILE" help:"Write a processor profile of the measured time, without the fleet and the engine."`

	Stdout    io.Writer                                   `kong:"-"`
	inProcess func(address string, victims int) generator // nil: a process of its own
	stageTime time.Duration                               // of each stage alone, at least; 3 s when zero
	log       *slog.Logger
}

// Run measures and prints. A check that fails is an error after the result.
func (c *BenchCommand) Run(ctx context.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	out := c.Stdout
	if out == nil {
		out = os.Stdout
	}
	c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if c.stageTime == 0 {
		c.stageTime = stageTime
	}
	if c.Data == "" {
		folder, err := os.MkdirTemp("", "lowtide-bench-")
		if err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
		defer os.RemoveAll(folder)
		c.Data = folder
	} else if left, err := os.ReadDir(c.Data); err == nil && len(left) > 0 {
		return &broker.Failure{What: "bench: " + c.Data + " is not empty", Remedy: "name an empty folder: what is in the stream already would be counted", Code: 2}
	}
	result, err := c.measure(ctx)
	if result == nil {
		return err
	}
	if c.JSON {
		err = errors.Join(err, json.MarshalWrite(out, result, jsontext.WithIndent("  ")))
		fmt.Fprintln(out)
	} else {
		err = errors.Join(err, result.Write(out))
	}
	if err == nil && !result.OK() {
		err = errors.New("bench: a check failed")
	}
	return err
}

func (c *BenchCommand) validate() error {
	wrong := func(what, remedy string) error {
		return &broker.Failure{What: "bench: " + what, Remedy: remedy, Code: 2}
	}
	switch {
	case c.Hosts < 1 || c.Hosts > fleet.MaxHosts:
		return wrong(fmt.Sprintf("--hosts %d", c.Hosts), fmt.Sprintf("1 to %d", fleet.MaxHosts))
	case c.Workers < 1 || c.Workers > fleet.MaxWorkers:
		return wrong(fmt.Sprintf("--workers %d", c.Workers), fmt.Sprintf("1 to %d", fleet.MaxWorkers))
	case c.Rate < 0 || c.Rate > 10*bench.GoalPerSecond:
		return wrong(fmt.Sprintf("--rate %g", c.Rate), "worker-samples a second, such as 15000; left out, as many as possible")
	case c.Duration < time.Second || c.Duration > time.Hour:
		return wrong(fmt.Sprintf("--duration %v", c.Duration), "1s to 1h")
	case c.Warmup < 0 || c.Warmup > time.Hour:
		return wrong(fmt.Sprintf("--warmup %v", c.Warmup), "0s to 1h")
	case c.OOMEvery < 0 || c.OOMEvery > 0 && c.OOMEvery < 1100*time.Millisecond:
		return wrong(fmt.Sprintf("--oom-every %v", c.OOMEvery), "at least 1.1s, since Slack takes one message a second; or 0")
	}
	return nil
}

func (c *BenchCommand) measure(ctx context.Context) (result *bench.Result, err error) {
	p, err := c.startPipeline(ctx, c.log)
	defer func() {
		err = errors.Join(err, p.readers.stop(), p.base.stop())
	}()
	if err != nil {
		return nil, err
	}
	r := &benchRun{BenchCommand: c, pipeline: p, result: &bench.Result{Hosts: c.Hosts, Workers: c.Hosts * c.Workers, AskedPerSecond: c.Rate, Stored: !c.NoStore,
		Seconds: c.Duration.Seconds(), WarmSeconds: c.Warmup.Seconds(), CPUs: runtime.NumCPU()}}
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	if !c.NoStages {
		err = r.stages(ctx) // what the run said stands, whatever becomes of them
	}
	return r.result, err
}
