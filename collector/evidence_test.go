package collector_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"lowtide/collector"
	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// worker is a program with the real probe and a stand-in for torch, that fails an allocation at the end of its stdin and dies of it.
const worker = `
import sys, lowtide_probe.watch as w, lowtide_probe.link as l
w.POLL_SECONDS = .01
l.AWAY_SECONDS = (.02, .1)
import lowtide_probe, torch
torch.cuda.init()
torch.state.contexts = {0}
lowtide_probe.start()
print("ready", flush=True)
sys.stdin.read()
torch.fail()
`

// started is a worker under the collector that listens on the socket.
func started(t *testing.T, socket string) (command *exec.Cmd, in io.WriteCloser) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3 on this machine, so nothing is asked of a real probe")
	}
	folder, err := filepath.Abs("probe")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	command = exec.CommandContext(ctx, python, "-c", worker)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + filepath.Join(folder, "tests", "fake") + ":" + folder, "PYTHONDONTWRITEBYTECODE=1", "LOWTIDE_PROBE_SOCKET=" + socket}
	command.Stderr = io.Discard
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if in, err = command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); command.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return command, in
}

// The whole way, with the real probe, broker and child: a snapshot that is asked for, then the post-mortem of the allocation that the
// worker dies of.
func TestEvidenceFromProbeToBroker(t *testing.T) {
	server, conn, _ := brokertest.Start(t)
	folder, err := os.MkdirTemp("", "lt") // a socket's path has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	snapshots := filepath.Join(folder, "snapshots")
	command := &collector.Command{NATS: server.ClientURL(), Cluster: "lab", Host: "gpu-1", Metrics: "off", Speed: 1, Stretch: 1, Evidence: true, Snapshots: snapshots,
		Sensors: sensors(time.Second), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	command.ProbeSocket, command.Without = filepath.Join(folder, "p.sock"), []string{"nvml", "engine", "kernel", "process"}
	events := make(chan *nats.Msg, 1024)
	subscription, err := conn.ChanSubscribe("lowtide.event.lab.gpu-1.*", events)
	if err != nil {
		t.Fatal(err)
	}
	defer subscription.Unsubscribe()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- command.Run(ctx) }()
	program, in := started(t, command.ProbeSocket)
	// next waits for an event of the worker.
	over := time.After(time.Minute)
	next := func(what string, is func(*event.Event) bool) *event.Event {
		t.Helper()
		for {
			select {
			case m := <-events:
				b, _, err := event.DecodeBatch("", m.Data)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range b.Events {
					if e.Source.GetName() == "evidence" {
						t.Fatalf("no evidence: %s", e.Source.Error)
					}
					if is(e) {
						return e
					}
				}
			case err := <-done:
				t.Fatalf("collect ended by itself: %v", err)
			case <-over:
				t.Fatal("not within a minute: " + what)
			}
		}
	}
	next("a read", func(e *event.Event) bool { return e.Allocator != nil })
	request, err := json.Marshal(event.AskRequest{Ask: "snapshot", PID: int64(program.Process.Pid), Reason: "retention suspected", Census: true})
	if err != nil {
		t.Fatal(err)
	}
	m, err := conn.RequestWithContext(t.Context(), event.AskSubject("lab", "gpu-1"), request)
	if err != nil || !strings.Contains(string(m.Data), `"status":"accepted"`) {
		t.Fatalf("%s, %v", m.Data, err)
	}
	check := func(e *event.Event, reason, word string) {
		t.Helper()
		s := e.Snapshot
		// Three blocks of 4 KiB in a segment of 2 MiB: what the stand-in for torch holds.
		if s.Reason != reason || s.GpuUuid != "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000" || s.GetReservedBytes() != 2<<20 || s.GetLiveBytes() != 3*4096 || s.TookSeconds == nil {
			t.Errorf("%s: %v", reason, s)
		}
		info, err := os.Stat(filepath.Join(snapshots, s.File))
		if err != nil || info.Mode() != 0o600 || uint64(info.Size()) != s.GetFileBytes() || info.Size() == 0 {
			t.Errorf("%s: file %v, %v", reason, info, err)
		}
		if prefix := fmt.Sprintf("gpu-1-%d-", program.Process.Pid); !strings.HasPrefix(s.File, prefix) || !strings.HasSuffix(s.File, "-"+word+".pickle") {
			t.Errorf("%s: file %q", reason, s.File)
		}
		if e.Worker.GetPid() != int64(program.Process.Pid) {
			t.Errorf("%s: worker %v", reason, e.Worker)
		}
	}
	asked := next("a snapshot", func(e *event.Event) bool { return e.Snapshot != nil })
	check(asked, "retention suspected", "retention")
	if asked.Snapshot.Census == nil || asked.Snapshot.Census.GetTensors() != 0 {
		t.Errorf("census %v", asked.Snapshot.Census)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	check(next("a post-mortem", func(e *event.Event) bool { return e.Snapshot != nil }), "oom", "oom")
	if again, err := conn.RequestWithContext(t.Context(), event.AskSubject("lab", "gpu-1"), []byte(`{"ask":"snapshot","pid":`+strconv.Itoa(os.Getpid())+`}`)); err != nil || !strings.Contains(string(again.Data), "install the probe") {
		t.Errorf("a process without a probe: %s, %v", again.Data, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
