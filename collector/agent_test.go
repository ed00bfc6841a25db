package collector

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lowtide/collector/allocator"
)

// A worker counts as probed once it has said hello, until it hangs up.
func TestConnectedProbesAreCounted(t *testing.T) {
	folder, err := os.MkdirTemp("", "lt") // a socket's path has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	s, err := allocator.Listen(allocator.Options{Socket: filepath.Join(folder, "p.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	gauges := (&Agent{Opened: &Opened{Sources: []Source{s}}}).gauges()
	if len(gauges) != 1 {
		t.Fatalf("%d gauges", len(gauges))
	}
	becomes := func(want float64) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for limit := time.After(10 * time.Second); ; {
			if testutil.ToFloat64(gauges[0]) == want {
				return
			}
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("%v probes, want %v", testutil.ToFloat64(gauges[0]), want)
			}
		}
	}
	conn, err := net.Dial("unix", filepath.Join(folder, "p.sock"))
	if err != nil {
		t.Fatal(err)
	}
	becomes(0)
	if _, err := fmt.Fprintln(conn, `{"v":1,"kind":"hello","probe":"0.1.0","python":"3.12.3","torch":"2.11.0","backend":"native"}`); err != nil {
		t.Fatal(err)
	}
	becomes(1)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	becomes(0)
}
