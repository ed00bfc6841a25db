package backtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
	"lowtide/sink/engine"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	engine.ServeIfChild()
	os.Exit(m.Run())
}

// memory is a history that is at hand.
type memory struct {
	all    []*event.Event
	said   []*event.Finding
	oldest time.Time // instead of that of the first event
}

func (m *memory) name() string { return "memory" }

func (m *memory) look(context.Context, time.Time, time.Time) (int, time.Time, error) {
	if len(m.all) == 0 {
		return 0, time.Time{}, nil
	}
	if m.oldest.IsZero() {
		return 2, m.all[0].At(), nil
	}
	return 2, m.oldest, nil
}

func (m *memory) events(_ context.Context, from, to time.Time, visit func(heard) error) error {
	for _, e := range m.all {
		if at := e.At(); at.Before(from) || !at.Before(to) {
			continue
		}
		if err := visit(heard{e, e.At()}); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) findings(_ context.Context, from, to time.Time, visit func(*event.Finding)) error {
	for _, f := range m.said {
		if !f.Time.Before(from) && f.Time.Before(to) {
			visit(f)
		}
	}
	return nil
}

// recorded reads a recording, as that of a host of its own, moved in time so that it ends at a moment.
func recorded(t *testing.T, name, host string, end time.Time) []*event.Event {
	t.Helper()
	file, err := os.Open("testdata/" + name + ".ndjson.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, err := event.NewReader(file, name)
	if err != nil {
		t.Fatal(err)
	}
	var out []*event.Event
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e = proto.CloneOf(e)
		e.Host.Name = host
		out = append(out, e)
	}
	by := end.Sub(out[len(out)-1].At()).Truncate(time.Second)
	for _, e := range out {
		e.Time = timestamppb.New(e.At().Add(by))
		if e.Worker.GetStartTime() != nil {
			e.Worker.StartTime = timestamppb.New(e.Worker.StartTime.AsTime().Add(by))
		}
	}
	return out
}

// twoHosts is seven hours in which one worker leaks and another does not, and what the shipped rules said of them.
func twoHosts(t *testing.T, end time.Time) *memory {
	t.Helper()
	m := &memory{all: append(recorded(t, "leak", "leaking", end), recorded(t, "healthy", "well", end)...)}
	slices.SortStableFunc(m.all, func(a, b *event.Event) int { return a.At().Compare(b.At()) })
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	judge := processor.NewJudge(pack, func(f *event.Finding) { m.said = append(m.said, f) })
	for _, e := range m.all {
		judge.Apply(e)
	}
	judge.Flush()
	if len(m.said) == 0 {
		t.Fatal("the shipped rules say nothing of the leak")
	}
	return m
}

func run(t *testing.T, c Command) (out, messages string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if c.Last == 0 {
		c.Last = 24 * time.Hour
	}
	err = c.Run(t.Context())
	return stdout.String(), stderr.String(), err
}

func decoded(t *testing.T, c Command) *result {
	t.Helper()
	c.JSON = true
	out, messages, err := run(t, c)
	if err != nil {
		t.Fatalf("%v: %s", err, messages)
	}
	r := new(result)
	if err := json.Unmarshal([]byte(out), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// untimed takes out what differs from run to run.
func untimed(text string) string {
	return regexp.MustCompile(`(?m)^(\d+ events, \d+ worker-samples in) .*$`).ReplaceAllString(text, "$1 …")
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestWhatWouldHaveBeenSaid(t *testing.T) {
	past := twoHosts(t, noon)
	c := Command{past: past, Now: func() time.Time { return noon.Add(time.Minute) }, Paths: []string{"testdata/mine.yaml"}}
	out, messages, err := run(t, c)
	if err != nil {
		t.Fatalf("%v: %s", err, messages)
	}
	if !strings.Contains(out, "; judging took ") && processorTime() > 0 {
		t.Errorf("no cost in %s", out)
	}
	path := "testdata/mine.golden"
	if *update {
		if err := os.WriteFile(path, []byte(untimed(out)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if untimed(out) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	r := decoded(t, c)
	byRule := map[string]*tally{}
	for _, one := range r.Tallies {
		byRule[one.Rule] = one
	}
	// The leak was a page of class retention: what is tried says it too. Both workers are older than an hour, and have memory.
	if one := byRule["early_growth"]; one == nil || one.Incidents != 1 || one.Pages != 1 || one.Same != 1 || one.New != 0 || !one.Tried {
		t.Errorf("early_growth: %+v", one)
	}
	if one := byRule["grown_up"]; one == nil || one.Incidents != 2 || one.Workers != 2 || one.New != 2 || one.Pages != 0 {
		t.Errorf("grown_up: %+v", one)
	}
	if !slices.Equal(r.Silent, []string{"full_cache"}) {
		t.Errorf("silent: %q", r.Silent)
	}
	if r.Events != len(past.all) || r.Workers != 2 || r.Hosts != 2 || r.Evaluations == 0 {
		t.Errorf("%d events of %d, %d workers, %d hosts, %d evaluations", r.Events, len(past.all), r.Workers, r.Hosts, r.Evaluations)
	}
}

// The shipped rules against what they said themselves: nothing is new, nothing is gone.
func TestTheSameRulesSayTheSame(t *testing.T) {
	past := twoHosts(t, noon)
	r := decoded(t, Command{past: past, Now: func() time.Time { return noon.Add(time.Minute) }})
	if len(r.Comparison.New)+len(r.Comparison.Gone)+len(r.Comparison.Changed) != 0 || len(r.Incidents) == 0 {
		t.Errorf("%d incidents, %d new, %d gone, %d changed", len(r.Incidents), len(r.Comparison.New), len(r.Comparison.Gone), len(r.Comparison.Changed))
	}
	findings := 0
	for _, one := range r.Tallies {
		findings += one.Findings
	}
	if findings != len(past.said) {
		t.Errorf("%d transitions, and live there were %d", findings, len(past.said))
	}
}

func TestTwoFilesOnOneHistory(t *testing.T) {
	past := twoHosts(t, noon)
	past.said = nil // it is not asked for
	now := func() time.Time { return noon.Add(time.Minute) }
	r := decoded(t, Command{past: past, Now: now, Paths: []string{"testdata/without.yaml"}, Diff: "testdata/mine.yaml"})
	classes := map[string]bool{}
	for _, in := range r.Comparison.Gone {
		classes[in.Rule] = true
	}
	if r.Against != "testdata/mine.yaml" || !classes["early_growth"] || !classes["grown_up"] || len(r.Comparison.New) != 0 {
		t.Errorf("against %s: gone %v, %d new", r.Against, classes, len(r.Comparison.New))
	}
	out, _, err := run(t, Command{past: past, Now: now, Paths: []string{"testdata/mine.yaml"}, Diff: "testdata/without.yaml"})
	if err != nil || !strings.Contains(out, "against without.yaml") || !strings.Contains(out, "OTHER") {
		t.Errorf("%v: %s", err, out)
	}
}

// An incident that was open before the window is one of it, and its time before is not counted.
func TestAWindowWithinAnIncident(t *testing.T) {
	past := twoHosts(t, noon)
	r := decoded(t, Command{past: past, Now: func() time.Time { return noon }, Last: time.Hour, Lead: 12 * time.Hour})
	if len(r.Incidents) == 0 || !r.Incidents[0].Before || r.Incidents[0].Class != "retention" || !r.Incidents[0].Opened.Before(r.From) {
		t.Errorf("incidents %+v", r.Incidents)
	}
	if len(r.Comparison.New)+len(r.Comparison.Gone) != 0 {
		t.Errorf("%d new, %d gone", len(r.Comparison.New), len(r.Comparison.Gone))
	}
}

func TestHistoryThatIsGone(t *testing.T) {
	past := twoHosts(t, noon)
	now := func() time.Time { return noon }
	_, messages, err := run(t, Command{past: past, Now: now, Last: 30 * time.Hour, Lead: time.Hour})
	if err != nil || !strings.Contains(messages, "warning: memory has events from 2026-11-30 0") || !strings.Contains(messages, "what was before is not judged") {
		t.Errorf("%v: %s", err, messages)
	}
	_, messages, err = run(t, Command{past: past, Now: now, Last: time.Hour, Lead: 24 * time.Hour})
	if err != nil || !strings.Contains(messages, "the judges listen for a shorter time") {
		t.Errorf("%v: %s", err, messages)
	}
	if _, _, err := run(t, Command{past: &memory{}, Now: now}); err == nil || !strings.Contains(err.Error(), "memory has no event") {
		t.Errorf("of no history: %v", err)
	}
}

func TestWrongUse(t *testing.T) {
	now := func() time.Time { return noon }
	for _, c := range []Command{{From: "noon"}, {To: "2026-13-01"}, {From: "2026-11-30 13:00"}, {From: "2020-01-01"}, {Lead: -1}, {Lead: 1000 * time.Hour}, {Host: []string{"gpu-1"}}, {Host: []string{"a/b>"}}, {Last: -time.Hour}} {
		c.past, c.Now = &memory{}, now
		_, _, err := run(t, c)
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != 2 {
			t.Errorf("%+v: %v", c, err)
		}
	}
	var problems rules.Problems
	bad := t.TempDir() + "/bad.yaml"
	if err := os.WriteFile(bad, []byte("rules:\n  - id: mine\n    when: live.erly\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(t, Command{past: &memory{}, Now: now, Paths: []string{bad}}); !errors.As(err, &problems) {
		t.Errorf("of a bad rule: %v", err)
	}
}

func TestTheBarIsDrawnOnATerminalOnly(t *testing.T) {
	var out bytes.Buffer
	at := noon
	b := &bar{out: &out, now: func() time.Time { at = at.Add(time.Second); return at }}
	b.show(noon, noon.Add(-time.Hour), noon.Add(time.Hour), 1000)
	b.end()
	if out.Len() > 0 {
		t.Errorf("drawn into a file: %q", out.String())
	}
	b.shown = true
	b.show(noon, noon.Add(-time.Hour), noon.Add(time.Hour), 1000)
	b.show(noon, noon.Add(-time.Hour), noon.Add(time.Hour), 3000)
	b.end()
	if got := out.String(); !strings.Contains(got, "[###############...............]  50 %, at 11-30 12:00, 3000 events/s") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("drawn %q", got)
	}
}

func TestTroublesAreTheSame(t *testing.T) {
	at := func(hour int) time.Time { return noon.Add(time.Duration(hour) * time.Hour) }
	one := func(class, key, severity string, from, to int) *incident {
		in := &incident{Class: class, Key: key, Severity: severity, Opened: at(from)}
		if to > 0 {
			in.ended = at(to)
		}
		return in
	}
	tried := []*incident{one("a", "x", "page", 0, 2), one("a", "x", "page", 5, 0), one("b", "x", "page", 0, 0), one("a", "y", "page", 0, 0)}
	active := []*incident{one("a", "x", "ticket", 1, 3), one("b", "x", "page", 9, 0), one("a", "y", "page", 20, 0), one("c", "x", "page", 0, 0)}
	p := pair(tried, active, at(10))
	if len(p.New) != 2 || p.New[0] != tried[1] || p.New[1] != tried[3] || len(p.Gone) != 2 || p.Gone[0] != active[2] || p.Gone[1] != active[3] || len(p.Same) != 2 || len(p.Changed) != 1 || p.Changed[0].Was != "ticket" {
		t.Errorf("%d new, %d gone, %d same, changed %+v", len(p.New), len(p.Gone), len(p.Same), p.Changed)
	}
}

// A rule that is tried beside the active one of its class does not take its place.
func TestARuleIsComparedWithItself(t *testing.T) {
	mine, theirs, was := &incident{Rule: "mine", Class: "a", Key: "x", Opened: noon}, &incident{Rule: "a", Class: "a", Key: "x", Opened: noon.Add(time.Hour)}, &incident{Rule: "a", Class: "a", Key: "x", Opened: noon}
	p := pair([]*incident{mine, theirs}, []*incident{was}, noon.Add(2*time.Hour))
	if len(p.New) != 1 || p.New[0] != mine || len(p.Same) != 1 || p.Same[0][0] != theirs {
		t.Errorf("new %v, same %v", p.New, p.Same)
	}
}

// BenchmarkCourt judges seven hours of two workers, with the shipped rules.
func BenchmarkCourt(b *testing.B) {
	var batch []heard
	for _, name := range []string{"leak", "healthy"} {
		file, err := os.Open("testdata/" + name + ".ndjson.gz")
		if err != nil {
			b.Fatal(err)
		}
		reader, err := event.NewReader(file, name)
		if err != nil {
			b.Fatal(err)
		}
		for {
			e, err := reader.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, heard{e, e.At()})
		}
		file.Close()
	}
	pack, err := rules.Builtin()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c := newCourt(pack, newDocket(time.Time{}, noon.AddDate(10, 0, 0)))
		c.hear(batch)
		c.close()
	}
	b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "events/s")
}
