package spool

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"lowtide/event"
)

// A collector is killed at random moments, again and again over the same folder: what Append had returned for is there, in order, and
// what Pop had returned for is not. One that was being written or taken out may be either.
func TestKilledCollectorLosesNothing(t *testing.T) {
	if os.Getenv(childMark) != "" {
		t.Fatal("a child must not run tests")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	folder := t.TempDir()
	written, taken, torn := uint64(0), uint64(0), uint64(0)
	for range 8 {
		in, out := written, taken
		kill(t, folder, written+1, 1+chance.IntN(900), &in, &out)
		s, err := Open(Options{Folder: folder, MaxBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		l := s.Lane(event.LaneSamples)
		torn += l.Stats().Torn
		if got := l.Stats(); got.DamagedSegments > 0 || got.Full.Messages > 0 {
			t.Errorf("%+v", got)
		}
		first := take(t, l)
		if first < out+1 || first > out+2 {
			t.Fatalf("the first record is %d, after %d was taken out", first, out)
		}
		last := first
		for last < in {
			n := take(t, l)
			if n != last+1 {
				t.Fatalf("record %d after %d, and %d was written", n, last, in)
			}
			last = n
		}
		if n := take(t, l); n == in+1 {
			last = n
		} else if n != 0 {
			t.Fatalf("record %d after %d", n, last)
		}
		if n := take(t, l); n != 0 {
			t.Fatalf("record %d behind the last one, %d", n, last)
		}
		written, taken = last, last
		// Some for the next child to take over.
		for range 1 + chance.IntN(50) {
			written++
			if err := l.Append(numbered(written, int(written%3000))); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d records written, %d torn", written, torn)
}

// kill starts a child that writes from next on, and kills it after so many lines.
func kill(t *testing.T, folder string, next uint64, lines int, in, out *uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0], "spool-child", folder)
	command.Env = []string{childMark + "=1"}
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(stdin, next); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(stdout)
	for n := 0; said.Scan(); n++ {
		if n == lines {
			if err := command.Process.Kill(); err != nil { // SIGKILL; the lines that it wrote until then are read to their end
				t.Fatal(err)
			}
		}
		var word string
		var number uint64
		if _, err := fmt.Sscan(said.Text(), &word, &number); err != nil {
			break // cut off
		}
		if word == "in" {
			*in = number
		} else {
			*out = number
		}
	}
	if err := command.Wait(); err == nil || ctx.Err() != nil {
		t.Fatalf("the child was not killed: %v, %v", err, ctx.Err())
	}
}
