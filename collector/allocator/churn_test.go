package allocator

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/collector/status"
)

// Each of these processes keeps within what one may send, and is followed by the next one: what they leave together is bounded.
func TestManyShortProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 3 * joinsAll
		pids := make([]int, processes)
		for i := range pids {
			pids[i] = 1000 + i
		}
		s := piped(t, pids...)
		defer stop(s)
		collect(t, s, time.Now())
		time.Sleep(time.Second)
		admitted := 0
		for _, pid := range pids {
			conn := join(t, s, pid)
			if conn == nil {
				continue
			}
			admitted++
			for range 10 {
				say(t, conn, `{"v":1,"kind":"oom","time":946684801,"source":"exception","text":"CUDA out of memory."}`)
			}
			conn.Close()
			synctest.Wait()
		}
		s.mu.Lock()
		queued, counted := len(s.queue), len(s.queued)
		s.mu.Unlock()
		if admitted != joinsAll || queued != waitingAll || counted > joinsAll {
			t.Errorf("%d admitted, %d events wait, of %d processes", admitted, queued, counted)
		}
		time.Sleep(4 * time.Second)
		woken(s) // the loop's answer to it is the tick
		s.mu.Lock()
		s.woken = false
		s.mu.Unlock()
		events, err := s.Collect(t.Context(), time.Now())
		if len(events) != waitingAll || !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "2048 connections over the limit") {
			t.Errorf("%d events, %v", len(events), err)
		}
		if join(t, s, pids[0]) == nil {
			t.Error("the next tick admits nobody")
		}
	})
}

// A new connection has a burst of lines, so one process must not have as many as it likes.
func TestReconnectingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11, 12)
		defer stop(s)
		collect(t, s, time.Now())
		admitted := 0
		for range 10 * joinsEach {
			if conn := join(t, s, 11); conn != nil {
				admitted++
				conn.Close()
				synctest.Wait()
			}
		}
		if admitted != joinsEach {
			t.Errorf("%d connections within a tick", admitted)
		}
		if join(t, s, 12) == nil {
			t.Error("another process is refused")
		}
		time.Sleep(5 * time.Second)
		if _, err := s.Collect(t.Context(), time.Now()); !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "(newest from pid 11)") {
			t.Errorf("%v", err)
		}
		if join(t, s, 11) == nil {
			t.Error("refused at the next tick")
		}
	})
}

// /proc mounted with hidepid shows no directory of another user's process, as if it were gone.
func TestHiddenProcessIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t)
		defer stop(s)
		if join(t, s, os.Getpid()) != nil {
			t.Error("admitted")
		}
		if _, err := s.Collect(t.Context(), time.Now()); status.Of(err) != status.Denied {
			t.Errorf("%v", err)
		}
	})
}

// A collector that is out of descriptors accepts nobody, and must say so.
func TestOutOfDescriptorsIsSaid(t *testing.T) {
	s := listen(t, filepath.Join(t.TempDir(), "probe.sock"))
	next, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(next.Fd())
	next.Close()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lowest + 1, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	conn, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0) // the last descriptor there is
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(conn)
	if err := syscall.Connect(conn, &syscall.SockaddrUnix{Name: s.o.Socket}); err != nil {
		t.Fatal(err)
	}
	until(t, s, "the failure", func() bool { return s.trouble.unheard > 0 })
	if _, err := s.Collect(t.Context(), time.Now()); !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("%v", err)
	}
}
