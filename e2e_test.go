package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slack-go/slack/slacktest"

	"lowtide/collector"
	"lowtide/processor"
	"lowtide/sink/engine"
)

func TestMain(m *testing.M) {
	engine.ServeIfChild() // the engine starts its child from this binary, as the GPU source does
	if os.Getenv(asCommand) != "" {
		main()
	}
	if len(os.Args) > 1 && os.Args[1] == "nvml-child" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// workspace is a Slack that keeps what was posted and what it was changed to.
type workspace struct {
	mu      sync.Mutex
	posts   []url.Values
	updates map[string][]url.Values // by ts
}

func newWorkspace(t *testing.T) (*workspace, string) {
	w := &workspace{updates: map[string][]url.Values{}}
	s := slacktest.NewTestServer(func(s slacktest.Customize) {
		s.Handle("/chat.postMessage", func(out http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			w.mu.Lock()
			defer w.mu.Unlock()
			if r.PostForm.Get("thread_ts") != "" { // a reply is no message of the channel
				fmt.Fprint(out, `{"ok":true,"channel":"C1","ts":"18.000001"}`)
				return
			}
			w.posts = append(w.posts, r.PostForm)
			fmt.Fprintf(out, `{"ok":true,"channel":"C1","ts":"17.%06d"}`, len(w.posts))
		})
		s.Handle("/chat.update", func(out http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			w.mu.Lock()
			defer w.mu.Unlock()
			ts := r.PostForm.Get("ts")
			w.updates[ts] = append(w.updates[ts], r.PostForm)
			fmt.Fprintf(out, `{"ok":true,"channel":"C1","ts":%q}`, ts)
		})
		s.Handle("/conversations.history", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, `{"ok":true,"messages":[]}`) })
	})
	s.Start()
	t.Cleanup(s.Stop)
	return w, s.GetAPIURL()
}

// newest is what the first message says now.
func (w *workspace) newest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, changes := range w.updates {
		return fmt.Sprint(changes[len(changes)-1])
	}
	if len(w.posts) == 0 {
		return ""
	}
	return fmt.Sprint(w.posts[0])
}

// count is how many messages were posted.
func (w *workspace) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.posts)
}

// last is the newest message as it was posted.
func (w *workspace) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.posts[len(w.posts)-1])
}

// ask runs one query as the reader; an error is part of the answer, since the tables come while it waits.
func ask(ctx context.Context, data, query string) string {
	text, err := os.ReadFile(filepath.Join(data, "engine.json"))
	if err != nil {
		return err.Error()
	}
	var left struct{ Addr string }
	if err := json.Unmarshal(text, &left); err != nil {
		return err.Error()
	}
	password, err := engine.ReadPassword(filepath.Join(data, "engine", engine.RoleReader+".password"))
	if err != nil {
		return err.Error()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+left.Addr+"/?database=lowtide", strings.NewReader(query))
	if err != nil {
		return err.Error()
	}
	request.SetBasicAuth(engine.RoleReader, password)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(body)) + strings.TrimPrefix(fmt.Sprint(err), "<nil>")
}

// TestEndToEnd plays a leak and a healthy worker through the broker, the judge, the real engine and Slack. What it expects was written
// down with the recordings: retention for the one, nothing for the other, 423 and 420 samples.
func TestEndToEnd(t *testing.T) {
	if _, err := engine.FindLibrary(""); errors.Is(err, engine.ErrLibraryMissing) {
		t.Skipf("SKIPPED: the end-to-end test needs the ClickHouse engine; run make engine: %v", err)
	}
	slack, api := newWorkspace(t)
	data := t.TempDir()
	t.Setenv("LOWTIDE_SLACK_TOKEN", "xoxb-test")
	metrics := freeAddress(t)
	up := &UpCommand{
		Data: data, Listen: "127.0.0.1:0", Cluster: "local", Metrics: metrics, Stretch: 1, Sensors: collector.Sensors{Interval: time.Second, NVMLInterval: time.Second}, announcing: announcing{SlackChannel: "C1", SlackURL: api},
		Recording: []string{"collector/demo/leak.ndjson.gz", "testdata/healthy.ndjson.gz"},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- up.Run(ctx) }()

	for _, want := range []struct{ query, answer string }{
		{"SELECT host, count() FROM worker_samples WHERE allocated_bytes IS NOT NULL GROUP BY host ORDER BY host", "h200-a-healthy\t420\nh200-a-leak\t423"},
		{"SELECT host, class, count() FROM incidents FINAL GROUP BY host, class", "h200-a-leak\tretention\t1"},
	} {
		got := ""
		for tick := time.NewTicker(300 * time.Millisecond); got != want.answer; {
			select {
			case err := <-ended:
				t.Fatalf("up ended: %v", err)
			case <-ctx.Done():
				t.Fatalf("%s answers\n%s\nwant\n%s", want.query, got, want.answer)
			case <-tick.C:
				got = ask(ctx, data, want.query)
			}
		}
	}
	transitions := ask(ctx, data, "SELECT count() FROM findings")
	t.Logf("transitions: %s", transitions)
	// The OOM made it a page: the one message must say so in the end, whether it was posted so or changed.
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(slack.newest(), "page") {
		select {
		case <-ctx.Done():
			t.Fatalf("the message says %q", slack.newest())
		case <-tick.C:
		}
	}
	slack.mu.Lock()
	if posts, updated := len(slack.posts), len(slack.updates); posts != 1 || updated > 1 {
		t.Errorf("%d messages, %d of them updated; want one message, updated in place", posts, updated)
	}
	slack.mu.Unlock()
	if text := slack.newest(); !strings.Contains(text, "retention") {
		t.Errorf("the message says %q", text)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	queries := regexp.MustCompile(`(?m)^\./lowtide sql "(.+)"$`).FindAllStringSubmatch(string(readme), -1)
	if len(queries) < 2 {
		t.Errorf("the README has %d queries", len(queries))
	}
	for _, q := range queries {
		if answer := ask(ctx, data, q[1]); answer == "" || strings.Contains(answer, "Exception") {
			t.Errorf("the README's query %s answers %q", q[1], answer)
		}
	}
	var said bytes.Buffer
	explain := &processor.ExplainCommand{Worker: "h200-a-leak", Data: data, Timeout: time.Minute, ASCII: true, Stdout: &said, Stderr: t.Output()}
	if err := explain.Run(ctx); err != nil || !strings.Contains(said.String(), "retention confirmed") || !strings.Contains(said.String(), "What speaks against it") {
		t.Errorf("explain says %q (%v)", said.String(), err)
	}
	said.Reset()
	if err := (&MarkCommand{Kind: "deploy", Note: "a test", Data: data, Stdout: &said}).Run(ctx); err != nil || !strings.Contains(said.String(), "deploy lab/h200-a-leak") {
		t.Errorf("mark says %q (%v)", said.String(), err)
	}
	if text := fetch(t, "http://"+metrics+"/readyz"); text != "ok\n" {
		t.Errorf("/readyz: %s", text)
	}
	shown := fetch(t, "http://"+metrics+"/metrics")
	if !strings.Contains(shown, "\nlowtide_engine_restarts_total 0\n") {
		t.Error("/metrics does not say that the engine never had to be started again")
	}
	for _, name := range alertMetrics(t) {
		if !strings.Contains(shown, "\n"+name+"{") && !strings.Contains(shown, "\n"+name+" ") {
			t.Errorf("deploy/alerts.yaml names %s, which nothing shows", name)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("up ended with %v", err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func fetch(t *testing.T, address string) string {
	t.Helper()
	answer, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alertMetrics are the metrics that the Prometheus alerts and the tables of docs/pipeline.md name whole.
func alertMetrics(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, path := range []string{"deploy/alerts.yaml", "docs/pipeline.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\blowtide_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			found[name] = true
		}
	}
	// Of a judge that lags, and of a collector's spool: neither is here.
	delete(found, "lowtide_judge_retention_margin_messages")
	delete(found, "lowtide_spool")
	if len(found) < 12 {
		t.Errorf("only %d metrics are named", len(found))
	}
	return slices.Sorted(maps.Keys(found))
}
