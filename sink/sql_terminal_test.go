package sink

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal: what is written to its master is typed.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("SKIPPED: the prompt was not tested on a terminal: ", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("SKIPPED: the prompt was not tested on a terminal: ", err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// onTerminal types a line at each prompt, with Tab and the arrow up, and finds the terminal as it was before.
func (f fleet) onTerminal(t *testing.T) {
	master, slave := terminal(t)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	typed := []string{"SELECT count() > 0 AS some FROM gpu_sam\t\r", "\x1b[A\r", " SELECT 'not kept'\r", "\x04"}
	done := make(chan []byte, 1)
	go func() {
		var seen []byte
		buffer := make([]byte, 4096)
		for len(typed) > 0 {
			n, err := master.Read(buffer)
			if err != nil {
				break
			}
			if seen = append(seen, buffer[:n]...); bytes.HasSuffix(seen, []byte("lowtide> ")) {
				master.WriteString(typed[0])
				typed = typed[1:]
			}
		}
		done <- seen
	}()
	var out bytes.Buffer
	c := SQLCommand{Access: f.access, CSV: true, Stdin: slave, Stdout: &out, Stderr: slave}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := <-done
	if want := "\"some\"\n1\n\"some\"\n1\n\"'not kept'\"\n\"not kept\"\n"; out.String() != want {
		t.Errorf("answers %q, want %q; the terminal showed\n%s", out.String(), want, seen)
	}
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("%v, the terminal is left as %+v, was %+v", err, after, before)
	}
	kept, err := os.ReadFile(filepath.Join(f.access.DataDir, "sql_history"))
	if err != nil || strings.TrimSpace(string(kept)) != "SELECT count() > 0 AS some FROM gpu_samples" {
		t.Errorf("%v, the history has %q", err, kept)
	}
}
