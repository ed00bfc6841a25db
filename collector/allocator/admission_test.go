package allocator

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/collector/status"
)

func TestPeersThatBreakTheProtocol(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(conn net.Conn)
		says string
		goes time.Duration // until the connection is closed; 0 when it stays
	}{
		"garbage":       {func(c net.Conn) { io.WriteString(c, "\x00\x01\n") }, "read line", 0},
		"oversize line": {func(c net.Conn) { io.WriteString(c, strings.Repeat("x", MaxLine+1)) }, "more than 65536 bytes", 1},
		"half a line":   {func(c net.Conn) { io.WriteString(c, `{"v":1,`) }, "never ended", halfLine},
		"dies in a line": {func(c net.Conn) {
			io.WriteString(c, `{"v":1,`)
			c.Close()
		}, "never ended", 1},
		"silent": {func(net.Conn) {}, "", silence},
		"longest line": {func(c net.Conn) {
			io.WriteString(c, `{"v":1,"kind":"bye","time":1`+strings.Repeat(" ", MaxLine-30)+"}\n")
		}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := piped(t, 11)
				defer stop(s)
				conn := join(t, s, 11)
				began := time.Now()
				go c.do(conn)
				if c.goes > 0 {
					gone := make(chan struct{})
					go func() {
						io.Copy(io.Discard, conn)
						close(gone)
					}()
					<-gone
					if c.goes > 1 && time.Since(began) != c.goes {
						t.Errorf("closed after %v", time.Since(began))
					}
				}
				synctest.Wait()
				s.mu.Lock()
				stays := len(s.peers) == 1
				s.mu.Unlock()
				if stays != (c.goes == 0) {
					t.Errorf("connected: %v", stays)
				}
				_, err := s.Collect(t.Context(), time.Now())
				if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "pid 11")) {
					t.Errorf("%v", err)
				}
				time.Sleep(5 * time.Second)
				if _, err := s.Collect(t.Context(), time.Now()); err != nil {
					t.Errorf("said again: %v", err)
				}
			})
		})
	}
}

func TestWhoIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pids := make([]int, 20)
		for i := range pids {
			pids[i] = 100 + i
		}
		s := piped(t, pids...)
		defer stop(s)
		admitted := 0
		for _, pid := range pids {
			for range maxPerPID + 1 {
				if join(t, s, pid) != nil {
					admitted++
				}
			}
		}
		if admitted != maxPeers {
			t.Errorf("%d connections", admitted)
		}
		if _, err := s.Collect(t.Context(), time.Now()); !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "84 connections over the limit of 256, 16 of one process") {
			t.Errorf("%v", err)
		}
		if join(t, s, 5_000_000) != nil {
			t.Error("a process that is gone is admitted")
		}
		time.Sleep(5 * time.Second)
		collect(t, s, time.Now())
		if join(t, s, 0) != nil {
			t.Error("a process that cannot be seen is admitted")
		}
		for range 2 {
			time.Sleep(5 * time.Second)
			if _, err := s.Collect(t.Context(), time.Now()); status.Of(err) != status.Denied || !strings.Contains(err.Error(), "hostPID") {
				t.Errorf("%v", err)
			}
		}
		time.Sleep(deniedFor)
		collect(t, s, time.Now())
	})
}

func TestPidThatIsSomebodyElseByNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, 11, 12, 13)
		defer stop(s)
		same, reused, ended := join(t, s, 11), join(t, s, 12), join(t, s, 13)
		stat(t, s.o.ProcRoot, 12, 101)
		if err := os.RemoveAll(filepath.Join(s.o.ProcRoot, "13")); err != nil {
			t.Fatal(err)
		}
		collect(t, s, time.Now())
		for name, conn := range map[string]net.Conn{"reused": reused, "ended": ended} {
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", name, err)
			}
		}
		say(t, same, `{"v":1,"kind":"hello","torch":"2.11.0","cuda":"13.0","backend":"cudaMallocAsync","alloc_conf":"backend:cudaMallocAsync"}`)
		say(t, same, "%s", read(time.Now(), 1))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		events := collect(t, s, time.Now())
		if len(events) != 2 || events[0].Config == nil || events[1].Allocator.GetBackend() != "cudaMallocAsync" {
			t.Errorf("%v", events)
		}
	})
}
