package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/process"
	"lowtide/collector/recording"
	"lowtide/collector/sim"
	"lowtide/collector/spool"
	"lowtide/event"
	"lowtide/processor/broker"
)

// closeGrace bounds how long the end of `collect` waits for the broker.
const closeGrace = 5 * time.Second

// Command is `collect`: the agent of one host.
type Command struct {
	NATS      string `name:"nats" placeholder:"URL" default:"nats://127.0.0.1:4222" env:"LOWTIDE_NATS" help:"The broker to publish to."`
	Cluster   string `default:"default" env:"LOWTIDE_CLUSTER" help:"Name of the cluster, a part of every subject."`
	Host      string `env:"LOWTIDE_HOST" help:"Name of this host; its hostname when left out."`
	Metrics   string `name:"metrics-listen" default:"127.0.0.1:9478" placeholder:"HOST:PORT" help:"Where /metrics is served; 'off' for nowhere."`
	Sensors   `embed:""`
	Evidence  bool          `env:"LOWTIDE_EVIDENCE" help:"Let the processor and people on call ask the probes for snapshots of the allocator, and prepare one for the first failed allocation of each worker."`
	Snapshots string        `name:"snapshot-dir" env:"LOWTIDE_SNAPSHOT_DIR" default:"/var/lib/lowtide/snapshots" placeholder:"DIR" help:"Where raw snapshots stay: four files, 2 GiB, seven days."`
	SpoolDir  string        `env:"LOWTIDE_SPOOL_DIR" default:"/var/lib/lowtide/spool" placeholder:"DIR" help:"Where events wait on disk while the broker is away; 'off' keeps them in memory. What --recording and --sim play is kept there only where another folder is named."`
	SpoolMax  event.Size    `default:"512MiB" placeholder:"SIZE" help:"Disk that the spool may take; beyond it the oldest events are dropped, samples first."`
	SpoolRate int           `default:"32" placeholder:"N" help:"Messages a second that are sent from the spool, beside the new ones, once the broker is back."`
	Recording []string      `placeholder:"FILE" type:"existingfile" help:"Play recordings instead of reading this host, which is then read only when --match is given."`
	Speed     float64       `default:"1" help:"Recorded seconds per second."`
	Shift     time.Duration `placeholder:"12h" help:"Play recordings (and --sim) as if they had started this long ago: what lies in the past is sent at once."`
	Sim       int           `placeholder:"N" help:"Simulate N hosts of three workers: healthy, leaking, kv-pressed."`
	Seed      uint64        `default:"1" help:"Seed of the simulation."`
	Stretch   float64       `default:"1" hidden:"" help:"Event seconds per real second, for tests on hardware; with --shift the first event lies that far back."`

	Logger *slog.Logger `kong:"-"`
}

// Run collects until the context ends.
func (c *Command) Run(ctx context.Context) (err error) {
	log := c.Logger
	if log == nil {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	host, err := Identify(c.Cluster, c.Host)
	if err != nil {
		return err
	}
	if c.Evidence {
		c.Shelf = &Evidence{Folder: c.Snapshots, Host: host.Name}
	}
	var publisher *Publisher
	ready := func() bool { return publisher.Ready() } // the sources are opened, and refused, before anything is connected
	opened, err := c.open(time.Now(), ready, log)
	if opened != nil {
		// A call that hung past the end may still hold its file; the process ends and takes it along.
		defer func() { err = errors.Join(err, opened.Close()) }()
	}
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
	kept := c.spool(opened, log)
	if kept != nil {
		defer func() { err = errors.Join(err, kept.Close()) }()
	}
	publisher = NewPublisher(js, PublisherOptions{Spool: kept, SpoolRate: c.SpoolRate, Log: log})
	agent := Agent{Opened: opened, Host: host, Publisher: publisher, Asks: conn, Metrics: c.Metrics, Interval: c.Interval, Shift: c.Shift, Stretch: c.Stretch, Log: log}
	log.Info("collecting", "host", event.HostKey(host), "broker", broker.Redact(c.NATS), "interval", c.Interval, "sources", len(opened.Sources))
	err = agent.Run(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	return errors.Join(err, publisher.Close(last))
}

// spoolPlace is where a collector of a real host has its spool; SpoolDir says the same to kong.
const spoolPlace = "/var/lib/lowtide/spool"

// spool opens the spool and adds it to the sources, which tell how it is. A folder that cannot be had is a status, and never stops
// the collector: events then wait in memory.
func (c *Command) spool(opened *Opened, log *slog.Logger) *spool.Spool {
	played := len(c.Recording) > 0 || c.Sim > 0
	if c.SpoolDir == "" || c.SpoolDir == "off" || played && c.SpoolDir == spoolPlace {
		return nil
	}
	kept, err := spool.Open(spool.Options{Folder: c.SpoolDir, MaxBytes: int64(c.SpoolMax), Log: log})
	if err != nil {
		log.Warn("events wait in memory while the broker is away", "error", err, "hint", "give --spool-dir a folder of this collector's own, or 'off'")
	}
	opened.Sources = append(opened.Sources, spool.NewSensor(kept, err))
	return kept
}

// Identify names this host as every command that looks at it does: by its hostname where the name is empty, made a token.
func Identify(cluster, name string) (*event.Host, error) {
	if name == "" {
		own, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("read hostname: %w", err)
		}
		name = own
	}
	// Names of nodes have dots, which a subject cannot take: they become the same token whoever names the host.
	host := &event.Host{Cluster: cluster, Name: event.Token(name), BootId: process.BootID("/proc")}
	if err := event.ValidateHost(host); err != nil {
		return nil, &broker.Failure{What: fmt.Sprintf("--cluster %q, --host %q: %v", cluster, name, err), Remedy: "use letters, digits, - and _", Err: err, Code: 2}
	}
	return host, nil
}

// open opens what the flags ask for. What was opened comes along with an error.
func (c *Command) open(now time.Time, ready func() bool, log *slog.Logger) (*Opened, error) {
	o := new(Opened)
	switch {
	case c.Interval < 100*time.Millisecond:
		return o, wrong(fmt.Sprintf("--interval %v", c.Interval), "shorter than 100ms", "a time such as 5s")
	case c.Shift < 0:
		return o, wrong(fmt.Sprintf("--shift %v", c.Shift), "below zero", "a time such as 12h, which lies in the past")
	case c.Sim < 0:
		return o, wrong(fmt.Sprintf("--sim %d", c.Sim), "below zero", "a number of hosts")
	case c.Speed <= 0:
		return o, wrong(fmt.Sprintf("--speed %v", c.Speed), "not above zero", "1, or more for faster")
	case c.SpoolDir != "" && c.SpoolDir != "off" && c.SpoolMax < spool.MinBytes:
		return o, wrong(fmt.Sprintf("--spool-max %d", c.SpoolMax), "less than 1MiB", "a size such as 512MiB, or --spool-dir off")
	case c.SpoolRate < 0:
		return o, wrong(fmt.Sprintf("--spool-rate %d", c.SpoolRate), "below zero", "a number of messages a second, such as 32")
	case c.Stretch < 1:
		return o, wrong(fmt.Sprintf("--stretch %v", c.Stretch), "below one", "1")
	}
	for _, path := range c.Recording {
		options := recording.Options{Speed: c.Speed, Start: now.Add(-c.Shift), Ready: ready}
		if len(c.Recording) > 1 {
			options.Suffix, _, _ = strings.Cut(filepath.Base(path), ".")
		}
		f, err := recording.Open(path, options)
		if err != nil {
			return o, err
		}
		o.Sources = append(o.Sources, f)
	}
	if c.Sim > 0 {
		options := sim.Options{Hosts: c.Sim, Seed: c.Seed, Ready: ready, Step: max(c.Interval, time.Second)}
		if c.Shift > 0 {
			options.Start, options.Step = now.Add(-c.Shift), max(options.Step, time.Minute)
		}
		s, err := sim.New(options)
		if err != nil {
			return o, err
		}
		o.Sources = append(o.Sources, s)
	}
	if len(o.Sources) > 0 && c.Match == "" {
		return o, nil
	}
	real, err := c.Sensors.Open(log)
	if err != nil {
		return o, err
	}
	real.Sources = append(o.Sources, real.Sources...)
	return real, nil
}
