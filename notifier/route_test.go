package notifier

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"lowtide/event"
)

// place is a medium under another name.
type place struct {
	medium
	name string
}

func (p *place) Name() string { return p.name }

func deskBetween(b *bus, now *time.Time, routes routing, places ...*place) *desk {
	o := Options{Log: slog.New(slog.DiscardHandler), Interval: time.Second, Backoff: time.Second, Timeout: 10 * time.Second, Now: func() time.Time { return *now }, routes: routes}
	for _, p := range places {
		o.Senders = append(o.Senders, p)
	}
	return newDesk(o, outbox{kv: b.kv})
}

func (d *desk) run(t *testing.T, now *time.Time) {
	t.Helper()
	for range 400 {
		wait := d.deliver(context.Background())
		if len(d.pending) == 0 {
			return
		}
		*now = now.Add(wait)
	}
	t.Fatalf("%d incidents are never told", len(d.pending))
}

func TestRoutes(t *testing.T) {
	now := noon
	team, pager := &place{medium{cards: map[string]Card{}}, "team"}, &place{medium{cards: map[string]Card{}}, "pager"}
	routes := routing{routes: []route{{match: map[string]string{"severity": event.Page}, to: []string{"pager", "team"}}}, otherwise: []string{"team"}}
	b := newBroker(t)
	d := deskBetween(b, &now, routes, team, pager)
	d.foldAll(t, leak())
	d.run(t, &now)
	if !slices.Equal(team.posts, []string{"inc-7f3a"}) || len(pager.posts) != 0 {
		t.Fatalf("a ticket went to team %v, pager %v", team.posts, pager.posts)
	}
	d.foldAll(t, paged())
	d.run(t, &now)
	if !slices.Equal(team.posts, pager.posts) || pager.of(t, "inc-7f3a").Severity != event.Page {
		t.Errorf("a page went to team %v, pager %v", team.posts, pager.posts)
	}
	d.foldAll(t, over())
	d.run(t, &now)
	if pager.of(t, "inc-7f3a").State != event.Resolved || team.of(t, "inc-7f3a").State != event.Resolved {
		t.Error("the end is not told everywhere")
	}
	// An output that is added later hears of what is open, not of what is over.
	later := &place{medium{cards: map[string]Card{}}, "later"}
	routes.otherwise, routes.routes = []string{"team", "later"}, nil
	open := gale(1)
	d.foldAll(t, open)
	d.run(t, &now)
	d = deskBetween(b, &now, routes, team, pager, later)
	if err := d.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.run(t, &now)
	if !slices.Equal(later.posts, []string{"inc-0001"}) {
		t.Errorf("an output that was added hears of %v", later.posts)
	}
}

// A storm is told where its incidents go: two places have two digests.
func TestStormFollowsRoutes(t *testing.T) {
	now := noon
	pages, tickets := &place{medium{cards: map[string]Card{}}, "pages"}, &place{medium{cards: map[string]Card{}}, "tickets"}
	routes := routing{routes: []route{{match: map[string]string{"severity": event.Page}, to: []string{"pages"}}}, otherwise: []string{"tickets"}}
	b := newBroker(t)
	d := deskBetween(b, &now, routes, pages, tickets)
	for n := range 40 {
		d.foldAll(t, gale(n))
	}
	d.run(t, &now)
	if len(pages.posts) != 1 || len(tickets.posts) != 1 {
		t.Fatalf("pages %v, tickets %v", pages.posts, tickets.posts)
	}
	if a, c := pages.of(t, pages.posts[0]).Title, tickets.of(t, tickets.posts[0]).Title; a != "storm of 14 incidents · 14 open, 14 of them pages" || c != "storm of 26 incidents · 26 open, 0 of them pages" {
		t.Errorf("%q and %q", a, c)
	}
	// The next notifier goes on with both.
	d = deskBetween(b, &now, routes, pages, tickets)
	if err := d.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.foldAll(t, gale(40), gale(42))
	d.run(t, &now)
	if len(pages.posts) != 1 || len(tickets.posts) != 1 || len(d.storms) != 2 {
		t.Errorf("pages %v, tickets %v, storms %v", pages.posts, tickets.posts, d.storms)
	}
}

// forgetful is a medium that forgets what it is not told again, as Alertmanager does.
type forgetful struct {
	place
	updates int
}

func (f *forgetful) Every() time.Duration { return 30 * time.Minute }
func (f *forgetful) Update(ctx context.Context, r Receipt, c Card) error {
	f.updates++
	return f.place.Update(ctx, r, c)
}

// stone is a medium whose messages cannot be edited.
type stone struct {
	place
	updates []string
}

func (s *stone) Fixed() bool { return true }
func (s *stone) Update(_ context.Context, _ Receipt, c Card) error {
	s.updates = append(s.updates, fmt.Sprint(c.State, " ", c.Severity))
	return nil
}

func TestMediaThatForgetOrCannotEdit(t *testing.T) {
	now := noon
	f, s := &forgetful{place: place{medium{cards: map[string]Card{}}, "am"}}, &stone{place: place{medium{cards: map[string]Card{}}, "papers"}}
	d := newDesk(Options{Senders: []Sender{f, s}, Log: slog.New(slog.DiscardHandler), Interval: time.Second, Backoff: time.Second, Timeout: 10 * time.Second,
		Now: func() time.Time { return now }}, outbox{kv: newBroker(t).kv})
	d.foldAll(t, leak())
	d.run(t, &now)
	for range 3 {
		now = now.Add(31 * time.Minute)
		d.run(t, &now) // the alarm
		d.run(t, &now)
	}
	if f.updates != 3 || len(s.updates) != 0 {
		t.Errorf("told again %d times in 93 minutes, want 3; the other %v", f.updates, s.updates)
	}
	more := leak()
	more.ID, more.Time, more.Confidence = "f1b", noon.Add(time.Minute), 0.8
	d.foldAll(t, more)
	d.run(t, &now)
	d.foldAll(t, paged())
	d.run(t, &now)
	d.foldAll(t, over())
	d.run(t, &now)
	if !slices.Equal(s.updates, []string{"confirmed page", "resolved page"}) {
		t.Errorf("messages that cannot be edited: %q", s.updates)
	}
	before := f.updates
	now = now.Add(2 * time.Hour)
	d.run(t, &now)
	if f.updates != before {
		t.Error("what is resolved is told again")
	}
}
