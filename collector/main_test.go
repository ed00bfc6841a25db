package collector_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"lowtide/collector/nvml"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "nvml-child" { // the GPU source starts its child from this binary
		if err := new(nvml.ChildCommand).Run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
