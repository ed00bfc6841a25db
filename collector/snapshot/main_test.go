package snapshot

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"
)

// The test binary is also each of the children that the tests start: `test.binary child BEHAVIOUR`.
func TestMain(m *testing.M) {
	switch marked := os.Getenv(childMark) != ""; {
	case !marked && len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-"):
		// Whatever is wrong with the environment that a child is given: it must not run the tests that start it, over and over.
		fmt.Fprintln(os.Stderr, "error: started as a child without its mark")
		unix.Exit(3)
	case !marked:
		os.Exit(m.Run())
	case len(os.Args) < 3 || os.Args[1] != "child":
		fmt.Fprintln(os.Stderr, "error: a child does not run the tests")
		unix.Exit(3)
	}
	if err := behave(os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		unix.Exit(1)
	}
	unix.Exit(0)
}

func behave(behaviour string, args []string) error {
	switch behaviour {
	case "read":
		c := new(ChildCommand)
		parser, err := kong.New(c)
		if err != nil {
			return err
		}
		if _, err := parser.Parse(args); err != nil {
			return err
		}
		return c.Run(context.Background())
	case "hang":
		for {
			unix.Ppoll(nil, nil, nil)
		}
	case "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 1<<16)); err != nil {
				return err
			}
		}
	case "grow": // what its bound on memory is for
		humble()
		var all [][]byte
		for range 1 << 10 {
			piece := make([]byte, 4<<20)
			for i := 0; i < len(piece); i += 4096 {
				piece[i] = 1
			}
			all = append(all, piece)
		}
		return fmt.Errorf("%d pieces fit", len(all))
	case "nested": // what a program does that does not know that it is a child
		_, err := Child{}.Summarise(context.Background(), os.Stdin, nil, "asked", nil)
		return err
	case "family": // and one that leaves children behind
		command := exec.Command(os.Args[0], "child", "hang")
		command.Stdout = os.Stdout
		if err := command.Start(); err != nil {
			return err
		}
		if err := os.WriteFile(os.Getenv("PATH"), []byte(strconv.Itoa(command.Process.Pid)), 0o600); err != nil { // the only word that reaches it
			return err
		}
		return command.Wait()
	case "silent":
		return nil
	}
	return fmt.Errorf("no behaviour %q", behaviour)
}
