package processor

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// lonely is a partition with one host, heard once, that has the partition and is told the time by the test.
func lonely(t *testing.T, all *Judges, fence uint64) (*partition, time.Time) {
	t.Helper()
	p := newPartition(testPartition, all.options, all.board, all.verdicts)
	p.all, p.pace = all, all.pace
	if err := p.begin(t.Context(), fence); err != nil {
		t.Fatal(err)
	}
	return p, time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
}

func hello(t testing.TB, name string, at time.Time, sequence uint64) letter {
	t.Helper()
	wire, err := event.EncodeBatch(&event.Batch{Host: &event.Host{Cluster: "lab", Name: name}, Source: "x", Producer: "q", Lane: event.LaneSamples, Sequence: sequence,
		Events: []*event.Event{{Time: timestamppb.New(at), Source: &event.SourceStatus{Name: "nvml", Status: "ok"}}}})
	if err != nil {
		t.Fatal(err)
	}
	return letter{subject: "lowtide.p.7.lab." + name + ".x", data: wire, sequence: sequence, at: at}
}

// The only host of a partition falls silent while hosts of other partitions are heard. It is missed once the rule's time is over, and that is
// saved before it is announced: whoever comes next neither announces it again nor forgets that it is open.
func TestLonelyHostIsMissed(t *testing.T) {
	_, _, js := brokertest.Start(t)
	forgetful(t, js)
	all := judges(t, js)
	p, noon := lonely(t, all, 1)
	if err := p.digest(t.Context(), hello(t, "alone", noon, 1)); err != nil {
		t.Fatal(err)
	}
	tell := func(p *partition, from, to time.Duration) {
		t.Helper()
		for passed := from; passed <= to; passed += tickEvery {
			if err := p.tell(t.Context(), noon.Add(passed)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tell(p, 0, 9*time.Minute)
	if got := announced(t, js); len(got) != 0 {
		t.Fatalf("after nine minutes: %v", got)
	}
	tell(p, 9*time.Minute, 40*time.Minute)
	got := announced(t, js)
	if len(got) != 1 || !strings.Contains(got[0], "blind") {
		t.Fatalf("announced %v, want that the host is not seen", got)
	}
	if e := entryOf(t, all); e.Sequence != 1 {
		t.Errorf("saved %+v before it was announced", e)
	}
	// It is killed. The next owner knows of the incident, and ends it when the host is back.
	p.judge.Leave()
	forgotten(t, js)
	next, _ := lonely(t, judges(t, js), 2)
	tell(next, 40*time.Minute, 50*time.Minute)
	same(t, announced(t, js), got)
	for n := range uint64(720) {
		if err := next.digest(t.Context(), hello(t, "alone", noon.Add(50*time.Minute+time.Duration(n)*5*time.Second), n+2)); err != nil {
			t.Fatal(err)
		}
	}
	all2 := announced(t, js)
	if len(all2) != 2 || !strings.Contains(all2[1], "blind resolved") {
		t.Errorf("announced %v, want that the host is back", all2)
	}
}

// What was saved and not announced is announced by the next owner, once.
func TestWhatWasSavedIsAnnounced(t *testing.T) {
	_, _, js := brokertest.Start(t)
	all := judges(t, js)
	p, noon := lonely(t, all, 1)
	if err := p.digest(t.Context(), hello(t, "alone", noon, 1)); err != nil {
		t.Fatal(err)
	}
	f := transition("incident", "blind", event.Suspected, event.Ticket)
	f.ID = "saved-first"
	p.findings = []*event.Finding{f}
	if err := p.keepBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.judge.Leave()
	for fence := range uint64(2) {
		next := judges(t, js)
		w := begin(t, next, testPartition, 2+fence)
		until(t, "it judges", func() bool {
			some := next.partitions()
			return len(some) == 1 && some[0].gauge.read().workers >= 0 && !some[0].gauge.read().fresh.IsZero()
		})
		w.close()
	}
	if got := announced(t, js); len(got) != 1 || !strings.HasPrefix(got[0], "saved-first ") {
		t.Errorf("announced %v", got)
	}
}

// Nobody is blamed for a time in which nobody listened: the broker was away for an hour, or its clock was set.
func TestNobodyIsMissedWhileNobodyListens(t *testing.T) {
	p := newPartition(testPartition, Options{Pack: builtin(t), Log: slog.New(slog.DiscardHandler)}, NewBoard(), nil)
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	sequence := uint64(0)
	say := func(name string, at time.Time) {
		t.Helper()
		sequence++
		m := hello(t, name, at, sequence)
		p.clock, p.applied = at, sequence-1
		p.apply(m)
		p.pass(at)
	}
	for n := range 60 {
		say("a", noon.Add(time.Duration(n)*time.Second))
		say("b", noon.Add(time.Duration(n)*time.Second))
	}
	later := noon.Add(time.Hour)
	for n := range 9 * 60 { // a is the first that is heard again, b needs a while to come back
		say("a", later.Add(time.Duration(n)*time.Second))
	}
	if len(p.findings) > 0 {
		t.Errorf("%s is missed after nine minutes", p.findings[0].Subject.Key)
	}
	for n := range 40 * 60 {
		say("a", later.Add(time.Duration(540+n)*time.Second))
	}
	if !slices.ContainsFunc(p.findings, func(f *event.Finding) bool { return f.Class == "blind" && strings.Contains(f.Subject.Key, "/b/") }) {
		t.Error("b did not come back, and is not missed")
	}
}

// A silent partition is told the time of the newest message of any other.
func TestTimeComesFromOtherPartitions(t *testing.T) {
	_, _, js := brokertest.Start(t)
	all := judges(t, js)
	p, _ := lonely(t, all, 1)
	now := time.Now().UTC()
	s := newScript(t, 5, "leak")
	s.send(js, 1)
	if err := p.digest(t.Context(), hello(t, "alone", now.Add(-time.Hour), 1)); err != nil {
		t.Fatal(err)
	}
	if err := p.idle(t.Context()); err != nil || !p.idled.IsZero() {
		t.Errorf("told %v before anybody looked (%v)", p.idled, err)
	}
	quiet(t, js, hostOn(testPartition+1, "other"), 1)
	if err := all.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.idled.Sub(now) < 0 || p.idled.Sub(now) > time.Minute || p.reading.through != 2 {
		t.Errorf("told %v, and looked up to %d", p.idled, p.reading.through)
	}
	// While something of its own waits, nobody is missed.
	before := p.idled
	s.send(js, 1)
	quiet(t, js, hostOn(testPartition+1, "other"), 2)
	if err := all.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.reading.heard = time.Now()
	if err := p.idle(t.Context()); err != nil || p.idled != before || p.reading.through != 2 {
		t.Errorf("told %v and looked up to %d (%v) although an event waits", p.idled, p.reading.through, err)
	}
}
