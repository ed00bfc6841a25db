package snapshot

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"
)

// The test binary is also each of the children that the tests start: `test.binary child BEHAVIOUR`.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != "child" || os.Getenv(childMark) == "" {
		os.Exit(m.Run())
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
	case "silent":
		return nil
	}
	return fmt.Errorf("no behaviour %q", behaviour)
}
