package fleet

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor/broker"
)

func parse(t *testing.T, args ...string) *Command {
	t.Helper()
	c := &Command{Logger: slog.New(slog.DiscardHandler)}
	c.Stdout = new(bytes.Buffer)
	parser, err := kong.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWrongUsageNamesTheRemedy(t *testing.T) {
	for _, test := range []struct{ args, what, remedy string }{
		{"--hosts 0", "--hosts 0", "1 to 10000"},
		{"--workers 65", "--workers 65", "1 to 64"},
		{"--interval 1ms", "--interval 1ms", "100ms to 10m"},
		{"--hosts 10000 --workers 64 --interval 1s", "3200000 events a second", "fewer hosts"},
		{"--speed 5", "--speed 5", "--past 12h"},
		{"--past=-1h", "--past -1h0m0s", "744h"},
		{"--for=-1s", "--for -1s", "10m"},
		{"--cluster a.b", `--cluster "a.b"`, "letters, digits"},
		{"--scenario healthy-busy,oops", `no scenario "oops"`, "simulate --list"},
		{"--list", "writes no files", "--publish"},
	} {
		err := parse(t, append([]string{"--publish"}, strings.Fields(test.args)...)...).Run(t.Context())
		var failure *broker.Failure
		if !errors.As(err, &failure) || failure.ExitCode() != 2 || !strings.Contains(failure.What, test.what) || !strings.Contains(failure.Remedy, test.remedy) {
			t.Errorf("%s: %v (%+v)", test.args, err, failure)
		}
	}
	if err := parse(t, "--publish", "--nats", "nats://127.0.0.1:1").Run(t.Context()); err == nil {
		t.Error("a broker that is not there is taken")
	}
	if err := parse(t).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--publish") {
		t.Errorf("without anything: %v", err)
	}
}

// Ten minutes of the past of three hosts, every 30 s, go to a real broker as fast as it takes them: what is counted is what is stored.
func TestPublishReachesTheStream(t *testing.T) {
	server, err := broker.Start(t.Context(), broker.Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	address := strings.Replace(server.ClientURL(), "nats://", "nats://t@", 1)
	publish := func(args ...string) (*Command, error) {
		c := parse(t, append([]string{"--publish", "--nats", address, "--hosts", "3", "--workers", "2", "--interval", "30s", "--past", "10m"}, args...)...)
		return c, c.Run(t.Context())
	}
	var failure *broker.Failure
	if _, err := publish("--for", "1s"); !errors.As(err, &failure) || !strings.Contains(failure.Remedy, "lowtide up") {
		t.Fatalf("without streams: %v", err)
	}
	conn, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Ensure(t.Context(), js, server.Limits()); err != nil {
		t.Fatal(err)
	}
	c, err := publish("--for", "3s", "--scenario", "healthy-busy,retention-abort")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	said := c.Stdout.(*bytes.Buffer).String()
	if n := stream.CachedInfo().State.Msgs; n < 3*20 || !strings.Contains(said, "stored") {
		t.Errorf("%d messages in the stream, want one a host and tick of 20 at least; it said %q", n, said)
	}
}

// The kinds of --kind are those of sim.
func TestKinds(t *testing.T) {
	o, err := parse(t, "--publish", "--kind", "leaking,kv-pressed", "--past", "1h", "--speed", "60").options(start)
	if err != nil || len(o.Kinds) != 2 || o.Kinds[0] != sim.Leaking || o.Kinds[1] != sim.KVPressed || !o.Start.Equal(start.Add(-time.Hour)) {
		t.Errorf("%+v (%v)", o, err)
	}
}
