package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/collector"
)

// speaker is a worker as the collector's socket sees it: a process of its own that says what the probe would say. It leaves the
// test's family first, since a collector does not watch what it has started itself.
const speaker = `
import json, os, socket, sys, time
parent = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == parent: time.sleep(0.001)  # until then it is of the family
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
def say(**line): s.sendall((json.dumps(dict(line, v=1)) + "\n").encode())
gpu = sys.argv[2]
say(kind="hello", probe="0.1.0", python="3", torch="2.11.0", backend="native")
say(kind="read", time=time.time(), took_seconds=0.0001, interval_seconds=1, devices=[{"gpu_uuid": gpu, "allocated_bytes": 1 << 30, "reserved_bytes": 2 << 30, "active_bytes": 1 << 30, "ooms_total": 0}])
print("connected", os.getpid(), flush=True)
sys.stdin.readline()
print(time.time(), flush=True)
say(kind="oom", time=time.time(), source="exception", gpu_uuid=gpu, requested_bytes=1 << 35, free_bytes=1 << 30, text="CUDA out of memory. Tried to allocate 32.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free.")
sys.stdin.readline()
`

// A failed allocation in a worker reaches Slack through everything that is real but the GPU: the probe's socket, the loop, the
// broker, the judge, the outbox. How long it takes is logged, not asserted: most of it is the
// second that Slack wants between two cards.
func TestEndToEndOOM(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3 to play the workers")
	}
	slack, api := newWorkspace(t)
	t.Setenv("LOWTIDE_SLACK_TOKEN", "xoxb-test")
	data, err := os.MkdirTemp("", "lt") // a socket's path has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(data)
	no, socket := false, filepath.Join(data, "p.sock")
	up := &UpCommand{Data: data, Listen: "127.0.0.1:0", Cluster: "local", Metrics: "off", Stretch: 1, Demo: &no, Library: filepath.Join(data, "none"),
		Sensors: collector.Sensors{Interval: time.Second, NVMLInterval: time.Second, Discover: true, ProbeSocket: socket, Match: "no such process"}, announcing: announcing{SlackChannel: "C1", SlackURL: api}}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- up.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("up: %v", err)
		}
	}()
	until(ctx, t, "the socket", func() bool { _, err := os.Stat(socket); return err == nil })
	var took []time.Duration
	for i := range 5 {
		worker := exec.CommandContext(ctx, python, "-c", speaker, socket, fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i))
		in, err := worker.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := worker.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		worker.Stderr = os.Stderr
		if err := worker.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(out)
		var pid int
		if _, err := fmt.Fscanf(said, "connected %d\n", &pid); err != nil {
			t.Fatalf("worker said something else: %v", err)
		}
		before := slack.count()
		fmt.Fprintln(in)
		if _, err := said.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		failed := time.Now()
		until(ctx, t, "a card", func() bool { return slack.count() > before })
		took = append(took, time.Since(failed))
		if text := slack.last(); !strings.Contains(text, "oversize_request") || !strings.Contains(text, fmt.Sprint(pid)) {
			t.Fatalf("the card of pid %d says %.600s", pid, text)
		}
		in.Close()
		if err := worker.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	t.Logf("from the failed allocation to Slack: median %v, longest of %d %v", took[len(took)/2], len(took), took[len(took)-1])
}

// until looks again and again, since what it waits for happens in other processes.
func until(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited for %s in vain", what)
		case <-tick.C:
		}
	}
}
