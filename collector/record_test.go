package collector_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/collector"
	"lowtide/event"
)

// The command on this host: what it wrote is a whole recording, and a file that is there is not touched.
func TestRecordWritesWhatItSees(t *testing.T) {
	for _, name := range []string{"host.ndjson", "host.ndjson.gz"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			c := &collector.RecordCommand{File: path, For: 300 * time.Millisecond, Cluster: "lab", Host: "h", Logger: slog.New(slog.DiscardHandler), Sensors: sensors(100 * time.Millisecond)}
			c.Without = []string{"nvml", "allocator", "kernel", "engine"}
			if err := c.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			r, err := event.NewReader(file, name)
			if err != nil {
				t.Fatal(err)
			}
			machines := 0
			for {
				e, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if event.HostKey(e.Host) != "lab/h" {
					t.Errorf("event of %s", event.HostKey(e.Host))
				}
				if e.Machine != nil {
					machines++
				}
			}
			if machines < 2 {
				t.Errorf("%d ticks were recorded, want at least 2 in 300 ms", machines)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			err = c.Run(t.Context())
			var hinted interface{ Hint() string }
			if err == nil || !strings.Contains(err.Error(), path) || !errors.As(err, &hinted) {
				t.Errorf("an existing file: %v", err)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Error("the existing recording was changed")
			}
		})
	}
}
