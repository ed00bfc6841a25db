package backtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
	"lowtide/sink"
	"lowtide/sink/engine"
)

// outcome is what of a result does not depend on where the history came from.
func outcome(t *testing.T, r *result) string {
	t.Helper()
	text, err := json.Marshal([]any{r.Events, r.Samples, r.Hosts, r.Workers, r.Silent})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.Write(text)
	for _, one := range r.Tallies {
		fmt.Fprintf(&b, "\n%s %d findings, %d incidents, %d pages, %d tickets, %d workers, %d active, %d new, %d gone, %d same", one.Rule, one.Findings, one.Incidents, one.Pages, one.Tickets, one.Workers, one.Active, one.New, one.Gone, one.Same)
	}
	return b.String()
}

// publish puts events into the stream as a collector does, a batch a tick and source, and findings as a judge does.
func publish(t *testing.T, ctx context.Context, js jetstream.JetStream, m *memory) {
	t.Helper()
	sequence := map[string]uint64{}
	for rest := m.all; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Body() == rest[0].Body() && rest[n].At().Equal(rest[0].At()) && rest[n].Host.Name == rest[0].Host.Name {
			n++
		}
		host := rest[0].Host
		sequence[host.Name]++
		wire, err := event.EncodeBatch(&event.Batch{Host: host, Source: rest[0].Body(), Producer: "p", Lane: event.LaneSamples, Sequence: sequence[host.Name], Events: rest[:n]})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishAsync(event.SubjectFor(host.Cluster, host.Name, rest[0].Body()), wire); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	for _, f := range m.said {
		text, err := event.MarshalFinding(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishAsync(event.FindingSubject(f), text); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("not published in time")
	}
}

// What the stream holds is judged as it was at hand, and the command leaves nothing behind.
func TestTheStreamIsAHistory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, _, js := brokertest.Start(t)
	end := time.Now().UTC().Truncate(time.Second)
	m := twoHosts(t, end)
	publish(t, ctx, js, m)
	before, err := js.Stream(ctx, event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	// The broker received all of it in this minute, by which the judges are told the time.
	c := Command{Stream: true, NATS: server.ClientURL(), Now: func() time.Time { return end.Add(2 * time.Minute) }, Paths: []string{"testdata/mine.yaml"}}
	got := decoded(t, c)
	c.past = m
	if want := outcome(t, decoded(t, c)); outcome(t, got) != want {
		t.Errorf("of the stream\n%s\nwant\n%s", outcome(t, got), want)
	}
	c.past, c.Host = nil, []string{"lab/well"}
	if one := decoded(t, c); one.Hosts != 1 || one.Events*2 > len(m.all)+10 || len(one.Comparison.Gone) != 0 {
		t.Errorf("of one host: %d hosts, %d events of %d, %d gone", one.Hosts, one.Events, len(m.all), len(one.Comparison.Gone))
	}
	after, err := js.Stream(ctx, event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	events, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	if b, a := before.CachedInfo().State.LastSeq, after.CachedInfo().State.LastSeq; a != b || a != uint64(len(m.said)) {
		t.Errorf("the stream of findings went from %d to %d, of %d", b, a, len(m.said))
	}
	if n := events.CachedInfo().State.Consumers; n != 0 {
		for info := range events.ListConsumers(ctx).Info() {
			if info.Config.InactiveThreshold == 0 {
				t.Errorf("a consumer stays behind: %s", info.Name)
			}
		}
	}
	c.Now = func() time.Time { return end.Add(-72 * time.Hour) }
	c.Host = nil
	if _, _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "the stream has no event") {
		t.Errorf("of a time that is not held: %v", err)
	}
}

// library is that of a development tree, unless the environment names one.
func library() string {
	path := filepath.Join("..", "..", "sink", "engine", "npm", "node_modules", "@chdb", "lib-linux-x64-gnu", "libchdb.so")
	if _, err := os.Stat(path); err != nil || os.Getenv(engine.LibraryVariable) != "" {
		return os.Getenv(engine.LibraryVariable)
	}
	return path
}

// What the store has kept is judged as it was at hand. Which of a tick's sources came first is not kept, so that times may differ by a tick.
func TestTheStoreIsAHistory(t *testing.T) {
	data := t.TempDir()
	e, err := engine.Start(t.Context(), engine.Options{Library: library(), DataDir: filepath.Join(data, "engine")})
	if errors.Is(err, engine.ErrLibraryMissing) {
		t.Skip("SKIPPED: no backtest was read from a real engine: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	kept, err := sink.Open(t.Context(), sink.Options{Addr: e.Addr(), Password: e.Password(engine.RoleWriter)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kept.Close() })
	if err := kept.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "engine.json"), []byte(`{"addr":"`+e.Addr()+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	end := time.Now().UTC().Truncate(time.Second)
	m := twoHosts(t, end)
	keep(t, kept, m)
	c := Command{Access: sink.Access{DataDir: data, User: engine.RoleReader}, Now: func() time.Time { return end.Add(time.Minute) }, Paths: []string{"testdata/mine.yaml"}}
	got := decoded(t, c)
	c.past = m
	if want := outcome(t, decoded(t, c)); outcome(t, got) != want {
		t.Errorf("of the store\n%s\nwant\n%s", outcome(t, got), want)
	}
	c.past, c.Host = nil, []string{"lab/well"}
	if one := decoded(t, c); one.Hosts != 1 || one.Events*2 > len(m.all)+10 || len(one.Comparison.Gone) != 0 {
		t.Errorf("of one host: %d hosts, %d events of %d, %d gone", one.Hosts, one.Events, len(m.all), len(one.Comparison.Gone))
	}
	c.Host, c.Last = []string{"lab/nobody"}, time.Hour
	if _, _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "ClickHouse has no event") {
		t.Errorf("of a host that is not there: %v", err)
	}
}

// keep stores events and findings as the storer does.
func keep(t *testing.T, kept *sink.ClickHouse, m *memory) {
	t.Helper()
	sequence := uint64(0)
	byHost := map[string][]*event.Event{}
	for _, e := range m.all {
		byHost[e.Host.Name] = append(byHost[e.Host.Name], e)
	}
	insert := func(token string, messages []sink.Message) {
		for _, rows := range sink.Join(sink.Block{Token: token, Messages: messages}) {
			if err := kept.InsertRows(t.Context(), token+rows.Table, rows); err != nil {
				t.Fatal(err)
			}
		}
	}
	for host, events := range byHost {
		for chunk := range slices.Chunk(events, 997) {
			sequence++
			insert(fmt.Sprint(host, sequence), []sink.Message{{Sequence: sequence, Time: chunk[0].At(), Batch: &event.Batch{Host: chunk[0].Host, Events: chunk}}})
		}
	}
	var messages []sink.Message
	for _, f := range m.said {
		sequence++
		messages = append(messages, sink.Message{Sequence: sequence, Time: f.Time, Finding: f})
	}
	insert("findings", messages)
}
