package collector_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"lowtide/collector"
	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// The command itself, from a recording that began an hour ago to the stream of a real broker.
func TestCollectPlaysARecordingIntoTheStream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	server, conn, _ := brokertest.Start(t)
	arrived := make(chan *nats.Msg, 64)
	subscription, err := conn.ChanSubscribe("lowtide.event.>", arrived)
	if err != nil {
		t.Fatal(err)
	}
	defer subscription.Unsubscribe()
	command := &collector.Command{NATS: server.ClientURL(), Cluster: "lab", Host: "agent", Metrics: "off", Speed: 1, Shift: time.Hour, Stretch: 1,
		Sensors: sensors(time.Second), Recording: []string{"recording/testdata/leak_first_100_minutes.ndjson.gz"}, Logger: slog.New(slog.DiscardHandler)}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- command.Run(running) }()
	samples, status := 0, ""
	for samples < 295 || status == "" {
		select {
		case m := <-arrived:
			b, _, err := event.DecodeBatch("", m.Data)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range b.Events {
				switch {
				case e.Source != nil:
					status = event.HostKey(e.Host) + " " + e.Source.Name + " " + e.Source.Status
				case event.HostKey(e.Host) == "lab/h200-a":
					samples++
				}
			}
		case err := <-done:
			t.Fatalf("collect ended by itself: %v", err)
		case <-ctx.Done():
			t.Fatalf("%d samples and status %q arrived", samples, status)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// Ticks lag a little behind the minute: 59 or 60 of them lie within the hour.
	if samples > 305 || status != "lab/agent recording-leak_first_100_minutes ok" {
		t.Errorf("%d samples, status %q", samples, status)
	}
}

// sensors are the flags' defaults, with another interval.
func sensors(interval time.Duration) collector.Sensors {
	return collector.Sensors{Interval: interval, NVMLInterval: time.Second, Discover: true}
}

func TestCollectRefusesWhatCannotWork(t *testing.T) {
	corrupt := filepath.Join(t.TempDir(), "corrupt.ndjson")
	if err := os.WriteFile(corrupt, []byte("{\"time\":1}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	whole := collector.Command{NATS: "nats://127.0.0.1:1", Cluster: "lab", Host: "h", Metrics: "off", Speed: 1, Stretch: 1, Sensors: sensors(time.Second),
		Logger: slog.New(slog.DiscardHandler)}
	for name, c := range map[string]struct {
		change func(*collector.Command)
		want   string
		hint   bool
	}{
		"cluster":   {func(c *collector.Command) { c.Cluster = "a b" }, `"a b"`, true},
		"broker":    {func(c *collector.Command) { c.NATS = "ftp://x"; c.Sim = 1 }, "ftp://x", true},
		"interval":  {func(c *collector.Command) { c.Interval = 0 }, "--interval 0s", true},
		"pattern":   {func(c *collector.Command) { c.Match = "(" }, "--match", true},
		"source":    {func(c *collector.Command) { c.Without = []string{"nvlm"} }, "--without nvlm", true},
		"engine":    {func(c *collector.Command) { c.Engine = []string{"vllm=127.0.0.1:8000"} }, "--engine vllm=127.0.0.1:8000", true},
		"objective": {func(c *collector.Command) { c.SLO = []string{"m:ttft=fast"} }, "--slo m:ttft=fast", true},
		"no model":  {func(c *collector.Command) { c.SLO = []string{"ttft=1s"} }, "--slo ttft=1s", true},
		"metrics":   {func(c *collector.Command) { c.Metrics = "256.0.0.1:1"; c.Sim = 1 }, "256.0.0.1:1", true},
		"speed":     {func(c *collector.Command) { c.Speed = 0 }, "--speed 0", true},
		"spool":     {func(c *collector.Command) { c.SpoolDir = "spool"; c.SpoolMax = 1000 }, "--spool-max 1000", true},
		"rate":      {func(c *collector.Command) { c.SpoolRate = -1 }, "--spool-rate -1", true},
		"recording": {func(c *collector.Command) { c.Recording = []string{corrupt} }, "corrupt.ndjson:1", false},
		"file":      {func(c *collector.Command) { c.Recording = []string{corrupt + "x"} }, "corrupt.ndjsonx", false},
	} {
		command := whole
		c.change(&command)
		err := command.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not name %s", name, err, c.want)
		}
		var hinted interface{ Hint() string }
		if c.hint && !errors.As(err, &hinted) {
			t.Errorf("%s: no hint", name)
		}
	}
}
