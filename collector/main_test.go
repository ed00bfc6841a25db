package collector_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/alecthomas/kong"

	"lowtide/collector/nvml"
	"lowtide/collector/snapshot"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "nvml-child" { // the GPU source starts its child from this binary
		if err := new(nvml.ChildCommand).Run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "snapshot-child" { // and the allocator source the reader of snapshots
		if err := summarise(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv(snapshot.ChildKnown, "1")
	if len(os.Args) > 1 && os.Args[1] == "spool-child" { // and the spool's test a collector that is killed
		if os.Getenv(spoolChildMark) != "1" || len(os.Args) != 4 {
			fmt.Fprintln(os.Stderr, "error: not started by the test")
			os.Exit(2)
		}
		if err := spoolChild(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(spoolChildMark) != "" { // a child that ran tests could start itself again
		fmt.Fprintln(os.Stderr, "error: a child of the spool's test was about to run tests")
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func summarise(args []string) error {
	child := new(snapshot.ChildCommand)
	parser, err := kong.New(child)
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	return child.Run(context.Background())
}
