package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/fleet"
	"lowtide/processor/bench"
	"lowtide/processor/broker"
	"lowtide/sink/engine"
)

// inProcess plays the fleet in the test's own process, since its executable knows no `simulate`.
func inProcess(c *BenchCommand, address string, victims int) generator {
	return func(ctx context.Context, orders io.Reader, reports io.Writer) error {
		conn, err := broker.Dial(address, "simulate", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		return fleet.Drive(ctx, js, fleet.Options{Hosts: c.Hosts, Workers: c.Workers, Start: time.Now().Add(-benchPast).Truncate(time.Second)}, victims, orders, reports)
	}
}

// A short run finds every message it sent: in the stream, judged, in the store, and each planted failure at Slack. How fast that was is
// not asserted.
func TestBenchCounts(t *testing.T) {
	_, err := engine.FindLibrary("")
	away := errors.Is(err, engine.ErrLibraryMissing)
	if away {
		t.Log("NOT TESTED: rows of the store, which need the ClickHouse engine; run make engine")
	}
	for _, noStore := range []bool{true, false} {
		if away && !noStore {
			continue
		}
		var out bytes.Buffer
		c := &BenchCommand{Hosts: 6, Workers: 4, Rate: 200, Duration: 3 * time.Second, Warmup: time.Second, NoStore: noStore, OOMEvery: 1500 * time.Millisecond, JSON: true,
			NoStages: noStore, Data: filepath.Join(t.TempDir(), "data"), Seed: 1, Stdout: &out, stageTime: 10 * time.Millisecond}
		c.inProcess = func(address string, victims int) generator { return inProcess(c, address, victims) }
		if err := c.Run(t.Context()); err != nil {
			t.Fatalf("without a store: %v: %v\n%s", noStore, err, out.String())
		}
		var r bench.Result
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		checks := 3
		if !noStore {
			checks = 9
		}
		if len(r.Checks) != checks || !r.OK() || r.Workers != 24 || r.PublishedPerSecond <= 0 || r.SamplesPerMessage < 2 || r.SamplesPerMessage > 4 || r.Bytes.Payload < 100 || r.Slack.Arrived != 2 || r.Slack.P50 <= 0 || r.Memory.Heap == 0 {
			t.Errorf("%+v", r)
		}
		if noStore {
			continue
		}
		// A worker-sample is one row, of at most so many bytes in files; and each stage did something.
		if r.Bytes.Samples <= 0 || r.Bytes.AllTables < r.Bytes.Samples || r.Bytes.Stream < r.Bytes.Payload {
			t.Errorf("%+v", r.Bytes)
		}
		var names []string
		for _, s := range slices.Concat(r.Stages, r.Ceilings) {
			names = append(names, s.Name)
			if s.PerSecond <= 0 || s.Million <= 0 || s.Unit == "" {
				t.Errorf("%+v", s)
			}
		}
		if got, want := strings.Join(names, " "), "generate encode decode judge join publish read and decode notify insert JetStream in JetStream out ClickHouse"; got != want {
			t.Errorf("stages %s, want %s", got, want)
		}
	}
}

func TestBenchRefuses(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want string }{
		{"--hosts 0", "--hosts 0"},
		{"--workers 100", "--workers 100"},
		{"--rate -5", "--rate"},
		{"--duration 10ms", "--duration 10ms"},
		{"--oom-every 100ms", "one message a second"},
		{"--data " + full, "is not empty"},
	} {
		var messages bytes.Buffer
		if code := run(t.Context(), append([]string{"bench"}, strings.Fields(test.args)...), &messages); code != 2 || !strings.Contains(messages.String(), test.want) {
			t.Errorf("%s ended with %d and %q", test.args, code, messages.String())
		}
	}
}
