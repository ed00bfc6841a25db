package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/event"
)

// The bound holds at every moment; the oldest samples go first, what is urgent only when no samples are left, and every message is
// either there or counted.
func TestFullSpoolDropsTheOldestAndSamplesFirst(t *testing.T) {
	o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20}
	s := open(t, o)
	defer closeIt(t, s)
	samples, urgent := s.Lane(event.LaneSamples), s.Lane(event.LaneUrgent)
	within := func() {
		t.Helper()
		var disk int64
		for _, lane := range laneNames() {
			for _, path := range segments(t, o.Folder, lane) {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				disk += info.Size()
			}
		}
		if disk > o.MaxBytes || disk != s.used.Load() {
			t.Errorf("%d bytes on disk, %d counted, the bound is %d", disk, s.used.Load(), o.MaxBytes)
		}
	}
	fill(t, samples, 1, 3000, 1000)
	within()
	kept := samples.Stats()
	if kept.Messages+kept.Full.Messages != 3000 || kept.Events+kept.Full.Events != 6000 || kept.Messages < 850 {
		t.Errorf("%+v of 3000 messages", kept)
	}
	if want := time.Unix(1_800_000_000+int64(kept.Full.Messages)+1, 0); !kept.Oldest.Equal(want) {
		t.Errorf("the oldest is of %v, want %v", kept.Oldest, want)
	}
	// The one that is being sent is neither counted as dropped nor sent twice.
	flying, err := samples.Head()
	if err != nil {
		t.Fatal(err)
	}
	fill(t, urgent, 1, 500, 1000)
	within()
	if got := urgent.Stats(); got.Messages != 500 || got.Full.Messages != 0 {
		t.Errorf("urgent: %+v, want all 500", got)
	}
	fill(t, urgent, 501, 3000, 1000)
	within()
	if err := samples.Pop(); err != nil {
		t.Fatal(err)
	}
	now := samples.Stats()
	if now.Messages > 61 || now.Messages+now.Full.Messages+1 != 3000 {
		t.Errorf("samples: %+v beside record %s in flight, want the last segment at most", now, flying.ID)
	}
	if got := urgent.Stats(); got.Messages+got.Full.Messages != 3000 || got.Full.Messages == 0 {
		t.Errorf("urgent: %+v of 3000", got)
	}
	if got, want := runs(t, urgent), fmt.Sprintf("%d-3000", urgent.Stats().Full.Messages+1); got != want {
		t.Errorf("urgent came as %s, want %s", got, want)
	}
	if got, want := runs(t, samples), fmt.Sprintf("%d-3000", now.Full.Messages+2); got != want {
		t.Errorf("samples came as %s, want %s", got, want)
	}
}

func TestOneThatFitsNowhereIsRefused(t *testing.T) {
	s := open(t, Options{Folder: t.TempDir(), MaxBytes: 1 << 20})
	defer closeIt(t, s)
	l := s.Lane(event.LaneSamples)
	fill(t, l, 1, 2, 10)
	if err := l.Append(numbered(3, 1<<20)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v", err)
	}
	fill(t, l, 4, 4, 700<<10) // has a segment of its own
	fill(t, l, 5, 5, 10)
	if got := runs(t, l); got != "1-2 4-5" {
		t.Errorf("came: %s", got)
	}
}

// Each lane has its own goroutine; the urgent one takes room from the other while that one writes and reads.
func TestLanesAreUsedAtOnce(t *testing.T) {
	s := open(t, Options{Folder: t.TempDir(), MaxBytes: 1 << 20, Sync: time.Millisecond})
	defer closeIt(t, s)
	var owners sync.WaitGroup
	var got [2]uint64
	for i, name := range laneNames() {
		owners.Go(func() {
			l := s.Lane(name)
			last := uint64(0)
			for n := uint64(1); n <= 4000; n++ {
				if err := l.Append(numbered(n, 600)); err != nil && !errors.Is(err, ErrFull) {
					t.Error(err)
					return
				}
				if n%3 == 0 {
					if one := take(t, l); one != 0 {
						if one <= last {
							t.Errorf("%s: %d after %d", name, one, last)
						}
						last, got[i] = one, got[i]+1
					}
				}
				s.Lane(event.LaneSamples).Stats()
			}
		})
	}
	owners.Wait()
	u := s.urgent.Stats()
	if u.Messages+u.Full.Messages+got[1] != 4000 {
		t.Errorf("urgent: %+v and %d taken, of 4000", u, got[1])
	}
}

func TestFolderIsForOneCollectorAndItsOwnerAlone(t *testing.T) {
	o := Options{Folder: filepath.Join(t.TempDir(), "a", "spool"), MaxBytes: 1 << 20}
	s := open(t, o)
	if _, err := Open(o); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), o.Folder) {
		t.Errorf("a second collector: %v", err)
	}
	for _, name := range laneNames() {
		fill(t, s.Lane(name), 1, 3, 10)
	}
	if err := filepath.WalkDir(o.Folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v, want %v", path, info.Mode().Perm(), err, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	closeIt(t, s)
	closeIt(t, open(t, o))
	if _, err := Open(Options{Folder: o.Folder, MaxBytes: MinBytes - 1}); err == nil {
		t.Error("a bound of nothing is taken")
	}
}

// The wall clock goes back an hour, and then two forward: order, bounds and files do not follow it, and no age is below zero.
func TestClockSteps(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	o := Options{Folder: t.TempDir(), MaxBytes: 1 << 20, now: func() time.Time { return now }}
	s := open(t, o)
	l := s.Lane(event.LaneSamples)
	at := func(n uint64) {
		t.Helper()
		r := numbered(n, 100)
		r.At = now
		if err := l.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	at(1)
	now = now.Add(-time.Hour)
	at(2)
	if got := l.Stats().Age(now); got != 0 {
		t.Errorf("age %v at a clock that went back", got)
	}
	now = now.Add(2 * time.Hour)
	at(3)
	if got := l.Stats().Age(now); got != time.Hour {
		t.Errorf("age %v, want 1h", got)
	}
	closeIt(t, s)
	s = open(t, o)
	defer closeIt(t, s)
	l = s.Lane(event.LaneSamples)
	at(4)
	var ids []string
	for {
		r, err := l.Head()
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			break
		}
		ids = append(ids, r.ID[len("lab/h1/p/samples/"):])
		if err := l.Pop(); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(ids, " "); got != "1 2 3 4" {
		t.Errorf("came as %s", got)
	}
}
