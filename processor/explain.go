package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/report"
	"lowtide/processor/rulebook"
	"lowtide/processor/worker"
	"lowtide/rules"
)

// ExplainCommand is `explain`: what a live worker looks like, judged from what the event stream still holds of its host. It only
// reads: no finding is published and no consumer is left behind.
type ExplainCommand struct {
	Worker  string        `arg:"" optional:"" help:"Process id, slot, or a part of a slot; without it the workers are listed that can be explained."`
	JSON    bool          `name:"json" xor:"form" help:"The report as one JSON object; the list as one object a line."`
	ASCII   bool          `name:"ascii" xor:"form" help:"Plots and punctuation in ASCII; also with NO_COLOR or a locale that is not UTF-8."`
	NATS    string        `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker; default: that of the running 'up'."`
	Data    string        `env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`
	Rules   []string      `type:"path" placeholder:"FILE" help:"Rule files, or folders of them, over those that the fleet judges by."`
	Timeout time.Duration `default:"1m" placeholder:"DURATION" help:"How long reading may take: a day of a busy host is some 200,000 messages."`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// maxCandidates is how many workers an error names.
const maxCandidates = 12

// Run prints the report, or the list.
func (c *ExplainCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Timeout <= 0 {
		return &broker.Failure{What: "--timeout: " + c.Timeout.String() + " is no time to read in", Remedy: "for example --timeout 1m", Code: 2}
	}
	conn, js, err := Connect(c.NATS, c.Data, "explain")
	if err != nil {
		return err
	}
	defer conn.Close()
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	pack, err := rulebook.InForce(limited, js, c.Rules...)
	if err == nil {
		err = c.explain(limited, js, pack)
	}
	if ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) && err != nil {
		return &broker.Failure{What: "explain: not read within " + c.Timeout.String(), Remedy: "give it longer with --timeout", Err: err}
	}
	return err
}

func (c *ExplainCommand) explain(ctx context.Context, js jetstream.JetStream, pack *rules.Pack) error {
	newest, err := c.read(ctx, js, pack, "lowtide.p.>", jetstream.DeliverLastPerSubjectPolicy, "the newest of every sensor")
	if err != nil {
		return err
	}
	heard := lives(newest.judge.Reports())
	if c.Worker == "" {
		return c.list(heard)
	}
	host, key, err := c.choose(heard)
	if err != nil {
		return err
	}
	past, err := c.read(ctx, js, pack, "lowtide.p.*."+strings.ReplaceAll(host, "/", ".")+".>", jetstream.DeliverAllPolicy, host)
	if err != nil {
		return err
	}
	return c.print(past, host, key)
}

// choose returns the host to read and the key of the worker that is meant; the key is empty when the worker is not among those
// that were heard last, so that it may be a dead one of that host.
func (c *ExplainCommand) choose(heard []worker.Report) (host, key string, err error) {
	found := named(heard, c.Worker)
	if len(found) == 1 {
		return event.HostKey(found[0].Host), found[0].Key, nil
	}
	if len(found) > 1 {
		return "", "", c.ambiguous(found)
	}
	hosts := make(map[string]bool)
	for _, r := range heard {
		hosts[event.HostKey(r.Host)] = true
	}
	all := slices.Sorted(maps.Keys(hosts))
	for _, one := range all {
		if strings.HasPrefix(c.Worker, one+"/") || len(all) == 1 {
			return one, "", nil
		}
	}
	return "", "", c.unknown(heard)
}

func (c *ExplainCommand) print(past *partition, host, key string) error {
	reports := past.judge.Reports()
	subjects, _ := report.Assign(reports, past.findings)
	var meant []worker.Report
	if key == "" {
		meant = named(reports, c.Worker)
	} else {
		meant = slices.DeleteFunc(slices.Clone(reports), func(r worker.Report) bool { return r.Key != key })
	}
	switch len(meant) {
	case 0:
		return c.unknown(lives(reports))
	case 1:
	default:
		return c.ambiguous(meant)
	}
	at := slices.IndexFunc(subjects, func(s report.Subject) bool { return s.Key == meant[0].Key })
	s := subjects[at]
	s.Lacking = append(slices.Clone(s.Lacking), "workers of other hosts to compare with: only "+host+" was read")
	if start := s.Who.GetStartTime(); start != nil && s.First.Sub(start.AsTime()) > time.Minute {
		s.Quality = append(slices.Clone(s.Quality), fmt.Sprintf("the process started at %s; the stream holds only what came from %s on",
			start.AsTime().Format("2006-01-02 15:04 UTC"), s.First.UTC().Format("2006-01-02 15:04 UTC")))
	}
	if c.JSON {
		text, err := report.MarshalJSON(s)
		if err != nil {
			return err
		}
		return c.write(append(text, '\n'))
	}
	return report.Write(c.Stdout, s, report.StyleOf(c.ASCII, os.Getenv))
}

// read feeds to a judge what the stream holds of a subject by now, in its order. The path is that of the live judge.
func (c *ExplainCommand) read(ctx context.Context, js jetstream.JetStream, pack *rules.Pack, subject string, policy jetstream.DeliverPolicy, what string) (*partition, error) {
	p := newPartition(0, Options{JS: js, Pack: pack, Log: slog.New(slog.NewTextHandler(c.Stderr, nil))}, NewBoard(), nil)
	stream, err := js.Stream(ctx, event.StreamEvents)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, &broker.Failure{What: "explain: this broker has no stream " + event.StreamEvents, Remedy: "start `lowtide up`, or `lowtide process` against it", Err: err}
	}
	if err != nil {
		return nil, broker.Explain("open stream "+event.StreamEvents, err)
	}
	target, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return p, nil
	}
	if err != nil {
		return nil, broker.Explain("read "+subject, err)
	}
	consumer, err := js.OrderedConsumer(ctx, event.StreamEvents, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, DeliverPolicy: policy})
	if err != nil {
		return nil, broker.Explain("read "+subject, err)
	}
	total := uint64(0)
	if info := consumer.CachedInfo(); info != nil {
		total = info.NumPending
	}
	fmt.Fprintf(c.Stderr, "reading %s: %d messages\n", what, total)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(pull))
	if err != nil {
		return nil, broker.Explain("read "+subject, err)
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	tell := total / 10
	for done := uint64(1); p.applied < target.Sequence; done++ {
		m, err := messages.Next(jetstream.NextMaxWait(pullWait))
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrTimeout):
			// The target may have aged out of the stream meanwhile, and nothing come after it.
			last, err := stream.GetLastMsgForSubject(ctx, subject)
			if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && last.Sequence <= p.applied {
				p.judge.Flush()
				return p, nil
			}
			if err != nil {
				return nil, broker.Explain("read "+subject, err)
			}
			continue
		case err != nil:
			return nil, broker.Explain("read "+subject, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read metadata: %w", err)
		}
		p.apply(letterOf(m, meta))
		if total > 2000 && done%tell == 0 && done < total {
			fmt.Fprintf(c.Stderr, "reading %s: %d %%\n", what, done*100/total)
		}
	}
	p.judge.Flush()
	return p, nil
}

// list prints the workers that can be explained.
func (c *ExplainCommand) list(heard []worker.Report) error {
	if len(heard) == 0 {
		fmt.Fprintln(c.Stderr, "no worker is in the stream: is a collector running, and does it find a worker? `lowtide doctor` says")
		return nil
	}
	if c.JSON {
		for _, r := range heard {
			text, err := json.Marshal(listed{r.Slot, r.Key, r.Who.GetPid(), event.HostKey(r.Host), r.Who.GetModel(), r.Who.GetRelease(), r.Last.UTC()})
			if err != nil {
				return fmt.Errorf("write list: %w", err)
			}
			if err := c.write(append(text, '\n')); err != nil {
				return err
			}
		}
		return nil
	}
	table := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WORKER\tPID\tMODEL\tRELEASE\tLAST HEARD")
	for _, r := range heard {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", r.Slot, r.Who.GetPid(), orDash(r.Who.GetModel()), orDash(r.Who.GetRelease()), r.Last.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write list: %w", err)
	}
	return nil
}

// listed is a line of the list for programs.
type listed struct {
	Slot    string    `json:"slot"`
	Key     string    `json:"key"`
	Pid     int64     `json:"pid"`
	Host    string    `json:"host"`
	Model   string    `json:"model,omitempty"`
	Release string    `json:"release,omitempty"`
	Last    time.Time `json:"last"`
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func (c *ExplainCommand) write(text []byte) error {
	if _, err := c.Stdout.Write(text); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}

func (c *ExplainCommand) ambiguous(found []worker.Report) error {
	return &broker.Failure{What: fmt.Sprintf("explain: %q names %d workers:%s", c.Worker, len(found), candidates(found)), Remedy: "name one by its slot, or by its pid where they share one", Code: 2}
}

func (c *ExplainCommand) unknown(heard []worker.Report) error {
	remedy := "`lowtide explain` lists the workers that are heard"
	if len(heard) == 0 {
		return &broker.Failure{What: fmt.Sprintf("explain: no worker is called %q, and none is in the stream", c.Worker), Remedy: "`lowtide doctor` says what a collector can see"}
	}
	return &broker.Failure{What: fmt.Sprintf("explain: no worker is called %q; there are %d:%s", c.Worker, len(heard), candidates(heard)), Remedy: remedy}
}

func candidates(all []worker.Report) string {
	var b strings.Builder
	for i, r := range all {
		if i == maxCandidates {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %s  pid %d, last heard %s", r.Slot, r.Who.GetPid(), r.Last.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return b.String()
}

// named returns the workers that a word names: by pid, key or slot, else by instance, else by a part of the slot. Of the lives of
// one slot it is the newest, unless its pid or key names an older one.
func named(all []worker.Report, word string) []worker.Report {
	newest := lives(all)
	for _, try := range []struct {
		of  []worker.Report
		fit func(worker.Report) bool
	}{
		{all, func(r worker.Report) bool { return r.Key == word }},
		{newest, func(r worker.Report) bool { return r.Slot == word }},
		{newest, func(r worker.Report) bool { return strconv.FormatInt(r.Who.GetPid(), 10) == word }},
		{all, func(r worker.Report) bool { return strconv.FormatInt(r.Who.GetPid(), 10) == word }},
		{newest, func(r worker.Report) bool { return r.Instance == word }},
		{newest, func(r worker.Report) bool { return strings.Contains(r.Slot, word) }},
	} {
		var found []worker.Report
		for _, r := range try.of {
			if try.fit(r) {
				found = append(found, r)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// lives leaves out the lives of a slot after which another one began there, and sorts by slot. Processes that live side by side in
// one slot, as the API servers of one engine do, are all kept.
func lives(all []worker.Report) []worker.Report {
	begun := make(map[string]time.Time) // by slot, the newest
	for _, r := range all {
		if r.First.After(begun[r.Slot]) {
			begun[r.Slot] = r.First
		}
	}
	out := slices.DeleteFunc(slices.Clone(all), func(r worker.Report) bool { return begun[r.Slot].After(r.Last) })
	slices.SortStableFunc(out, func(a, b worker.Report) int {
		return cmp.Or(strings.Compare(a.Slot, b.Slot), cmp.Compare(a.Who.GetPid(), b.Who.GetPid()))
	})
	return out
}
