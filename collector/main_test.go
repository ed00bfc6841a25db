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
