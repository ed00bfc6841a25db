package allocator

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lowtide/collector/status"
)

// patience bounds what waits for another process; nothing takes this long when it works.
const patience = 20 * time.Second

func listen(t *testing.T, path string) *Source {
	t.Helper()
	s, err := Listen(Options{Socket: path})
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

func dial(t *testing.T, s *Source) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", s.o.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn, bufio.NewReader(conn)
}

// until waits for something that the connections' goroutines do.
func until(t *testing.T, s *Source, what string, holds func() bool) {
	t.Helper()
	over := time.After(patience)
	for {
		s.mu.Lock()
		done := holds()
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.arrived:
		case <-over:
			t.Fatal("not within " + patience.String() + ": " + what)
		}
	}
}

func TestRealSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lowtide", "probe.sock")
	s := listen(t, path)
	for place, want := range map[string]os.FileMode{path: os.ModeSocket | 0o666, filepath.Dir(path): os.ModeDir | 0o755} {
		if info, err := os.Stat(place); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", place, info.Mode(), err)
		}
	}
	for round := range 3 { // and again after each reconnect
		conn, greeting := dial(t, s)
		if line, err := greeting.ReadString('\n'); err != nil || line != `{"lowtide":1,"interval_seconds":5}`+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		tick := time.Now()
		fmt.Fprintf(conn, `{"v":1,"kind":"read","time":%f,"interval_seconds":5,"pid":1,"devices":[{"allocated_bytes":%d}]}`+"\n", float64(tick.UnixNano())/1e9, round)
		until(t, s, "a read", func() bool {
			for p := range s.peers {
				if p.read != nil {
					return true
				}
			}
			return false
		})
		s.emittedAgain()
		events := collect(t, s, time.Now())
		if len(events) != 1 || events[0].Worker.Pid != int64(os.Getpid()) || events[0].Allocator.GetAllocatedBytes() != uint64(round) {
			t.Errorf("%v", events)
		}
		conn.Close()
		until(t, s, "leave", func() bool { return len(s.peers) == 0 && len(s.perPID) == 0 })
	}
}

// emittedAgain empties what a call for a late read would have to answer, so that the next call is a tick.
func (s *Source) emittedAgain() {
	select {
	case <-s.wake:
	default:
	}
	s.mu.Lock()
	s.woken = false
	s.mu.Unlock()
}

func TestThreeHundredConnections(t *testing.T) {
	s := listen(t, filepath.Join(t.TempDir(), "probe.sock"))
	for range 300 {
		conn, greeting := dial(t, s)
		_ = conn
		if _, err := greeting.ReadString('\n'); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	peers := len(s.peers)
	s.mu.Unlock()
	if peers != maxPerPID {
		t.Errorf("%d connections of one process", peers)
	}
	if _, err := s.Collect(t.Context(), time.Now()); status.Of(err) != status.Lost || !strings.Contains(err.Error(), "284 connections over the limit") {
		t.Errorf("%v", err)
	}
}

// A container's process knows itself as pid 1. The kernel tells this side which one it is.
func TestPeerInAnotherPidNamespace(t *testing.T) {
	for _, tool := range []string{"unshare", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: no %s on this machine, so no process in a pid namespace of its own", tool)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: this user may not make a pid namespace (%v: %s); run as root", err, out)
	}
	s := listen(t, filepath.Join(t.TempDir(), "probe.sock"))
	program := `
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.makefile().readline()
now = time.time()
s.sendall(b'{"v":1,"kind":"mark","time":%f,"mark":"busy","name":"pid %d"}\n' % (now, os.getpid()))
sys.stdin.read()
`
	command := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--kill-child", "python3", "-c", program, s.o.Socket)
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, s, "a mark from the namespace", func() bool { return len(s.queue) == 1 })
	events := collect(t, s, time.Now())
	if len(events) != 1 || events[0].Mark.GetName() != "pid 1" {
		t.Fatalf("%v", events)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", events[0].Worker.Pid))
	if events[0].Worker.Pid == 1 || err != nil || !strings.Contains(string(line), "\x00-c\x00\nimport os, socket") {
		t.Errorf("pid %d is %q, %v", events[0].Worker.Pid, line, err)
	}
	in.Close()
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
	until(t, s, "leave", func() bool { return len(s.peers) == 0 })
}

// A socket connected by a process that is gone, and held open by its child.
func TestProcessThatIsGone(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: no python3 on this machine, so no process that leaves its connection to a child")
	}
	s := listen(t, filepath.Join(t.TempDir(), "probe.sock"))
	program := `
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.makefile().readline()
if os.fork() == 0:
    os.close(1)
    os.close(2)
    s.recv(1)  # until the collector closes it
`
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", program, s.o.Socket).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.mu.Lock()
	connected := len(s.peers)
	s.mu.Unlock()
	if connected != 1 {
		t.Fatalf("%d connections", connected)
	}
	collect(t, s, time.Now())
	until(t, s, "leave", func() bool { return len(s.peers) == 0 })
}

func TestWhereToListen(t *testing.T) {
	dir := t.TempDir()
	t.Run("left behind", func(t *testing.T) {
		path := filepath.Join(dir, "stale.sock")
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		dial(t, listen(t, path))
	})
	t.Run("in use", func(t *testing.T) {
		path := filepath.Join(dir, "live.sock")
		first := listen(t, path)
		if _, err := Listen(Options{Socket: path}); err == nil || !strings.Contains(err.Error(), "another collector listens there; hint:") {
			t.Errorf("%v", err)
		}
		dial(t, first) // it goes on listening
	})
	t.Run("no socket", func(t *testing.T) {
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(Options{Socket: path}); err == nil || !strings.Contains(err.Error(), "is no socket; hint:") {
			t.Errorf("%v", err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "kept" {
			t.Errorf("%q, %v", text, err)
		}
	})
	t.Run("too long", func(t *testing.T) {
		if _, err := Listen(Options{Socket: filepath.Join(dir, strings.Repeat("x", 110))}); err == nil || !strings.Contains(err.Error(), "at most 107; hint:") {
			t.Errorf("%v", err)
		}
	})
	t.Run("closing removes no other's", func(t *testing.T) {
		path := filepath.Join(dir, "other.sock")
		s, err := Listen(Options{Socket: path})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		later := listen(t, path)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("twice: %v", err)
		}
		dial(t, later)
	})
	t.Run("own folder", func(t *testing.T) {
		t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
		want := "/run/user/7/lowtide/probe.sock"
		if os.Geteuid() == 0 {
			want = "/run/lowtide/probe.sock"
		}
		if got, err := DefaultSocket(); err != nil || got != want {
			t.Errorf("%s, %v", got, err)
		}
	})
}

// What a flood costs everybody else, over the kernel's own buffers: the other's OOM is there within the flood.
func TestFloodOverARealSocket(t *testing.T) {
	s := listen(t, filepath.Join(t.TempDir(), "probe.sock"))
	flood, _ := dial(t, s)
	calm, greeting := dial(t, s)
	if _, err := greeting.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		block := []byte(strings.Repeat(`{"v":1,"kind":"hello","torch":"x"}`+"\n", 1000))
		for {
			if _, err := flood.Write(block); err != nil {
				return
			}
		}
	}()
	until(t, s, "the flood", func() bool { return s.trouble.excess > 0 })
	fmt.Fprintf(calm, `{"v":1,"kind":"oom","time":%d,"source":"exception","text":"CUDA out of memory. Tried to allocate 2.00 GiB."}`+"\n", time.Now().Unix())
	began := time.Now()
	select {
	case <-s.Wake():
	case <-time.After(patience):
		t.Fatal("no wake")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the other worker's OOM came after %v", took)
	}
	events, _ := s.Collect(t.Context(), time.Now())
	found := false
	for _, e := range events {
		found = found || e.Oom.GetRequestedBytes() == 2<<30
	}
	if !found {
		t.Errorf("%v", events)
	}
	flood.Close()
	<-stopped
}
