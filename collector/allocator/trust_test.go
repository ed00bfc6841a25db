package allocator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a worker does that is not to be trusted, and what has gone wrong for the moment.

func answered(t *testing.T, p *plugged, id, rest string) {
	t.Helper()
	say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%d,"reason":"asked",%s}`, id, time.Now().Unix(), rest)
}

// An ask that failed for a passing reason is sent once more after a minute, under the same id; its second failure is told.
func TestAskedOnceMore(t *testing.T) {
	const passing = `"status":"failed","error":"stopped: not ready within the 30 s allowed","passing":true`
	for name, second := range map[string]string{"which helps": `"status":"ok"`, "in vain": passing} {
		t.Run(name, func(t *testing.T) {
			s, root := desked(t, reads{})
			p := plug(t, s, root, 41, "native")
			id, err := s.Ask(Ask{PID: 41, Reason: "why", History: time.Minute, Census: true})
			if err != nil {
				t.Fatal(err)
			}
			first, file := p.asked(t)
			file.WriteString("01")
			file.Close()
			answered(t, p, id, passing)
			if events := told(t, s, "the answer", func() bool { return s.Outcomes()[Outcome{"asked", "again"}] == 1 }); len(events) != 0 {
				t.Errorf("told already: %v", events)
			}
			s.desk.arms[p.life] = arming{never: false, next: time.Now().Add(time.Hour)} // nothing but the ask
			s.desk.tend(time.Now().Add(59 * time.Second))
			if !p.silent(t) || s.desk.outstanding() != 1 {
				t.Fatalf("asked too early, or %d outstanding", s.desk.outstanding())
			}
			s.desk.tend(time.Now().Add(61 * time.Second))
			again, file := p.asked(t)
			if again != first {
				t.Errorf("asked %+v, and then %+v", first, again)
			}
			file.WriteString("012345.")
			file.Close()
			answered(t, p, id, second)
			events := told(t, s, "a word", s.waits1)
			if second == passing {
				if len(events) != 1 || !strings.Contains(events[0].Source.GetError(), id) || s.Outcomes()[Outcome{"asked", "failed"}] != 1 {
					t.Errorf("%v, %v", events, s.Outcomes())
				}
				return
			}
			if len(events) != 1 || events[0].Snapshot.GetReservedBytes() != 7 || events[0].Snapshot.GetReason() != "why" {
				t.Errorf("%v", events)
			}
			if len(s.desk.later) != 0 || s.desk.outstanding() != 0 {
				t.Errorf("still to be asked: %v", s.desk.later)
			}
		})
	}
}

func TestAskedOnceMoreInVain(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		ends  bool
		says  string
	}{"ended": {61 * time.Second, true, "ended before it was asked again"}, "away": {7 * time.Minute, false, "was away when it was to be asked again"}} {
		t.Run(name, func(t *testing.T) {
			s, root := desked(t, reads{})
			p := plug(t, s, root, 41, "native")
			id, err := s.Ask(Ask{PID: 41})
			if err != nil {
				t.Fatal(err)
			}
			_, file := p.asked(t)
			file.Close()
			answered(t, p, id, `"status":"refused","error":"another one is under way","passing":true`)
			told(t, s, "the answer", func() bool { return s.Outcomes()[Outcome{"asked", "again"}] == 1 })
			p.conn.Close()
			until(t, s, "leave", func() bool { return len(s.peers) == 0 })
			if c.ends {
				if err := os.RemoveAll(filepath.Join(root, "41")); err != nil {
					t.Fatal(err)
				}
			}
			s.desk.tend(time.Now().Add(c.after))
			events := told(t, s, "a word", s.waits1)
			if len(events) != 1 || !strings.Contains(events[0].Source.GetError(), c.says) || !strings.Contains(events[0].Source.GetError(), id) || len(s.desk.later) != 0 {
				t.Errorf("%v, %v", events, s.desk.later)
			}
		})
	}
}

// Who waits to be asked again counts among the four of a host.
func TestAskedOnceMoreCounts(t *testing.T) {
	s, root := desked(t, reads{})
	for pid := 1; pid <= maxAsks+1; pid++ {
		p := plug(t, s, root, pid, "native")
		id, err := s.Ask(Ask{PID: pid})
		if pid > maxAsks {
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "4 asks of this host") {
				t.Errorf("a fifth: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p.asked(t)
		answered(t, p, id, `"status":"failed","passing":true`)
		told(t, s, "the answer", func() bool { return s.Outcomes()[Outcome{"asked", "again"}] == uint64(pid) })
	}
}

// A worker keeps its descriptor after it has answered. What it writes then is in no snapshot, and takes no disk for longer than a tick.
func TestDescriptorsThatAreKept(t *testing.T) {
	for name, answer := range map[string]string{"after an answer": `"status":"ok"`, "after a refusal": `"status":"refused","error":"no"`} {
		t.Run(name, func(t *testing.T) {
			s, root := desked(t, reads{})
			p := plug(t, s, root, 41, "native")
			id, err := s.Ask(Ask{PID: 41})
			if err != nil {
				t.Fatal(err)
			}
			_, file := p.asked(t)
			file.WriteString("0123.")
			answered(t, p, id, answer)
			events := told(t, s, "a word", s.waits1)
			ok := events[0].Snapshot != nil
			if ok != (answer == `"status":"ok"`) {
				t.Fatalf("%v", events)
			}
			s.desk.arms[p.life] = arming{next: time.Now().Add(time.Hour)}
			for range 3 {
				if _, err := file.WriteAt([]byte("more"), 1<<20); err != nil {
					t.Fatal(err)
				}
				s.desk.tend(time.Now())
				if info, err := file.Stat(); err != nil || info.Size() != 0 || len(s.desk.loose) != 1 {
					t.Fatalf("%d bytes, %d files, %v", info.Size(), len(s.desk.loose), err)
				}
			}
			if names := files(t, s); ok {
				if text, err := os.ReadFile(filepath.Join(s.desk.Store.Folder(), names[0])); err != nil || string(text) != "0123." {
					t.Errorf("kept %q, %v", text, err)
				}
			} else if len(names) != 0 {
				t.Errorf("kept %v", names)
			}
			file.Close()
			s.desk.tend(time.Now())
			if len(s.desk.loose) != 0 {
				t.Error("looked after although nobody can write to it")
			}
		})
	}
}

// The disk can be filled without making the file longer.
func TestReservedDisk(t *testing.T) {
	s, root := desked(t, reads{})
	s.desk.Bytes = 1 << 10
	p := plug(t, s, root, 41, "native")
	s.desk.tend(time.Now())
	_, file := p.asked(t)
	if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 64<<20); err != nil {
		t.Skipf("SKIPPED: this file system reserves nothing: %v", err)
	}
	s.desk.tend(time.Now())
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil || info.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes of the disk are still taken, %v", info.Blocks*512, err)
	}
	events := told(t, s, "a word", s.waits1)
	if len(events) != 1 || !strings.Contains(events[0].Source.GetError(), "more than 1024: it is not asked again") {
		t.Errorf("%v", events)
	}
}

// Descriptors that a worker sends to the collector go to nobody.
func TestDescriptorsThatAreSentHere(t *testing.T) {
	s, root := desked(t, reads{})
	p := plug(t, s, root, 41, "native")
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	line := fmt.Appendf(nil, `{"v":1,"kind":"mark","time":%d,"mark":"busy"}`+"\n", time.Now().Unix())
	for range 3 {
		if _, _, err := p.conn.WriteMsgUnix(line, unix.UnixRights(pipe[1], pipe[1]), nil); err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(pipe[1])
	told(t, s, "the marks", func() bool { return len(s.queue) == 3 })
	if n, err := unix.Read(pipe[0], make([]byte, 1)); n != 0 || err != nil { // the end: nobody has it open for writing
		t.Errorf("%d, %v", n, err)
	}
}

// Answers to asks that were never made, or that others were asked, change nothing.
func TestAnswersToOthers(t *testing.T) {
	s, root := desked(t, reads{})
	p, other := plug(t, s, root, 41, "native"), plug(t, s, root, 42, "native")
	id, err := s.Ask(Ask{PID: 41})
	if err != nil {
		t.Fatal(err)
	}
	_, file := p.asked(t)
	for _, wrong := range []string{id, "never", strings.Repeat("x", 64)} {
		answered(t, other, wrong, `"status":"ok","bytes":1`)
		say(t, other.conn, `{"v":1,"kind":"recording","id":%q,"time":%d,"history":"on"}`, wrong, time.Now().Unix())
	}
	say(t, other.conn, `{"v":1,"kind":"mark","time":%d,"mark":"busy"}`, time.Now().Unix())
	if events := told(t, s, "the mark behind them", s.waits1); len(events) != 1 || len(s.desk.asks) != 1 || len(s.desk.jobs) != 0 {
		t.Fatalf("%v, %d outstanding", events, len(s.desk.asks))
	}
	file.WriteString("0123.")
	file.Close()
	for range 3 { // the first one counts
		answered(t, p, id, `"status":"ok","bytes":5`)
	}
	say(t, p.conn, `{"v":1,"kind":"mark","time":%d,"mark":"busy"}`, time.Now().Unix())
	if events := told(t, s, "both", func() bool { return len(s.queue) == 2 }); len(events) != 2 || s.Outcomes()[Outcome{"asked", "ok"}] != 1 {
		t.Errorf("%v, %v", events, s.Outcomes())
	}
}

// A folder that is gone, or cannot be written to, is said once and tried again.
func TestFolderThatIsGone(t *testing.T) {
	s, root := desked(t, reads{})
	p := plug(t, s, root, 41, "native")
	folder := s.desk.Store.Folder()
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ask(Ask{PID: 41}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), folder) {
		t.Errorf("asked: %v", err)
	}
	s.desk.tend(time.Now())
	if !strings.Contains(s.desk.trouble, folder) || !p.silent(t) {
		t.Errorf("trouble %q", s.desk.trouble)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	s.desk.tend(time.Now())
	if armed, _ := p.asked(t); armed.Ask != "arm" || s.desk.trouble != "" {
		t.Errorf("%+v, trouble %q", armed, s.desk.trouble)
	}
}
