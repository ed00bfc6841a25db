package notifier

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// held are the incidents that the bucket knows.
func (d *desk) held(t *testing.T) (ids []string) {
	t.Helper()
	if err := d.box.all(t.Context(), func(r *record, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		ids = append(ids, r.history.Latest.Incident)
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// What is over is forgotten after thirty days by a notifier that runs all the time; what is open is not. Information is never kept.
func TestOutboxIsSweptWhileItRuns(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	info := gale(5)
	info.Severity = event.Info
	d.foldAll(t, gale(1), gale(2), info)
	d.settle(t, &m.medium)
	d.foldAll(t, resolvedGale(1))
	d.settle(t, &m.medium)
	if got := d.held(t); !slices.Equal(got, []string{"inc-0001", "inc-0002"}) {
		t.Fatalf("kept %v", got)
	}
	m.now = noon.Add(time.Hour + keepFor)
	d.deliver(t.Context())
	if got := d.held(t); !slices.Equal(got, []string{"inc-0001", "inc-0002"}) {
		t.Errorf("after thirty days: %v", got)
	}
	m.now = m.now.Add(59 * time.Minute)
	d.deliver(t.Context())
	if got := d.held(t); len(got) != 2 {
		t.Errorf("swept before the hour: %v", got)
	}
	m.now = m.now.Add(time.Minute)
	d.deliver(t.Context())
	if got := d.held(t); !slices.Equal(got, []string{"inc-0002"}) {
		t.Errorf("an hour later: %v", got)
	}
	status, err := d.box.kv.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.Values() != 1 {
		t.Errorf("%d messages in the bucket, one of them a record", status.Values())
	}
}

// A bucket that has no room lets go of the oldest that is over, and people are told of what is new.
func TestFullOutboxMakesRoom(t *testing.T) {
	b, m := newBroker(t), newForum()
	kv, err := b.js.UpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: Bucket, MaxBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	b.kv = kv
	d := deskOn(t, b, m, routing{})
	d.deliver(t.Context()) // the sweep of the start
	filled := 0
	for ; filled < 200; filled++ {
		f := gale(filled)
		if filled%2 == 1 {
			f = resolvedGale(filled)
			f.Time = f.Time.Add(time.Duration(filled) * time.Second)
		}
		f.Summary = strings.Repeat("x", 4<<10)
		err := d.box.save(t.Context(), &record{history: history(f), deliveries: map[string]Delivery{"slack": {Status: told, Finding: f.ID}}})
		if noRoom(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if filled < 8 || filled == 200 {
		t.Fatalf("the bucket took %d incidents", filled)
	}
	fresh := gale(500)
	fresh.Summary = strings.Repeat("x", 4<<10)
	if err := d.fold(t.Context(), fresh); !noRoom(err) {
		t.Fatalf("a full bucket: %v", err)
	}
	if since, n, cause := d.failing(); !since.Equal(noon) || n != 1 || !noRoom(cause) {
		t.Errorf("failing since %s, %d incidents: %v", since, n, cause)
	}
	m.now = noon.Add(sweepAgain)
	d.deliver(t.Context())
	d.foldAll(t, fresh) // it comes again
	d.settle(t, &m.medium)
	if !slices.Equal(m.posts, []string{"inc-0500"}) {
		t.Errorf("told %v", m.posts)
	}
	if since, n, err := d.failing(); !since.IsZero() || n != 0 || err != nil {
		t.Errorf("failing since %s, %d incidents: %v", since, n, err)
	}
	held := d.held(t)
	for n := range filled {
		kept := slices.Contains(held, fmt.Sprintf("inc-%04d", n))
		switch {
		case n%2 == 0 && !kept:
			t.Errorf("incident %d is open and forgotten", n)
		case n == 1 && kept:
			t.Error("what is over for longest is kept")
		}
	}
}

// One that becomes a page after its storm has a card of its own, and the storm ends without it, wherever the notifier dies.
func TestPageLeavesItsStorm(t *testing.T) {
	for cut := range 4 {
		b, m := newBroker(t), newForum()
		d := deskOn(t, b, m, routing{})
		for n := range 12 {
			d.foldAll(t, gale(n))
		}
		d.settle(t, &m.medium)
		m.now = m.now.Add(2 * stormQuiet)
		d.foldAll(t, gale(20)) // the storm is over
		d.settle(t, &m.medium)
		page := gale(1)
		page.ID, page.Severity, page.Time = "g1-page", event.Page, noon.Add(30*time.Minute)
		saves := 0
		d.box.saving = func() error {
			if saves++; saves > cut {
				return fmt.Errorf("the process is gone")
			}
			return nil
		}
		err := d.fold(t.Context(), page)
		if cut < 2 && err == nil {
			t.Fatalf("cut after %d saves, and nothing failed", cut)
		}
		d = deskOn(t, b, m, routing{})
		if err := d.resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			d.foldAll(t, page)
		}
		d.settle(t, &m.medium)
		home := m.posts[0]
		if title := m.of(t, home).Title; m.of(t, "inc-0001").Severity != event.Page || title != "storm of 11 incidents · 11 open, 4 of them pages" {
			t.Errorf("cut after %d saves: the storm says %q", cut, title)
		}
		for n := range 12 {
			d.foldAll(t, resolvedGale(n))
		}
		d.settle(t, &m.medium)
		if card := m.of(t, home); card.State != event.Resolved || m.of(t, "inc-0001").State != event.Resolved || len(m.posts) != 3 {
			t.Errorf("cut after %d saves: %s, %q, posts %v", cut, card.State, card.Title, m.posts)
		}
		m.now = m.now.Add(keepFor + 2*time.Hour)
		d.deliver(t.Context())
		if got := d.held(t); !slices.Equal(got, []string{"inc-0020"}) {
			t.Errorf("cut after %d saves: kept %v", cut, got)
		}
	}
}

// What an earlier notifier left in a storm that has a card of its own is taken out, and a storm that all have left is over.
func TestStrayMembersAreDismissed(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	for n := range 12 {
		d.foldAll(t, gale(n))
	}
	d.settle(t, &m.medium)
	for n := range 12 {
		r, err := d.box.load(t.Context(), gale(n).Incident)
		if err != nil {
			t.Fatal(err)
		}
		r.storm, r.deliveries = "", map[string]Delivery{"slack": {Status: told, Finding: r.history.Latest.ID}}
		if err := d.box.save(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	m.now = m.now.Add(sweepEvery)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if card := m.of(t, m.posts[0]); card.State != event.Resolved || card.Title != "storm of 0 incidents · 0 open, 0 of them pages" {
		t.Errorf("%s %q", card.State, card.Title)
	}
	r, err := d.box.load(t.Context(), m.posts[0])
	if err != nil || !r.digest() {
		t.Errorf("what all have left is no storm: %+v, %v", r, err)
	}
}

// An alike incident that becomes a page while the card is silenced has one of its own, and the card ends without it.
func TestPageLeavesItsLike(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	d.foldAll(t, alike(0), alike(1))
	d.settle(t, &m.medium)
	d.silence(t, alike(0), 4)
	d.settle(t, &m.medium)
	page := alike(1)
	page.ID, page.Severity, page.Time = "g1-page", event.Page, noon.Add(30*time.Minute)
	d.foldAll(t, page)
	d.settle(t, &m.medium)
	if !slices.Equal(m.posts, []string{"inc-0000", "inc-0001"}) || len(m.of(t, "inc-0000").Workers) != 0 {
		t.Errorf("posts %v, workers %v", m.posts, m.of(t, "inc-0000").Workers)
	}
	end := alike(0)
	end.ID, end.State, end.Time = "g0-over", event.Resolved, noon.Add(time.Hour)
	d.foldAll(t, end)
	d.settle(t, &m.medium)
	if state := m.of(t, "inc-0000").State; state != event.Resolved || m.of(t, "inc-0001").State == event.Resolved {
		t.Errorf("the card is %s", state)
	}
}

// A message tells about no more than the outbox can read again; the next incidents have another one.
func TestHomesDoNotOutgrowTheOutbox(t *testing.T) {
	for name, of := range map[string]func(int) *event.Finding{"storm": gale, "alike": alike} {
		m := newForum()
		b := newBroker(t)
		d := deskOn(t, b, m, routing{})
		wide := func(i int) *event.Finding {
			f := of(i)
			f.Release, f.Slot = strings.Repeat("r", 4<<10), strings.Repeat("\u00e4", 4<<10)
			f.Subject.Key = fmt.Sprintf("prod/%s/boot/%d/99", strings.Repeat("h", 4<<10), i)
			return f
		}
		fold := func(from, until int) {
			for i := from; i < until; i++ {
				d.foldAll(t, wide(i))
			}
			d.settle(t, &m.medium)
		}
		fold(0, 20)
		home, err := d.box.load(t.Context(), m.posts[0])
		if err != nil || len(home.members) < 19 {
			t.Fatalf("%s: %d members, %v", name, len(home.members), err)
		}
		for i := 1000; home.size < stormBytes-(8<<10); i += 4 { // hundreds that came before
			for k := range 4 {
				home.members[wide(i+k).Incident] = memberOf(history(wide(i + k)))
			}
			if err := d.box.save(t.Context(), home); err != nil {
				t.Fatal(err)
			}
		}
		before := len(home.members)
		d = deskOn(t, b, m, routing{})
		if err := d.resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		fold(20, 50)
		d.settle(t, &m.medium)
		biggest, members, homes := 0, 0, 0
		if err := d.box.all(t.Context(), func(r *record, err error) {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			if biggest = max(biggest, r.size); len(r.members) > 0 {
				members, homes = members+len(r.members), homes+1
			}
		}); err != nil {
			t.Fatal(err)
		}
		if homes != 2 || members < before+20 || biggest > stormBytes+(16<<10) {
			t.Errorf("%s: %d members in %d homes, %d before; the biggest has %d bytes", name, members, homes, before, biggest)
		}
	}
}
