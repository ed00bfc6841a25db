package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// suspicion is a finding that evidence may be asked for.
func suspicion(class, incident, host string) *event.Finding {
	return &event.Finding{ID: incident + "-1", Incident: incident, Class: class, State: event.Suspected, Labels: map[string]string{"cluster": "prod", "host": host},
		Worker: &event.Worker{Pid: 4242, StartTicks: event.Ptr(uint64(77))}}
}

// asking starts an asker, and answers for the host gpu-1 with what answer returns; every ask is passed on.
func asking(t *testing.T, patterns []string, answer func(map[string]any) []byte) (*Asker, chan map[string]any) {
	t.Helper()
	_, conn, _ := brokertest.Start(t)
	asks := make(chan map[string]any, maxAsks)
	_, err := conn.Subscribe("lowtide.ask.prod.gpu-1", func(m *nats.Msg) {
		var got map[string]any
		if err := json.Unmarshal(m.Data, &got); err != nil {
			t.Errorf("ask %s: %v", m.Data, err)
		}
		asks <- got
		if err := m.Respond(answer(got)); err != nil {
			t.Errorf("answer: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAsker(conn, EvidenceOptions{Hosts: patterns, History: 10 * time.Minute, Census: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.Run(ctx); close(ended) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return a, asks
}

// outcomes waits until so many asks have an outcome, and returns the outcomes.
func outcomes(t *testing.T, a *Asker, want int) map[string]int {
	t.Helper()
	limit := time.After(20 * time.Second)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		counts, sum := a.Counts(), 0
		for _, n := range counts {
			sum += n
		}
		if sum >= want {
			return counts
		}
		select {
		case <-poll.C:
		case <-limit:
			t.Fatalf("outcomes %v, want %d of them", counts, want)
		}
	}
}

// The contract of lowtide.ask: what is asked for, once an incident, of allowed hosts, and only where a snapshot tells something.
func TestEvidenceIsAskedForOnceAnIncident(t *testing.T) {
	a, asks := asking(t, []string{"prod/gpu-*"}, func(ask map[string]any) []byte {
		switch ask["incident"] {
		case "refused":
			return []byte(`{"status":"refused","error":"not before 14:30","id":""}`)
		case "gone":
			return []byte(`{"status":"unknown_process"}`)
		case "odd":
			return []byte(`{"status":"maybe"}`)
		case "broken":
			return []byte(`{"status":`)
		case "long":
			return []byte(`{"status":"accepted","error":"` + strings.Repeat("x", maxAnswer) + `"}`)
		}
		return []byte(`{"status":"accepted","id":"t1"}`)
	})
	leak := suspicion("retention", "leak", "gpu-1")
	again := *leak
	again.State, again.Severity = event.Confirmed, event.Page
	ended := suspicion("fragmentation", "never", "gpu-1")
	ended.State = event.Resolved
	nobody := suspicion("retention", "nobody", "gpu-1")
	nobody.Worker = nil
	for _, f := range []*event.Finding{leak, leak, &again, suspicion("fragmentation", "holes", "gpu-1"), suspicion("kv_pressure", "kv", "gpu-1"), ended, nobody,
		suspicion("graph_pools", "refused", "gpu-1"), suspicion("stream_backlog", "gone", "gpu-1"), suspicion("retention", "odd", "gpu-1"),
		suspicion("retention", "broken", "gpu-1"), suspicion("retention", "long", "gpu-1"), suspicion("retention", "elsewhere", "cpu-1"),
		suspicion("retention", "absent", "gpu-2"), suspicion("retention", "wild", "gpu-*")} {
		a.Offer(f)
	}
	want := map[string]int{event.AskAccepted: 2, event.AskRefused: 1, event.AskUnknown: 1, askUnreadable: 3, askForbidden: 2, askSilent: 1}
	if got := outcomes(t, a, 10); !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	got := map[any]map[string]any{}
	for len(asks) > 0 {
		one := <-asks
		if got[one["incident"]] != nil {
			t.Errorf("asked twice: %v", one)
		}
		got[one["incident"]] = one
	}
	for incident, want := range map[string]string{
		"leak":    `map[ask:snapshot census:true history_seconds:600 incident:leak pid:4242 reason:retention suspected start_ticks:77]`,
		"holes":   `map[ask:snapshot incident:holes pid:4242 reason:fragmentation suspected start_ticks:77]`,
		"refused": `map[ask:snapshot history_seconds:600 incident:refused pid:4242 reason:graph_pools suspected start_ticks:77]`,
	} {
		if one := fmt.Sprint(got[incident]); one != want {
			t.Errorf("asked %s\nwant  %s", one, want)
		}
	}
	if len(got) != 7 {
		t.Errorf("asked for %d incidents, want 7", len(got))
	}
}

// The judge never waits for a host: what does not fit into the queue is dropped, and counted.
func TestAsksThatDoNotFitAreDropped(t *testing.T) {
	a, err := NewAsker(nil, EvidenceOptions{Hosts: []string{"*/*"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxAsked + 3 {
		a.Offer(suspicion("fragmentation", fmt.Sprint(i), "gpu-1"))
	}
	// What was dropped is not remembered: its next transition has another chance.
	if got := a.Counts()[askDropped]; got != maxAsked+3-maxAsks || len(a.queue) != maxAsks || len(a.asked) != maxAsks {
		t.Errorf("%d dropped, %d wait, %d remembered", got, len(a.queue), len(a.asked))
	}
	<-a.queue
	a.Offer(suspicion("fragmentation", fmt.Sprint(maxAsks), "gpu-1"))
	if len(a.queue) != maxAsks {
		t.Error("there is room, and what was dropped is not asked for")
	}
	for i := range 3 * maxAsked {
		a.Seen(suspicion("fragmentation", fmt.Sprint("old-", i), "gpu-1"))
		if len(a.asked) > maxAsked {
			t.Fatalf("%d remembered", len(a.asked))
		}
	}
	if _, newest := a.asked[fmt.Sprint("old-", 3*maxAsked-1)]; !newest {
		t.Error("the newest is forgotten")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(a)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "lowtide_evidence_asks_total" || len(families[0].Metric) != 7 {
		t.Fatalf("metrics %v (%v)", families, err)
	}
}

func TestNobodyIsAskedByDefault(t *testing.T) {
	a, err := NewAsker(nil, EvidenceOptions{}, nil)
	if err != nil || a != nil {
		t.Fatalf("an asker without hosts: %v %v", a, err)
	}
	a.Offer(suspicion("retention", "leak", "gpu-1"))
	if a.Counts() != nil {
		t.Errorf("counts %v of nobody", a.Counts())
	}
	for _, pattern := range []string{"gpu-1", "a/b/c", "prod/[", ""} {
		if _, err := NewAsker(nil, EvidenceOptions{Hosts: []string{pattern}}, nil); !errors.Is(err, ErrEvidenceHosts) {
			t.Errorf("pattern %q: %v", pattern, err)
		}
	}
}

// A finding of the live judge is asked for after it was published, once. This one is confirmed as soon as it is called: its growth follows the
// requests.
func TestTheJudgeAsksForEvidence(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, conn, js := brokertest.Start(t)
	asks := make(chan event.AskRequest, 9)
	if _, err := conn.Subscribe("lowtide.ask.lab.h200-a", func(m *nats.Msg) {
		var got event.AskRequest
		if err := json.Unmarshal(m.Data, &got); err != nil {
			t.Errorf("ask %s: %v", m.Data, err)
		}
		asks <- got
		if err := m.Respond([]byte(`{"status":"accepted"}`)); err != nil {
			t.Errorf("answer: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	asker, err := NewAsker(conn, EvidenceOptions{Hosts: []string{"lab/*"}, History: 10 * time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := events(t, "testdata/leak.ndjson.gz")
	for n, part := range [][]*event.Event{all[:len(all)/2], all[len(all)/2:]} {
		wire, err := event.EncodeBatch(&event.Batch{Host: all[0].Host, Source: "recording", Producer: "p", Lane: event.LaneSamples, Sequence: uint64(n + 1), Events: part})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(ctx, event.SubjectFor("lab", "h200-a", "recording"), wire); err != nil {
			t.Fatal(err)
		}
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- Run(running, Options{JS: js, Pack: builtin(t), Evidence: asker}) }()
	select {
	case got := <-asks:
		if got.PID == 0 || got.HistorySeconds != 600 || got.Reason != "retention confirmed" || got.Incident == "" || got.Census {
			t.Errorf("asked %+v", got)
		}
	case <-ctx.Done():
		t.Fatal("nobody asks")
	}
	outcomes(t, asker, 1)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(asks) > 0 {
		t.Errorf("asked again: %+v", <-asks)
	}
}

// What a rule asks for without a suspicion goes the same way, without a recording; once a rule and process.
func TestWhatARuleWants(t *testing.T) {
	a, asks := asking(t, []string{"prod/gpu-*"}, func(map[string]any) []byte { return []byte(`{"status":"accepted","id":"t1"}`) })
	who := &event.Worker{Pid: 4242, StartTicks: event.Ptr(uint64(77))}
	wish := &Wish{Rule: "graph_pools", Class: "graph_pools", Cluster: "prod", Host: "gpu-1", Key: "k1", Worker: who}
	next, nobody, elsewhere := *wish, *wish, *wish
	next.Key, nobody.Worker, elsewhere.Host, elsewhere.Key = "k2", nil, "cpu-1", "k3"
	for _, w := range []*Wish{wish, wish, &nobody, &elsewhere, &elsewhere, &next} {
		a.Want(w)
	}
	if got, want := outcomes(t, a, 3), (map[string]int{event.AskAccepted: 2, askForbidden: 1}); !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	for range 2 {
		if got := fmt.Sprint(<-asks); got != `map[ask:snapshot pid:4242 reason:graph_pools possible start_ticks:77]` {
			t.Errorf("asked %s", got)
		}
	}
	(*Asker)(nil).Want(wish) // nobody is asked
	(*Asker)(nil).Seen(suspicion("retention", "leak", "gpu-1"))
}

// A host refuses what comes too soon after the last one: it is asked once more later, unless the incident is over by then. Who did not
// answer is asked again at the next transition.
func TestARefusedAskIsMadeOnceMore(t *testing.T) {
	_, conn, _ := brokertest.Start(t)
	var asked atomic.Int64
	if _, err := conn.Subscribe("lowtide.ask.prod.gpu-1", func(m *nats.Msg) {
		asked.Add(1)
		if err := m.Respond([]byte(`{"status":"refused","error":"not before 14:30"}`)); err != nil {
			t.Errorf("answer: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	a, err := NewAsker(conn, EvidenceOptions{Hosts: []string{"prod/*"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.again = 200 * time.Millisecond
	over := suspicion("fragmentation", "over", "gpu-1")
	a.Offer(suspicion("fragmentation", "holes", "gpu-1"))
	a.Offer(over)
	silent := suspicion("fragmentation", "silent", "gpu-2")
	a.Offer(silent)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.Run(ctx); close(ended) }()
	outcomes(t, a, 3)
	resolved := *over
	resolved.State = event.Resolved
	a.Offer(&resolved)
	a.Offer(silent)
	if got, want := outcomes(t, a, 5), (map[string]int{event.AskRefused: 3, askSilent: 2}); !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	stop()
	<-ended
	if asked.Load() != 3 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// A judge that starts again sees the past once more, and asks for none of it again.
func TestAJudgeThatStartsAgainDoesNotAskAgain(t *testing.T) {
	_, _, js := brokertest.Start(t)
	a, err := NewAsker(nil, EvidenceOptions{Hosts: []string{"prod/*"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := newPartition(1, Options{JS: js, Pack: builtin(t), Log: slog.New(slog.DiscardHandler), Evidence: a}, NewBoard(), nil)
	leak, over := suspicion("retention", "leak", "gpu-1"), suspicion("retention", "over", "gpu-1")
	resolved := *over
	resolved.State = event.Resolved
	p.findings, p.wishes = []*event.Finding{leak, over, &resolved}, []*Wish{{Rule: "graph_pools", Cluster: "prod", Host: "gpu-1", Key: "k", Worker: leak.Worker}}
	p.forgo()
	if len(p.findings)+len(p.wishes)+len(a.queue) != 0 {
		t.Fatal("the past is told again")
	}
	for _, f := range []*event.Finding{leak, over} {
		next := *f
		next.ID, next.State, next.Severity, next.Subject, next.Slot = f.Incident+"-2", event.Confirmed, event.Page, event.Subject{Kind: "worker", Key: "k"}, "s"
		p.findings = append(p.findings, &next)
	}
	p.wishes = []*Wish{{Rule: "graph_pools", Class: "graph_pools", Cluster: "prod", Host: "gpu-1", Key: "new", Worker: leak.Worker}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.publishAll(ctx); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(a.queue) > 0 {
		one := <-a.queue
		got = append(got, one.about)
	}
	if want := []string{"graph_pools new", "over"}; !slices.Equal(got, want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
}
