package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	"lowtide/event"
)

func lifecycles(events []*event.Event) []*event.Event {
	var found []*event.Event
	for _, e := range events {
		if e.Lifecycle != nil {
			found = append(found, e)
		}
	}
	return found
}

func TestStartedAndExited(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	if found := lifecycles(collectAt(t, s, tick)); len(found) != 0 {
		t.Fatalf("the first tick tells of %v", found)
	}
	f.process(400, 1, 100_300, []string{"python3", "/usr/bin/vllm", "serve", "a"}, "0::/\n", fullStatus)
	f.process(500, 1, 4_000, []string{"python3", "/usr/bin/vllm", "serve", "older"}, "0::/\n", fullStatus) // seen late, started before
	found := lifecycles(collectAt(t, s, tick.Add(5*time.Second)))
	if len(found) != 1 || found[0].Worker.Pid != 400 || found[0].Lifecycle.State != "started" || event.Validate(found[0]) != nil {
		t.Fatalf("started: %v", found)
	}
	f.remove(400)
	found = lifecycles(collectAt(t, s, tick.Add(10*time.Second)))
	if len(found) != 1 {
		t.Fatalf("exited: %v", found)
	}
	same(t, "exited", found[0].Lifecycle, &event.Lifecycle{State: "exited", By: "unknown"})
	if w := found[0].Worker; w.Pid != 400 || w.GetStartTicks() != 100_300 || w.StartTime == nil {
		t.Errorf("who exited: %s", prototext.Format(w))
	}
	if found = lifecycles(collectAt(t, s, tick.Add(15*time.Second))); len(found) != 0 {
		t.Errorf("told twice: %v", found)
	}
}

// What the kernel's log and the process itself told comes out with its end.
func TestHowItEnded(t *testing.T) {
	for name, c := range map[string]struct {
		tell   *event.Event
		zombie int // status in stat, when it waits to be reaped
		want   *event.Lifecycle
	}{
		"nothing is known":    {nil, -1, &event.Lifecycle{By: "unknown"}},
		"the kernel's killer": {&event.Event{Oom: &event.Oom{Kind: "kernel", VictimPid: event.Ptr(int64(101))}}, -1, &event.Lifecycle{Signal: event.Ptr(int64(9)), By: "kernel"}},
		"a cgroup's limit": {&event.Event{Worker: &event.Worker{Pid: 101}, Oom: &event.Oom{Kind: "cgroup", VictimPid: event.Ptr(int64(101))}}, 9,
			&event.Lifecycle{Signal: event.Ptr(int64(9)), By: "cgroup"}},
		"a CUDA failure is no kill": {&event.Event{Worker: &event.Worker{Pid: 101}, Oom: &event.Oom{Kind: "cuda", VictimPid: event.Ptr(int64(101))}}, -1, &event.Lifecycle{By: "unknown"}},
		"bye with a code": {&event.Event{Worker: &event.Worker{Pid: 101}, Lifecycle: &event.Lifecycle{State: "draining", SaidBye: event.Ptr(true), ExitCode: event.Ptr(int64(1))}}, -1,
			&event.Lifecycle{ExitCode: event.Ptr(int64(1)), By: "self", SaidBye: event.Ptr(true)}},
		"bye without one": {&event.Event{Worker: &event.Worker{Pid: 101}, Lifecycle: &event.Lifecycle{State: "draining", SaidBye: event.Ptr(true)}}, -1,
			&event.Lifecycle{By: "self", SaidBye: event.Ptr(true)}},
		"bye, then killed": {&event.Event{Worker: &event.Worker{Pid: 101}, Lifecycle: &event.Lifecycle{State: "draining", SaidBye: event.Ptr(true)}}, 9,
			&event.Lifecycle{Signal: event.Ptr(int64(9)), By: "unknown", SaidBye: event.Ptr(true)}},
		"draining is no bye":             {&event.Event{Worker: &event.Worker{Pid: 101}, Lifecycle: &event.Lifecycle{State: "draining"}}, -1, &event.Lifecycle{By: "unknown"}},
		"a zombie with code 3":           {nil, 3 << 8, &event.Lifecycle{ExitCode: event.Ptr(int64(3)), By: "self"}},
		"a zombie that dumped its core":  {nil, 11 | 0x80, &event.Lifecycle{Signal: event.Ptr(int64(11)), By: "unknown"}},
		"a zombie that may not be asked": {nil, 0, &event.Lifecycle{By: "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTree(t)
			s := open(t, f.options())
			collectAt(t, s, tick)
			if c.tell != nil {
				complete(s, c.tell)
			}
			f.remove(101)
			if c.zombie >= 0 {
				f.write("proc/101/stat", fmt.Sprintf("101 (x) Z 100 1 1 0 -1 4227084 0 0 0 0 250 50 0 0 20 0 1 0 6000 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 %d\n", c.zombie))
			}
			found := lifecycles(collectAt(t, s, tick.Add(5*time.Second)))
			if len(found) != 1 {
				t.Fatalf("%d ends", len(found))
			}
			c.want.State = "exited"
			same(t, "end", found[0].Lifecycle, c.want)
		})
	}
}

// A call between two ticks gives no samples, and costs no tick its own.
func TestCallBetweenTicks(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	collectAt(t, s, tick)
	samples := func(at time.Duration) int { return len(collectAt(t, s, tick.Add(at))) }
	s.call()
	s.call() // the channel holds one
	if len(s.Wake()) != 1 {
		t.Fatal("nobody is woken")
	}
	if n := samples(2 * time.Second); n != 0 {
		t.Errorf("%d events between ticks", n)
	}
	if n := samples(3 * time.Second); n != 4 {
		t.Errorf("%d events when nobody called, want the machine and three processes", n)
	}
	<-s.Wake()
	s.call()
	// The call and a tick fall together: one of the two gives the samples.
	if first, second := samples(8*time.Second), samples(8*time.Second); first != 4 || second != 0 {
		t.Errorf("%d and %d events", first, second)
	}
}

// realSource watches real processes of this machine whose command line holds a word that nobody else's does.
func realSource(t *testing.T, match string) *Source {
	t.Helper()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("SKIPPED: this machine has no /proc, the real one is not tested")
	}
	s, err := New(Options{Match: regexp.MustCompile(match), LogRoot: t.TempDir(), PodResources: filepath.Join(t.TempDir(), "kubelet.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// orphan starts a program that is no child of this test, so that the source does not take it for the collector's own, and returns
// its pid. Init reaps it.
func orphan(t *testing.T, script string) int {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "sh", "-c", script+" >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(pid); err == nil {
			p.Kill()
		}
	})
	return pid
}

// Real processes: found, told as started, and their end told at once with what the kernel knows of it.
func TestRealLife(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("SKIPPED: no shell to start processes with")
	}
	script := filepath.Join(t.TempDir(), "4242.1")
	if err := os.WriteFile(script, []byte("trap 'exit 7' TERM\nwhile :; do sleep 0.05; done\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		script string
		signal os.Signal
		want   *event.Lifecycle
	}{
		"killed": {"exec sleep 4242.1", os.Kill, &event.Lifecycle{State: "exited", Signal: event.Ptr(int64(9)), By: "unknown"}},
		"failed": {"exec sh " + script, syscall.SIGTERM, &event.Lifecycle{State: "exited", ExitCode: event.Ptr(int64(7)), By: "self"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := realSource(t, `4242\.1`)
			if s.o.self == 0 {
				t.Skip("SKIPPED: /proc is another pid namespace's, so that processes cannot be watched through pidfds here")
			}
			var clock time.Time
			at := func() time.Time { clock = clock.Add(5 * time.Second); return clock }
			clock = time.Now()
			if found := workers(collectAll(t, s, at())); len(found) != 0 {
				t.Fatalf("the machine already runs %v", found)
			}
			pid := orphan(t, c.script)
			var started []*event.Event
			for range 100 { // until it has gone through its execs; each tick reads it again
				if started = append(started, lifecycles(collectAll(t, s, at()))...); len(started) > 0 {
					break
				}
			}
			if len(started) != 1 || started[0].Lifecycle.State != "started" || started[0].Worker.Pid != int64(pid) {
				t.Fatalf("started: %v", started)
			}
			if s.watcher == nil || !s.watcher.awaits(s.roster.lives()[pid]) {
				t.Skip("SKIPPED: this kernel has no pidfds (before Linux 5.3): how a process ended is not tested")
			}
			process, err := os.FindProcess(pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			waited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			begun := time.Now()
			select {
			case <-s.Wake():
			case <-waited.Done():
				t.Fatal("nobody was woken within 10 s")
			}
			events := collectAll(t, s, clock.Add(time.Second)) // between two ticks
			found := lifecycles(events)
			if len(found) != 1 || len(events) != 1 || found[0].Worker.Pid != int64(pid) {
				t.Fatalf("after the end: %v", events)
			}
			t.Logf("told after %v", time.Since(begun).Round(time.Millisecond))
			if end := found[0].Lifecycle; end.Signal == nil && end.ExitCode == nil {
				t.Skipf("SKIPPED: this kernel does not tell how a process ended (before Linux 6.15), and init reaped it at once: %s", prototext.Format(end))
			}
			same(t, "end", found[0].Lifecycle, c.want)
			if again := lifecycles(collectAll(t, s, at())); len(again) != 0 {
				t.Errorf("told twice: %v", again)
			}
		})
	}
}

// collectAll is a Collect that may be denied something: the machine's other processes are not the test's.
func collectAll(t *testing.T, s *Source, at time.Time) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), at)
	if err != nil && len(events) == 0 {
		t.Fatal(err)
	}
	return events
}

// A python that takes a title, as engines' children do.
func TestRealTitle(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3 on this machine, the change of a title is not tested")
	}
	s := realSource(t, `4242\.2|^VLLM::Worker_TP3`)
	clock := time.Now()
	collectAll(t, s, clock)
	// PR_SET_MM would need a capability: the title is written over the arguments in memory, as setproctitle does.
	program := `import ctypes,time
a=ctypes.POINTER(ctypes.c_char_p)();n=ctypes.c_int()
ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(n),ctypes.byref(a))
f=open("/proc/self/stat").read().rsplit(")",1)[1].split()
lo,hi=int(f[45]),int(f[46])
ctypes.memset(lo,0,hi-lo)
ctypes.memmove(lo,b"VLLM::Worker_TP3",16)
time.sleep(60)`
	script := filepath.Join(t.TempDir(), "title.py")
	if err := os.WriteFile(script, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	pid := orphan(t, "exec "+python+" "+script+" 4242.2")
	var w *event.Worker
	for range 2000 {
		clock = clock.Add(5 * time.Second)
		if w = workers(collectAll(t, s, clock))[int64(pid)]; w.GetRank() == 3 {
			break
		}
	}
	if w.GetRole() != "worker" || w.GetRank() != 3 || w.GetEngine() != "vllm" {
		t.Errorf("a renamed process is %s", prototext.Format(w))
	}
}

// A host runs many pythons. One is of interest from when it holds a GPU, or when it was asked for; then its start and its end are told.
func TestAPythonIsShownOnceItHoldsAGPU(t *testing.T) {
	f := bareTree(t)
	s := open(t, f.options())
	collectAt(t, s, tick)
	f.process(400, 1, 100_300, []string{"python3", "train.py"}, "0::/\n", fullStatus)
	f.process(401, 1, 100_301, []string{"python3", "cron.py"}, "0::/\n", fullStatus)
	if found := workers(collectAt(t, s, tick.Add(5*time.Second))); len(found) != 0 {
		t.Fatalf("shown: %v", found)
	}
	holds(s, tick.Add(6*time.Second), "GPU-a", 400)
	events := collectAt(t, s, tick.Add(10*time.Second))
	if found := workers(events); len(found) != 1 || found[400] == nil || len(lifecycles(events)) != 1 {
		t.Fatalf("shown: %v", events)
	}
	f.remove(400)
	f.remove(401)
	if ends := lifecycles(collectAt(t, s, tick.Add(15*time.Second))); len(ends) != 1 || ends[0].Worker.Pid != 400 {
		t.Errorf("ends: %v", ends)
	}
	o := f.options()
	o.Match = regexp.MustCompile("cron")
	f.process(402, 1, 100_302, []string{"python3", "cron.py"}, "0::/\n", fullStatus)
	if found := workers(collectAt(t, open(t, o), tick)); len(found) != 1 {
		t.Errorf("asked for, shown: %v", found)
	}
}
