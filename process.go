package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector/exporter"
	"lowtide/notifier"
	"lowtide/processor"
	"lowtide/processor/broker"
	"lowtide/sink"
)

// announcing are the flags of every command that tells people.
type announcing struct {
	SlackToken    string `name:"slack-token-file" type:"existingfile" placeholder:"FILE" help:"File with the Slack token; or LOWTIDE_SLACK_TOKEN."`
	SlackAppToken string `name:"slack-app-token-file" type:"existingfile" placeholder:"FILE" help:"File with the app-level token (xapp-…) of the Slack app, which gives the cards buttons; or LOWTIDE_SLACK_APP_TOKEN."`
	SlackChannel  string `env:"LOWTIDE_SLACK_CHANNEL" placeholder:"ID" help:"Slack channel for incidents."`
	Notify        string `env:"LOWTIDE_NOTIFY" type:"existingfile" placeholder:"FILE" help:"Outputs and routes, as YAML: which incidents go to which Slack channel, webhook or Alertmanager."`
	Heartbeat     string `env:"LOWTIDE_HEARTBEAT" placeholder:"URL" help:"A dead man's switch: asked with POST once a minute while everything here works, so that somebody else notices when it does not. Or a file that holds the address."`
	SlackURL      string `hidden:"" env:"LOWTIDE_SLACK_URL" placeholder:"URL" help:"Address of Slack's API, for tests; Slack's own when left out."`
}

// heartbeat returns who tells somebody else that this process watches; nil where nobody is told.
func heartbeat(address string, checks exporter.Checks, log *slog.Logger) (*notifier.Heartbeat, error) {
	if address == "" {
		return nil, nil
	}
	beat, err := notifier.NewHeartbeat(address, checks.Err, log)
	if err != nil {
		return nil, &broker.Failure{What: "--heartbeat: " + err.Error(), Remedy: "give the address of a dead man's switch, or the path of a file that holds it", Err: err, Code: 2}
	}
	return beat, nil
}

// notifier returns options that post to the outputs of --notify, else to Slack where there is a token, else print. The data folder is that of
// an `up`, which the commands on a card need to name where it is not the usual one; empty for none.
func (a announcing) notifier(log *slog.Logger, data string) notifier.Options {
	o := notifier.Options{SlackToken: os.Getenv("LOWTIDE_SLACK_TOKEN"), SlackTokenFile: a.SlackToken, SlackChannel: a.SlackChannel, SlackURL: a.SlackURL,
		SlackAppToken: os.Getenv("LOWTIDE_SLACK_APP_TOKEN"), SlackAppTokenFile: a.SlackAppToken, Notify: a.Notify, Out: os.Stdout, Log: log}
	if a.SlackToken != "" {
		o.SlackToken = "" // a flag comes before the environment
	}
	if a.SlackAppToken != "" {
		o.SlackAppToken = ""
	}
	if data != "" && data != kong.ExpandPath("~/.local/share/lowtide") {
		o.Hints.Flags = notifier.Flag("data", data)
	}
	return o
}

// labelling is the flag of every command that judges a fleet for people.
type labelling struct {
	Label labels `sep:"none" placeholder:"SELECTOR:KEY=VALUE" help:"A label for workers, by host, model or both, such as 'host=prod/gpu-7*,model=llama*:team=ml': rules read it as labels.team, routes and silences match team. Repeated; of one key the first that fits counts."`
}

// labels are those of all --label, or of a list in the settings.
type labels processor.Labels

// Decode implements kong.MapperValue. All that is wrong in a list comes in one error.
func (l *labels) Decode(ctx *kong.DecodeContext) error {
	value := ctx.Scan.Pop().Value
	all, isList := value.([]any)
	if !isList {
		all = []any{value}
	}
	var faults []error
	for _, one := range all {
		text, isText := one.(string)
		if !isText {
			return errors.New("a label is missing; write SELECTOR:KEY=VALUE")
		}
		label, err := processor.ParseLabel(text)
		faults = append(faults, err)
		*l = append(*l, label)
	}
	if len(*l) > processor.MaxLabels {
		faults = append(faults, fmt.Errorf("%d labels, and at most %d are kept; let patterns with * stand for several", len(*l), processor.MaxLabels))
	}
	return errors.Join(faults...)
}

// ProcessCommand is `process`: the judge, the store and the cards of a fleet, over a broker and a ClickHouse of their own.
type ProcessCommand struct {
	NATS       string   `name:"nats" env:"LOWTIDE_NATS" default:"nats://127.0.0.1:4222" placeholder:"URL" help:"The NATS server with JetStream."`
	Rules      []string `type:"path" env:"LOWTIDE_RULES" placeholder:"FILE" help:"Rule files, or folders of them, over the built-in rules and those of 'rules push'; watched, and loaded anew when they change."`
	ClickHouse string   `name:"clickhouse" env:"LOWTIDE_CLICKHOUSE" placeholder:"HOST:PORT" help:"Where to store; left out, nothing is stored."`
	Protocol   string   `enum:"http,native" default:"http" help:"How to speak to ClickHouse: http or native."`
	User       string   `env:"LOWTIDE_CLICKHOUSE_USER" default:"lowtide" help:"ClickHouse user; the password comes from LOWTIDE_CLICKHOUSE_PASSWORD."`
	Name       string   `env:"LOWTIDE_NAME" placeholder:"NAME" help:"Name of this processor among the others, such as that of its pod; drawn when left out."`
	Replicas   int      `default:"1" placeholder:"N" help:"On how many servers of a NATS cluster each stream and bucket is kept: 1, 3 or 5."`
	Metrics    string   `name:"metrics-listen" default:"off" placeholder:"HOST:PORT" help:"Where /metrics, /healthz and /readyz are served; 'off' for nowhere."`

	EvidenceHosts   []string      `placeholder:"CLUSTER/HOST" help:"Hosts that may be asked for an allocator snapshot when an incident suspects one of their workers, such as prod/gpu-*; none by default. Their collectors must allow it too."`
	EvidenceHistory time.Duration `default:"10m" placeholder:"10m" help:"With --evidence-hosts: for how long a worker records its allocations before the snapshot, which costs it some microseconds an allocation."`
	EvidenceCensus  bool          `help:"With --evidence-hosts: also count live tensors that carry a grad_fn, which holds the worker up for up to 200 ms."`
	announcing
	labelling
}

// Run judges, stores and announces until ctx ends.
func (c *ProcessCommand) Run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	all := newParts()
	return all.lead(ctx, func() error { return c.start(ctx, all, log) })
}

func (c *ProcessCommand) start(ctx context.Context, all *parts, log *slog.Logger) error {
	if _, err := evidence(nil, c.evidence(), log); err != nil { // wrong usage, whether or not there is a broker
		return err
	}
	conn, err := broker.Dial(c.NATS, "process", log)
	if err != nil {
		return err
	}
	all.onStop("connection", func(context.Context) error { conn.Close(); return nil })
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("open jetstream: %w", err)
	}
	if err := broker.Ensure(ctx, js, broker.Limits{Replicas: c.Replicas}); err != nil {
		return err
	}
	var store *sink.ClickHouse
	if c.ClickHouse != "" {
		store, err = sink.Open(ctx, sink.Options{Protocol: c.Protocol, Addr: c.ClickHouse, User: c.User, Password: os.Getenv("LOWTIDE_CLICKHOUSE_PASSWORD"), Log: log})
		if err != nil {
			return err
		}
		all.onStop("store connection", func(context.Context) error { return store.Close() })
	} else {
		log.Warn("nothing is stored: --clickhouse is not set")
	}
	asker, err := evidence(conn, c.evidence(), log)
	if err != nil {
		return err
	}
	gather, checks, err := watching{js: js, rules: c.Rules, labels: processor.Labels(c.Label), asker: asker, store: store, announce: c.notifier(log, ""), beat: c.Heartbeat, name: c.Name, log: log}.start(ctx, all)
	if err != nil {
		return err
	}
	return c.metrics(ctx, all, gather, checks, log)
}

func (c *ProcessCommand) evidence() processor.EvidenceOptions {
	return processor.EvidenceOptions{Hosts: c.EvidenceHosts, History: c.EvidenceHistory, Census: c.EvidenceCensus}
}

// evidence returns who asks hosts for snapshots: nobody where no host may be asked.
func evidence(conn *nats.Conn, o processor.EvidenceOptions, log *slog.Logger) (*processor.Asker, error) {
	asker, err := processor.NewAsker(conn, o, log)
	if err != nil {
		return nil, &broker.Failure{What: "--evidence-hosts: " + err.Error(), Remedy: "for example --evidence-hosts='prod/gpu-*', or '*/*' for all hosts", Err: err, Code: 2}
	}
	return asker, nil
}

// metrics serves what the processor counts of itself, and whether it is ready.
func (c *ProcessCommand) metrics(ctx context.Context, all *parts, gather []prometheus.Collector, checks exporter.Checks, log *slog.Logger) error {
	if c.Metrics == "" || c.Metrics == "off" {
		return nil
	}
	server, err := exporter.Listen(ctx, c.Metrics, checks, gather...)
	if err != nil {
		return &broker.Failure{What: err.Error(), Remedy: "use HOST:PORT that is free, such as 127.0.0.1:9479, or 'off' for --metrics-listen", Err: err, Code: 2}
	}
	log.Info("metrics are served", "address", "http://"+server.Addr()+"/metrics")
	all.onStop("metrics", server.Close)
	return nil
}
