package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
	"lowtide/processor/incident"
	"lowtide/rules"
)

// A finding that has no JSON form, and one that is larger than the broker takes, are dropped and counted: those behind them are stored,
// in their order.
func TestOneBadFindingStopsNothing(t *testing.T) {
	_, _, js := brokertest.Start(t)
	p := newPartition(1, Options{JS: js, Pack: builtin(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	small := func(n int) *event.Finding {
		f := transition(fmt.Sprint("incident-", n), "retention", event.Suspected, event.Page)
		f.ID = fmt.Sprint("finding-", n)
		return f
	}
	infinite, twice, large := small(2), small(3), small(4)
	infinite.Confidence = math.Inf(1)
	twice.Evidence = event.Measures{{Name: "waiting.now"}, {Name: "waiting.now"}}
	large.Summary = strings.Repeat("x", broker.MaxPayload)
	p.findings = []*event.Finding{small(1), infinite, twice, large, small(5)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.publishAll(ctx); err != nil {
		t.Fatal(err)
	}
	if p.lost != 3 || len(p.findings) != 0 {
		t.Errorf("%d dropped and %d left, want 3 and none", p.lost, len(p.findings))
	}
	stream, err := js.Stream(ctx, event.StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	for sequence, want := range []string{"finding-1", "finding-5"} {
		m, err := stream.GetMsg(ctx, uint64(sequence+1))
		if err != nil {
			t.Fatal(err)
		}
		if f, err := event.UnmarshalFinding(m.Data); err != nil || f.ID != want {
			t.Errorf("stored as number %d: %v (%v), want %s", sequence+1, f, err, want)
		}
	}
}

// What may be taken later is not given up.
func TestOnlyWhatIsHopelessIsDropped(t *testing.T) {
	for _, err := range []error{nil, context.DeadlineExceeded, jetstream.ErrNoStreamResponse, jetstream.ErrStreamNotFound, errors.New("no space left on device")} {
		if hopeless(err) {
			t.Errorf("%v is given up", err)
		}
	}
}

// A process grows and ends; another lives in its slot. The verdict moves to that one, stays while the incident is open although nothing
// comes, and goes with it.
func TestTheVerdictFollowsTheSlot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, _, js := brokertest.Start(t)
	clock := time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	verdicts, err := OpenVerdicts(ctx, js, func() time.Time { return clock })
	if err != nil {
		t.Fatal(err)
	}
	p := newPartition(1, Options{JS: js, Pack: builtin(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), verdicts)
	p.now = func() time.Time { return clock }
	keys := func() string {
		t.Helper()
		if err := p.publishAll(ctx); err != nil {
			t.Fatal(err)
		}
		p.advise(ctx)
		all, err := verdicts.kv.Keys(ctx)
		if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
			t.Fatal(err)
		}
		return strings.Join(all, " ")
	}
	all := events(t, "testdata/leak.ndjson.gz")
	for _, e := range all {
		p.judge.Apply(e)
	}
	last := all[len(all)-1]
	began := strconv.FormatInt(all[1].Worker.StartTime.AsTime().UnixMilli(), 10)
	if got := keys(); got != "lab.h200-a.4242-at"+began {
		t.Fatalf("while it lives: %s", got)
	}
	s := &stage{judge: p.judge, at: last.At(), host: last.Host}
	w := proto.CloneOf(all[1].Worker)
	s.apply(w, signal(6, "self"))
	if got := keys(); got != "" {
		t.Errorf("nobody lives there: %s", got)
	}
	w.StartTime, w.Pid = nil, 5000
	s.live(w, 10*time.Minute)
	clock = clock.Add(adviceEvery)
	if got := keys(); got != "lab.h200-a.5000" {
		t.Errorf("another lives there: %s", got)
	}
	for range 3 { // nothing comes, and the advice does not expire
		clock = clock.Add(adviceEvery)
		keys()
	}
	entry, err := verdicts.kv.Get(ctx, "lab.h200-a.5000")
	if err != nil {
		t.Fatal(err)
	}
	v, err := decodeVerdict(entry.Value())
	if err != nil || v.Class != "retention" || v.Worker != "lab/h200-a/5000" || !v.Expires.Equal(clock.Add(broker.VerdictTTL)) {
		t.Errorf("advice %+v (%v)", v, err)
	}
	for range 2 {
		clock = clock.Add(8 * 24 * time.Hour)
		p.judge.Tick(clock) // nobody speaks of it for a week
	}
	if got := keys(); got != "" {
		t.Errorf("the incident is over: %s", got)
	}
}

// Many verdicts are written some at a time, and one whose incident ends meanwhile is not written again.
func TestAdviceDoesNotHoldUpEvents(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, _, js := brokertest.Start(t)
	verdicts, err := OpenVerdicts(ctx, js, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	p := newPartition(1, Options{JS: js, Pack: probePack(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	s := &stage{judge: p.judge, at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}}
	for pid := range int64(adviceShare + 10) {
		w := rank(1+pid, "r1")
		w.Unit, w.GpuUuids = fmt.Sprintf("u%03d", pid), nil
		for range 2 {
			s.apply(w, waits(9))
			s.pass(time.Second)
		}
	}
	if n := len(p.findings); n != adviceShare+10 {
		t.Fatalf("%d incidents", n)
	}
	p.verdicts = verdicts
	for _, want := range []int{adviceShare, adviceShare + 9, adviceShare + 9} {
		p.advise(ctx)
		keys, err := verdicts.kv.Keys(ctx)
		if err != nil || len(keys) != want {
			t.Fatalf("%d verdicts (%v), want %d", len(keys), err, want)
		}
		if want == adviceShare { // the last of those that are still to come ends
			in := p.judge.incidents.Open(fmt.Sprintf("c/h/u%03d/0/0", adviceShare+9))
			p.judge.incidents.Observe(incident.Observation{Time: s.at, Key: in[0].Key, Rule: p.judge.rules[in[0].Rule], Result: rules.Result{When: rules.False}, Growth: true, Proven: true, Worker: in[0].Worker})
		}
	}
}

// A producer is drawn at each start of a collector: its mark goes a day after its last message.
func TestMarksArePruned(t *testing.T) {
	p := newPartition(1, Options{Pack: probePack(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	start := time.Unix(1_790_000_000, 0)
	sequence := uint64(0)
	send := func(after time.Duration, producer string, number uint64) {
		t.Helper()
		wire, err := event.EncodeBatch(&event.Batch{Host: &event.Host{Cluster: "c", Name: "h"}, Source: "x", Producer: producer, Lane: event.LaneSamples, Sequence: number,
			Events: []*event.Event{{Time: timestamppb.New(start.Add(after)), Source: &event.SourceStatus{Name: "nvml", Status: "ok"}}}})
		if err != nil {
			t.Fatal(err)
		}
		sequence++
		p.clock = start.Add(after)
		p.apply(letter{subject: "lowtide.p.1.c.h.x", data: wire, sequence: sequence})
		p.pass(start.Add(after))
	}
	send(0, "old", 1)
	for hour := range 30 {
		send(time.Duration(hour)*time.Hour, "stays", uint64(hour+1))
		if _, kept := p.marks["c/h/old/samples"]; kept != (hour <= 24) {
			t.Errorf("after %d h the old mark is kept: %v", hour, kept)
		}
	}
	if len(p.marks) != 1 || p.marks["c/h/stays/samples"].sequence != 30 || p.refused != 0 {
		t.Errorf("marks %v, %d refused", p.marks, p.refused)
	}
}
