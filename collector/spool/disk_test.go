package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lowtide/collector/status"
	"lowtide/event"
)

// small mounts a disk of so many MiB.
func small(t *testing.T, mib int) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("SKIPPED: no small file system can be mounted here (%v), so that no disk really runs full", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// roomy says that everything is free, so that the spool finds out only when it writes.
func roomy(string) (free, total uint64, err error) { return 1 << 40, 1 << 40, nil }

// hog takes all that is left of a disk.
func hog(t *testing.T, folder string) (path string) {
	t.Helper()
	path = filepath.Join(folder, "hog")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 4<<10)
	for {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			return path
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func told(t *testing.T, n *Sensor) string {
	t.Helper()
	events, err := n.Collect(context.Background(), time.Now())
	if len(events) > 0 || status.Of(err) != status.OK && status.Of(err) != status.Lost {
		t.Errorf("%d events, status %s", len(events), status.Of(err))
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// A disk smaller than the bound: the spool goes on with the newest, within what there is.
func TestSmallerDiskThanBound(t *testing.T) {
	folder := small(t, 4)
	s := open(t, Options{Folder: filepath.Join(folder, "spool"), MaxBytes: 16 << 20, space: roomy})
	defer closeIt(t, s)
	l, n := s.Lane(event.LaneSamples), NewSensor(s, nil)
	fill(t, l, 1, 8000, 1000)
	got := l.Stats()
	if got.Messages+got.Full.Messages != 8000 || got.Messages < 3000 || got.Fault != nil {
		t.Errorf("%+v of 8000", got)
	}
	if text := told(t, n); !strings.Contains(text, fmt.Sprintf("%d messages dropped", got.Full.Messages)) {
		t.Errorf("status %q", text)
	}
	if got, want := runs(t, l), fmt.Sprintf("%d-8000", got.Full.Messages+1); got != want {
		t.Errorf("came as %s, want %s", got, want)
	}
	if text := told(t, n); text != "" {
		t.Errorf("status of an empty spool: %q", text)
	}
}

// Somebody else fills the disk: nothing is written, which is said; what is there stays; once there is room it goes on.
func TestFullDisk(t *testing.T) {
	folder := small(t, 4)
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Folder: filepath.Join(folder, "spool"), MaxBytes: 16 << 20, space: roomy})
		defer closeIt(t, s)
		l, n := s.Lane(event.LaneSamples), NewSensor(s, nil)
		fill(t, l, 1, 50, 1000)
		path := hog(t, folder)
		last := uint64(50)
		var err error
		for err == nil { // the page that is begun has room yet
			if err = l.Append(numbered(last+1, 1000)); err == nil {
				last++
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("error %v", err)
		}
		if text := told(t, n); !strings.Contains(text, "lane samples: nothing is written") || !strings.Contains(text, "no space left") {
			t.Errorf("status %q", text)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := l.Append(numbered(last+1, 1000)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("at once: %v, want the same error for a second", err)
		}
		time.Sleep(retryAfter)
		fill(t, l, last+1, last+50, 1000)
		if text := told(t, n); text != "" {
			t.Errorf("status %q of a disk that has room", text)
		}
		if got, want := runs(t, l), fmt.Sprintf("1-%d", last+50); got != want {
			t.Errorf("came as %s, want %s", got, want)
		}
	})
}

// What is left to others is not taken: the spool does not grow there, and goes on with what it has.
func TestLastOfTheDiskIsLeftToOthers(t *testing.T) {
	free := uint64(1 << 40)
	s := open(t, Options{Folder: t.TempDir(), MaxBytes: 4 << 20, space: func(string) (uint64, uint64, error) { return free, 100 << 30, nil }})
	defer closeIt(t, s)
	l, n := s.Lane(event.LaneSamples), NewSensor(s, nil)
	fill(t, l, 1, 1000, 1000)
	used := s.used.Load()
	free = 1<<30 + 1000 // a twentieth of 100 GiB is more than the 1 GiB
	fill(t, l, 1001, 3000, 1000)
	if got := s.used.Load(); got > used+minSegment {
		t.Errorf("grew from %d to %d bytes", used, got)
	}
	got := l.Stats()
	if got.Messages+got.Full.Messages != 3000 || got.Messages < 900 {
		t.Errorf("%+v of 3000", got)
	}
	if got, want := runs(t, l), fmt.Sprintf("%d-3000", got.Full.Messages+1); got != want {
		t.Errorf("came as %s, want %s", got, want)
	}
	told(t, n)
	if err := l.Append(numbered(3001, 1000)); !errors.Is(err, ErrDiskFull) {
		t.Errorf("an empty spool on a full disk: %v", err)
	}
	if text := told(t, n); !strings.Contains(text, "disk is full: 1024 MiB of 102400 MiB are free") {
		t.Errorf("status %q", text)
	}
	if left := segments(t, s.o.Folder, event.LaneSamples); len(left) != 0 {
		t.Errorf("segments %v", left)
	}
}

// A write that fails in its middle leaves nothing of the record behind.
func TestWriteThatFailsInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := false
		o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20, write: func(file *os.File, b []byte, at int64) (int, error) {
			if !fail {
				return file.WriteAt(b, at)
			}
			n, err := file.WriteAt(b[:len(b)/2], at)
			return n, errors.Join(err, syscall.EIO)
		}}
		s := open(t, o)
		l := s.Lane(event.LaneUrgent)
		fill(t, l, 1, 5, 100)
		for n := uint64(6); n < 9; n++ {
			fail = true
			if err := l.Append(numbered(n, 100)); !errors.Is(err, syscall.EIO) {
				t.Errorf("error %v", err)
			}
			fail = false
			killed := open(t, Options{Folder: crash(t, o.Folder), MaxBytes: 1 << 20})
			if got := killed.Lane(event.LaneUrgent).Stats(); got.Torn != 0 || got.Messages != n-1 {
				t.Errorf("a collector that is killed then leaves %+v", got)
			}
			closeIt(t, killed)
			time.Sleep(retryAfter)
			fill(t, l, n, n, 100)
		}
		o.Folder = crash(t, o.Folder)
		if got := runs(t, l); got != "1-8" {
			t.Errorf("came as %s", got)
		}
		closeIt(t, s)
		s = open(t, o)
		defer closeIt(t, s)
		if got := s.Lane(event.LaneUrgent).Stats(); got.Torn != 0 || got.DamagedSegments != 0 {
			t.Errorf("the next collector finds %+v", got)
		}
		if got := runs(t, s.Lane(event.LaneUrgent)); got != "1-8" {
			t.Errorf("to the next collector: %s", got)
		}
	})
}

func TestTooManyOpenFilesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := true
		s := open(t, Options{Folder: t.TempDir(), MaxBytes: 1 << 20, create: func(path string) (*os.File, error) {
			if full {
				return nil, syscall.EMFILE
			}
			return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		}})
		defer closeIt(t, s)
		l, n := s.Lane(event.LaneSamples), NewSensor(s, nil)
		if err := l.Append(numbered(1, 10)); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("error %v", err)
		}
		if text := told(t, n); !strings.Contains(text, "too many open files") {
			t.Errorf("status %q", text)
		}
		full = false
		time.Sleep(retryAfter)
		fill(t, l, 1, 1, 10)
		if got := runs(t, l); got != "1-1" {
			t.Errorf("came: %s", got)
		}
	})
}

func TestSpoolThatCannotBeHadIsAStatus(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Folder: filepath.Join(file, "spool"), MaxBytes: 1 << 20})
	if err == nil {
		t.Fatal("a folder below a file was opened")
	}
	if text := told(t, NewSensor(nil, err)); !strings.Contains(text, file) {
		t.Errorf("status %q does not name the folder", text)
	}
}
