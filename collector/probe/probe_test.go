// Package probe holds no Go: these tests run the probe's own suite, build its wheel, and put it and the collector's source together.
package probe

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"lowtide/collector/allocator"
	"lowtide/event"
)

const patience = 30 * time.Second // nothing takes this long when it works

// python runs python3 without a word of this process's environment that could change what it does.
func python(t *testing.T, environment []string, arguments ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3 on this machine, so the probe is not tested at all")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, path, arguments...)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PYTHONDONTWRITEBYTECODE=1"}, environment...)
	return command
}

func run(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", command.Args, err, out.String(), problems.String())
	}
	if problems.Len() > 0 {
		t.Errorf("%v wrote to stderr: %s", command.Args, problems.String())
	}
	return out.String()
}

func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPython(t *testing.T) {
	command := python(t, []string{"PYTHONPATH=" + folder(t)}, "-m", "unittest", "discover", "-s", "tests", "-t", "tests")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "\nOK") || strings.Contains(string(out), "Ran 0 tests") {
		t.Errorf("%s", out)
	}
	if strings.Contains(string(out), "SKIPPED") {
		t.Logf("%s", out)
	}
}

// wheel builds the wheel and returns its path.
func wheel(t *testing.T) string {
	t.Helper()
	out := t.TempDir()
	return strings.TrimSpace(run(t, python(t, nil, "build_wheel.py", out)))
}

func TestWheel(t *testing.T) {
	path := wheel(t)
	if filepath.Base(path) != "lowtide_probe-0.2.0-py3-none-any.whl" {
		t.Errorf("%s", path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(wheel(t))
	if err != nil || !bytes.Equal(content, again) {
		t.Errorf("two builds differ (%v)", err)
	}
	files := unzip(t, path)
	record := string(files["lowtide_probe-0.2.0.dist-info/RECORD"])
	named := []string{}
	for line := range strings.Lines(record) {
		fields := strings.Split(strings.TrimSpace(line), ",")
		named = append(named, fields[0])
		if strings.HasSuffix(fields[0], "/RECORD") {
			continue
		}
		sum := sha256.Sum256(files[fields[0]])
		if want := "sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]); fields[1] != want || fields[2] != fmt.Sprint(len(files[fields[0]])) {
			t.Errorf("%s: %v, want %s", fields[0], fields[1:], want)
		}
	}
	want := []string{"lowtide_probe-0.2.0.dist-info/METADATA", "lowtide_probe-0.2.0.dist-info/RECORD", "lowtide_probe-0.2.0.dist-info/WHEEL",
		"lowtide_probe-0.2.0.dist-info/entry_points.txt", "lowtide_probe.pth", "lowtide_probe.start", "lowtide_probe/__init__.py",
		"lowtide_probe/asking.py", "lowtide_probe/bar.py", "lowtide_probe/census.py", "lowtide_probe/evidence.py", "lowtide_probe/history.py", "lowtide_probe/link.py",
		"lowtide_probe/reading.py", "lowtide_probe/snapshot.py", "lowtide_probe/watch.py"}
	slices.Sort(named)
	if !slices.Equal(named, want) || len(files) != len(want) {
		t.Errorf("holds %v", named)
	}
}

func unzip(t *testing.T, path string) map[string][]byte {
	t.Helper()
	archive, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	files := make(map[string][]byte)
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(io.LimitReader(r, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = content
	}
	return files
}

// site unpacks the wheel into the site-packages of an environment of its own, and returns that environment's python3.
func site(t *testing.T) (interpreter, packages string) {
	t.Helper()
	root := t.TempDir()
	version := strings.TrimSpace(run(t, python(t, nil, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])")))
	base := strings.TrimSpace(run(t, python(t, nil, "-c", "import sys; print(sys.executable)")))
	packages = filepath.Join(root, "lib", version, "site-packages")
	for name, content := range unzip(t, wheel(t)) {
		write(t, filepath.Join(packages, name), string(content))
	}
	write(t, filepath.Join(root, "pyvenv.cfg"), "home = "+filepath.Dir(base)+"\ninclude-system-site-packages = false\n")
	interpreter = filepath.Join(root, "bin", "python3")
	if err := os.MkdirAll(filepath.Dir(interpreter), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base, interpreter); err != nil {
		t.Fatal(err)
	}
	return interpreter, packages
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// installed runs a program in the environment with the wheel.
func installed(t *testing.T, interpreter, program string, environment ...string) string {
	t.Helper()
	command := python(t, append(environment, "LOWTIDE_PROBE_SOCKET="+filepath.Join(t.TempDir(), "nobody.sock")), "-c", program)
	command.Path, command.Args[0] = interpreter, interpreter
	return strings.TrimSpace(run(t, command))
}

func TestInstalledWheelStartsByItself(t *testing.T) {
	interpreter, packages := site(t)
	program := `
import sys, threading
finder = [f for f in sys.meta_path if type(f).__module__ == "lowtide_probe"]
heavy = [m for m in ("json", "socket", "lowtide_probe.watch", "torch") if m in sys.modules]
print("lowtide_probe" in sys.modules, len(finder), heavy, threading.active_count())`
	if got := installed(t, interpreter, program); got != "True 1 [] 1" {
		t.Errorf("by .pth: %s", got)
	}
	if got := installed(t, interpreter, program, "LOWTIDE_PROBE=0"); got != "True 0 [] 1" {
		t.Errorf("turned off: %s", got)
	}
	// Whatever is wrong with the package must not show in every Python process.
	write(t, filepath.Join(packages, "lowtide_probe", "__init__.py"), "raise RuntimeError('broken')\n")
	if got := installed(t, interpreter, "print('fine')"); got != "fine" {
		t.Errorf("broken: %s", got)
	}
}

// The newer .start file names what an interpreter calls; this one does it as PEP 829 says.
func TestStartFile(t *testing.T) {
	interpreter, packages := site(t)
	if err := os.Remove(filepath.Join(packages, "lowtide_probe.pth")); err != nil {
		t.Fatal(err)
	}
	program := `
import pkgutil, sys, pathlib
for line in pathlib.Path([p for p in sys.path if p.endswith("site-packages")][0], "lowtide_probe.start").read_text().splitlines():
    if line and not line.startswith("#"):
        print(line, pkgutil.resolve_name(line)(), len([f for f in sys.meta_path if type(f).__module__ == "lowtide_probe"]))`
	if got := installed(t, interpreter, program); got != "lowtide_probe:start None 1" {
		t.Errorf("%s", got)
	}
}

// Servers find their plug-ins so, vLLM and SGLang alike, in each of their processes and maybe more than once.
func TestEntryPoints(t *testing.T) {
	interpreter, _ := site(t)
	program := `
import importlib.metadata, sys
for group in ("vllm.general_plugins", "sglang.srt.plugins"):
    points = importlib.metadata.entry_points()
    points = points.select(group=group) if hasattr(points, "select") else points[group]
    for point in points:
        print(group, point.name, point.load()(), point.load()())
print(importlib.metadata.version("lowtide-probe"), len([f for f in sys.meta_path if type(f).__module__ == "lowtide_probe"]))`
	want := "vllm.general_plugins lowtide None None\nsglang.srt.plugins lowtide None None\n0.2.0 1"
	if got := installed(t, interpreter, program); got != want {
		t.Errorf("%s", got)
	}
}

func TestSitecustomizeHandsOverToTheNext(t *testing.T) {
	other := t.TempDir()
	write(t, filepath.Join(other, "sitecustomize.py"), "import sys\nsys.other = __file__\n")
	inject := filepath.Join(folder(t), "inject")
	program := `import sys; print(getattr(sys, "other", ""), sys.modules["sitecustomize"].__file__, "lowtide_probe" in sys.modules)`
	command := python(t, []string{"PYTHONPATH=" + inject + ":" + other}, "-c", program)
	theirs := filepath.Join(other, "sitecustomize.py")
	if got := strings.TrimSpace(run(t, command)); got != theirs+" "+theirs+" True" {
		t.Errorf("%s", got)
	}
	command = python(t, []string{"PYTHONPATH=" + inject + ":" + inject}, "-c", program)
	if got := strings.TrimSpace(run(t, command)); got != "  True" && !strings.HasSuffix(got, "inject/sitecustomize.py True") {
		t.Errorf("alone: %q", got)
	}
}

// A real interpreter with the stand-in for torch, the real socket, and the collector's source.
func TestProbeAndCollector(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "probe.sock")
	source, err := allocator.Listen(allocator.Options{Socket: socket, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	}()
	report := filepath.Join(t.TempDir(), "touched")
	here := folder(t)
	command := python(t, []string{
		"PYTHONPATH=" + strings.Join([]string{filepath.Join(here, "inject"), filepath.Join(here, "tests", "fake")}, ":"),
		"LOWTIDE_PROBE_SOCKET=" + socket, "FAKE_TORCH_REPORT=" + report, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
	}, "-c", `
import sys
import torch
torch.cuda.init()
sys.stdin.readline()
torch.fail()
`)
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	command.Stderr = &problems
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	events := until(t, source, func(all []*event.Event) bool { return body(all, "config") != nil && body(all, "allocator") != nil })
	pid := int64(command.Process.Pid)
	a := body(events, "allocator")
	equal(t, a.Allocator, &event.Allocator{
		GpuUuid: "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000", Backend: "native", ExpandableSegments: event.Ptr(true),
		AllocatedBytes: u(600), ReservedBytes: u(1000), ActiveBytes: u(700), RequestedBytes: u(590), AllocatedPeakBytes: u(900), ReservedPeakBytes: u(1200),
		InactiveSplitBytes: u(50), PrivatePoolBytes: u(96), GraphPools: u(2), AllocRetriesTotal: u(3), OomsTotal: u(1), DeviceAllocsTotal: u(12),
		DeviceFreesTotal: u(5), Segments: u(7), PinnedAllocatedBytes: u(2 << 20), PinnedActiveBytes: u(1 << 20),
	})
	equal(t, body(events, "config").Config, &event.Config{Origin: "probe", TorchVersion: "2.11.0+cu130", CudaVersion: "13.0", AllocConf: "expandable_segments:True"})
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	events = urgent(t, source, func(all []*event.Event) bool { return body(all, "oom") != nil && body(all, "lifecycle") != nil })
	t.Logf("the failure and the bye came within %v", time.Since(began))
	in.Close()
	if err := command.Wait(); err == nil || command.ProcessState.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	if !strings.Contains(problems.String(), "OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.") {
		t.Errorf("the program's own words are %s", problems.String())
	}
	o := body(events, "oom")
	if ooms := count(events, "oom"); ooms != 1 {
		t.Errorf("%d failures of one", ooms)
	}
	if o.Oom.Kind != "cuda" || o.Oom.GetRequestedBytes() != 512<<20 || o.Oom.GetFreeBytes() != 104857600 || o.Oom.GetReservedUnallocatedBytes() != 300<<20 ||
		!strings.Contains(o.Oom.Text, "Process 417 has 1.50 GiB memory in use") {
		t.Errorf("%v", o)
	}
	equal(t, body(events, "lifecycle").Lifecycle, &event.Lifecycle{State: "draining", SaidBye: event.Ptr(true), ExitCode: event.Ptr(int64(1))})
	for _, e := range events {
		if e.Worker.Pid != pid {
			t.Errorf("pid %d, not %d: %v", e.Worker.Pid, pid, e)
		}
		if err := event.Validate(e); err != nil {
			t.Errorf("%v: %v", e, err)
		}
	}
	if touched, err := os.ReadFile(report); err == nil {
		t.Errorf("the probe would have initialised CUDA or imported: %s", touched)
	}
}

// A file goes to the probe as Go sends it, and a snapshot comes back in it.
func TestAsk(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "probe.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	deadline := time.Now().Add(patience)
	listener.SetDeadline(deadline)
	here := folder(t)
	command := python(t, []string{
		"PYTHONPATH=" + strings.Join([]string{filepath.Join(here, "inject"), filepath.Join(here, "tests", "fake")}, ":"),
		"LOWTIDE_PROBE_SOCKET=" + socket,
	}, "-c", "import sys, torch\ntorch.cuda.init()\nsys.stdin.readline()")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer command.Wait()
	defer in.Close()
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, `{"lowtide":1,"interval_seconds":60}`+"\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	next := func(kind string) (l struct {
		Kind, ID, Status string
		Asks             []string
		Bytes            int64
	}) {
		for lines.Scan() {
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatal(err)
			}
			if l.Kind == kind {
				return l
			}
		}
		t.Fatalf("no %s came: %v", kind, lines.Err())
		return l
	}
	if l := next("hello"); !slices.Equal(l.Asks, []string{"snapshot", "arm", "census"}) {
		t.Errorf("the probe takes %v", l.Asks)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "snapshot.pickle"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	ask := `{"lowtide":1,"ask":"snapshot","id":"1f","max_bytes":268435456,"budget_seconds":10}` + "\n"
	if _, _, err := conn.WriteMsgUnix([]byte(ask), syscall.UnixRights(int(file.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	l := next("snapshot")
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if l.ID != "1f" || l.Status != "ok" || l.Bytes != int64(len(content)) || !bytes.HasPrefix(content, []byte("\x80\x04")) || !bytes.Contains(content, []byte("device_traces")) {
		t.Errorf("%+v, and in the file %q", l, content)
	}
}

// until calls Collect at each second, as the agent's loop does.
func until(t *testing.T, source *allocator.Source, enough func([]*event.Event) bool) []*event.Event {
	t.Helper()
	var all []*event.Event
	timer := time.NewTimer(0)
	defer timer.Stop()
	for over := time.After(patience); ; {
		select {
		case <-over:
			t.Fatalf("not within %v: %v", patience, all)
		case <-source.Wake():
		case <-timer.C:
			timer.Reset(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		}
		tick := time.Now()
		events, err := source.Collect(t.Context(), tick)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.At().After(tick) {
				t.Errorf("%v after the tick %v", e, tick)
			}
		}
		all = append(all, events...)
		if enough(all) {
			return all
		}
	}
}

// urgent calls Collect only when it is woken.
func urgent(t *testing.T, source *allocator.Source, enough func([]*event.Event) bool) []*event.Event {
	t.Helper()
	var all []*event.Event
	for over := time.After(patience); !enough(all); {
		select {
		case <-over:
			t.Fatalf("not within %v: %v", patience, all)
		case <-source.Wake():
		}
		events, err := source.Collect(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, events...)
	}
	return all
}

func body(events []*event.Event, name string) *event.Event {
	for _, e := range events {
		if e.Body() == name {
			return e
		}
	}
	return nil
}

func count(events []*event.Event, name string) (n int) {
	for _, e := range events {
		if e.Body() == name {
			n++
		}
	}
	return n
}

func equal(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", prototext.Format(got), prototext.Format(want))
	}
}

func u(v uint64) *uint64 { return &v }
