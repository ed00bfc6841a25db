package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"lowtide/collector/status"
	"lowtide/event"
)

func open(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := New(o)
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

func collect(t *testing.T, s *Source) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), time.Unix(1_790_001_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func same(t *testing.T, what string, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("%s:\n got %s\nwant %s", what, prototext.Format(got), prototext.Format(want))
	}
}

// The numbers of the fixture, converted by hand: kB are 1,024 bytes, 2,000 ticks are 20 s, boot is 1790000000.
func TestFieldsOfTheFixture(t *testing.T) {
	f := newTree(t)
	events := collect(t, open(t, f.options()))
	if len(events) != 4 {
		t.Fatalf("%d events, want the machine and three processes", len(events))
	}
	same(t, "machine", events[0].Machine, &event.Machine{
		MemoryTotalBytes: event.Ptr(uint64(2147483648)), MemoryAvailableBytes: event.Ptr(uint64(1073741824)), Fds: event.Ptr(uint64(5000)),
		KernelVersion: "6.8.0-45-generic", DriverVersion: "580.95.05",
	})
	rank := events[2]
	same(t, "process", rank.Process, &event.Process{
		RssBytes: event.Ptr(uint64(921600000)), AnonBytes: event.Ptr(uint64(512000000)), SwapBytes: event.Ptr(uint64(4194304)),
		ShmemBytes: event.Ptr(uint64(102400000)), PinnedKernelBytes: event.Ptr(uint64(3145728)), Fds: event.Ptr(uint64(5)),
		FdsLimit: event.Ptr(uint64(65536)), SocketsCloseWait: event.Ptr(uint64(2)), Threads: event.Ptr(uint64(61)),
		CpuSecondsTotal: event.Ptr(20.0), CgroupBytes: event.Ptr(uint64(3100000000)), CgroupLimitBytes: event.Ptr(uint64(8589934592)),
	})
	w := rank.Worker
	if w.Pid != 101 || *w.StartTicks != 6000 || w.StartTime.AsTime().Unix() != 1790000060 || w.ContainerId != testContainer || w.Pod != testPod {
		t.Errorf("identity %s", prototext.Format(w))
	}
	if w.Role != "worker" || *w.Rank != 1 || w.Engine != "vllm" || w.Model != "org/model-7b" || w.Unit != "port-8000" {
		t.Errorf("a rank does not have what its front end says: %s", prototext.Format(w))
	}
	if front := events[1].Worker; front.Role != "frontend" || front.Rank != nil {
		t.Errorf("front end %s", prototext.Format(front))
	}
	llama := events[3]
	if w := llama.Worker; w.Unit != "llama.service" || w.Engine != "llama.cpp" || w.Model != "/models/q4.gguf" || w.ContainerId != "" {
		t.Errorf("systemd worker %s", prototext.Format(w))
	}
	// What its kernel does not write is absent, and "max" is no limit.
	p := llama.Process
	if p.AnonBytes != nil || p.SwapBytes != nil || p.PinnedKernelBytes != nil || p.CgroupLimitBytes != nil || *p.CgroupBytes != 2000000 || *p.Fds != 0 {
		t.Errorf("absent is not absent: %s", prototext.Format(p))
	}
}

// A clock step moves the kernel's btime. The process stays the one it was.
func TestStartTimeIsFixedAtFirstSight(t *testing.T) {
	f := newTree(t)
	s := open(t, f.options())
	before := workers(collect(t, s))[101]
	s.roster.boot = s.roster.boot.Add(time.Hour)
	same(t, "after a clock step", workers(collect(t, s))[101], before)
	f.process(101, 100, 9000, []string{"VLLM::Worker_TP1"}, "0::/\n", fullStatus) // the pid is used again
	events := collect(t, s)
	if w := workers(events)[101]; *w.StartTicks != 9000 || w.StartTime.AsTime().Unix() != 1790000000+3600+90 {
		t.Errorf("a reused pid is %s", prototext.Format(w))
	}
	if end := events[1]; end.Lifecycle.GetState() != "exited" || *end.Worker.StartTicks != 6000 {
		t.Errorf("the end of the one before is %s", prototext.Format(end))
	}
}

func TestChosenProcesses(t *testing.T) {
	f := newTree(t)
	for name, c := range map[string]struct {
		pids  []int
		match *regexp.Regexp
		want  string
	}{
		"by pid":             {[]int{300, 999}, nil, "300"},
		"by pattern":         {nil, regexp.MustCompile("^/bin/bash$"), "300"},
		"none":               {nil, regexp.MustCompile("^nothing$"), ""},
		"by default pattern": {nil, nil, "100 101 200"},
	} {
		o := f.options()
		o.PIDs, o.Match = c.pids, c.match
		var got []string
		for _, e := range collect(t, open(t, o))[1:] {
			got = append(got, time.Duration(e.Worker.Pid).String()[:3])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: pids %v, want %s", name, got, c.want)
		}
	}
}

func TestProcessThatEndsMeanwhileIsLeftOut(t *testing.T) {
	f := newTree(t)
	if err := os.Remove(filepath.Join(f.root, "proc/101/status")); err != nil {
		t.Fatal(err)
	}
	if events := collect(t, open(t, f.options())); len(events) != 3 {
		t.Errorf("%d events, want 3", len(events))
	}
}

func TestOpenFilesThatMayNotBeSeen(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("SKIPPED: root may list every folder; run as another user to test what a refusal gives")
	}
	f := newTree(t)
	fd := filepath.Join(f.root, "proc/101/fd")
	if err := os.Chmod(fd, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(fd, 0o755) })
	events, err := open(t, f.options()).Collect(t.Context(), time.Unix(1_790_001_000, 0))
	if !errors.Is(err, status.ErrDenied) || len(events) != 4 || events[2].Process.Fds != nil || events[2].Process.RssBytes == nil {
		t.Errorf("denied: %v, %d events", err, len(events))
	}
}

func TestNoProcIsAbsent(t *testing.T) {
	if _, err := New(Options{ProcRoot: filepath.Join(t.TempDir(), "proc")}); status.Of(err) != status.Absent {
		t.Errorf("no /proc: %v", err)
	}
}

func TestPlaces(t *testing.T) {
	under := strings.ReplaceAll(testPod, "-", "_")
	for name, c := range map[string]struct {
		line string
		want place
	}{
		"containerd, systemd, v2":    {"0::/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + testContainer + ".scope", place{container: testContainer, pod: testPod, version: 2}},
		"cri-o, systemd, v2":         {"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/crio-" + testContainer + ".scope", place{container: testContainer, pod: testPod, version: 2}},
		"cri-o, inner":               {"0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-" + testContainer + ".scope/container", place{container: testContainer, pod: testPod, version: 2}},
		"containerd, cgroupfs, v1":   {"11:memory:/kubepods/burstable/pod" + testPod + "/" + testContainer, place{container: testContainer, pod: testPod, version: 1}},
		"containerd, colons, v1":     {"11:memory:/system.slice/containerd.service/kubepods-burstable-pod" + under + ".slice:cri-containerd:" + testContainer, place{container: testContainer, pod: testPod, version: 1}},
		"docker, systemd, v2":        {"0::/system.slice/docker-" + testContainer + ".scope", place{container: testContainer, version: 2}},
		"docker, cgroupfs, v1":       {"4:memory:/docker/" + testContainer, place{container: testContainer, version: 1}},
		"service":                    {"0::/system.slice/vllm@0.service", place{unit: "vllm@0.service", version: 2}},
		"user session":               {"0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u5.scope", place{version: 2}},
		"root":                       {"0::/", place{version: 2}},
		"private cgroup namespace":   {"0::/../../kubepods/pod" + testPod + "/" + testContainer, place{container: testContainer, pod: testPod}},
		"63 digits are no container": {"0::/docker/" + testContainer[1:], place{version: 2}},
	} {
		groups := parseGroups(c.line + "\n")
		got := parsePlace(groups)
		if c.want.version != 0 {
			c.want.memory = groups[0].path
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestMemoryOfV1(t *testing.T) {
	f := tree{t, t.TempDir()}
	f.write("memory/docker/a/memory.usage_in_bytes", "1000\n")
	f.write("memory/docker/a/memory.limit_in_bytes", "9223372036854771712\n") // no limit, as v1 writes it
	used, limit := memoryOf(f.root, place{memory: "/docker/a", version: 1})
	if used == nil || *used != 1000 || limit != nil {
		t.Errorf("unlimited: used %v, limit %v", used, limit)
	}
	f.write("memory/docker/a/memory.limit_in_bytes", "4096\n")
	if used, limit = memoryOf(f.root, place{memory: "/docker/a", version: 1}); *used != 1000 || *limit != 4096 {
		t.Errorf("limited: used %d, limit %d, want 1000 and 4096", *used, *limit)
	}
	if used, limit = memoryOf(f.root, place{}); used != nil || limit != nil {
		t.Error("an unknown place has memory")
	}
}

// The real /proc: a child of this test is found and has what every living process has.
func TestRealProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("SKIPPED: this machine has no /proc, the real one is not tested")
	}
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); child.Wait() })
	// Until it answers, it may still be on its way through exec, with no command line.
	if _, err := in.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	events := collect(t, open(t, Options{PIDs: []int{child.Process.Pid}}))
	if len(events) != 2 {
		t.Fatalf("%d events, want the machine and the child", len(events))
	}
	p, w := events[1].Process, events[1].Worker
	if p.GetRssBytes() == 0 || p.GetFds() == 0 || p.GetThreads() != 1 || p.AnonBytes == nil || p.PinnedKernelBytes == nil || p.SocketsCloseWait == nil {
		t.Errorf("real process %s", prototext.Format(p))
	}
	if age := time.Since(w.StartTime.AsTime()); w.GetStartTicks() == 0 || age < -2*time.Second || age > time.Minute {
		t.Errorf("the child started %v ago", age)
	}
	if events[0].Machine.GetMemoryTotalBytes() == 0 || events[0].Machine.KernelVersion == "" || BootID("/proc") == "" {
		t.Errorf("real machine %s", prototext.Format(events[0].Machine))
	}
}

func BenchmarkRealProc(b *testing.B) {
	s, err := New(Options{})
	if err != nil {
		b.Skip("SKIPPED: no /proc")
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Collect(b.Context(), time.Now()); err != nil && !errors.Is(err, status.ErrDenied) {
			b.Fatal(err)
		}
	}
}
