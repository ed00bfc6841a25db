package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"lowtide/collector/allocator"
	"lowtide/collector/engine"
	"lowtide/collector/kernel"
	"lowtide/collector/logs"
	"lowtide/collector/nvml"
	"lowtide/collector/process"
	"lowtide/event"
	"lowtide/processor/broker"
)

// Sensors say what of this host is read and how often: flags that every command has which looks at a host.
type Sensors struct {
	Interval     time.Duration `default:"5s" help:"Time between two readings."`
	NVMLInterval time.Duration `name:"nvml-interval" default:"1s" help:"Time between two readings of the GPUs."`
	Match        string        `placeholder:"REGEXP" help:"Processes to watch, by their command line, beside those that run a known engine or hold a GPU."`
	Without      []string      `placeholder:"SOURCE" help:"Sources not to read: nvml, process, engine, allocator, kernel, logs."`
	Engine       []string      `sep:"none" placeholder:"[NAME=]URL" help:"Metrics of an engine, such as vllm=http://127.0.0.1:8000/metrics, beside those found by their listening ports."`
	Discover     bool          `default:"true" negatable:"" help:"Look for metrics on the listening ports of watched processes."`
	EngineTable  []string      `type:"existingfile" placeholder:"FILE" help:"YAML tables of metric names, over the built-in ones."`
	SLO          []string      `name:"slo" sep:"none" placeholder:"MODEL:ttft=1s,itl=50ms,e2e=30s" help:"Objectives of a model, which may be a pattern such as llama*; any of the three may be left out."`
	ProbeSocket  string        `env:"LOWTIDE_PROBE_SOCKET" placeholder:"PATH" help:"Where the probes in the workers connect; /run/lowtide/probe.sock, or below $XDG_RUNTIME_DIR for other users than root."`
	Log          []string      `name:"log" sep:"none" placeholder:"[UNIT=]FILE" help:"Engine log to follow."`
	Journal      []string      `placeholder:"UNIT" help:"systemd unit whose journal is followed."`

	Shelf *Evidence `kong:"-"` // where snapshots go that workers are asked for; nil asks for none
}

// Opened is what of a host can be read.
type Opened struct {
	Sources  []Source
	Identity Identity
	Every    map[string]time.Duration

	probes *probes // what may be asked for evidence; nil where none is taken
}

// callDeadline is the least that a source has for one call: NVML needs seconds for a card that has to wake up.
const callDeadline = 5 * time.Second

// run is the loop over what was opened.
func (o *Opened) run(ctx context.Context, host *event.Host, out Outlet, interval time.Duration, log *slog.Logger) error {
	return Run(ctx, Options{Sources: o.Sources, Identity: o.Identity, Every: o.Every, Host: host, Outlet: out, Interval: interval,
		Deadline: max(interval, callDeadline), Log: log})
}

// Close ends the sources that hold something open.
func (o *Opened) Close() error {
	var faults []error
	for _, s := range slices.Backward(o.Sources) {
		if c, ok := s.(io.Closer); ok {
			if err := c.Close(); err != nil {
				faults = append(faults, fmt.Errorf("close %s: %w", s.Name(), err))
			}
		}
	}
	return errors.Join(faults...)
}

// sourceNames in the order in which they are opened.
var sourceNames = []string{"nvml", "process", "engine", "allocator", "kernel", "logs"}

// Open opens the sources. What the flags get wrong is an error; what this host lacks is each source's to say.
func (s *Sensors) Open(log *slog.Logger) (*Opened, error) {
	for _, name := range s.Without {
		if !slices.Contains(sourceNames, name) {
			return nil, wrong("--without "+name, "no source has this name", strings.Join(sourceNames, ", "))
		}
	}
	for name, interval := range map[string]time.Duration{"--interval": s.Interval, "--nvml-interval": s.NVMLInterval} {
		if interval < 100*time.Millisecond {
			return nil, wrong(fmt.Sprintf("%s %v", name, interval), "shorter than 100ms", "a time such as 5s")
		}
	}
	engines, err := s.engines()
	if err != nil {
		return nil, err
	}
	match, err := s.match()
	if err != nil {
		return nil, err
	}
	o := &Opened{Every: map[string]time.Duration{"nvml": s.NVMLInterval}}
	add := func(name string, open func() (Source, error)) {
		if slices.Contains(s.Without, name) {
			return
		}
		source, err := open()
		if err != nil {
			log.Warn("source is not opened", "source", name, "error", err)
			source = newClosed(name, err, open)
		}
		o.Sources = append(o.Sources, source)
	}
	add("nvml", func() (Source, error) { return nvml.New(nvml.Options{Interval: s.NVMLInterval}), nil })
	add("process", func() (Source, error) {
		p, err := process.New(process.Options{Match: match, Interval: s.Interval})
		if err != nil {
			return nil, err
		}
		o.Identity = p.Roster()
		if s.Discover {
			engines.Discover = discover(p.Roster())
		}
		return p, nil
	})
	// Everything about engines comes from the flags, so that its errors are the user's to mend now.
	var refused error
	add("engine", func() (Source, error) {
		e, err := engine.New(engines)
		if err != nil {
			refused = err
		}
		return e, err
	})
	var evidence *allocator.Evidence
	if s.Shelf != nil && !slices.Contains(s.Without, "allocator") {
		if evidence, err = s.Shelf.open(log); err != nil {
			return nil, errors.Join(err, o.Close())
		}
		o.probes = new(probes)
	}
	add("allocator", func() (Source, error) {
		a, err := allocator.Listen(allocator.Options{Socket: s.ProbeSocket, Interval: s.Interval, Evidence: evidence})
		if err != nil {
			return nil, err
		}
		if o.probes != nil {
			o.probes.source.Store(a)
		}
		return a, nil
	})
	add("kernel", func() (Source, error) { return kernel.Open(kernel.Options{}) })
	if len(s.Log)+len(s.Journal) > 0 {
		add("logs", func() (Source, error) { return logs.New(s.logs()) })
	}
	if refused != nil {
		return nil, errors.Join(refused, o.Close())
	}
	return o, nil
}

func wrong(what, why, remedy string) error {
	return &broker.Failure{What: what + ": " + why, Remedy: "use " + remedy, Code: 2}
}

func (s *Sensors) match() (*regexp.Regexp, error) {
	if s.Match == "" {
		return nil, nil
	}
	match, err := regexp.Compile(s.Match)
	if err != nil {
		return nil, wrong("--match", err.Error(), "RE2 syntax, such as 'vllm|my-server'")
	}
	return match, nil
}

// discover offers the listening ports of watched processes as targets.
func discover(roster *process.Roster) func() []engine.Target {
	return func() []engine.Target {
		endpoints := roster.Endpoints()
		if endpoints == nil {
			return nil // it has not looked yet: what it will find then was there before
		}
		targets := make([]engine.Target, 0, len(endpoints))
		for _, e := range endpoints {
			targets = append(targets, engine.Target{URL: "http://" + e.AddrPort.String(), Engine: e.Engine, Worker: &event.Worker{Pid: int64(e.PID)}})
		}
		return targets
	}
}

func (s *Sensors) engines() (engine.Options, error) {
	var o engine.Options
	for _, text := range s.Engine {
		name, address, named := strings.Cut(text, "=")
		if !named || strings.Contains(name, "/") {
			name, address = "", text
		}
		if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			if strings.Contains(text, "@") {
				text = "…" // what cannot be read may hold a password
			}
			return o, wrong("--engine "+text, "not the address of metrics", "vllm=http://127.0.0.1:8000/metrics, with or without the engine's name")
		}
		o.Targets = append(o.Targets, engine.Target{URL: address, Engine: name, Configured: true})
	}
	for _, text := range s.SLO {
		slo, err := parseSLO(text)
		if err != nil {
			return o, err
		}
		o.SLOs = append(o.SLOs, slo)
	}
	tables, err := engine.LoadTables(s.EngineTable...)
	o.Tables = tables
	return o, err
}

// parseSLO reads MODEL:ttft=1s,itl=50ms,e2e=30s. A model's name may contain colons; the last one counts.
func parseSLO(text string) (engine.SLO, error) {
	const form = "MODEL:ttft=1s,itl=50ms,e2e=30s, at least one of the three"
	cut := strings.LastIndex(text, ":")
	if cut < 1 {
		return engine.SLO{}, wrong("--slo "+text, "no model before a colon", form)
	}
	slo := engine.SLO{Model: text[:cut]}
	for _, part := range strings.Split(text[cut+1:], ",") {
		name, value, _ := strings.Cut(part, "=")
		limit, err := time.ParseDuration(value)
		if err != nil || limit <= 0 {
			return engine.SLO{}, wrong("--slo "+text, fmt.Sprintf("%q is no duration above zero", part), form)
		}
		switch strings.TrimSpace(name) {
		case "ttft":
			slo.TTFT = limit
		case "itl":
			slo.ITL = limit
		case "e2e":
			slo.E2E = limit
		default:
			return engine.SLO{}, wrong("--slo "+text, fmt.Sprintf("%q is none of ttft, itl, e2e", name), form)
		}
	}
	if _, err := filepath.Match(slo.Model, ""); err != nil {
		return engine.SLO{}, wrong("--slo "+text, "the model is no pattern: "+err.Error(), form)
	}
	return slo, nil
}

func (s *Sensors) logs() logs.Options {
	var o logs.Options
	for _, text := range s.Log {
		unit, path, named := strings.Cut(text, "=")
		file := logs.File{Path: text}
		if named && !strings.Contains(unit, "/") {
			file = logs.File{Path: path, Worker: &event.Worker{Unit: unit}}
		}
		o.Files = append(o.Files, file)
	}
	for _, unit := range s.Journal {
		if !strings.Contains(unit, ".") {
			unit += ".service"
		}
		o.Journal = append(o.Journal, logs.Unit{Name: unit, Worker: &event.Worker{Unit: unit}})
	}
	return o
}
