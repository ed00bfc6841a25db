package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector"
	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/broker"
)

// asCommand makes the test binary the program itself, so that a test can kill it.
const asCommand = "LOWTIDE_TEST_AS_COMMAND"

// TestEndToEndThreeProcessors kills one of three processors with SIGKILL in the middle of eight recordings. The others take its partitions
// with their state, and the findings are those of an undisturbed replay.
func TestEndToEndThreeProcessors(t *testing.T) {
	server, err := broker.Start(t.Context(), broker.Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := broker.Ensure(ctx, js, server.Limits()); err != nil {
		t.Fatal(err)
	}
	processors := map[string]*exec.Cmd{}
	for _, name := range []string{"one", "two", "three"} {
		processors[name] = startProcessor(t, server.ClientURL(), name)
	}
	seats, err := js.KeyValue(ctx, broker.BucketSeats)
	if err != nil {
		t.Fatal(err)
	}
	owners := awaitOwners(t, ctx, seats, func(of map[string]int) bool { return len(of) == 3 })
	t.Logf("partitions of each: %v", owners)

	worlds := openWorlds(t, "leak", "frag", "kv_leak", "native_leak", "host_leak", "graphs", "kv_pressure", "healthy")
	publisher := collector.NewPublisher(js, collector.PublisherOptions{})
	publish := func(part int) { // of two
		for _, w := range worlds {
			half := len(w.events) / 2
			for chunk := range slices.Chunk(w.events[part*half:min(len(w.events), (part+1)*half+part)], 100) {
				if err := publisher.Publish("recording", chunk); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	publish(0)
	victim := ownerOf(t, ctx, js, seats, "leak")
	killed := time.Now()
	if err := processors[victim].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	publish(1)
	owners = awaitOwners(t, ctx, seats, func(of map[string]int) bool { return of[victim] == 0 && len(of) == 2 })
	t.Logf("%s died; all 64 partitions belong to the others after %s: %v", victim, time.Since(killed).Round(10*time.Millisecond), owners)
	if err := publisher.Close(ctx); err != nil {
		t.Fatal(err)
	}

	want := map[string]bool{}
	for _, w := range worlds {
		for line, at := range w.replayed {
			if w.last.Sub(at) > 10*time.Minute { // what is known by the end of a recording is no moment of a stream
				want[line] = true
			}
		}
	}
	if len(want) < 5 {
		t.Fatalf("the replay has only %d transitions", len(want))
	}
	got := map[string]int{}
	for missing := len(want); missing > 0; {
		select {
		case <-ctx.Done():
			for line := range want {
				if got[line] == 0 {
					t.Errorf("missing: %s", line)
				}
			}
			t.Fatal("not all findings of an undisturbed run are there")
		case <-time.After(300 * time.Millisecond):
		}
		got, missing = storedFindings(t, ctx, js), 0
		for line := range want {
			if got[line] == 0 {
				missing++
			}
		}
	}
	for line, n := range got {
		known := false
		for _, w := range worlds {
			_, is := w.replayed[line]
			known = known || is
		}
		if !known {
			t.Errorf("the replay does not know: %s", line)
		}
		if n > 1 {
			t.Errorf("%d times: %s", n, line)
		}
	}
	t.Logf("%d transitions, as in an undisturbed run", len(got))
}

// startProcessor runs `process` as a process of its own.
func startProcessor(t *testing.T, address, name string) *exec.Cmd {
	t.Helper()
	var said bytes.Buffer
	c := exec.Command(os.Args[0], "process", "--nats", address, "--name", name)
	c.Env = append(os.Environ(), asCommand+"=1", "LOWTIDE_SLACK_TOKEN=", "LOWTIDE_CLICKHOUSE=")
	c.Stdout, c.Stderr = io.Discard, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, said.String())
		}
	})
	return c
}

// awaitOwners waits until all partitions have an owner and enough holds, and returns how many each has.
func awaitOwners(t *testing.T, ctx context.Context, seats jetstream.KeyValue, enough func(map[string]int) bool) map[string]int {
	t.Helper()
	for {
		owners, all := map[string]int{}, 0
		for p := range event.PartitionCount {
			entry, err := seats.Get(ctx, fmt.Sprintf("judge.%d", p))
			if err != nil {
				continue
			}
			owners[leaseOf(t, entry)]++
			all++
		}
		if all == event.PartitionCount && enough(owners) {
			return owners
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the partitions belong to %v", owners)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ownerOf returns who judges the host of a world.
func ownerOf(t *testing.T, ctx context.Context, js jetstream.JetStream, seats jetstream.KeyValue, name string) string {
	t.Helper()
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	for {
		raw, err := stream.GetLastMsgForSubject(ctx, "lowtide.p.*."+name+".host.*")
		if err == nil {
			entry, err := seats.Get(ctx, "judge."+strings.Split(raw.Subject, ".")[2])
			if err != nil {
				t.Fatal(err)
			}
			return leaseOf(t, entry)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("nothing of %s is published: %v", name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func leaseOf(t *testing.T, entry jetstream.KeyValueEntry) string {
	t.Helper()
	var lease struct{ Member string }
	if err := json.Unmarshal(entry.Value(), &lease, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	return lease.Member
}

// world is a recording in a cluster of its own, so that nobody is a peer of another's workers.
type world struct {
	events   []*event.Event
	last     time.Time
	replayed map[string]time.Time // transitions of a replay
}

func openWorlds(t *testing.T, names ...string) []*world {
	t.Helper()
	var worlds []*world
	for _, name := range names {
		path := "processor/testdata/" + name + ".ndjson.gz"
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		reader, err := event.NewReader(file, path)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{replayed: map[string]time.Time{}}
		var copied bytes.Buffer
		writer := event.NewWriter(&copied)
		for {
			e, err := reader.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			e.Host.Cluster, e.Host.Name = event.Token(name), "host"
			w.events, w.last = append(w.events, e), e.At()
			if err := writer.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		file.Close()
		if err := writer.Flush(); err != nil {
			t.Fatal(err)
		}
		mine := filepath.Join(t.TempDir(), name+".ndjson")
		if err := os.WriteFile(mine, copied.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		var lines bytes.Buffer
		replay := &processor.ReplayCommand{Recordings: []string{mine}, JSON: true, Stdout: &lines}
		if err := replay.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		scan := bufio.NewScanner(&lines)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			f, err := event.UnmarshalFinding(scan.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			w.replayed[transition(f)] = f.Time
		}
		worlds = append(worlds, w)
	}
	return worlds
}

func transition(f *event.Finding) string {
	return strings.Join([]string{f.Time.UTC().Format(time.RFC3339), f.Subject.Key, f.Class, f.State, f.Severity}, " ")
}

func storedFindings(t *testing.T, ctx context.Context, js jetstream.JetStream) map[string]int {
	t.Helper()
	stream, err := js.Stream(ctx, event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for sequence := info.State.FirstSeq; sequence != 0 && sequence <= info.State.LastSeq; sequence++ {
		raw, err := stream.GetMsg(ctx, sequence)
		if err != nil {
			t.Fatal(err)
		}
		f, err := event.UnmarshalFinding(raw.Data)
		if err != nil {
			t.Fatal(err)
		}
		found[transition(f)]++
	}
	return found
}
