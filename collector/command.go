package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/process"
	"lowtide/collector/recording"
	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor/broker"
)

// closeGrace bounds how long the end of `collect` waits for the broker.
const closeGrace = 5 * time.Second

// Command is `collect`: the agent of one host.
type Command struct {
	NATS      string        `name:"nats" placeholder:"URL" default:"nats://127.0.0.1:4222" env:"LOWTIDE_NATS" help:"The broker to publish to."`
	Cluster   string        `default:"default" env:"LOWTIDE_CLUSTER" help:"Name of the cluster, a part of every subject."`
	Host      string        `env:"LOWTIDE_HOST" help:"Name of this host; its hostname when left out."`
	Interval  time.Duration `default:"5s" help:"Time between two readings."`
	Match     string        `placeholder:"REGEXP" help:"Processes to watch, by their command line; the known engines and python when left out. Beside --recording or --sim, real processes are watched only when this is given."`
	Recording []string      `placeholder:"FILE" type:"existingfile" help:"Play recordings instead of reading this host."`
	Speed     float64       `default:"1" help:"Recorded seconds per second."`
	Shift     time.Duration `placeholder:"12h" help:"Play recordings (and --sim) as if they had started this long ago: what lies in the past is sent at once."`
	Sim       int           `placeholder:"N" help:"Simulate N hosts of three workers: healthy, leaking, kv-pressed."`
	Seed      uint64        `default:"1" help:"Seed of the simulation."`

	Log *slog.Logger `kong:"-"`
}

// Run collects until the context ends.
func (c *Command) Run(ctx context.Context) (err error) {
	log := c.Log
	if log == nil {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	host, err := c.identity()
	if err != nil {
		return err
	}
	var publisher *Publisher
	ready := func() bool { return publisher.Ready() } // the sources are opened, and refused, before anything is connected
	sources, shut, err := c.sources(time.Now(), ready)
	defer func() { err = errors.Join(err, shut()) }()
	if err != nil {
		return err
	}
	// Without a buffer in the client a publish fails at once while the broker is away, and the publisher keeps its order.
	conn, err := broker.Dial(c.NATS, "collect "+host.Name, log, nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("open jetstream: %w", err)
	}
	publisher = NewPublisher(js, PublisherOptions{Log: log})
	log.Info("collecting", "host", event.HostKey(host), "broker", broker.Redact(c.NATS), "interval", c.Interval, "sources", len(sources))
	err = Run(ctx, Options{Sources: sources, Host: host, Outlet: publisher, Interval: c.Interval, Log: log})
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	return errors.Join(err, publisher.Close(last))
}

func (c *Command) identity() (*event.Host, error) {
	name := c.Host
	if name == "" {
		own, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("read hostname: %w", err)
		}
		name = event.Token(own)
	}
	host := &event.Host{Cluster: c.Cluster, Name: name, BootId: process.BootID("/proc")}
	if err := event.ValidateHost(host); err != nil {
		return nil, &broker.Failure{What: err.Error(), Remedy: "set --cluster and --host to names without dots and spaces", Err: err}
	}
	return host, nil
}

// sources opens what the flags ask for. Shut closes the files, also after an error.
func (c *Command) sources(now time.Time, ready func() bool) (sources []Source, shut func() error, err error) {
	var files []*recording.Source
	shut = func() error {
		var faults []error
		for _, f := range files {
			// A call that hung past the end may still hold its file; the process ends and takes it along.
			faults = append(faults, f.Close())
		}
		return errors.Join(faults...)
	}
	if c.Interval <= 0 || c.Shift < 0 || c.Sim < 0 || c.Speed <= 0 {
		return nil, shut, &broker.Failure{What: fmt.Sprintf("--interval %v, --speed %v, --shift %v, --sim %d: not all can be used", c.Interval, c.Speed, c.Shift, c.Sim),
			Remedy: "interval and speed are above zero, shift and sim not below"}
	}
	for _, path := range c.Recording {
		o := recording.Options{Speed: c.Speed, Start: now.Add(-c.Shift), Ready: ready}
		if len(c.Recording) > 1 {
			o.Suffix, _, _ = strings.Cut(filepath.Base(path), ".")
		}
		f, err := recording.Open(path, o)
		if err != nil {
			return nil, shut, err
		}
		files = append(files, f)
		sources = append(sources, f)
	}
	if c.Sim > 0 {
		o := sim.Options{Hosts: c.Sim, Seed: c.Seed, Ready: ready, Step: max(c.Interval, time.Second)}
		if c.Shift > 0 {
			o.Start, o.Step = now.Add(-c.Shift), max(o.Step, time.Minute)
		}
		s, err := sim.New(o)
		if err != nil {
			return nil, shut, err
		}
		sources = append(sources, s)
	}
	if len(sources) > 0 && c.Match == "" {
		return sources, shut, nil
	}
	var match *regexp.Regexp
	if c.Match != "" {
		if match, err = regexp.Compile(c.Match); err != nil {
			return nil, shut, &broker.Failure{What: "--match: " + err.Error(), Remedy: "use RE2 syntax, such as 'vllm|my-server'", Err: err}
		}
	}
	s, err := process.New(process.Options{Match: match})
	if err != nil {
		return nil, shut, err
	}
	return append(sources, s), shut, nil
}
