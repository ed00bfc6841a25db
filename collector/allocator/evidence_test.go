package allocator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"lowtide/collector/snapshot"
	"lowtide/event"
)

// reads stands for the child: it says how much there is, and compares it with what there was.
type reads struct{ fail error }

func (r reads) Summarise(_ context.Context, raw, before *os.File, reason string, gpus map[string]string) ([]*event.Snapshot, error) {
	if r.fail != nil {
		return nil, r.fail
	}
	now, err := io.ReadAll(raw)
	if err != nil {
		return nil, err
	}
	e := &event.Snapshot{GpuUuid: gpus["0"], Reason: reason, ReservedBytes: u(uint64(len(now)))}
	if before != nil {
		then, err := io.ReadAll(before)
		if err != nil {
			return nil, err
		}
		e.Stacks = []*event.SnapshotStack{{Frames: []string{"serve.py:7 keep"}, GrowthBytes: event.Ptr(int64(len(now) - len(then)))}}
	}
	return []*event.Snapshot{e}, nil
}

// desked is a source without a listener that takes evidence; its processes are in the returned folder.
func desked(t *testing.T, reader Reader) (s *Source, root string) {
	t.Helper()
	store, err := snapshot.OpenStore(filepath.Join(t.TempDir(), "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Room(); err != nil {
		t.Skipf("SKIPPED: nothing is kept on this disk: %v", err)
	}
	root = t.TempDir()
	s = newSource(Options{ProcRoot: root, Evidence: &Evidence{Store: store, Reader: reader, Host: "gpu-1"}})
	t.Cleanup(func() {
		s.desk.cancel()
		stop(s)
		s.desk.close()
	})
	return s, root
}

// plugged is a probe at the other end of a real socket.
type plugged struct {
	conn *net.UnixConn
	life life
	rest []byte
}

// plug connects a process whose probe has reported once.
func plug(t *testing.T, s *Source, root string, pid int, backend string) *plugged {
	t.Helper()
	stat(t, root, pid, 100)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "socket")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
	}
	p := s.admit(ends[0], pid)
	if p == nil {
		t.Fatal("refused")
	}
	go func() {
		defer s.serving.Done()
		p.serve()
	}()
	far := &plugged{conn: ends[1], life: life{pid, 100}}
	t.Cleanup(func() { far.conn.Close() })
	if line, _ := far.hear(t); line != `{"lowtide":1,"interval_seconds":5}` {
		t.Fatalf("greeting %q", line)
	}
	say(t, far.conn, `{"v":1,"kind":"hello","backend":%q}`, backend)
	say(t, far.conn, "%s", read(time.Now(), 1))
	until(t, s, "a read", func() bool { return p.hello != nil && !p.last.IsZero() })
	return far
}

// hear returns the collector's next line and the file that came with it.
func (p *plugged) hear(t *testing.T) (string, *os.File) {
	t.Helper()
	var file *os.File
	p.conn.SetReadDeadline(time.Now().Add(patience))
	for {
		if line, rest, found := bytes.Cut(p.rest, newline); found {
			p.rest = rest
			return string(line), file
		}
		text, control := make([]byte, maxAskLine), make([]byte, 256)
		n, oob, _, _, err := p.conn.ReadMsgUnix(text, control)
		if err != nil {
			t.Fatalf("hear: %v", err)
		}
		p.rest = append(p.rest, text[:n]...)
		messages, err := unix.ParseSocketControlMessage(control[:oob])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			rights, err := unix.ParseUnixRights(&m)
			if err != nil || len(rights) != 1 || file != nil {
				t.Fatalf("%v descriptors came, %v", rights, err)
			}
			file = os.NewFile(uintptr(rights[0]), "given")
			t.Cleanup(func() { file.Close() })
		}
	}
}

// silent says whether nothing has come.
func (p *plugged) silent(t *testing.T) bool {
	t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(-time.Second))
	n, err := p.conn.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && len(p.rest) == 0
}

// asked reads an ask and its file.
func (p *plugged) asked(t *testing.T) (askLine, *os.File) {
	t.Helper()
	text, file := p.hear(t)
	var l askLine
	if err := json.Unmarshal([]byte(text), &l, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if file == nil {
		t.Fatalf("no file came with %s", text)
	}
	return l, file
}

// told runs the desk's jobs and returns what waits for the next tick.
func told(t *testing.T, s *Source, what string, enough func() bool) []*event.Event {
	t.Helper()
	over := time.Now().Add(patience)
	for {
		for j, more := s.desk.next(); more; j, more = s.desk.next() {
			s.desk.read(t.Context(), j)
		}
		s.mu.Lock()
		done := enough()
		s.mu.Unlock()
		if done {
			break
		}
		select {
		case <-s.arrived:
		case <-s.desk.work:
		case <-time.After(time.Until(over)):
			t.Fatal("not within " + patience.String() + ": " + what)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.take(nil, time.Now())
	for _, e := range events {
		if err := event.Validate(e); err != nil {
			t.Error(err)
		}
	}
	return events
}

func (s *Source) waits1() bool { return len(s.queue) > 0 }

func files(t *testing.T, s *Source) []string {
	t.Helper()
	entries, err := os.ReadDir(s.desk.Store.Folder())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAskedSnapshot(t *testing.T) {
	s, root := desked(t, reads{})
	p := plug(t, s, root, 41, "native")
	id, err := s.Ask(Ask{PID: 41, Reason: "retention suspected", History: 10 * time.Minute, Census: true})
	if err != nil {
		t.Fatal(err)
	}
	l, file := p.asked(t)
	if want := (askLine{1, "snapshot", id, 256 << 20, 30, 600, 50_000, true, 0.2}); l != want {
		t.Errorf("asked %+v, want %+v", l, want)
	}
	if flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_WRONLY {
		t.Errorf("the file is not open for writing alone: %o, %v", flags, err)
	}
	if len(files(t, s)) != 0 {
		t.Errorf("a file that is not complete has a name: %v", files(t, s))
	}
	say(t, p.conn, `{"v":1,"kind":"recording","id":%q,"time":%d,"history":"on"}`, id, time.Now().Unix())
	file.WriteString("0123.")
	file.Close()
	say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%.3f,"reason":"asked","status":"ok","bytes":5,"took_seconds":0.9,"gil_seconds":0.25,"history_seconds":600.1,`+
		`"devices":{"0":"GPU-7"},"note":"half of it","census":{"tensors":3,"bytes":4096,"complete":true,"took_seconds":0.1}}`, id, float64(time.Now().UnixMilli())/1e3)
	events := told(t, s, "a snapshot", s.waits1)
	if len(events) != 1 || events[0].Snapshot == nil {
		t.Fatalf("%v", events)
	}
	name := files(t, s)
	if len(name) != 1 || !strings.HasPrefix(name[0], "gpu-1-41-2") || !strings.HasSuffix(name[0], "Z-retention.pickle") {
		t.Fatalf("files %v", name)
	}
	same(t, events[0].Snapshot, &event.Snapshot{GpuUuid: "GPU-7", Reason: "retention suspected", ReservedBytes: u(5), File: name[0], FileBytes: u(5), TookSeconds: event.Ptr(0.25),
		HistorySeconds: event.Ptr(600.1), Lacking: []string{"probe: half of it"},
		Census: &event.SnapshotCensus{Tensors: u(3), Bytes: u(4096), Complete: event.Ptr(true), TookSeconds: event.Ptr(0.1)}})
	if events[0].Worker.Pid != 41 || event.Lane(events[0]) != event.LaneSamples {
		t.Errorf("%v", events[0])
	}
	if s.trouble != (troubles{}) {
		t.Errorf("trouble %+v", s.trouble)
	}

	// Not again for ten minutes; then with what has grown since.
	if _, err := s.Ask(Ask{PID: 41}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "hint: wait for 10m0s") && !strings.Contains(err.Error(), "hint: wait for 9m") {
		t.Errorf("asked twice: %v", err)
	}
	s.desk.asked[p.life] = time.Now().Add(-askEvery)
	s.desk.kept[p.life] = kept{name[0], time.Now().Add(-time.Hour)}
	id, err = s.Ask(Ask{PID: 41, StartTicks: u(100)})
	if err != nil {
		t.Fatal(err)
	}
	l, file = p.asked(t)
	if want := (askLine{Lowtide: 1, Ask: "snapshot", ID: id, MaxBytes: 256 << 20, BudgetSeconds: 30}); l != want {
		t.Errorf("asked %+v, want %+v", l, want)
	}
	file.WriteString("01234567.")
	file.Close()
	say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%d,"reason":"asked","status":"ok","devices":{"0":"GPU-7"}}`, id, time.Now().Unix())
	events = told(t, s, "a second snapshot", s.waits1)
	if e := events[0].Snapshot; e.GetReason() != "asked" || len(e.Stacks) != 1 || e.Stacks[0].GetGrowthBytes() != 4 || e.GetGrowthSeconds() < 3600 || e.GetGrowthSeconds() > 3700 {
		t.Errorf("%v", e)
	}
	if got := s.Outcomes(); got[Outcome{"asked", "sent"}] != 2 || got[Outcome{"asked", "ok"}] != 2 || len(got) != 2 {
		t.Errorf("outcomes %v", got)
	}
}

// Every answer that is no snapshot is told with the reason, leaves no file, and costs nothing but itself.
func TestAnswersThatAreNoSnapshot(t *testing.T) {
	for name, c := range map[string]struct {
		wrote, said string
		fail        error
		status      string
		says        []string
		result      string
	}{
		"refused":      {"", `"status":"refused","error":"about 9 bytes are expected"`, nil, "lost", []string{"answers refused", "about 9 bytes"}, "refused"},
		"unsupported":  {"", `"status":"unsupported","error":"this torch has no snapshot"`, nil, "unsupported", []string{"no snapshot"}, "unsupported"},
		"failed":       {"01", `"status":"failed"`, nil, "lost", []string{"it says no more"}, "failed"},
		"nothing":      {"", `"status":"ok","bytes":5`, nil, "lost", []string{"has written nothing"}, "failed"},
		"cut off":      {"0123", `"status":"ok"`, nil, "lost", []string{"its end is missing after 4 bytes"}, "failed"},
		"another size": {"0123.", `"status":"ok","bytes":7`, nil, "lost", []string{"7 bytes; the file has 5"}, "failed"},
		"unreadable":   {"0123.", `"status":"ok"`, fmt.Errorf("%w: exit status 1: opcode GLOBAL at byte 3", snapshot.ErrUnreadable), "lost", []string{"opcode GLOBAL at byte 3"}, "unreadable"},
		"slow":         {"0123.", `"status":"ok"`, fmt.Errorf("%w within 1s: %w", snapshot.ErrUnreadable, context.DeadlineExceeded), "timeout", []string{"within 1s"}, "unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			s, root := desked(t, reads{c.fail})
			p := plug(t, s, root, 41, "native")
			id, err := s.Ask(Ask{PID: 41, Reason: "why"})
			if err != nil {
				t.Fatal(err)
			}
			_, file := p.asked(t)
			file.WriteString(c.wrote)
			say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%d,"reason":"asked",%s}`, id, time.Now().Unix(), c.said)
			events := told(t, s, "a word", s.waits1)
			if len(events) != 1 || events[0].Source.GetName() != "evidence" || events[0].Source.GetStatus() != c.status {
				t.Fatalf("%v", events)
			}
			for _, want := range append(c.says, id, "pid 41 (why)") {
				if !strings.Contains(events[0].Source.Error, want) {
					t.Errorf("%q does not say %q", events[0].Source.Error, want)
				}
			}
			if got := files(t, s); len(got) != 0 {
				t.Errorf("files %v", got)
			}
			if s.Outcomes()[Outcome{"asked", c.result}] != 1 || len(s.desk.asks) != 0 {
				t.Errorf("outcomes %v, outstanding %v", s.Outcomes(), s.desk.asks)
			}
			if _, err := s.Ask(Ask{PID: 41}); (err == nil) != (c.result == "refused") { // only what cost nothing may be asked again at once
				t.Errorf("asked again: %v", err)
			}
		})
	}
}

func TestProbesThatNeverAnswer(t *testing.T) {
	s, root := desked(t, reads{})
	p := plug(t, s, root, 41, "native")
	id, err := s.Ask(Ask{PID: 41, History: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_, file := p.asked(t)
	file.WriteString("half")
	s.desk.arms[p.life] = arming{next: time.Now().Add(time.Hour)} // nothing but the ask
	s.desk.tend(time.Now().Add(119 * time.Second))                // a minute, thirty seconds of budget, thirty of slack: one to go
	if len(s.queue) != 0 {
		t.Fatal("given up too early")
	}
	s.desk.tend(time.Now().Add(121 * time.Second))
	events := told(t, s, "a word", s.waits1)
	if e := events[0].Source; len(events) != 1 || e.GetStatus() != "timeout" || !strings.Contains(e.Error, id) || !strings.Contains(e.Error, "has not answered") {
		t.Errorf("%v", events)
	}
	// The answer that comes after all finds nobody, and is no offence.
	say(t, p.conn, `{"v":1,"kind":"snapshot","id":%q,"time":%d,"reason":"asked","status":"ok"}`, id, time.Now().Unix())
	say(t, p.conn, `{"v":1,"kind":"mark","time":%d,"mark":"busy"}`, time.Now().Unix())
	events = told(t, s, "the mark behind it", s.waits1)
	if len(events) != 1 || events[0].Mark == nil || s.trouble.bad != 0 || len(files(t, s)) != 0 {
		t.Errorf("%v, %+v, %v", events, s.trouble, files(t, s))
	}
}

func TestWhoIsNotAsked(t *testing.T) {
	s, root := desked(t, reads{})
	for pid := 1; pid <= 5; pid++ {
		plug(t, s, root, pid, "native")
	}
	plug(t, s, root, 6, "cudaMallocAsync")
	stat(t, root, 7, 100)
	for name, c := range map[string]struct {
		ask  Ask
		kind error
		says string
	}{
		"no process":    {Ask{PID: 99}, ErrUnknown, "pid 99; hint: `lowtide status`"},
		"no probe":      {Ask{PID: 7}, ErrUnknown, "hint: install the probe"},
		"another life":  {Ask{PID: 1, StartTicks: u(101)}, ErrUnknown, "another process by now"},
		"async":         {Ask{PID: 6}, ErrRefused, "cudaMallocAsync"},
		"long history":  {Ask{PID: 1, History: time.Hour}, ErrRefused, "from 0 to 30m0s"},
		"short history": {Ask{PID: 1, History: -1}, ErrRefused, "from 0 to 30m0s"},
	} {
		if id, err := s.Ask(c.ask); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, id, err)
		}
	}
	for pid := 1; pid <= 4; pid++ {
		if _, err := s.Ask(Ask{PID: pid}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Ask(Ask{PID: 5}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "4 asks of this host") {
		t.Errorf("a fifth: %v", err)
	}
	if _, err := (&Source{}).Ask(Ask{PID: 1}); !errors.Is(err, ErrNoEvidence) || !strings.Contains(err.Error(), "--evidence") {
		t.Errorf("without evidence: %v", err)
	}
}

// A descriptor cannot be taken back: who writes more than was agreed finds the file empty, and is never asked again.
func TestWhoFillsTheDisk(t *testing.T) {
	s, root := desked(t, reads{})
	s.desk.Bytes = 1 << 10
	p := plug(t, s, root, 41, "native")
	s.desk.tend(time.Now())
	_, file := p.asked(t)
	for range 3 {
		if _, err := file.WriteAt([]byte("."), 2<<20); err != nil {
			t.Fatal(err)
		}
		s.desk.tend(time.Now().Add(time.Hour))
		if info, err := file.Stat(); err != nil || info.Size() != 0 {
			t.Fatalf("the file has %d bytes, %v", info.Size(), err)
		}
	}
	events := told(t, s, "a word", s.waits1)
	if len(events) != 1 || !strings.Contains(events[0].Source.GetError(), "more than 1024") {
		t.Errorf("%v", events)
	}
	if _, err := s.Ask(Ask{PID: 41}); !errors.Is(err, ErrRefused) {
		t.Errorf("asked again: %v", err)
	}
	if !p.silent(t) {
		t.Error("armed again")
	}
	if err := os.RemoveAll(filepath.Join(root, "41")); err != nil {
		t.Fatal(err)
	}
	p.conn.Close()
	until(t, s, "leave", func() bool { return len(s.peers) == 0 })
	s.desk.tend(time.Now())
	if len(s.desk.asks)+len(s.desk.arms) != 0 {
		t.Errorf("remembered after its end: %v, %v", s.desk.asks, s.desk.arms)
	}
}

func TestEndedProcesses(t *testing.T) {
	s, root := desked(t, reads{})
	stat(t, root, 41, 100)
	for l, want := range map[life]bool{{41, 100}: false, {41, 101}: true, {42, 100}: true} {
		if got := s.ended(l); got != want {
			t.Errorf("%v: %v", l, got)
		}
	}
	zombie := "43 (a) Z (b) Z 1" + strings.Repeat(" 0", 17) + " 100 0\n"
	if err := os.MkdirAll(filepath.Join(root, "43"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, strconv.Itoa(43), "stat"), []byte(zombie), 0o644); err != nil {
		t.Fatal(err)
	}
	if !s.ended(life{43, 100}) {
		t.Error("a name without a process lives")
	}
}
