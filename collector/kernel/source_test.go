package kernel

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// fake is a kernel log whose reads give what is sent: a record, or an error.
type fake struct {
	reads    chan any
	closed   chan struct{}
	deadline time.Time
}

func newFake() *fake { return &fake{reads: make(chan any), closed: make(chan struct{})} }

func (f *fake) SetReadDeadline(t time.Time) error { f.deadline = t; return nil }
func (f *fake) Close() error                      { close(f.closed); return nil }

func (f *fake) Read(b []byte) (int, error) {
	var late <-chan time.Time
	if !f.deadline.IsZero() {
		timer := time.NewTimer(time.Until(f.deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-f.closed:
		return 0, os.ErrClosed
	case <-late:
		return 0, os.ErrDeadlineExceeded
	case r := <-f.reads:
		if err, is := r.(error); is {
			return 0, err
		}
		return copy(b, r.(string)), nil
	}
}

// say writes records, each with the next sequence number, now.
func (f *fake) say(sequence *uint64, texts ...string) {
	for _, text := range texts {
		*sequence++
		f.reads <- fmt.Sprintf("4,%d,%d,-;%s\n", *sequence, time.Now().UnixMicro()%1e12, text)
	}
}

// bubble is the clock of a synctest bubble: wall and uptime go together.
func bubble() (time.Time, time.Duration) {
	return time.Now(), time.Duration(time.Now().UnixMicro()%1e12) * time.Microsecond
}

func xids(events []*event.Event) (out []string) {
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d/%d", e.Xid.GetCode(), e.Xid.GetPid()))
	}
	return out
}

func collect(t *testing.T, s *Source, state string) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), time.Now())
	if status.Of(err) != state {
		t.Errorf("status %s (%v), want %s", status.Of(err), err, state)
	}
	for _, e := range events {
		if e.At().After(time.Now()) {
			t.Errorf("an event of %v at %v", e.At(), time.Now())
		}
	}
	return events
}

func TestSourceWakesAndHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sequence := newFake(), uint64(41)
		s := follow(Options{ProcRoot: t.TempDir()}, func() (device, error) { return f, nil }, bubble)
		if got := collect(t, s, status.OK); len(got) != 0 {
			t.Errorf("%v", got)
		}
		time.Sleep(1234 * time.Millisecond)
		began := time.Now()
		f.say(&sequence, "NVRM: Xid (PCI:0000:48:00): 31, pid=570, name=python3, Ch 1", "usb 1-1: new device")
		<-s.Wake()
		f.say(&sequence, "NVRM: Xid (PCI:0000:48:00): 43, pid=570, name=python3, Ch 1") // nothing follows it
		<-s.Wake()
		if waited := time.Since(began); waited != quietSpan {
			t.Errorf("a fault is held %v", waited)
		}
		got := collect(t, s, status.OK)
		if fmt.Sprint(xids(got)) != "[31/570 43/570]" || !got[0].At().Equal(began) || got[0].Worker.GetPid() != 570 {
			t.Errorf("%v", got)
		}
		// What came between the tick and the call belongs to the tick.
		f.say(&sequence, "Out of memory: Killed process 7 (a)")
		<-s.Wake()
		tick := time.Now().Add(-time.Millisecond)
		if got, err := s.Collect(t.Context(), tick); err != nil || len(got) != 1 || !got[0].At().Equal(tick) || got[0].Oom.GetKind() != "kernel" {
			t.Errorf("%v %v", got, err)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestSourceSurvivesOverruns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sequence := newFake(), uint64(0)
		s := follow(Options{ProcRoot: t.TempDir()}, func() (device, error) { return f, nil }, bubble)
		defer s.Close()
		f.say(&sequence, "one")
		f.reads <- &os.PathError{Op: "read", Path: "/dev/kmsg", Err: syscall.EPIPE}
		sequence += 3000
		f.say(&sequence, "NVRM: Xid (PCI:0000:48:00): 94, Contained", "other")
		synctest.Wait()
		events, err := s.Collect(t.Context(), time.Now())
		if !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "3000 records") || len(events) != 1 {
			t.Errorf("%v, %v", err, events)
		}
		collect(t, s, status.OK) // said once

		f.reads <- syscall.EINVAL // one that is too long
		f.say(&sequence, "NVRM: Xid (PCI:0000:48:00): 95, Uncontained", "other")
		synctest.Wait()
		if got := collect(t, s, status.OK); len(got) != 1 {
			t.Errorf("%v", got)
		}
	})
}

func TestSourceTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fake
		answers := []error{&os.PathError{Op: "open", Path: "/dev/kmsg", Err: syscall.EPERM}, os.ErrNotExist, nil, nil}
		opened := 0
		s := follow(Options{ProcRoot: t.TempDir()}, func() (device, error) {
			opened++
			if err := answers[opened-1]; err != nil {
				return nil, err
			}
			f = newFake()
			return f, nil
		}, bubble)
		collect(t, s, status.Denied)
		collect(t, s, status.Denied)
		time.Sleep(61 * time.Second)
		collect(t, s, status.Absent)
		time.Sleep(time.Minute)
		synctest.Wait()
		collect(t, s, status.OK)
		f.reads <- io.EOF
		synctest.Wait()
		collect(t, s, status.Unsupported)
		time.Sleep(time.Minute)
		synctest.Wait()
		collect(t, s, status.OK)
		for range maxFailures {
			f.reads <- syscall.EPIPE
		}
		synctest.Wait()
		collect(t, s, status.Lost)
		if err := s.Close(); err != nil || opened != 4 {
			t.Errorf("%v, opened %d times", err, opened)
		}
	})
}

// The storm that a rack node logged: one real error, then clean-up of every channel of every process.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sequence := newFake(), uint64(0)
		s := follow(Options{ProcRoot: t.TempDir()}, func() (device, error) { return f, nil }, bubble)
		defer s.Close()
		time.Sleep(time.Second) // to a whole second
		for i := range 200 {
			f.say(&sequence, fmt.Sprintf("NVRM: Xid (PCI:0000:48:00): 45, pid=%d, name=a, Ch 1", 1+i))
		}
		f.say(&sequence, "NVRM: Xid (PCI:0000:48:00): 62, pid='<unknown>', name=<unknown>, 1")
		for i := range 11_560 {
			f.say(&sequence, fmt.Sprintf("NVRM: Xid (PCI:0000:48:00): 45, pid=1, name=a, Ch %08x", i))
		}
		time.Sleep(quietSpan)
		synctest.Wait()
		events, err := s.Collect(t.Context(), time.Now())
		if len(events) != 41 || events[40].Xid.GetCode() != 62 { // forty that blame programs, and the device's own
			t.Errorf("%d events: %v", len(events), xids(events))
		}
		if !errors.Is(err, status.ErrLost) || !strings.Contains(err.Error(), "160 events") {
			t.Errorf("%v", err)
		}
		time.Sleep(repeatSpan)
		events = collect(t, s, status.OK)
		if len(events) != 1 || !strings.HasSuffix(events[0].Xid.Text, "[repeated 11560 times within 10s]") || events[0].Xid.GetPid() != 1 {
			t.Errorf("%v", events)
		}
		// The same again later is an error of its own; a few repeats of it are not worth an event.
		for range 3 {
			f.say(&sequence, "NVRM: Xid (PCI:0000:48:00): 45, pid=1, name=a, Ch 1")
		}
		time.Sleep(2 * repeatSpan)
		synctest.Wait()
		if events = collect(t, s, status.OK); len(events) != 1 {
			t.Errorf("%v", events)
		}
	})
}

func TestClock(t *testing.T) {
	wall, uptime := noon, 100*24*time.Hour
	c := clock{now: func() (time.Time, time.Duration) { return wall, uptime }}
	pass := func(d time.Duration) { wall, uptime = wall.Add(d), uptime+d }
	check := func(stamp time.Duration, want time.Time) {
		t.Helper()
		if got := c.at(stamp); !got.Equal(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	stamp := uptime - 7*time.Minute // printk's clock has fallen seven minutes behind in a hundred days
	check(stamp, noon)
	pass(10 * time.Second)
	// Three records a second apart, all read late, together; the first comes 4 s late.
	check(stamp+6*time.Second, noon.Add(6*time.Second+5*time.Millisecond)) // 10 s × 500 ppm of drift is allowed for
	check(stamp+7*time.Second, noon.Add(7*time.Second+5*time.Millisecond))
	check(stamp+8*time.Second, noon.Add(8*time.Second+5*time.Millisecond))
	wall = noon.Add(-time.Hour) // set back: never later than now
	check(stamp+9*time.Second, wall)
	check(stamp+20*time.Second, wall) // a stamp ahead of all: now
	wall = noon
	check(stamp+19*time.Second, noon.Add(-time.Second))
	check(stamp+18*time.Second, noon.Add(-time.Second)) // never before the one that went before
}

// A socket pair keeps the bounds of records as /dev/kmsg does, and goes through the runtime's poller like it.
func TestSourceOverASocketPair(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[0]), "kernel")
	defer theirs.Close()
	s := follow(Options{ProcRoot: t.TempDir()}, func() (device, error) { return os.NewFile(uintptr(pair[1]), "kmsg"), nil }, systemClock)
	fmt.Fprint(theirs, "3,1,1000,-;NVRM: Xid (PCI:0000:48:00): 31, pid=570, name=python3, Ch 1\n")
	<-s.Wake()
	if got := collect(t, s, status.OK); fmt.Sprint(xids(got)) != "[31/570]" {
		t.Errorf("%v", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	if _, err := Open(Options{Retry: -1}); err == nil {
		t.Error("a negative retry is taken")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "kmsg")
	if err := os.WriteFile(file, []byte("6,1,1,-;old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Path: filepath.Join(dir, "none")})
	if err != nil {
		t.Fatal(err)
	}
	collect(t, s, status.Absent)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{file, "/dev/null"} {
		d, err := openLog(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.read(d); !errors.Is(err, status.ErrUnsupported) {
			t.Errorf("%s: %v", path, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The machine's own log: it is followed from its end, and what a program writes to it is not believed.
func TestRealKernelLog(t *testing.T) {
	const path = "/dev/kmsg"
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("SKIPPED: the kernel log of this machine cannot be written: %v", err)
	}
	defer writer.Close()
	raw, err := openLog(path)
	if err != nil {
		t.Skipf("SKIPPED: the kernel log of this machine cannot be read: %v", err)
	}
	defer raw.Close()
	s, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(writer, "<2>NVRM: Xid (PCI:ffff:ff:1f): 79, lowtide test, not a fault\n"); err != nil {
		t.Skipf("SKIPPED: the kernel log of this machine takes no line: %v", err)
	}
	if err := raw.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, maxRecord)
	for {
		k, err := raw.Read(buffer)
		if err != nil {
			t.Fatalf("the line does not come back: %v", err)
		}
		r, ok := parseRecord(buffer[:k])
		if !ok {
			t.Fatalf("a real record is not read: %q", buffer[:k])
		}
		if strings.Contains(r.text, "lowtide test") {
			if r.facility == 0 || ParseXid(r.text) == nil {
				t.Errorf("a program wrote %+v", r)
			}
			_, uptime := systemClock()
			if lag := uptime - r.uptime; lag < -time.Hour || lag > time.Hour {
				t.Errorf("the log's clock is off by %v", lag)
			}
			break
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	events, err := s.Collect(t.Context(), time.Now())
	for _, e := range events {
		if strings.Contains(e.Xid.GetText(), "lowtide test") {
			t.Errorf("a forged line is believed: %v", e)
		}
	}
	if err != nil {
		t.Errorf("after Close: %v", err)
	}
}
