package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

func message(sequence, own uint64, lane string, events ...*event.Event) entry {
	host := &event.Host{Cluster: "lab", Name: "h1"}
	for i, e := range events {
		e.Host, e.Time = host, timestamppb.New(time.Unix(1_700_000_000+int64(sequence), int64(i)))
	}
	id := event.MessageID("lab/h1", "p1", lane, own)
	return entry{sequence: sequence, partition: "3", id: id, batch: &event.Batch{Host: host, Producer: "p1", Lane: lane, Sequence: own, Events: events}}
}

func sample(used uint64, usage float64) []*event.Event {
	w := &event.Worker{Pid: 1, GpuUuids: []string{"GPU-1"}}
	return []*event.Event{{Worker: w, GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: &used}}, {Worker: w, Engine: &event.Engine{KvUsage: &usage}},
		{Worker: w, Lifecycle: &event.Lifecycle{State: "ready"}}}
}

func TestRowsAreComparedByWhatTheySay(t *testing.T) {
	l := &ledger{events: []entry{message(1, 1, "samples", sample(5, 0.25)...), message(2, 2, "samples", sample(5, 0.5)...)}}
	var all []reading
	if err := l.expected(func(r reading) { all = append(all, r) }); err != nil {
		t.Fatal(err)
	}
	if len(all) != 6 {
		t.Fatalf("two messages of two fields and one event are %d readings: %v", len(all), all)
	}
	changed := all[1]
	changed.value = "0.26"
	for _, c := range []struct {
		name   string
		stored []reading
		want   string
	}{
		{"the same in another order", []reading{all[5], all[3], all[4], all[0], all[2], all[1]}, "0 0 0"},
		{"one is missing", all[1:], "1 0 0"},
		{"one twice", append(all[:6:6], all[2]), "0 1 0"},
		{"one says something else", append(append(all[:1:1], all[2:]...), changed), "1 0 1"},
		{"nothing", nil, "6 0 0"},
	} {
		d, err := compareRows(l.expected, func(visit func(reading)) error {
			for _, r := range c.stored {
				visit(r)
			}
			return nil
		})
		if got := fmt.Sprint(d.Missing, d.Twice, d.Strange); err != nil || got != c.want || d.ok() != (c.want == "0 0 0") {
			t.Errorf("%s: missing, twice, strange are %s (%v), want %s: %v", c.name, got, err, c.want, d.Examples)
		}
	}
}

func TestLanesHaveNoGaps(t *testing.T) {
	for _, c := range []struct {
		name string
		own  []uint64
		want string
	}{
		{"in order", []uint64{1, 2, 3}, ""},
		{"nothing came after the first", []uint64{1}, ""},
		{"one is missing", []uint64{1, 3}, "2 to 2 are missing before 3"},
		{"the first is missing", []uint64{2}, "1 to 1 are missing before 2"},
		{"one overtook", []uint64{1, 3, 2}, "came out of order"},
	} {
		l := new(ledger)
		for i, own := range c.own {
			l.events = append(l.events, message(uint64(i+1), own, "samples"))
		}
		got := strings.Join(l.gaps(), "; ")
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A collector that has neither disk nor memory left says how much it gave up: that and no more is no gap.
func TestGapsThatACollectorTellsOf(t *testing.T) {
	said := func(name, state, text string) *event.Event {
		return &event.Event{Source: &event.SourceStatus{Name: name, Status: state, Error: text}}
	}
	spooled := func(n int) *event.Event {
		return said("spool", "lost", fmt.Sprintf("lost: lane samples: %d messages dropped, at 2026-11-01T10:00:00Z the last of them", n))
	}
	for _, c := range []struct {
		name string
		said []*event.Event
		want int // messages it says it gave up
		gaps bool
	}{
		{"nothing", nil, 0, true},
		{"its spool told of both", []*event.Event{spooled(2)}, 2, false},
		{"of one of two", []*event.Event{spooled(1)}, 1, true},
		{"of one, then of both", []*event.Event{spooled(1), spooled(2)}, 2, false},
		{"of both twice", []*event.Event{spooled(2), spooled(2)}, 2, false},
		{"of one, and after it was empty of one more", []*event.Event{spooled(1), said("spool", "ok", ""), spooled(1)}, 2, false},
		{"its publisher told of both", []*event.Event{said("publisher", "lost", "2 messages dropped: the broker was away and the backlog full, or they were too large")}, 2, false},
		{"the card is lost", []*event.Event{said("nvml", "lost", "GPU is lost")}, 0, true},
	} {
		l := &ledger{events: []entry{message(1, 1, "samples"), message(2, 4, "samples")}}
		for i, e := range c.said {
			l.events = append(l.events, message(uint64(3+i), uint64(5+i), "samples", e))
		}
		if got := l.announced()["p1"]; got != c.want || len(l.gaps()) > 0 != c.gaps || l.excused()["h1"] != (c.want > 0) {
			t.Errorf("%s: %d given up, want %d; gaps %v", c.name, got, c.want, l.gaps())
		}
	}
}

func TestStoriesDiffer(t *testing.T) {
	finding := func(id, incident, state string) *event.Finding {
		return &event.Finding{ID: id, Incident: incident, Class: "retention", State: state, Severity: event.Ticket, Time: time.Unix(1_700_000_000, 0)}
	}
	want := story([]*event.Finding{finding("1", "a", "suspected"), finding("2", "a", "confirmed"), finding("3", "b", "suspected")})
	if got := compareStories(want, story([]*event.Finding{finding("3", "b", "suspected"), finding("1", "a", "suspected"), finding("2", "a", "confirmed")})); len(got) != 0 {
		t.Errorf("in the order of another partition: %v", got)
	}
	for name, all := range map[string][]*event.Finding{
		"is missing":                  {finding("3", "b", "suspected")},
		"is not in an undisturbed":    {finding("1", "a", "suspected"), finding("2", "a", "confirmed"), finding("3", "b", "suspected"), finding("4", "c", "suspected")},
		"incident a differs":          {finding("1", "a", "suspected"), finding("3", "b", "suspected")},
		"incident b differs":          {finding("1", "a", "suspected"), finding("2", "a", "confirmed"), finding("3", "b", "confirmed")},
		"incident a differs:\n  undi": {finding("1", "a", "suspected"), finding("2", "a", "confirmed"), finding("2", "a", "confirmed"), finding("3", "b", "suspected")},
	} {
		if got := compareStories(want, story(all)); len(got) != 1 || !strings.Contains(got[0], name) {
			t.Errorf("want that one %s, got %v", name, got)
		}
	}
	blind := finding("9", "z", "suspected")
	blind.Class = "blind"
	if got := story([]*event.Finding{blind}); len(got) != 0 {
		t.Errorf("what cannot be seen depends on the faults: %v", got)
	}
}

// Numbers worked out by hand: three readings of one card in one minute, and one in the next.
func TestRollupsAreWhatTheSamplesComeTo(t *testing.T) {
	used := func(at int64, bytes uint64) *event.Event {
		return &event.Event{Host: &event.Host{Cluster: "lab", Name: "h1"}, Time: timestamppb.New(time.Unix(at, 500)), Gpu: &event.Gpu{Uuid: "GPU-1", UsedBytes: &bytes}}
	}
	at := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC).Unix()
	first := entry{batch: &event.Batch{Events: []*event.Event{used(at, 5), used(at+59, 7), used(at+30, 3), used(at+60, 9)}}}
	again := first
	again.repeat = true
	var got []string
	(&ledger{events: []entry{first, again}}).expectedRollups(func(r reading) { got = append(got, r.String()) })
	slices.Sort(got)
	want := []string{
		"gpu_hour_rollup 2026-11-01 10:00:00 lab/h1 GPU-1 sum(used_count) = 4", "gpu_hour_rollup 2026-11-01 10:00:00 lab/h1 GPU-1 sum(used_sum) = 24",
		"gpu_minute_rollup 2026-11-01 10:00:00 lab/h1 GPU-1 sum(used_count) = 3", "gpu_minute_rollup 2026-11-01 10:00:00 lab/h1 GPU-1 sum(used_sum) = 15",
		"gpu_minute_rollup 2026-11-01 10:01:00 lab/h1 GPU-1 sum(used_count) = 1", "gpu_minute_rollup 2026-11-01 10:01:00 lab/h1 GPU-1 sum(used_sum) = 9",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The feed is what the recordings' own verdicts say: as many incidents as hosts that were drawn as troubled, and no more.
func TestFeedEndsInItsIncidents(t *testing.T) {
	all, err := openLibrary("../../processor/testdata")
	if err != nil {
		t.Fatal(err)
	}
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	p := Plan{Seed: 3, Collectors: 2, Hosts: 5, Troubled: 4, Play: 14 * time.Second}
	l := newLedger(pack)
	events := 0
	for c, one := range all.parts(p, time.Unix(1_800_000_000, 0)) {
		for i, e := range one.events {
			events++
			if e.Xid == nil { // an Xid is an incident of its own, drawn apart
				l.judge(entry{sequence: uint64(i + 1), partition: fmt.Sprint(c), batch: &event.Batch{Host: e.Host, Events: []*event.Event{e}}})
			}
		}
	}
	if got := story(l.judged); len(got) != p.Troubled {
		t.Errorf("%d events give %d incidents, want %d: %v", events, len(got), p.Troubled, got)
	}
}
