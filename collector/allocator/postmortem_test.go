package allocator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPostMortems(t *testing.T) {
	s, root := desked(t, reads{})
	p, other := plug(t, s, root, 41, "native"), plug(t, s, root, 42, "cudaMallocAsync")
	now := time.Now()
	s.desk.tend(now)
	armed, file := p.asked(t)
	if want := (askLine{Lowtide: 1, Ask: "arm", ID: armed.ID, MaxBytes: 256 << 20, BudgetSeconds: 10}); armed != want {
		t.Errorf("armed with %+v, want %+v", armed, want)
	}
	s.desk.tend(now.Add(time.Hour))
	if !p.silent(t) || !other.silent(t) {
		t.Error("armed twice, or an allocator that has no snapshot")
	}
	file.WriteString("01.")
	say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%d,"reason":"oom","status":"ok","bytes":3,"took_seconds":0.7,"gil_seconds":0.1,"devices":{"0":"GPU-7"}}`, armed.ID, now.Unix()+1)
	events := told(t, s, "a post-mortem", s.waits1)
	if e := events[0].Snapshot; e.GetReason() != "oom" || e.GetTookSeconds() != 0.7 || e.GetGpuUuid() != "GPU-7" || !strings.HasSuffix(e.GetFile(), "-oom.pickle") {
		t.Errorf("%v", events)
	}
	s.desk.tend(time.Now().Add(30 * time.Second))
	if !p.silent(t) {
		t.Error("armed anew within a minute")
	}
	s.desk.tend(time.Now().Add(2 * time.Minute))
	again, _ := p.asked(t)
	if again.Ask != "arm" || again.ID == armed.ID {
		t.Errorf("%+v", again)
	}
	// What cannot be done at all is not tried again.
	say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%d,"reason":"oom","status":"unsupported","error":"no such thing"}`, again.ID, now.Unix()+1)
	told(t, s, "a word", s.waits1)
	s.desk.tend(time.Now().Add(24 * time.Hour))
	if !p.silent(t) {
		t.Error("armed what has no snapshots")
	}
	if got := s.Outcomes(); got[Outcome{"oom", "ok"}] != 1 || got[Outcome{"oom", "sent"}] != 2 || got[Outcome{"oom", "unsupported"}] != 1 {
		t.Errorf("outcomes %v", got)
	}
}

// A worker that dies of its failed allocation has written its post-mortem and says nothing about it.
func TestPostMortemOfTheDead(t *testing.T) {
	for _, c := range []struct{ wrote, says string }{{"0123.", ""}, {"0123", "its end is missing"}, {"", "-"}} {
		t.Run(c.wrote, func(t *testing.T) {
			s, root := desked(t, reads{})
			p := plug(t, s, root, 41, "native")
			s.desk.tend(time.Now())
			_, file := p.asked(t)
			file.WriteString(c.wrote)
			p.conn.Close()
			until(t, s, "leave", func() bool { return len(s.peers) == 0 })
			<-s.desk.wake
			s.desk.tend(time.Now())
			if len(s.desk.jobs) != 0 || len(s.desk.asks) != 1 {
				t.Fatal("taken up while the process may still write")
			}
			if err := os.RemoveAll(filepath.Join(root, "41")); err != nil {
				t.Fatal(err)
			}
			s.desk.tend(time.Now())
			if len(s.desk.asks) != 0 {
				t.Fatal("kept after the end")
			}
			if c.says == "-" {
				if len(s.desk.jobs)+len(s.queue) != 0 {
					t.Errorf("a process that ended without a failure left %v, %v", s.desk.jobs, s.queue)
				}
				return
			}
			events := told(t, s, "what it left", s.waits1)
			if c.says != "" {
				if e := events[0].Source; !strings.Contains(e.GetError(), c.says) || len(files(t, s)) != 0 {
					t.Errorf("%v, %v", events, files(t, s))
				}
				return
			}
			e := events[0].Snapshot // of the one card that it had by its reads
			if e.GetReason() != "oom" || e.GetGpuUuid() != "GPU-1" || e.GetFileBytes() != 5 || !strings.Contains(strings.Join(e.GetLacking(), " "), "ended before its probe could name them") {
				t.Errorf("%v", events)
			}
		})
	}
}
