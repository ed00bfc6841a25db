package notifier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// gale is the n-th of many incidents that begin within a second.
func gale(n int) *event.Finding {
	f := leak()
	f.ID, f.Incident = fmt.Sprintf("g%d", n), fmt.Sprintf("inc-%04d", n)
	f.Subject.Key = fmt.Sprintf("prod/gpu-%02d/boot/%d/99", n, 4000+n)
	f.Slot = fmt.Sprintf("prod/gpu-%02d/vllm-a/0/1", n)
	f.Time = noon.Add(time.Duration(n) * time.Millisecond)
	if f.Release = "r41"; n%3 == 0 {
		f.Class, f.Severity = "kv_pressure", event.Page
	}
	return f
}

// medium is a channel in memory, and its clock.
type medium struct {
	now   time.Time
	cards map[string]Card // by ts, as they read now
	posts []string        // incidents
}

func (m *medium) Name() string { return "slack" }

func (m *medium) Post(_ context.Context, c Card) (Receipt, error) {
	ts := fmt.Sprint(len(m.posts))
	m.posts, m.cards[ts] = append(m.posts, c.Incident), c
	return Receipt{TS: ts}, nil
}

func (m *medium) Update(_ context.Context, r Receipt, c Card) error {
	m.cards[r.TS] = c
	return nil
}

func (m *medium) Find(_ context.Context, incident string, _ time.Time) (Receipt, bool, error) {
	for ts, c := range m.cards {
		if c.Incident == incident {
			return Receipt{TS: ts}, true, nil
		}
	}
	return Receipt{}, false, nil
}

// of returns the card of the message that tells about an incident.
func (m *medium) of(t *testing.T, incident string) (found Card) {
	t.Helper()
	n := 0
	for _, c := range m.cards {
		if c.Incident == incident {
			found = c
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d messages about %s", n, incident)
	}
	return found
}

func deskOf(b *bus, m *medium) *desk {
	return newDesk(Options{Senders: []Sender{m}, Log: slog.New(slog.DiscardHandler), Interval: time.Second, Backoff: time.Second, Timeout: 10 * time.Second,
		Now: func() time.Time { return m.now }}, outbox{kv: b.kv})
}

// settle lets time pass until everything is told.
func (d *desk) settle(t *testing.T, m *medium) {
	t.Helper()
	for range 200 {
		wait := d.deliver(t.Context())
		if len(d.pending) == 0 {
			return
		}
		m.now = m.now.Add(wait)
	}
	t.Fatalf("%d incidents are never told", len(d.pending))
}

func (d *desk) foldAll(t *testing.T, findings ...*event.Finding) {
	t.Helper()
	for _, f := range findings {
		if err := d.fold(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
}

func resolvedGale(n int) *event.Finding {
	f := gale(n)
	f.ID, f.State, f.Time = f.ID+"-over", event.Resolved, noon.Add(time.Hour)
	return f
}

func TestStormIsOneMessage(t *testing.T) {
	m := &medium{now: noon, cards: map[string]Card{}}
	d := deskOf(newBroker(t), m)
	for n := range 40 {
		d.foldAll(t, gale(n))
	}
	d.settle(t, m)
	if len(m.posts) != 1 || !strings.HasPrefix(m.posts[0], stormID) {
		t.Fatalf("40 incidents at once are told by %v", m.posts)
	}
	storm := m.of(t, m.posts[0])
	if storm.Title != "storm of 40 incidents · 40 open, 14 of them pages" || storm.Severity != event.Page || storm.State != event.Suspected {
		t.Errorf("%q, %s %s", storm.Title, storm.Severity, storm.State)
	}
	if want := (Line{"kv_pressure", "14, 14 open, 14 pages, on 14 hosts; 14 of release r41"}); storm.Where[0] != want {
		t.Errorf("the pages do not come first: %v", storm.Where)
	}
	if n := len(storm.Evidence); n != stormShown+1 || storm.Evidence[n-1].Value != "20 incidents" || !strings.Contains(storm.Evidence[0].Value, "page suspected") {
		t.Errorf("%d lines, %v", n, storm.Evidence)
	}
	if text, err := json.Marshal(blocks(storm, full)); err != nil || len(text) > maxTotal {
		t.Errorf("%d bytes of blocks, %v", len(text), err)
	}

	// They end one by one, and the message says so; the last one ends it.
	for n := range 39 {
		d.foldAll(t, resolvedGale(n))
	}
	d.settle(t, m)
	if storm = m.of(t, m.posts[0]); storm.Title != "storm of 40 incidents · 1 open, 1 of them pages" {
		t.Errorf("%q", storm.Title)
	}
	d.foldAll(t, resolvedGale(39))
	d.settle(t, m)
	if storm = m.of(t, m.posts[0]); storm.State != event.Resolved || len(m.posts) != 1 {
		t.Errorf("%s after the last one ended, %d messages", storm.State, len(m.posts))
	}
}

func TestCalmAfterAStorm(t *testing.T) {
	m := &medium{now: noon, cards: map[string]Card{}}
	d := deskOf(newBroker(t), m)
	for n := range 12 {
		d.foldAll(t, gale(n))
	}
	d.settle(t, m)
	m.now = m.now.Add(stormQuiet - time.Minute)
	d.foldAll(t, gale(12))
	d.settle(t, m)
	if len(m.posts) != 1 {
		t.Fatalf("the storm was not over, and there are %d messages", len(m.posts))
	}
	m.now = m.now.Add(stormQuiet + time.Minute)
	d.foldAll(t, gale(13))
	d.settle(t, m)
	if len(m.posts) != 2 || m.posts[1] != "inc-0013" {
		t.Fatalf("messages after the storm: %v", m.posts)
	}
	worse := gale(1)
	worse.ID, worse.Severity, worse.Time = "g1-page", event.Page, noon.Add(time.Hour)
	d.foldAll(t, worse)
	d.settle(t, m)
	if len(m.posts) != 3 || m.of(t, "inc-0001").Severity != event.Page {
		t.Errorf("a ticket of the storm that became a page has no message of its own: %v", m.posts)
	}
}

func TestFewIncidentsAreNoStorm(t *testing.T) {
	m := &medium{now: noon, cards: map[string]Card{}}
	d := deskOf(newBroker(t), m)
	for n := range stormAt - 1 {
		d.foldAll(t, gale(n))
	}
	d.settle(t, m)
	if len(m.posts) != stormAt-1 {
		t.Errorf("%d messages for %d incidents", len(m.posts), stormAt-1)
	}
}

// A notifier that dies at any moment of a storm leaves what the next one goes on with: nobody is told twice, nobody is forgotten.
func TestCrashInAStorm(t *testing.T) {
	for cut := 1; cut <= 30; cut++ {
		b, m := newBroker(t), &medium{now: noon, cards: map[string]Card{}}
		first := deskOf(b, m)
		saves := 0
		first.box.saving = func() error {
			if saves++; saves > cut {
				return errors.New("the process is gone")
			}
			return nil
		}
		unacked := []*event.Finding{}
		for n := range 14 {
			if err := first.fold(t.Context(), gale(n)); err != nil {
				unacked = append(unacked, gale(n))
			}
		}
		first.deliver(t.Context())
		second := deskOf(b, m)
		if err := second.resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		second.foldAll(t, unacked...)
		second.settle(t, m)
		told := map[string]int{}
		for _, incident := range m.posts {
			told[incident]++
		}
		r, err := second.box.load(t.Context(), stormID+"inc-0000")
		if err != nil {
			t.Fatal(err)
		}
		for n := range 14 {
			id := fmt.Sprintf("inc-%04d", n)
			if _, member := r.members[id]; member && told[r.history.Latest.Incident] == 1 {
				told[id]++
			}
			if told[id] != 1 {
				t.Errorf("cut after %d saves: %d messages tell of %s", cut, told[id], id)
			}
		}
		if n := told[stormID+"inc-0000"]; n > 1 {
			t.Errorf("cut after %d saves: the digest was posted %d times", cut, n)
		}
	}
}
