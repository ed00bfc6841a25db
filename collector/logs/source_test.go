package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

const dead = "RuntimeError: Engine loop has died"

// reader is a source that only Collect drives.
func reader(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := newSource(o)
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

func collect(t *testing.T, s *Source, state string, events int) []*event.Event {
	t.Helper()
	got, err := s.Collect(t.Context(), time.Now())
	if status.Of(err) != state || len(got) != events {
		t.Errorf("status %s (%v), %d events; want %s, %d: %v", status.Of(err), err, len(got), state, events, got)
	}
	return got
}

func add(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFollowsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine.log")
	add(t, path, dead+" before\n")
	s := reader(t, Options{Files: []File{{Path: path, Worker: &event.Worker{Pid: 7, Unit: "llama"}}}})
	collect(t, s, status.OK, 0)
	add(t, path, dead+" one\nother\nRuntimeError: Engine lo")
	if got := collect(t, s, status.OK, 1); got[0].Log.Text != dead+" one" || got[0].Worker.GetPid() != 7 {
		t.Errorf("%v", got)
	}
	add(t, path, "op has died two\n")
	if got := collect(t, s, status.OK, 1); got[0].Log.Text != dead+" two" {
		t.Errorf("%v", got)
	}

	// Rotation by rename: what was still written to the old file is read, and the new one from its beginning.
	add(t, path, dead+" three\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	collect(t, s, status.Absent, 1)
	add(t, path+".1", dead+" four") // no line end: its last words
	add(t, path, dead+" five\n")
	if got := collect(t, s, status.OK, 2); got[0].Log.Text != dead+" four" || got[1].Log.Text != dead+" five" {
		t.Errorf("%v", got)
	}

	// Rotation by copy and truncation.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	collect(t, s, status.OK, 0)
	add(t, path, dead+" six\n")
	collect(t, s, status.OK, 1)
	if err := os.WriteFile(path, []byte(dead+"\n"), 0o644); err != nil { // truncated and written between two looks
		t.Fatal(err)
	}
	collect(t, s, status.OK, 1)

	// The tick is the present: nothing is dated after it.
	add(t, path, dead+" seven\n")
	tick := time.Now().Add(-time.Second)
	if got, err := s.Collect(t.Context(), tick); err != nil || len(got) != 1 || !got[0].At().Equal(tick) {
		t.Errorf("%v %v", got, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	add(t, path, dead+" eight\n")
	if got, err := s.Collect(ended, time.Now()); err != nil || len(got) != 0 {
		t.Errorf("an ended context is not heeded: %v %v", got, err)
	}
}

func TestAFileThatComesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine.log")
	s := reader(t, Options{Files: []File{{Path: path}}})
	collect(t, s, status.Absent, 0)
	add(t, path, dead+"\n")
	collect(t, s, status.OK, 1)

	old := filepath.Join(t.TempDir(), "old.log")
	add(t, old, dead+"\n")
	collect(t, reader(t, Options{Files: []File{{Path: old}}, FromBeginning: true}), status.OK, 1)
}

func TestOtherThingsThanFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir, "/dev/zero"} {
		collect(t, reader(t, Options{Files: []File{{Path: path}}}), status.Unsupported, 0)
	}
	closed := filepath.Join(dir, "closed.log")
	if err := os.WriteFile(closed, nil, 0); err != nil {
		t.Fatal(err)
	}
	if file, err := os.Open(closed); err == nil {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		t.Log("SKIPPED: a file without permissions, since this user may read all")
	} else {
		collect(t, reader(t, Options{Files: []File{{Path: closed}}}), status.Denied, 0)
	}
	for _, o := range []Options{
		{}, {Files: []File{{Path: "relative.log"}}}, {Files: []File{{Path: "/a"}, {Path: "/a"}}}, {Journal: []Unit{{}}},
		{Journal: []Unit{{Name: "--all"}}}, {Journal: []Unit{{Name: "vllm"}, {Name: "vllm.service"}}},
	} {
		if s, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestLinesAndBacklogsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine.log")
	add(t, path, "")
	s := reader(t, Options{Files: []File{{Path: path}}})
	// A line of 3 MiB, of which only the beginning is kept in between, then one as usual.
	add(t, path, "Engine loop has died "+strings.Repeat("x", 1<<20))
	collect(t, s, status.OK, 1)
	add(t, path, strings.Repeat("Engine loop has died ", 1<<16))
	if len(s.files[0].partial) > maxLine {
		t.Errorf("%d bytes are kept", len(s.files[0].partial))
	}
	collect(t, s, status.OK, 0)
	add(t, path, "end\n"+dead+"\n")
	collect(t, s, status.OK, 1)

	// A hole of 100 MiB is passed over, and said.
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()+100<<20); err != nil {
		t.Fatal(err)
	}
	add(t, path, "\n"+dead+"\n")
	got, err := s.Collect(t.Context(), time.Now())
	if len(got) != 1 || !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), strconv.Itoa(92<<20+len(dead)+2)+" bytes") {
		t.Errorf("%v, %v", got, err)
	}
	collect(t, s, status.OK, 0)

	// Ten of each signature a minute, so that many streams make fifty events.
	var many Options
	for i := range 6 {
		many.Files = append(many.Files, File{Path: filepath.Join(t.TempDir(), fmt.Sprint(i))})
	}
	s = reader(t, many)
	for _, f := range many.Files {
		for i := range 20 {
			add(t, f.Path, fmt.Sprintf("CUDA out of memory. Tried to allocate %d bytes.\n", i))
		}
	}
	got, err = s.Collect(t.Context(), time.Now())
	if len(got) != perSecond || !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "10 events above 50") {
		t.Errorf("%d events, %v", len(got), err)
	}
}

func TestAFailedAllocationWakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine.log")
	add(t, path, "")
	s, err := New(Options{Files: []File{{Path: path}}, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	add(t, path, dead+"\nCUDA error: out of memory\n")
	<-s.Wake()
	if got := collect(t, s, status.OK, 2); got[1].Oom == nil {
		t.Errorf("%v", got)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// script is a journalctl that writes what it was called with into a file, and then runs the lines.
func script(t *testing.T, lines string) (command, called string) {
	t.Helper()
	dir := t.TempDir()
	command, called = filepath.Join(dir, "journalctl"), filepath.Join(dir, "called")
	if err := os.WriteFile(command, []byte("#!/bin/sh\necho $$ \"$@\" > "+called+"\n"+lines), 0o755); err != nil {
		t.Fatal(err)
	}
	return command, called
}

func TestFollowsTheJournal(t *testing.T) {
	command, called := script(t, `cat <<'END'
{"_SYSTEMD_UNIT":"vllm.service","_PID":"41","MESSAGE":"CUDA out of memory. Tried to allocate 1 bytes.","__REALTIME_TIMESTAMP":"1700000000000000","__CURSOR":"x"}
no JSON
{"_SYSTEMD_UNIT":"vllm.service","_PID":"41","MESSAGE":null}
{"_SYSTEMD_UNIT":"other.service","_PID":"41","MESSAGE":"CUDA out of memory. Tried to allocate 5 bytes."}
{"_SYSTEMD_UNIT":"vllm.service","_PID":"42","MESSAGE":[67,85,68,65,32,101,114,114,111,114,58,32,111,117,116,32,111,102,32,109,101,109,111,114,121,255]}
{"_SYSTEMD_UNIT":"vllm.service","_PID":"42","MESSAGE":"HIP out of memory. Tried to allocate 3 bytes."}
END
exec sleep 1000
`)
	s, err := New(Options{Journal: []Unit{{Name: "vllm"}}, Journalctl: command, Poll: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var got []*event.Event
	for len(got) < 3 {
		<-s.Wake()
		more, err := s.Collect(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, more...)
	}
	if len(got) != 3 || !got[0].At().Equal(time.Unix(1700000000, 0)) || got[0].Worker.GetPid() != 41 || got[0].Worker.GetUnit() != "vllm.service" || got[0].Oom.GetRequestedBytes() != 1 {
		t.Errorf("%v", got)
	}
	if got[1].Oom.GetText() != "CUDA error: out of memory\uFFFD" || got[1].Worker.GetPid() != 42 || got[2].Oom.GetRequestedBytes() != 3 {
		t.Errorf("%v", got)
	}
	text, err := os.ReadFile(called)
	if err != nil {
		t.Fatal(err)
	}
	pid, arguments, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if arguments != "--follow --lines=0 --output=json --all --no-pager --output-fields=MESSAGE,_SYSTEMD_UNIT,_PID --unit=vllm.service" {
		t.Errorf("called with %q", arguments)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	child, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child outlives the source: %v", err)
	}
}

func TestTheJournalsTroubles(t *testing.T) {
	for name, c := range map[string]struct{ lines, want, text string }{
		"it ends":       {"echo broken >&2; exit 3\n", status.Lost, "broken"},
		"it may not":    {"echo 'Hint: You are currently not seeing messages from other users and the system.' >&2\n", status.Lost, "not seeing"},
		"it ends early": {"exit 0\n", status.Lost, "journalctl ended"},
		"too long":      {"head -c 400000 /dev/zero | tr '\\0' x; exit 1\n", status.Lost, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			command, _ := script(t, c.lines)
			j := &journal{command: command, units: map[string]*unit{"a.service": {}}}
			err := j.follow(t.Context(), func(e entry, _ time.Time) { t.Errorf("%v", e) })
			if status.Of(err) != c.want || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
		})
	}
	j := &journal{command: filepath.Join(t.TempDir(), "none")}
	if err := j.follow(t.Context(), nil); status.Of(err) != status.Absent {
		t.Errorf("%v", err)
	}
	j = &journal{command: "no-such-journalctl"}
	if err := j.follow(t.Context(), nil); status.Of(err) != status.Absent {
		t.Errorf("%v", err)
	}
	for said, want := range map[string]string{
		"Hint: You are currently not seeing messages from other users": status.Denied, "No journal files were opened due to insufficient permissions.": status.Denied,
		"No journal files were found.": status.Absent, "": status.OK, "warning": status.OK,
	} {
		j = &journal{}
		if _, err := (*complaints)(j).Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		if got := status.Of(j.problem()); got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
}

func TestRealJournal(t *testing.T) {
	path, err := exec.LookPath("journalctl")
	if err != nil {
		t.Skipf("SKIPPED: no journalctl on this machine: %v", err)
	}
	// Its own parser judges the arguments; without --follow it ends.
	out, err := exec.Command(path, "--lines=1", "--output=json", "--all", "--no-pager", "--output-fields=MESSAGE,_SYSTEMD_UNIT,_PID").CombinedOutput()
	if err != nil {
		t.Skipf("SKIPPED: the journal of this machine cannot be read: %v: %s", err, out)
	}
	if len(out) == 0 || out[0] != '{' {
		t.Skipf("SKIPPED: the journal of this machine has no entry: %s", out)
	}
	if e, ok := parseEntry(out); !ok || e.at.IsZero() {
		t.Errorf("a real entry is not read: %s", out)
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"_SYSTEMD_UNIT":"vllm.service","_PID":"41","MESSAGE":"CUDA error: out of memory","__REALTIME_TIMESTAMP":"1700000000000000"}`))
	f.Add([]byte(`{"MESSAGE":[67,65535,-1],"_PID":"99999999999"}`))
	f.Add([]byte(`{"MESSAGE":["a","b"],"__REALTIME_TIMESTAMP":"-5"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, ok := parseEntry(line)
		if !ok {
			return
		}
		if e.pid < 0 || !e.at.IsZero() && e.at.Unix() < 0 {
			t.Fatalf("%+v", e)
		}
		u := &unit{worker: &event.Worker{Pid: 1}, stream: &stream{out: func(e *event.Event) {
			if err := event.Validate(e); err != nil {
				t.Fatal(err)
			}
		}}}
		u.take(e, noon)
		u.stream.settle(noon.Add(time.Hour))
	})
}
