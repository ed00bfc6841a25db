package spool

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"

	"lowtide/event"
)

// childMark is set for the one child that the kill test starts. It and the first argument together make a child; a child never runs
// tests, and so can never start another.
const childMark = "LOWTIDE_SPOOL_TEST_CHILD"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "spool-child" {
		if os.Getenv(childMark) != "1" || len(os.Args) != 3 {
			fmt.Fprintln(os.Stderr, "error: not started by the test")
			os.Exit(2)
		}
		if err := child(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(childMark) != "" {
		fmt.Fprintln(os.Stderr, "error: a child of the kill test was about to run tests")
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// child writes three records for each one that it takes out and says so, until it is killed, nobody listens, or half a minute is over.
func child(folder string) error {
	s, err := Open(Options{Folder: folder, MaxBytes: 64 << 20})
	if err != nil {
		return err
	}
	l := s.Lane(event.LaneSamples)
	next := uint64(1)
	in := bufio.NewReader(os.Stdin)
	if _, err := fmt.Fscan(in, &next); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); next++ {
		if err := l.Append(numbered(next, int(next%3000))); err != nil {
			return err
		}
		if _, err := fmt.Printf("in %d\n", next); err != nil {
			return err
		}
		if next%3 != 0 {
			continue
		}
		r, err := l.Head()
		if err != nil || r == nil {
			return fmt.Errorf("nothing at the head: %w", err)
		}
		if err := l.Pop(); err != nil {
			return err
		}
		if _, err := fmt.Println("out", r.ID[len("lab/h1/p/samples/"):]); err != nil {
			return err
		}
	}
	return s.Close()
}
