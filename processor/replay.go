package processor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"lowtide/event"
	"lowtide/rules"
)

// ReplayCommand judges recordings through the processor's own code: no broker, no store, no wall clock.
type ReplayCommand struct {
	JSON       bool     `help:"One finding transition a line on stdout; everything else on stderr."`
	Rules      []string `help:"Rule files over the built-in ones." type:"existingfile"`
	Recordings []string `arg:"" help:"Recordings, NDJSON or gzip." type:"existingfile"`
}

// ErrReplay says that a recording could not be read to its end; the others were judged.
var ErrReplay = errors.New("replay: a recording could not be read")

// Run replays each recording as a world of its own.
func (c *ReplayCommand) Run(ctx context.Context) error {
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
			fmt.Fprintln(os.Stderr, "error:", err)
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
	found := 0
	var writeErr error
	write := func(f *event.Finding) {
		found++
		f.Recording = name
		if err := c.print(f); err != nil && writeErr == nil {
			writeErr = fmt.Errorf("write finding: %w", err)
		}
	}
	verdicts, warnings, err := Replay(ctx, pack, file, path, write)
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	if !c.JSON {
		for _, v := range verdicts {
			fmt.Printf("%-16s %s\n", name, v)
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %d transitions\n", name, found)
	return errors.Join(err, writeErr)
}

func (c *ReplayCommand) print(f *event.Finding) error {
	if c.JSON {
		text, err := event.MarshalFinding(f)
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(append(text, '\n'))
		return err
	}
	_, err := fmt.Printf("%-16s %s  %s %s (%s, %.2f)  pid %d  %s\n", f.Recording, f.Time.Format("15:04"), f.Class, f.State, f.Severity, f.Confidence, f.Worker.GetPid(), f.Summary)
	return err
}

// RecordingName is the file's name without folder and endings.
func RecordingName(path string) string {
	base := filepath.Base(path)
	for _, end := range []string{".gz", ".ndjson", ".jsonl", ".json"} {
		base = strings.TrimSuffix(base, end)
	}
	return base
}

// Replay judges one recording and calls emit with every transition. Verdicts are one line for each worker at the end. An error
// names the line; what came before it has been judged.
func Replay(ctx context.Context, pack *rules.Pack, r io.Reader, name string, emit func(*event.Finding)) (verdicts, warnings []string, err error) {
	reader, err := event.NewReader(r, name)
	if err != nil {
		return nil, nil, err
	}
	judge := NewJudge(pack, emit)
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
		judge.Apply(e)
	}
	judge.Flush()
	for _, w := range judge.sorted() {
		verdicts = append(verdicts, w.Key+": "+w.Verdict())
	}
	return verdicts, reader.Warnings(), err
}
