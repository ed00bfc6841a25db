package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector"
	"lowtide/collector/demo"
	"lowtide/collector/exporter"
	"lowtide/collector/recording"
	"lowtide/collector/sim"
	"lowtide/collector/spool"
	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/broker"
	"lowtide/sink"
	"lowtide/sink/engine"
)

// demoAge is how long ago the recording seems to have started: its seven hours lie in the past and are judged at once.
const demoAge = 12 * time.Hour

// spoolMax is how much of the disk the spool of `up --nats` may take, in bytes.
const spoolMax = 512 << 20

// UpCommand is `up`: every part of Lowtide in this process, on this machine.
type UpCommand struct {
	Data      string   `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the broker and the store."`
	NATS      string   `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"Use this server instead of the one in this process."`
	Listen    string   `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Where the broker in this process listens."`
	Demo      *bool    `negatable:"" help:"Play a recorded leak beside simulated hosts. On by itself where no GPU is found; --no-demo reads this host all the same."`
	Recording []string `placeholder:"FILE" type:"existingfile" help:"Play these recordings instead of the one of --demo."`
	Rules     []string `type:"path" env:"LOWTIDE_RULES" placeholder:"FILE" help:"Rule files, or folders of them, over the built-in rules and those of 'rules push'; watched, and loaded anew when they change."`
	Library   string   `placeholder:"FILE" help:"libchdb.so; default: where make engine puts it."`
	announcing
	labelling
	Cluster           string `env:"LOWTIDE_CLUSTER" default:"local" help:"Name of the cluster."`
	Host              string `env:"LOWTIDE_HOST" help:"Name of this host; its hostname when left out."`
	Metrics           string `name:"metrics-listen" default:"off" placeholder:"HOST:PORT" help:"Where /metrics, /healthz and /readyz are served; 'off' for nowhere."`
	collector.Sensors `embed:""`
	Evidence          bool          `env:"LOWTIDE_EVIDENCE" default:"true" negatable:"" help:"Take snapshots of the allocators of this host's workers: when a suspicion or a person asks for one, and at the first failed allocation of each."`
	EvidenceHistory   time.Duration `hidden:"" default:"10m" help:"For how long a suspected worker records its allocations before its snapshot."`
	Shift             time.Duration `hidden:"" help:"With --stretch: how far back the first event lies."`
	Stretch           float64       `default:"1" hidden:"" help:"Event seconds per real second, for tests on hardware."`

	log    *slog.Logger
	all    *parts
	gather []prometheus.Collector // of what runs beside the processor and the collector
	demo   bool
}

// Run starts the parts, waits until ctx ends or one of them fails, and stops them.
func (c *UpCommand) Run(ctx context.Context) error {
	c.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	c.demo = c.Demo != nil && *c.Demo
	if c.Demo == nil && len(c.Recording) == 0 && !hasGPU() {
		c.demo = true
		fmt.Fprintln(os.Stderr, "no GPU on this machine: playing a recorded leak and simulated hosts (--demo)")
	}
	if _, err := os.Stat(filepath.Join(c.Data, "nats")); c.demo && err == nil {
		fmt.Fprintf(os.Stderr, "\n%s is of an earlier run: an incident that was told then is not told again. See `lowtide status`, or start afresh with --data or without that folder.\n", c.Data)
	}
	c.all = newParts()
	return c.all.lead(ctx, func() error { return c.start(ctx) })
}

func (c *UpCommand) start(ctx context.Context) error {
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return broker.Explain("create folder "+c.Data, err)
	}
	js, err := c.broker(ctx)
	if err != nil {
		return err
	}
	store, err := c.store(ctx)
	if err != nil {
		return err
	}
	host, err := collector.Identify(c.Cluster, c.Host)
	if err != nil {
		return err
	}
	ask := processor.EvidenceOptions{History: c.EvidenceHistory}
	if c.Evidence {
		ask.Hosts = []string{event.HostKey(host)} // nobody else's processes
	}
	asker, err := evidence(js.Conn(), ask, c.log)
	if err != nil {
		return err
	}
	w := watching{js: js, rules: c.Rules, labels: processor.Labels(c.Label), asker: asker, store: store, announce: c.notifier(c.log, c.Data), beat: c.Heartbeat, alone: c.NATS == "", log: c.log}
	gather, checks, err := w.start(ctx, c.all)
	if err != nil {
		return err
	}
	return c.collector(js, host, append(gather, c.gather...), checks)
}

// broker starts or dials the server and leaves its address in up.json for the other commands.
func (c *UpCommand) broker(ctx context.Context) (jetstream.JetStream, error) {
	var conn *nats.Conn
	var limits broker.Limits
	address := c.NATS
	if address == "" {
		token := rand.Text() // anybody on this machine can reach the port; only who can read up.json may use it
		server, err := broker.Start(ctx, broker.Options{StoreDir: filepath.Join(c.Data, "nats"), Listen: c.Listen, Token: token, Log: c.log})
		if err != nil {
			return nil, err
		}
		c.all.onStop("broker", func(context.Context) error { server.Close(); return nil })
		c.all.run("broker", server.Watch)
		if conn, err = server.Connect(); err != nil {
			return nil, err
		}
		limits = server.Limits()
		address = strings.Replace(server.ClientURL(), "nats://", "nats://"+url.PathEscape(token)+"@", 1)
	} else {
		var err error
		if conn, err = broker.Dial(address, "up", c.log); err != nil {
			return nil, err
		}
	}
	c.all.onStop("connection", func(context.Context) error { conn.Close(); return nil })
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	if err := broker.Ensure(ctx, js, limits); err != nil {
		return nil, err
	}
	c.log.Info("broker is ready", "address", broker.Redact(address))
	return js, c.leave("up.json", map[string]string{"nats": address})
}

// store starts the engine. Without its library there is no store, and everything else works: paging does not need one.
func (c *UpCommand) store(ctx context.Context) (*sink.ClickHouse, error) {
	e, err := engine.Start(ctx, engine.Options{Library: c.Library, DataDir: filepath.Join(c.Data, "engine"), Log: c.log})
	if errors.Is(err, engine.ErrLibraryMissing) {
		fmt.Fprintln(os.Stderr, "\nNO STORE: the ClickHouse engine is missing, so nothing can be asked by SQL. Run `make engine`. Everything else works.")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.all.onStop("engine", func(context.Context) error { return e.Close() })
	c.gather = append(c.gather, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "lowtide_engine_restarts_total",
		Help: "How often the process of the embedded ClickHouse ended by itself and was started again."}, func() float64 { return float64(e.Restarts()) }))
	store, err := sink.Open(ctx, sink.Options{Addr: e.Addr(), User: engine.RoleWriter, Password: e.Password(engine.RoleWriter), Log: c.log})
	if err != nil {
		return nil, err
	}
	c.all.onStop("store connection", func(context.Context) error { return store.Close() })
	c.log.Info("store is ready", "address", "http://"+e.Addr())
	return store, c.leave("engine.json", map[string]string{"addr": e.Addr()})
}

func (c *UpCommand) collector(js jetstream.JetStream, host *event.Host, gather []prometheus.Collector, checks exporter.Checks) error {
	if c.Evidence {
		c.Shelf = &collector.Evidence{Folder: filepath.Join(c.Data, "snapshots"), Host: host.Name}
	}
	var publisher *collector.Publisher
	opened, err := c.sources(time.Now(), func() bool { return publisher.Ready() })
	if opened != nil {
		c.all.onStop("sources", func(context.Context) error { return opened.Close() })
	}
	if err != nil {
		return err
	}
	// A broker in this process is never away. What is played can be played again.
	var kept *spool.Spool
	if c.NATS != "" && !c.demo && len(c.Recording) == 0 {
		kept, err = spool.Open(spool.Options{Folder: filepath.Join(c.Data, "spool"), MaxBytes: spoolMax, Log: c.log})
		if err != nil {
			c.log.Warn("events wait in memory while the broker is away", "error", err)
		} else {
			c.all.onStop("spool", func(context.Context) error { return kept.Close() })
		}
		opened.Sources = append(opened.Sources, spool.NewSensor(kept, err))
	}
	publisher = collector.NewPublisher(js, collector.PublisherOptions{Spool: kept, Log: c.log})
	c.all.onStop("publisher", publisher.Close)
	agent := collector.Agent{Opened: opened, Host: host, Publisher: publisher, Asks: js.Conn(), Metrics: c.Metrics, Gather: gather, Checks: checks, Interval: c.Interval, Shift: c.Shift, Stretch: c.Stretch, Log: c.log}
	if c.demo || len(c.Recording) > 0 {
		agent.Interval = min(c.Interval, time.Second) // hours of recording wait, two thousand events a tick
	}
	c.all.run("collector", agent.Run)
	return nil
}

// sources opens what is read. What was opened comes along with an error.
func (c *UpCommand) sources(now time.Time, ready func() bool) (*collector.Opened, error) {
	o := new(collector.Opened)
	start := now.Add(-demoAge)
	for _, path := range c.Recording {
		options := recording.Options{Start: start, Ready: ready}
		if len(c.Recording) > 1 {
			options.Suffix, _, _ = strings.Cut(filepath.Base(path), ".") // they may come from one host
		}
		played, err := recording.Open(path, options)
		if err != nil {
			return o, err
		}
		o.Sources = append(o.Sources, played)
	}
	if c.demo && len(c.Recording) == 0 {
		played, err := recording.New(demo.Leak(), demo.Name, recording.Options{Start: start, Ready: ready})
		if err != nil {
			return o, err
		}
		o.Sources = append(o.Sources, played)
	}
	if c.demo {
		simulated, err := sim.New(sim.Options{Cluster: "sim", Hosts: 2, Kinds: []sim.Kind{sim.Healthy}, Step: c.Interval, Ready: ready})
		if err != nil {
			return o, err
		}
		o.Sources = append(o.Sources, simulated)
	}
	if len(o.Sources) > 0 {
		return o, nil // this machine's own python processes would only blur what is shown
	}
	return c.Sensors.Open(c.log)
}

// leave writes a small file for the other commands, whole or not at all.
func (c *UpCommand) leave(name string, content map[string]string) error {
	text, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	path := filepath.Join(c.Data, name)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return broker.Explain("write "+path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return broker.Explain("write "+path, err)
	}
	return nil
}

func hasGPU() bool {
	for _, path := range []string{"/dev/nvidia0", "/proc/driver/nvidia"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}
