package processor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/processor/report"
	"lowtide/processor/worker"
	"lowtide/rules"
)

// ReplayCommand judges recordings through the processor's own code: no broker, no store, no wall clock.
type ReplayCommand struct {
	JSON       bool     `xor:"form" help:"One finding transition a line on stdout; everything else on stderr."`
	ASCII      bool     `name:"ascii" xor:"form" help:"Plots and punctuation in ASCII; also with NO_COLOR or a locale that is not UTF-8."`
	Rules      []string `help:"Rule files over the built-in ones." type:"existingfile"`
	Recordings []string `arg:"" help:"Recordings, NDJSON or gzip." type:"existingfile"`

	Stdout io.Writer `kong:"-"` // nil: the process's own
	Stderr io.Writer `kong:"-"`
}

// ErrReplay says that a recording could not be read to its end; the others were judged.
var ErrReplay = errors.New("replay: a recording could not be read")

// Run replays each recording as a world of its own.
func (c *ReplayCommand) Run(ctx context.Context) error {
	// Events live for a line; with a small heap the collector would run all the time. A fifth of the speed for 12 MiB.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	pack, err := rules.Load(c.Rules...)
	if err != nil {
		return err
	}
	failed := false
	for _, path := range c.Recordings {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.replay(ctx, pack, path); err != nil {
			fmt.Fprintln(c.Stderr, "error:", err)
			failed = true
		}
	}
	if failed {
		return ErrReplay
	}
	return nil
}

func (c *ReplayCommand) replay(ctx context.Context, pack *rules.Pack, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open recording: %w", err)
	}
	defer file.Close()
	name := RecordingName(path)
	count := 0
	var found []*event.Finding
	var writeErr error
	take := func(f *event.Finding) {
		count++
		f.Recording = name
		if !c.JSON {
			found = append(found, f)
		} else if err := c.print(f); err != nil && writeErr == nil {
			writeErr = fmt.Errorf("write finding: %w", err)
		}
	}
	reports, warnings, err := Replay(ctx, pack, file, path, take)
	for _, w := range warnings {
		fmt.Fprintln(c.Stderr, "warning:", w)
	}
	if c.JSON {
		fmt.Fprintf(c.Stderr, "%s: %d transitions\n", name, count)
	} else {
		writeErr = c.report(name, reports, found)
	}
	return errors.Join(err, writeErr)
}

func (c *ReplayCommand) print(f *event.Finding) error {
	text, err := event.MarshalFinding(f)
	if err != nil {
		return err
	}
	_, err = c.Stdout.Write(append(text, '\n'))
	return err
}

// report prints what was found of each worker: those with findings in the order of their first one, then what belongs to no
// worker, then those that are well.
func (c *ReplayCommand) report(name string, reports []worker.Report, found []*event.Finding) error {
	style := report.StyleOf(c.ASCII, os.Getenv)
	subjects, rest := report.Assign(reports, found)
	slices.SortStableFunc(subjects, func(a, b report.Subject) int { return a.Began().Compare(b.Began()) })
	if err := report.WriteHeading(c.Stdout, heading(name, reports, found), style); err != nil {
		return err
	}
	well := func(s report.Subject) bool { return s.Well() }
	for _, s := range slices.DeleteFunc(slices.Clone(subjects), well) {
		if err := errors.Join(report.Write(c.Stdout, s, style), c.blank()); err != nil {
			return err
		}
	}
	for _, one := range rest {
		if err := errors.Join(report.WriteCase(c.Stdout, one, style), c.blank()); err != nil {
			return err
		}
	}
	for _, s := range subjects {
		if !s.Well() {
			continue
		}
		if err := errors.Join(report.WriteShort(c.Stdout, s, style), c.blank()); err != nil {
			return err
		}
	}
	return nil
}

func (c *ReplayCommand) blank() error {
	_, err := fmt.Fprintln(c.Stdout)
	return err
}

// heading counts what a recording holds.
func heading(name string, reports []worker.Report, found []*event.Finding) string {
	incidents := make(map[string]bool)
	for _, f := range found {
		if !f.Shadow {
			incidents[f.Incident] = true
		}
	}
	var first, last time.Time
	for _, r := range reports {
		if first.IsZero() || r.First.Before(first) {
			first = r.First
		}
		if r.Last.After(last) {
			last = r.Last
		}
	}
	text := fmt.Sprintf("%s: %s, %s", name, count(len(reports), "worker"), count(len(incidents), "incident"))
	if !first.IsZero() {
		text += fmt.Sprintf(", %s to %s", first.UTC().Format("2006-01-02 15:04"), last.UTC().Format("2006-01-02 15:04 UTC"))
	}
	return text
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// RecordingName is the file's name without folder and endings.
func RecordingName(path string) string {
	base := filepath.Base(path)
	for _, end := range []string{".gz", ".ndjson", ".jsonl", ".json"} {
		base = strings.TrimSuffix(base, end)
	}
	return base
}

// Replay judges one recording and calls emit with every transition. It returns what each worker looks like at the end. An error
// names the line; what came before it has been judged.
func Replay(ctx context.Context, pack *rules.Pack, r io.Reader, name string, emit func(*event.Finding)) (reports []worker.Report, warnings []string, err error) {
	reader, err := event.NewReader(r, name)
	if err != nil {
		return nil, nil, err
	}
	judge, seen := NewJudge(pack, emit), make(cards)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, reader.Warnings(), ctx.Err()
		}
		e, next := reader.Next()
		if errors.Is(next, io.EOF) {
			break
		}
		if next != nil {
			err = next
			break
		}
		if e.Gpu != nil {
			seen[cardName{e.Host.GetCluster(), e.Host.GetName(), e.Gpu.Uuid}] = e.Gpu
		}
		judge.Apply(e)
	}
	judge.Flush()
	reports = judge.Reports()
	seen.fill(reports)
	return reports, reader.Warnings(), err
}

type cardName struct{ cluster, host, uuid string }

// cards is what each card said last. A card may speak before anybody knows the process that uses it, and in a recording of one
// tick it does not speak again.
type cards map[cardName]*event.Gpu

// fill adds the size of a card and what is free where the worker did not hear of it.
func (c cards) fill(reports []worker.Report) {
	for _, r := range reports {
		for i := range r.Cards {
			one := &r.Cards[i]
			g := c[cardName{r.Host.GetCluster(), r.Host.GetName(), one.UUID}]
			if g == nil {
				continue
			}
			if math.IsNaN(one.Total) && g.TotalBytes != nil {
				one.Total = float64(*g.TotalBytes)
			}
			switch {
			case !math.IsNaN(one.Free):
			case g.FreeBytes != nil:
				one.Free = float64(*g.FreeBytes)
			case g.TotalBytes != nil && g.UsedBytes != nil: // used leaves out what the driver reserves
				one.Free = float64(*g.TotalBytes) - float64(*g.UsedBytes) - float64(g.GetDriverReservedBytes())
			}
		}
	}
}
