package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor/broker"
)

const (
	tellEvery  = 10 * time.Second
	closeGrace = 10 * time.Second
	maxEvents  = 200_000 // events a second that --publish may be asked for: beyond any broker that was measured
)

// Command is `simulate`: recordings of sim.Command, or a fleet that is published.
type Command struct {
	sim.Command `embed:""`
	Publish     bool          `help:"Publish simulated hosts to a broker, each as a collector would, until interrupted or --for is over."`
	NATS        string        `name:"nats" env:"LOWTIDE_NATS" default:"nats://127.0.0.1:4222" placeholder:"URL" help:"With --publish: the broker. Its streams must be there, as 'lowtide up' and 'lowtide process' make them."`
	Cluster     string        `default:"sim" help:"With --publish: name of the cluster."`
	Hosts       int           `default:"10" placeholder:"N" help:"With --publish: how many hosts."`
	Workers     int           `default:"8" placeholder:"N" help:"With --publish: workers of a host. One that plays a scenario may have several processes."`
	Kinds       []string      `name:"kind" enum:"healthy,leaking,kv-pressed" default:"healthy" placeholder:"KIND" help:"With --publish: healthy, leaking or kv-pressed, dealt out in turn over all workers; or name scenarios with --scenario A,B."`
	Interval    time.Duration `default:"5s" help:"With --publish: time between ticks of a host."`
	Past        time.Duration `placeholder:"12h" help:"With --publish: start so long ago; what lies in the past is sent first, as fast as the broker takes it."`
	Speed       float64       `placeholder:"X" help:"With --past: event seconds a second while it is in the past, then the clock's pace."`
	For         time.Duration `placeholder:"10m" help:"With --publish: end after this long."`
	Orders      bool          `hidden:"" help:"With --publish: obey the orders on stdin and report on stdout, as the generator of 'lowtide bench'."`
	Victims     int           `hidden:"" help:"With --orders: hosts in which an allocation will fail."`

	Stdin  io.Reader    `kong:"-"`
	Logger *slog.Logger `kong:"-"`
}

// Run publishes, or writes what sim.Command writes.
func (c *Command) Run(ctx context.Context) error {
	if !c.Publish {
		return c.Command.Run(ctx)
	}
	o, err := c.options(time.Now())
	if err != nil {
		return err
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	o.Log = log
	// Without a buffer in the client a publish fails at once while the broker is away, and the publishers keep their order.
	conn, err := broker.Dial(c.NATS, "simulate", log, nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := newSender(conn)
	if err != nil {
		return err
	}
	if err := streamThere(ctx, js, c.NATS); err != nil {
		return err
	}
	out, in := c.Stdout, c.Stdin
	if out == nil {
		out = os.Stdout
	}
	if in == nil {
		in = os.Stdin
	}
	if c.Orders {
		return Drive(ctx, js, o, c.Victims, in, out)
	}
	if c.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.For)
		defer cancel()
	}
	return c.play(ctx, js, o, out, log)
}

// streamThere refuses a broker without the stream before thousands of messages are refused one by one.
func streamThere(ctx context.Context, js jetstream.JetStream, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := js.Stream(ctx, event.StreamEvents); err != nil {
		return &broker.Failure{What: fmt.Sprintf("simulate: %s has no stream %s: %v", broker.Redact(address), event.StreamEvents, err),
			Remedy: "start 'lowtide up' or 'lowtide process' on it first: they make the streams", Err: err}
	}
	return nil
}

func (c *Command) options(now time.Time) (Options, error) {
	wrong := func(what, remedy string) error {
		return &broker.Failure{What: "simulate: " + what, Remedy: remedy, Code: 2}
	}
	o := Options{Cluster: c.Cluster, Hosts: c.Hosts, Workers: c.Workers, Seed: c.Seed, Step: c.Interval, Start: now.Add(-c.Past).Truncate(time.Second)}
	switch rate := float64(c.Hosts*c.Workers) * 5 / c.Interval.Seconds(); {
	case c.List || c.All != "" || c.Out != "":
		return o, wrong("--publish writes no files", "leave out --list, --all and --out, or --publish")
	case c.Hosts < 1 || c.Hosts > MaxHosts:
		return o, wrong(fmt.Sprintf("--hosts %d", c.Hosts), fmt.Sprintf("1 to %d", MaxHosts))
	case c.Workers < 1 || c.Workers > MaxWorkers:
		return o, wrong(fmt.Sprintf("--workers %d", c.Workers), fmt.Sprintf("1 to %d on a host", MaxWorkers))
	case c.Interval < 100*time.Millisecond || c.Interval > 10*time.Minute:
		return o, wrong(fmt.Sprintf("--interval %v", c.Interval), "100ms to 10m")
	case rate > maxEvents && !c.Orders:
		return o, wrong(fmt.Sprintf("%d workers every %v are %.0f events a second", c.Hosts*c.Workers, c.Interval, rate), fmt.Sprintf("at most %d: fewer hosts, or a longer --interval", maxEvents))
	case c.Past < 0 || c.Past > 31*24*time.Hour:
		return o, wrong(fmt.Sprintf("--past %v", c.Past), "a time up to 744h, such as 12h")
	case c.Speed < 0 || c.Speed > 0 && c.Past == 0:
		return o, wrong(fmt.Sprintf("--speed %g", c.Speed), "it is for --past alone: events of the future would be refused, so give --past 12h too")
	case c.For < 0:
		return o, wrong(fmt.Sprintf("--for %v", c.For), "a time such as 10m")
	}
	if err := event.ValidateHost(&event.Host{Cluster: c.Cluster, Name: "sim"}); err != nil {
		return o, wrong(fmt.Sprintf("--cluster %q: %v", c.Cluster, err), "letters, digits, - and _")
	}
	if c.Scenario != "" {
		known := sim.Scenarios()
		for name := range strings.SplitSeq(c.Scenario, ",") {
			if !slices.ContainsFunc(known, func(s sim.Scenario) bool { return s.Name == name }) {
				return o, wrong(fmt.Sprintf("there is no scenario %q", name), "'lowtide simulate --list' shows the names")
			}
			o.Scenarios = append(o.Scenarios, name)
		}
	}
	for _, name := range c.Kinds {
		for _, kind := range []sim.Kind{sim.Healthy, sim.Leaking, sim.KVPressed} {
			if kind.String() == name {
				o.Kinds = append(o.Kinds, kind)
			}
		}
	}
	return o, nil
}

// play publishes at its pace until ctx ends.
func (c *Command) play(ctx context.Context, js *sender, o Options, out io.Writer, log *slog.Logger) (err error) {
	f, err := New(js, o)
	if err != nil {
		return err
	}
	began := time.Now()
	log.Info("publishing", "hosts", o.Hosts, "workers", o.Hosts*o.Workers, "interval", o.Step, "from", o.Start, "broker", broker.Redact(c.NATS))
	err = c.pace(ctx, f, o, began, log)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if ctx.Err() != nil {
		err = nil
	}
	err = errors.Join(err, f.Close(last))
	n := f.Count()
	fmt.Fprintf(out, "%d worker-samples in %d messages (%d stored, %.1f MB) in %s\n", n.Samples, n.Messages, n.Acked, float64(n.Bytes)/1e6, time.Since(began).Round(time.Millisecond))
	return err
}

// pace ticks host after host, spread over the interval, never ahead of the clock.
func (c *Command) pace(ctx context.Context, f *Fleet, o Options, began time.Time, log *slog.Logger) error {
	told, late := began, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for tick := 0; ; tick++ {
		for n := range o.Hosts {
			due := o.Start.Add(time.Duration(tick)*o.Step + time.Duration(n)*o.Step/time.Duration(o.Hosts)) // of event time
			wait := time.Until(due)
			if c.Speed > 0 {
				wait = max(wait, time.Duration(float64(due.Sub(o.Start))/c.Speed)-time.Since(began))
			}
			if wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if _, err := f.Tick(ctx, n); err != nil {
				return err
			}
			if behind := -wait; c.Past == 0 && behind > 2*o.Step && !late {
				late = true
				log.Warn("the broker takes less than the fleet tells", "behind", behind.Round(time.Second), "hint", "fewer --hosts or --workers, or a longer --interval")
			}
			if since := time.Since(told); since >= tellEvery {
				told = time.Now()
				count := f.Count()
				log.Info("published", "worker-samples", count.Samples, "messages", count.Messages, "stored", count.Acked, "at", due.Round(time.Second))
			}
		}
	}
}
