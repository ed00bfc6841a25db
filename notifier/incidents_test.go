package notifier

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// ward is a broker whose outbox the real desk filled.
type ward struct {
	t       *testing.T
	js      jetstream.JetStream
	address string
	now     time.Time
}

// newWard lets the desk tell about the findings, and returns once it has.
func newWard(t *testing.T, findings ...*event.Finding) *ward {
	t.Helper()
	server, _, js := brokertest.Start(t)
	w := &ward{t: t, js: js, address: server.ClientURL(), now: noon.Add(2 * time.Hour)}
	w.tell(findings...)
	return w
}

func (w *ward) tell(findings ...*event.Finding) {
	w.t.Helper()
	last := map[string]string{} // incident → finding
	for _, f := range findings {
		text, err := event.MarshalFinding(f)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.js.Publish(w.t.Context(), event.FindingSubject(f), text); err != nil {
			w.t.Fatal(err)
		}
		if f.Severity != event.Info { // of what is no more than that nothing is kept
			last[f.Incident] = f.ID
		}
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	kv, err := w.js.KeyValue(ctx, Bucket)
	if err != nil {
		w.t.Fatal(err)
	}
	watcher, err := kv.WatchAll(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	defer watcher.Stop()
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		done <- Run(running, w.js, Options{Senders: []Sender{NewTerminal(new(bytes.Buffer))}, Interval: time.Millisecond, Now: func() time.Time { return w.now.Add(time.Since(began)) }})
	}()
	for len(last) > 0 {
		select {
		case entry := <-watcher.Updates():
			if entry == nil {
				continue
			}
			r, err := decodeRecord(entry.Value())
			if err != nil {
				w.t.Fatal(err)
			}
			f := r.history.Latest
			d := r.deliveries["terminal"]
			if last[f.Incident] == f.ID && d.Status == told && d.State == f.State {
				delete(last, f.Incident)
			}
		case <-ctx.Done():
			w.t.Fatalf("the desk did not tell about %v", last)
		}
	}
	stop()
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}

// run runs a command as main does, and returns what it printed.
func (w *ward) run(args ...string) (out, messages string, err error) {
	w.t.Helper()
	var stdout, stderr bytes.Buffer
	now := func() time.Time { return w.now }
	var commands struct {
		Incidents IncidentsCommand `cmd:""`
		Silence   SilenceCommand   `cmd:""`
	}
	parser, err := kong.New(&commands, kong.BindTo(w.t.Context(), (*context.Context)(nil)), kong.Exit(func(int) { w.t.Error("kong exits") }))
	if err != nil {
		w.t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return "", "", err
	}
	i, s := &commands.Incidents, &commands.Silence
	i.List.Stdout, i.List.Stderr, i.List.Now, i.List.NATS = &stdout, &stderr, now, w.address
	i.Show.Stdout, i.Show.Stderr, i.Show.Now, i.Show.NATS = &stdout, &stderr, now, w.address
	i.Acknowledge.Stdout, i.Acknowledge.Stderr, i.Acknowledge.Now, i.Acknowledge.NATS = &stdout, &stderr, now, w.address
	i.Resolve.Stdout, i.Resolve.Stderr, i.Resolve.Now, i.Resolve.NATS = &stdout, &stderr, now, w.address
	i.Feedback.Stdout, i.Feedback.Stderr, i.Feedback.Now, i.Feedback.NATS = &stdout, &stderr, now, w.address
	s.Add.Stdout, s.Add.Stderr, s.Add.Now, s.Add.NATS = &stdout, &stderr, now, w.address
	s.List.Stdout, s.List.Stderr, s.List.Now, s.List.NATS = &stdout, &stderr, now, w.address
	s.End.Stdout, s.End.Stderr, s.End.Now, s.End.NATS = &stdout, &stderr, now, w.address
	err = parsed.Run()
	return stdout.String(), stderr.String(), err
}

// does runs a command that must succeed.
func (w *ward) does(args ...string) string {
	w.t.Helper()
	out, _, err := w.run(args...)
	if err != nil {
		w.t.Fatalf("%v: %v", args, err)
	}
	return out
}

// refuses checks that a command fails with a text, a remedy and an exit code.
func (w *ward) refuses(code int, says, hint string, args ...string) {
	w.t.Helper()
	out, _, err := w.run(args...)
	var failure *broker.Failure
	if !errors.As(err, &failure) {
		w.t.Errorf("%v: error %v without a remedy", args, err)
		return
	}
	if !strings.Contains(err.Error(), says) || !strings.Contains(failure.Hint(), hint) || failure.ExitCode() != code || out != "" {
		w.t.Errorf("%v: exit %d, error %q, hint %q, printed %q; want exit %d, %q, %q", args, failure.ExitCode(), err, failure.Hint(), out, code, says, hint)
	}
}

// crash is a ticket of another class on another host, of another release.
func crash() *event.Finding {
	return &event.Finding{ID: "c1", Incident: "inc-9c01", Time: noon.Add(30 * time.Minute), Subject: event.Subject{Kind: "worker", Key: "lab/cpu-1/boot/7/7"}, Slot: "lab/cpu-1/web/0/0",
		Worker: &event.Worker{Pid: 7, Model: "small", Release: "r7"}, Labels: map[string]string{"team": "web"}, Rule: "crash_loop", Class: "crash_loop",
		State: event.Suspected, Severity: event.Ticket, Confidence: 0.5, Summary: "It ended 3 times in an hour"}
}

// ended is an incident that is over already.
func ended() (begin, end *event.Finding) {
	begin = crash()
	begin.ID, begin.Incident, begin.Slot, begin.Time = "d1", "inc-0d01", "lab/cpu-2/web/0/0", noon.Add(-3*time.Hour)
	end = crash()
	end.ID, end.Incident, end.Slot, end.Time, end.State, end.Resolution = "d2", "inc-0d01", "lab/cpu-2/web/0/0", noon.Add(-time.Hour), event.Resolved, "24 h without it"
	return begin, end
}

func rows(text string) [][]string {
	var all [][]string
	for line := range strings.Lines(text) {
		all = append(all, strings.Fields(line))
	}
	return all
}

func TestIncidentsAreListed(t *testing.T) {
	begin, end := ended()
	w := newWard(t, begin, crash(), leak(), paged())
	w.tell(end)
	out, messages, err := w.run("incidents")
	if err != nil {
		t.Fatal(err)
	}
	got := rows(out)
	if len(got) != 3 || got[1][0] != "inc-7f3a" || got[2][0] != "inc-9c01" {
		t.Fatalf("listed\n%s", out)
	}
	// The page comes first: 0.9 is 90 %, it was first seen at noon, and the terminal told about it.
	for _, want := range []string{"page", "retention", "confirmed", "90 %", "prod/gpu-07/vllm-a/0/1", "2026-11-03 12:00 UTC", "terminal"} {
		if !strings.Contains(strings.Split(out, "\n")[1], want) {
			t.Errorf("no %q in %s", want, strings.Split(out, "\n")[1])
		}
	}
	if messages != "2 open incidents, and 1 that are over: `lowtide incidents --all`\n" {
		t.Errorf("said %q", messages)
	}
	if out := w.does("incidents", "list", "--all"); len(rows(out)) != 4 || rows(out)[3][0] != "inc-0d01" {
		t.Errorf("all are\n%s", out)
	}
	for want, args := range map[string][]string{
		"inc-9c01":   {"--class", "crash_*"},
		"inc-7f3a":   {"--severity", "page"},
		"inc-9c01 ":  {"--team", "web"},
		"inc-7f3a ":  {"--cluster", "prod", "--host", "gpu-*"},
		"inc-9c01  ": {"--match", "slot=lab/cpu-1/*"},
		"inc-7f3a  ": {"--release", "r41", "--model", "llama-70b"},
	} {
		if got := rows(w.does(append([]string{"incidents"}, args...)...)); len(got) != 2 || got[1][0] != strings.TrimSpace(want) {
			t.Errorf("%v: %v", args, got)
		}
	}
	if out, messages, err := w.run("incidents", "--team", "nobody"); err != nil || out != "" || messages != "no open incident\n" {
		t.Errorf("nothing: %q, %q, %v", out, messages, err)
	}
	w.refuses(2, `no class is called "retentoin"`, "did you mean retention?", "incidents", "--class", "retentoin")
	w.refuses(2, `nothing is called "hots"`, "did you mean host?", "incidents", "--match", "hots=x")
}

func TestIncidentsForPrograms(t *testing.T) {
	begin, end := ended()
	w := newWard(t, begin, leak(), paged())
	w.tell(end)
	w.does("incidents", "acknowledge", "inc-7", "--by", "ann", "-m", "draining it")
	w.does("silence", "add", "--incident", "inc-7", "--for", "4h", "-m", "known", "--by", "bob")
	out := w.does("incidents", "--all", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		t.Fatalf("printed\n%s", out)
	}
	var first struct {
		Incident, Class, State, Severity, Where string
		Confidence                              float64
		Labels                                  map[string]string
		Since                                   time.Time
		Acknowledged                            struct{ By, Note, Via string }
		SilencedUntil                           time.Time `json:"silenced_until"`
		Told                                    []struct{ Output, State string }
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first.Incident != "inc-7f3a" || first.Confidence != 0.9 || first.State != "confirmed" || first.Labels["host"] != "gpu-07" || !first.Since.Equal(noon) ||
		first.Acknowledged.By != "ann" || first.Acknowledged.Note != "draining it" || first.Acknowledged.Via != "cli" || !first.SilencedUntil.Equal(w.now.Add(4*time.Hour)) ||
		len(first.Told) != 1 || first.Told[0].Output != "terminal" || first.Told[0].State != "confirmed" {
		t.Errorf("%+v", first)
	}
	if strings.Contains(lines[1], "acknowledged") || !strings.Contains(lines[1], `"resolution":"24 h without it"`) {
		t.Errorf("the one that is over: %s", lines[1])
	}
}

func TestIncidentIsShown(t *testing.T) {
	f := paged()
	f.Series, f.Points = "live", nil
	for i := range 4 {
		f.Points = append(f.Points, event.Point{Time: noon.Add(time.Duration(i-3) * time.Hour), Value: float64((42 + 2*i) << 30)})
	}
	repeat := *f
	repeat.ID, repeat.Time = "f2b", f.Time.Add(10*time.Minute)
	w := newWard(t, leak(), f, &repeat)
	w.does("incidents", "acknowledge", "inc-7f3a", "--by", "ann", "-m", "draining\x1b[31m")
	w.now = w.now.Add(time.Minute)
	w.does("silence", "add", "--incident", "inc-7f3a", "--for", "4h", "-m", "known", "--by", "bob")
	w.does("incidents", "feedback", "inc-7f3a", "--not-a-leak", "--by", "bob")
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("NO_COLOR", "")
	out := w.does("incidents", "show", "inc-7f")
	for _, want := range []string{
		"│ retention confirmed · confidence 90 % · page", "48 GiB", "Drain the worker with a deadline.", // the card
		"live (● level, ▲ onset, ✕ oom)", "┤", "09:00", "12:00 UTC", // the chart: four hourly points until noon
		"2026-11-03 12:00:00 UTC  suspected, ticket, confidence 72 %: Live memory rises", // its life
		"2026-11-03 13:00:00 UTC  confirmed, page, confidence 90 %",
		"2026-11-03 14:00:00 UTC  acknowledged by ann (cli): draining[31m",
		"2026-11-03 14:01:00 UTC  silenced until 2026-11-03 18:01:00 UTC by bob: known",
		"2026-11-03 14:01:00 UTC  said to be no leak by bob (cli)",
		"and 1 findings that repeat these",
		"terminal: confirmed, page",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("a note steers the terminal")
	}
	if strings.Index(out, "suspected, ticket") > strings.Index(out, "acknowledged by ann (cli)") {
		t.Errorf("not in the order of time\n%s", out)
	}
	chart := w.does("incidents", "show", "inc-7f", "--ascii")
	if !strings.Contains(chart, "live (o level, ^ onset, x oom)") {
		t.Errorf("the chart in ASCII:\n%s", chart)
	}
	var whole struct {
		Actions  []Action
		Findings []json.RawMessage
	}
	if err := json.Unmarshal([]byte(w.does("incidents", "show", "inc-7f", "--json")), &whole); err != nil || len(whole.Actions) != 2 || len(whole.Findings) != 3 {
		t.Errorf("as JSON %d actions, %d findings, %v", len(whole.Actions), len(whole.Findings), err)
	}
	if found, err := event.UnmarshalFinding(whole.Findings[1]); err != nil || found.ID != "f2" || found.Growth.Unit != "bytes" || len(found.Points) != 4 {
		t.Errorf("finding %+v, %v", found, err)
	}
	findings, err := w.js.Stream(t.Context(), event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	if err := findings.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, messages, err := w.run("incidents", "show", "inc-7f"); err != nil || !strings.Contains(messages, "WHERE incident = 'inc-7f3a'") || !strings.Contains(out, "acknowledged by ann (cli)") {
		t.Errorf("after the stream forgot it: %q, %v\n%s", messages, err, out)
	}
	w.refuses(1, `no incident is called "inc-1"`, "lowtide sql", "incidents", "show", "inc-1")
}

func TestAmbiguousIncident(t *testing.T) {
	w := newWard(t, leak(), crash())
	w.refuses(2, `"inc-" begins the IDs of 2 incidents: inc-7f3a, inc-9c01`, "more of the ID", "incidents", "show", "inc-")
	// An ID that another one begins with is that one.
	longer := crash()
	longer.ID, longer.Incident = "c9", "inc-7f3a-b"
	w.tell(longer)
	if out := w.does("incidents", "show", "inc-7f3a"); !strings.Contains(out, "incident inc-7f3a ·") {
		t.Errorf("shown\n%s", out)
	}
}

func TestIncidentsWithoutABroker(t *testing.T) {
	server, _, js := brokertest.Start(t)
	w := &ward{t: t, js: js, address: server.ClientURL(), now: noon}
	if out, messages, err := w.run("incidents"); err != nil || out != "" || messages != "no open incident\n" {
		t.Errorf("a new broker: %q, %q, %v", out, messages, err)
	}
	if out, messages, err := w.run("incidents", "feedback"); err != nil || out != "" || messages == "" {
		t.Errorf("a new broker: %q, %q, %v", out, messages, err)
	}
	if err := js.DeleteKeyValue(t.Context(), broker.BucketActions); err != nil {
		t.Fatal(err)
	}
	w.refuses(1, "LOWTIDE_ACTIONS", "older version", "incidents")
	if err := js.DeleteKeyValue(t.Context(), Bucket); err != nil {
		t.Fatal(err)
	}
	w.refuses(1, "no bucket LOWTIDE_OUTBOX", "lowtide up", "incidents")
	w.address = ""
	t.Setenv("LOWTIDE_NATS", "")
	t.Setenv("LOWTIDE_DATA", t.TempDir())
	w.refuses(1, "find the running broker", "lowtide up", "incidents")
}

// A record that cannot be read is said and hides no other.
func TestBrokenRecordIsSkipped(t *testing.T) {
	w := newWard(t, leak())
	kv, err := w.js.KeyValue(t.Context(), Bucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "broken", []byte("{")); err != nil {
		t.Fatal(err)
	}
	out, messages, err := w.run("incidents")
	if err != nil || len(rows(out)) != 2 || !strings.Contains(messages, "cannot be read") {
		t.Errorf("%q, %q, %v", out, messages, err)
	}
}
