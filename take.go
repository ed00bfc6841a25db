package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/broker"
)

// TakeCommand is `snapshot take`: a person on call asks a host's collector for a snapshot of a worker's allocator, and waits for it.
type TakeCommand struct {
	Worker  string        `arg:"" placeholder:"PID|SLOT" help:"The process, by its pid on its host, or by its slot as a finding writes it."`
	Host    string        `placeholder:"CLUSTER/HOST" help:"Where it runs; default: the slot's host, or the only one that the stream holds events of."`
	History time.Duration `placeholder:"10m" help:"Have allocations recorded for so long first: only what was allocated since then has a stack. It costs the worker some microseconds an allocation."`
	Census  bool          `help:"Count the live tensors that carry a grad_fn, too."`
	Wait    time.Duration `default:"2m" help:"How long to wait for it, beyond --history."`
	NATS    string        `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker; default: that of the running 'up'."`
	Data    string        `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`

	Stdout, Stderr io.Writer `kong:"-"`
}

const (
	askWait   = 10 * time.Second // for the collector's answer, and for what the stream holds
	lookBack  = 2 * time.Minute  // for workers of a slot
	moreCards = time.Second      // after the first device of a process
	topStacks = 5
	takeFor   = "asked" // the reason in the event
)

// Run prints what was found. An error says who refused, and why.
func (c *TakeCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.History < 0 || c.Wait <= 0 {
		return &broker.Failure{What: "--history and --wait are times", Remedy: "use such as 10m and 2m", Code: 2}
	}
	conn, js, err := processor.Connect(c.NATS, c.Data, "snapshot take")
	if err != nil {
		return err
	}
	defer conn.Close()
	return c.take(ctx, conn, js)
}

func (c *TakeCommand) take(ctx context.Context, conn *nats.Conn, js jetstream.JetStream) error {
	short, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	host, err := c.host(short, js)
	if err != nil {
		return err
	}
	request := event.AskRequest{Ask: "snapshot", Reason: takeFor, HistorySeconds: c.History.Seconds(), Census: c.Census}
	if pid, err := strconv.ParseInt(c.Worker, 10, 64); err == nil {
		request.PID = pid
	} else if request.PID, request.StartTicks, err = c.slot(short, js, host); err != nil {
		return err
	}
	cluster, name, _ := strings.Cut(host, "/")
	// Before the ask, so that nothing can be missed.
	events := make(chan *nats.Msg, 256)
	subscription, err := conn.ChanSubscribe(event.SubjectFor(cluster, name, "*"), events) // it may share its message with any other source
	if err != nil {
		return broker.Explain("listen for the snapshot", err)
	}
	defer subscription.Unsubscribe()
	id, err := askHost(short, conn, host, request)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stderr, "%s takes a snapshot of pid %d", host, request.PID)
	if c.History > 0 {
		fmt.Fprintf(c.Stderr, " when it has recorded allocations for %v", c.History)
	}
	fmt.Fprintln(c.Stderr)
	limited, stop := context.WithTimeout(ctx, c.History+c.Wait)
	defer stop()
	devices, err := c.await(limited, events, request.PID, id)
	if err != nil {
		return err
	}
	return c.print(host, request.PID, devices)
}

// host is where the worker runs, as cluster/name.
func (c *TakeCommand) host(ctx context.Context, js jetstream.JetStream) (string, error) {
	want := c.Host
	if parts := strings.Split(c.Worker, "/"); want == "" && len(parts) > 2 {
		want = parts[0] + "/" + parts[1]
	}
	heard, err := heardHosts(ctx, js)
	if err != nil {
		return "", err
	}
	if want == "" {
		if len(heard) != 1 {
			return "", &broker.Failure{What: "which host? the stream holds events of " + listed(heard), Remedy: "give --host CLUSTER/HOST", Code: 2}
		}
		return heard[0], nil
	}
	hosts, err := (&MarkCommand{Host: []string{want}}).choose(heard)
	if err != nil {
		return "", err
	}
	return hosts[0], nil
}

// slot finds the process that a slot has now, among the workers whose probes have reported of late.
func (c *TakeCommand) slot(ctx context.Context, js jetstream.JetStream, host string) (int64, *uint64, error) {
	cluster, name, _ := strings.Cut(host, "/")
	since := time.Now().Add(-lookBack)
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return 0, nil, broker.Explain("open stream "+event.StreamEvents, err)
	}
	probed := "lowtide.p.*." + cluster + "." + name + "."
	reader, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{probed + "allocator", probed + event.AllSources},
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since})
	if err != nil {
		return 0, nil, broker.Explain("look for "+c.Worker, err)
	}
	batch, err := reader.FetchNoWait(512)
	if err != nil {
		return 0, nil, broker.Explain("look for "+c.Worker, err)
	}
	var found *event.Worker
	var slots []string
	for m := range batch.Messages() {
		b, _, err := event.DecodeBatch(m.Headers().Get("Content-Type"), m.Data())
		if err != nil {
			continue // somebody else's, which the judge refuses and counts
		}
		for _, e := range b.Events {
			if e.Allocator == nil {
				continue
			}
			slot := event.SlotKey(b.Host, e.Worker)
			if slot == c.Worker {
				found = e.Worker
			}
			slots = append(slots, slot)
		}
	}
	if err := batch.Error(); err != nil {
		return 0, nil, broker.Explain("look for "+c.Worker, err)
	}
	if found == nil {
		slices.Sort(slots)
		return 0, nil, &broker.Failure{What: fmt.Sprintf("no probe of %s has reported for %v; those of %s have: %s", c.Worker, lookBack, host, strings.Replace(listed(slices.Compact(slots)), "no host", "none", 1)),
			Remedy: "write the slot as a finding does, or give the pid and --host; a worker without the probe cannot be asked (docs/watching.md)"}
	}
	return found.Pid, found.StartTicks, nil
}

// askHost returns the id of what the collector has accepted.
func askHost(ctx context.Context, conn *nats.Conn, host string, request event.AskRequest) (string, error) {
	cluster, name, _ := strings.Cut(host, "/")
	text, err := json.Marshal(request)
	if err != nil {
		return "", fmt.Errorf("write ask: %w", err)
	}
	m, err := conn.RequestWithContext(ctx, event.AskSubject(cluster, name), text)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "", &broker.Failure{What: "nobody answers for " + host + ": evidence is off there, or its collector is not running", Remedy: "start the collector there with --evidence, or `lowtide up` without --demo and --no-evidence (docs/watching.md)", Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return "", &broker.Failure{What: "no answer from " + host, Remedy: "this user may need permission to publish lowtide.ask.>, as in deploy/nats.conf", Err: err}
	case err != nil:
		return "", broker.Explain("ask "+host, err)
	}
	var reply event.AskReply
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", host, err)
	}
	if reply.Status != event.AskAccepted {
		what, remedy, _ := strings.Cut(reply.Error, "; hint: ")
		return "", &broker.Failure{What: host + ": " + what, Remedy: remedy}
	}
	return reply.ID, nil
}

// await waits for the snapshot, or for the word that there is none.
func (c *TakeCommand) await(ctx context.Context, events <-chan *nats.Msg, pid int64, id string) ([]*event.Snapshot, error) {
	var devices []*event.Snapshot
	var done <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if len(devices) > 0 {
				return devices, nil
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, &broker.Failure{What: "the snapshot has not come", Remedy: "wait longer with --wait; the collector's log says what became of ask " + id, Err: ctx.Err()}
			}
			return nil, ctx.Err()
		case <-done:
			return devices, nil
		case m := <-events:
			b, _, err := event.DecodeBatch(m.Header.Get("Content-Type"), m.Data)
			if err != nil {
				continue
			}
			for _, e := range b.Events {
				switch {
				case e.Snapshot != nil && e.Worker.GetPid() == pid && e.Snapshot.Reason == takeFor:
					devices = append(devices, e.Snapshot)
					done = time.After(moreCards)
				case e.Source != nil && strings.Contains(e.Source.Error, id):
					what, remedy, _ := strings.Cut(e.Source.Error, "; hint: ")
					return nil, &broker.Failure{What: what, Remedy: remedy}
				}
			}
		}
	}
}

func (c *TakeCommand) print(host string, pid int64, devices []*event.Snapshot) error {
	var out strings.Builder
	for _, d := range devices {
		fmt.Fprintf(&out, "%s pid %d %s\n", host, pid, d.GpuUuid)
		for _, row := range []struct {
			name  string
			value *uint64
		}{{"reserved", d.ReservedBytes}, {"live", d.LiveBytes}, {"pending", d.PendingBytes}, {"free", d.FreeBytes}, {"largest free", d.LargestFreeBytes}, {"private pools", d.PrivateBytes}} {
			if row.value != nil {
				fmt.Fprintf(&out, "  %-14s %s\n", row.name, quantity(*row.value))
			}
		}
		if d.Fragmentation != nil {
			fmt.Fprintf(&out, "  %-14s %s\n", "fragmentation", event.FormatQuantity(*d.Fragmentation, "ratio"))
		}
		if g := d.Census; g != nil && g.Tensors != nil {
			fmt.Fprintf(&out, "  %-14s %d tensors, %s\n", "with grad_fn", *g.Tensors, quantity(g.GetBytes()))
		}
		for i, s := range d.Stacks[:min(len(d.Stacks), topStacks)] {
			if i == 0 {
				fmt.Fprintln(&out, "  held by")
			}
			growth := ""
			if s.GrowthBytes != nil {
				growth = fmt.Sprintf(" (%+d MiB in %s)", *s.GrowthBytes>>20, event.FormatQuantity(d.GetGrowthSeconds(), "seconds"))
			}
			fmt.Fprintf(&out, "    %s in %d blocks%s\n", quantity(s.GetLiveBytes()), s.GetBlocks(), growth)
			for _, f := range s.Frames {
				fmt.Fprintf(&out, "      %s\n", f)
			}
		}
		for _, l := range d.Lacking {
			fmt.Fprintf(&out, "  not known: %s\n", l)
		}
	}
	first := devices[0]
	if first.TookSeconds != nil {
		fmt.Fprintf(&out, "the worker was held up for %s\n", event.FormatQuantity(*first.TookSeconds, "seconds"))
	}
	if first.File != "" {
		fmt.Fprintf(&out, "raw snapshot: %s (%s) on %s, in its --snapshot-dir; `lowtide snapshot show FILE` there draws it\n", first.File, quantity(first.GetFileBytes()), host)
	}
	_, err := io.WriteString(c.Stdout, out.String())
	return err
}

func quantity(bytes uint64) string { return event.FormatQuantity(float64(bytes), "bytes") }
