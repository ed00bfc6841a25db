package collector

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestFlagsSayWhereTheSpoolIs(t *testing.T) {
	var c Command
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(nil); err != nil || c.SpoolDir != spoolPlace || c.SpoolMax != 512<<20 || c.SpoolRate != spoolRate {
		t.Errorf("by default %q, %d bytes, %d a second, %v", c.SpoolDir, c.SpoolMax, c.SpoolRate, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		command      Command
		kept, sensor bool
	}{
		"off":                      {Command{SpoolDir: "off", SpoolMax: 1 << 20}, false, false},
		"simulated, no folder":     {Command{SpoolDir: spoolPlace, SpoolMax: 1 << 20, Sim: 1}, false, false},
		"recorded, no folder":      {Command{SpoolDir: spoolPlace, SpoolMax: 1 << 20, Recording: []string{"r"}}, false, false},
		"simulated, with a folder": {Command{SpoolDir: t.TempDir(), SpoolMax: 1 << 20, Sim: 1}, true, true},
		"no folder to be had":      {Command{SpoolDir: filepath.Join(file, "spool"), SpoolMax: 1 << 20}, false, true},
	} {
		opened := new(Opened)
		kept := test.command.spool(opened, slog.New(slog.DiscardHandler))
		if (kept != nil) != test.kept || (len(opened.Sources) == 1) != test.sensor {
			t.Errorf("%s: a spool %v, %d sources", name, kept != nil, len(opened.Sources))
		}
		if kept == nil {
			continue
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The collector's own page of metrics has those of the spool.
func TestSpoolIsOnThePageOfMetrics(t *testing.T) {
	kept := openSpool(t, t.TempDir())
	p := NewPublisher(&stream{}, PublisherOptions{Spool: kept})
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(p); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registry, "lowtide_spool_messages", "lowtide_spool_oldest_seconds", "lowtide_publisher_pending_messages"); n != 5 || err != nil {
		t.Errorf("%d series, %v, want two of each lane and one of the publisher", n, err)
	}
	end(t, p)
	if err := kept.Close(); err != nil {
		t.Error(err)
	}
}
