// Package backtest owns the answer to what rules would have said: it reads what happened from the store or the stream, gives it to the
// judges of the live path, and compares. Nothing is sent and nothing is kept; it decides nothing itself.
package backtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/broker"
	"lowtide/rules"
	"lowtide/sink"
)

// Command is `rules backtest`.
type Command struct {
	sink.Access
	Stream bool          `help:"Read what the broker still has, rather than the store."`
	NATS   string        `name:"nats" env:"LOWTIDE_NATS" placeholder:"URL" help:"The broker, with --stream; default: that of the running 'up'."`
	From   string        `placeholder:"TIME" help:"When the time begins that is asked about: 2026-11-29T12:00:00Z, 2026-11-29 12:00 or 2026-11-29, in UTC."`
	To     string        `placeholder:"TIME" help:"And when it ends; default: now."`
	Last   time.Duration `default:"24h" placeholder:"24h" help:"So long before its end it begins, without --from."`
	Lead   time.Duration `default:"24h" placeholder:"24h" help:"So long before it the judges begin to listen: growth is seen over hours."`
	Host   []string      `placeholder:"CLUSTER/HOST" help:"Only these hosts."`
	Diff   string        `type:"existingfile" placeholder:"FILE" help:"Compare with these rules instead of with what the active ones said."`
	JSON   bool          `name:"json" help:"Print one JSON object to stdout."`
	Paths  []string      `arg:"" optional:"" name:"files" help:"Rule files or folders over the built-in rules; without any the built-in rules."`

	Stdout io.Writer        `kong:"-"` // nil: the process's own
	Stderr io.Writer        `kong:"-"`
	Now    func() time.Time `kong:"-"` // nil: time.Now

	past history // of tests; nil: where the flags say
}

const (
	maxWindow = 366 * 24 * time.Hour
	batchSize = 2000 // events that are judged at once, so that their cost can be told from that of reading
)

// Run reads, judges and prints.
func (c *Command) Run(ctx context.Context) error {
	bar := c.defaults()
	from, to, err := c.window()
	if err != nil {
		return err
	}
	for _, host := range c.Host {
		if cluster, name, ok := strings.Cut(host, "/"); !ok || event.Token(cluster) != cluster || event.Token(name) != name || cluster == "" || name == "" {
			return &broker.Failure{What: fmt.Sprintf("backtest: --host %q is no host", host), Remedy: "write it as cluster/host, as `lowtide status` does", Code: 2}
		}
	}
	pack, mine, err := load(c.Paths...)
	if err != nil {
		return err
	}
	tried := newCourt(pack, newDocket(from, to))
	courts := []*court{tried}
	var other *court
	if c.Diff != "" {
		against, _, err := load(c.Diff)
		if err != nil {
			return err
		}
		other = newCourt(against, newDocket(from, to))
		courts = append(courts, other)
	}
	past, closeHistory, err := c.history()
	if err != nil {
		return err
	}
	defer closeHistory()
	out := &result{From: from, To: to, Lead: c.Lead.String(), Source: past.name(), Rules: c.Paths, Against: "active", lead: c.Lead, pack: pack, mine: mine}
	if err := c.judge(ctx, past, courts, out, bar); err != nil {
		return err
	}
	var active []*incident
	if other != nil {
		out.Against = c.Diff
		active = other.docket.incidents()
	} else {
		said := newDocket(from, to)
		err := past.findings(ctx, from.Add(-c.Lead), to, func(f *event.Finding) {
			if !f.Shadow { // nobody was told
				said.take(f)
			}
		})
		if err != nil {
			return fmt.Errorf("read what the active rules said: %w", err)
		}
		active = said.incidents()
	}
	out.compare(tried.docket.incidents(), active)
	if c.JSON {
		return out.printJSON(c.Stdout)
	}
	return out.print(c.Stdout)
}

func (c *Command) defaults() *bar {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	b := &bar{out: c.Stderr, now: c.Now}
	if file, is := c.Stderr.(*os.File); is {
		b.shown = term.IsTerminal(int(file.Fd()))
	}
	return b
}

// load reads rules, and says which stand in the files.
func load(paths ...string) (*rules.Pack, map[string]bool, error) {
	sources, err := rules.ReadSources(paths...)
	if err != nil {
		return nil, nil, err
	}
	sources = slices.DeleteFunc(sources, func(s rules.Source) bool { return rules.IsTest(s.Name) })
	pack, err := rules.LoadSources(sources)
	if err != nil {
		return nil, nil, err
	}
	mine := map[string]bool{}
	for _, r := range pack.Rules {
		if slices.ContainsFunc(sources, func(s rules.Source) bool { return s.Name == r.File }) {
			mine[r.ID] = true
		}
	}
	return pack, mine, nil
}

func (c *Command) history() (history, func(), error) {
	if c.past != nil {
		return c.past, func() {}, nil
	}
	if !c.Stream {
		return &store{access: c.Access, hosts: c.Host}, func() {}, nil
	}
	conn, js, err := processor.Connect(c.NATS, c.DataDir, "backtest")
	if err != nil {
		return nil, nil, err
	}
	return &stream{js: js, hosts: c.Host, stderr: c.Stderr}, conn.Close, nil
}

// window is the time that is asked about.
func (c *Command) window() (from, to time.Time, err error) {
	fail := func(what string) (time.Time, time.Time, error) {
		return from, to, &broker.Failure{What: "backtest: " + what, Remedy: "for example --last 24h, or --from 2026-11-29 --to \"2026-11-30 12:00\" (UTC)", Code: 2}
	}
	to = c.Now().UTC()
	if c.To != "" {
		if to, err = parseTime(c.To); err != nil {
			return fail("--to: " + err.Error())
		}
	}
	if from = to.Add(-c.Last); c.From != "" {
		if from, err = parseTime(c.From); err != nil {
			return fail("--from: " + err.Error())
		}
	}
	switch window := to.Sub(from); {
	case c.Lead < 0 || c.Lead > 30*24*time.Hour:
		return fail("--lead is from 0 to 720h")
	case window <= 0:
		return fail("it ends at " + to.Format(time.RFC3339) + ", before it begins")
	case window > maxWindow:
		return fail("it is longer than a year")
	}
	return from, to, nil
}

func parseTime(text string) (time.Time, error) {
	for _, form := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(form, text, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time", text)
}

// judge gives the history to every court, some events at a time.
func (c *Command) judge(ctx context.Context, past history, courts []*court, out *result, bar *bar) error {
	begin := out.From.Add(-c.Lead)
	hosts, oldest, err := past.look(ctx, begin, out.To)
	if err != nil {
		return err
	}
	if out.Hosts = hosts; oldest.IsZero() || !oldest.Before(out.To) {
		return &broker.Failure{What: fmt.Sprintf("backtest: %s has no event from %s to %s", past.name(), stamp(begin), stamp(out.To)), Remedy: "`lowtide status` says what is heard; --from and --to are in UTC"}
	}
	if oldest.After(begin) {
		out.Oldest = oldest
		what := "the judges listen for a shorter time before it"
		if oldest.After(out.From) {
			what = "what was before is not judged"
		}
		fmt.Fprintf(c.Stderr, "warning: %s has events from %s on only: %s\n", past.name(), stamp(oldest), what)
	}
	runtime.LockOSThread() // so that the processor time is that of judging
	defer runtime.UnlockOSThread()
	started := c.Now()
	var batch []heard
	ticks := map[workerName]time.Time{}
	flush := func() {
		for _, court := range courts {
			before := processorTime()
			court.hear(batch)
			court.spent += processorTime() - before
		}
		batch = batch[:0]
	}
	workers, seen := map[workerName]bool{}, map[string]bool{}
	err = past.events(ctx, begin, out.To, func(one heard) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := one.event
		out.Events++
		if w := e.Worker; w != nil && (e.GpuProcess != nil || e.Allocator != nil || e.Engine != nil || e.Process != nil) {
			name := workerName{e.Host.GetCluster(), e.Host.GetName(), w.Pid}
			if at := e.At(); !ticks[name].Equal(at) {
				ticks[name] = at
				out.Samples++
			}
			workers[name] = true
		}
		seen[event.HostKey(e.Host)] = true
		if batch = append(batch, one); len(batch) == batchSize {
			flush()
			bar.show(one.at, begin, out.To, out.Events)
		}
		return nil
	})
	bar.end()
	if err != nil {
		return err
	}
	flush()
	for _, court := range courts {
		before := processorTime()
		court.close()
		court.spent += processorTime() - before
	}
	out.Workers, out.Hosts = len(workers), len(seen)
	out.Seconds = c.Now().Sub(started).Seconds()
	out.CPUSeconds, out.Evaluations = courts[0].spent.Seconds(), *courts[0].asked
	if out.Events == 0 {
		return &broker.Failure{What: fmt.Sprintf("backtest: %s has no event from %s to %s", past.name(), stamp(begin), stamp(out.To)), Remedy: "`lowtide status` says what is heard; --from and --to are in UTC"}
	}
	return nil
}

type workerName struct {
	cluster, host string
	pid           int64
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// names are those of the files, without their folders.
func names(paths []string) string {
	if len(paths) == 0 {
		return "the built-in rules"
	}
	out := make([]string, len(paths))
	for i, path := range paths {
		out[i] = filepath.Base(path)
	}
	return strings.Join(out, ", ")
}

var errUnwritten = errors.New("write backtest")
