package processor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
	"lowtide/processor/worker"
)

// publish sends events as a collector does: one batch a tick and source.
func publish(t *testing.T, ctx context.Context, js jetstream.JetStream, all []*event.Event) {
	t.Helper()
	sequence := uint64(0)
	send := func(source string, events []*event.Event) {
		sequence++
		wire, err := event.EncodeBatch(&event.Batch{Host: events[0].Host, Source: source, Producer: "p", Lane: event.LaneSamples, Sequence: sequence, Events: events})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishAsync(event.SubjectFor(events[0].Host.Cluster, events[0].Host.Name, source), wire); err != nil {
			t.Fatal(err)
		}
	}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Body() == all[0].Body() && all[n].At().Equal(all[0].At()) {
			n++
		}
		send(all[0].Body(), all[:n])
		all = all[n:]
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("not published in time")
	}
}

// moved returns the events as those of another host.
func moved(all []*event.Event, host string) []*event.Event {
	out := make([]*event.Event, len(all))
	for i, e := range all {
		out[i] = proto.CloneOf(e)
		out[i].Host.Name = host
	}
	return out
}

func explain(t *testing.T, c ExplainCommand) (out, messages string, err error) {
	t.Helper()
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("NO_COLOR", "")
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	err = c.Run(t.Context())
	return stdout.String(), stderr.String(), err
}

// Two hosts, each with a worker of the same pid: a leak and a healthy one.
func TestExplainReadsTheStreamOfOneHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, _, js := brokertest.Start(t)
	url := server.ClientURL()

	out, messages, err := explain(t, ExplainCommand{NATS: url})
	if err != nil || out != "" || !strings.Contains(messages, "no worker is in the stream") {
		t.Errorf("an empty stream: %v, %q, %q", err, out, messages)
	}

	publish(t, ctx, js, events(t, "testdata/leak.ndjson.gz"))
	publish(t, ctx, js, moved(events(t, "testdata/healthy.ndjson.gz"), "h200-b"))
	slot := "/GPU-00000000-0000-4000-8000-000000000001/0/0"

	out, _, err = explain(t, ExplainCommand{NATS: url})
	if lines := strings.Split(out, "\n"); err != nil || len(lines) != 4 || !strings.HasPrefix(lines[1], "lab/h200-a"+slot+"  4242  lab-model  build-a  2026-11-01 07:03") ||
		!strings.HasPrefix(lines[2], "lab/h200-b"+slot) {
		t.Errorf("the list is (%v)\n%s", err, out)
	}

	var failure *broker.Failure
	if _, _, err = explain(t, ExplainCommand{NATS: url, Worker: "4242"}); !errors.As(err, &failure) || failure.ExitCode() != 2 ||
		!strings.Contains(err.Error(), "h200-a"+slot) || !strings.Contains(err.Error(), "h200-b"+slot) {
		t.Errorf("a pid of two hosts: %v", err)
	}
	if _, _, err = explain(t, ExplainCommand{NATS: url, Worker: "nobody"}); !errors.As(err, &failure) || failure.ExitCode() != 1 || !strings.Contains(err.Error(), "h200-b"+slot) {
		t.Errorf("nobody: %v", err)
	}

	// The same words as the recording's: the path is the same, only the remarks on what was not read are added.
	out, messages, err = explain(t, ExplainCommand{NATS: url, Worker: "lab/h200-a" + slot})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out, "retention confirmed · page · confidence ") {
		t.Errorf("explained as\n%s", out)
	}
	var replayed bytes.Buffer
	if err := (&ReplayCommand{Recordings: []string{"testdata/leak.ndjson.gz"}, Stdout: &replayed, Stderr: &replayed}).Run(ctx); err != nil {
		t.Fatal(err)
	}
	said := make(map[string]bool)
	for line := range strings.Lines(out) {
		said[line] = true
	}
	for line := range strings.Lines(strings.SplitN(replayed.String(), "\n", 2)[1]) {
		if !said[line] && strings.TrimSpace(line) != "" {
			t.Errorf("replay says, explain does not: %s", line)
		}
	}
	if !strings.Contains(out, "only lab/h200-a was read") {
		t.Error("nothing says that other hosts were not read")
	}
	if !strings.Contains(messages, "reading lab/h200-a: 2115 messages") || !strings.Contains(messages, "reading lab/h200-a: 49 %") {
		t.Errorf("progress %q", messages)
	}

	out, _, err = explain(t, ExplainCommand{NATS: url, Worker: "h200-b", JSON: true}) // a part of the slot
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Slot      string `json:"slot"`
		Verdict   string `json:"verdict"`
		Incidents []any  `json:"incidents"`
	}
	if err := json.Unmarshal([]byte(out), &read); err != nil || read.Slot != "lab/h200-b"+slot || !strings.HasPrefix(read.Verdict, "steady") || len(read.Incidents) != 0 {
		t.Errorf("as JSON (%v) %+v", err, read)
	}

	if _, _, err = explain(t, ExplainCommand{NATS: url, Worker: "h200-b", Timeout: time.Nanosecond}); !errors.As(err, &failure) || !strings.Contains(failure.Hint(), "--timeout") {
		t.Errorf("without time: %v", err)
	}
	for range findingsLeft(t, ctx, js) {
		t.Error("explain published a finding")
	}
	if err := js.DeleteStream(ctx, event.StreamEvents); err != nil {
		t.Fatal(err)
	}
	if _, _, err = explain(t, ExplainCommand{NATS: url}); !errors.As(err, &failure) || !strings.Contains(failure.Hint(), "lowtide up") {
		t.Errorf("without a stream: %v", err)
	}
}

func findingsLeft(t *testing.T, ctx context.Context, js jetstream.JetStream) uint64 {
	t.Helper()
	stream, err := js.Stream(ctx, event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

func TestTheBrokerIsFoundInTheFolderOfUp(t *testing.T) {
	folder := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(folder, "up.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var failure *broker.Failure
	if _, err := broker.Address("", folder); !errors.As(err, &failure) || !strings.Contains(failure.Hint(), "--nats") {
		t.Errorf("no file: %v", err)
	}
	write(`{"nats":`)
	if _, err := broker.Address("", folder); !errors.As(err, &failure) {
		t.Errorf("a torn file: %v", err)
	}
	write(`{"nats":"nats://x@127.0.0.1:4222"}`)
	if got, err := broker.Address("", folder); err != nil || got != "nats://x@127.0.0.1:4222" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := broker.Address("nats://other:1", folder); err != nil || got != "nats://other:1" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAWordNamesTheNewestLife(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	life := func(key, slot string, pid int64, from, to int) worker.Report {
		return worker.Report{Key: key, Slot: slot, Instance: slot[:len(slot)-2], Who: &event.Worker{Pid: pid}, First: at.Add(time.Duration(from) * time.Hour), Last: at.Add(time.Duration(to) * time.Hour)}
	}
	all := []worker.Report{life("k1", "c/h/vllm/0/0", 10, 0, 2), life("k2", "c/h/vllm/0/0", 20, 3, 5), life("k3", "c/h/vllm/0/1", 30, 0, 5),
		life("k4", "c/h/api/0/frontend", 41, 0, 5), life("k5", "c/h/api/0/frontend", 42, 1, 5)}
	for word, want := range map[string]string{
		"c/h/vllm/0/0": "k2", "10": "k1", "20": "k2", "k1": "k1", "c/h/vllm/0": "k2 k3", "vllm/0/1": "k3", "c/h/api/0/frontend": "k4 k5", "42": "k5", "sglang": "",
	} {
		var keys []string
		for _, r := range named(all, word) {
			keys = append(keys, r.Key)
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%s names %q, want %q", word, got, want)
		}
	}
}
