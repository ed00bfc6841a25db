package notifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// forum is a medium with threads.
type forum struct {
	medium
	threads map[string][]Reply // by ts of the card
	cut     func() error       // of a test: fails after the reply was taken
}

func newForum() *forum {
	return &forum{medium: medium{now: noon, cards: map[string]Card{}}, threads: map[string][]Reply{}}
}

func (f *forum) Reply(_ context.Context, r Receipt, reply Reply) error {
	f.threads[r.TS] = append(f.threads[r.TS], reply)
	if f.cut != nil {
		return f.cut()
	}
	return nil
}

func (f *forum) Replied(_ context.Context, r Receipt, key string, _ time.Time) (bool, error) {
	return slices.ContainsFunc(f.threads[r.TS], func(one Reply) bool { return one.Key == key }), nil
}

// all are the replies of every thread, the oldest card first.
func (f *forum) all() (texts []string) {
	for ts := range len(f.posts) {
		for _, reply := range f.threads[fmt.Sprint(ts)] {
			texts = append(texts, reply.Text)
		}
	}
	return texts
}

// deskOn is a desk that tells a forum, with what people did.
func deskOn(t *testing.T, b *bus, f *forum, routes routing) *desk {
	t.Helper()
	o := Options{Senders: []Sender{f}, Log: slog.New(slog.DiscardHandler), Interval: time.Second, Backoff: time.Second, Timeout: 10 * time.Second,
		Now: func() time.Time { return f.now }, routes: routes}
	var err error
	if o.actions, err = OpenActions(t.Context(), b.js, nil); err != nil {
		t.Fatal(err)
	}
	if o.silences, err = OpenSilences(t.Context(), b.js, nil); err != nil {
		t.Fatal(err)
	}
	return newDesk(o, outbox{kv: b.kv})
}

func (d *desk) act(t *testing.T, f *event.Finding, kind ActionKind, by string) {
	t.Helper()
	if _, err := d.o.actions.Add(t.Context(), Action{Kind: kind, By: by, Via: "cli", At: d.o.Now()}.On(f)); err != nil {
		t.Fatal(err)
	}
	d.heed(t.Context())
}

func (d *desk) silence(t *testing.T, f *event.Finding, forHours int) Silence {
	t.Helper()
	s, err := d.o.silences.Add(t.Context(), Silence{Match: map[string]string{"class": f.Class, "slot": f.Slot}, By: "ben", Created: d.o.Now(), Until: d.o.Now().Add(time.Duration(forHours) * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.review(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTidings(t *testing.T) {
	open := Situation{State: event.Suspected, Severity: event.Ticket}
	with := func(change func(*Situation)) Situation {
		s := open
		change(&s)
		return s
	}
	silent := with(func(s *Situation) { s.Silenced = "until noon, by ben" })
	for name, c := range map[string]struct {
		was, now Situation
		want     string
	}{
		"nothing":        {open, open, ""},
		"confirmed":      {open, with(func(s *Situation) { s.State = event.Confirmed }), "From suspected to confirmed."},
		"paged":          {open, with(func(s *Situation) { s.Severity = event.Page }), "From ticket to page."},
		"masked":         {open, with(func(s *Situation) { s.Masked = 2 }), "Masked by restart (2): the worker looks well because its process is new; nothing is mended."},
		"proof":          {open, with(func(s *Situation) { s.State, s.Proof = event.Resolved, "level." }), "Resolved: level."},
		"resolved":       {open, with(func(s *Situation) { s.State = event.Resolved }), "Resolved."},
		"acknowledged":   {open, with(func(s *Situation) { s.Acknowledged = "anna" }), "Acknowledged by anna."},
		"worse":          {with(func(s *Situation) { s.Acknowledged = "anna" }), with(func(s *Situation) { s.Severity = event.Page }), "From ticket to page.|It is worse than what was acknowledged."},
		"silenced":       {open, silent, "Silenced until noon, by ben."},
		"while silenced": {silent, with(func(s *Situation) { s.Silenced, s.Severity = "until noon, by ben", event.Page }), ""},
		"silence ended": {silent, with(func(s *Situation) { s.State, s.Severity = event.Confirmed, event.Page }),
			"The silence is over and this is still open: confirmed, page."},
		"ended in silence": {silent, with(func(s *Situation) { s.State = event.Resolved }), ""},
		"workers":          {open, with(func(s *Situation) { s.Workers = 3 }), "Now on 3 workers of the release."},
		"said to be over":  {open, with(func(s *Situation) { s.Closed = "anna" }), "Said to be over by anna. It stays open until that is proven."},
	} {
		if got := strings.Join(tidings(c.was, c.now), "|"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Numbers stand on the card alone; a state goes into the thread, once.
func TestRepliesTellStatesAlone(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	d.foldAll(t, leak())
	d.settle(t, &m.medium)
	more := leak()
	more.ID, more.Time, more.Confidence = "f1b", noon.Add(time.Minute), 0.8
	d.foldAll(t, more)
	d.settle(t, &m.medium)
	if card := m.of(t, "inc-7f3a"); len(m.all()) != 0 || !strings.Contains(card.Title, "80 %") {
		t.Fatalf("numbers are told by %q, the card says %q", m.all(), card.Title)
	}
	d.foldAll(t, paged())
	d.settle(t, &m.medium)
	d.act(t, paged(), Acknowledge, "anna")
	d.settle(t, &m.medium)
	card := m.of(t, "inc-7f3a")
	if !card.Acknowledged || fmt.Sprint(card.People) != "[{acknowledged by anna at 2026-11-03 12:00:03 UTC}]" {
		t.Errorf("the card says %v", card.People)
	}
	d.foldAll(t, masked(), over())
	d.settle(t, &m.medium)
	want := []string{"From suspected to confirmed.\nFrom ticket to page.", "Acknowledged by anna.",
		"Resolved: 5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)."}
	if got := m.all(); !slices.Equal(got, want) {
		t.Errorf("the thread says %q, want %q", got, want)
	}
}

// What a notifier without threads has told is no news to the one that comes after it.
func TestReplyToOldRecords(t *testing.T) {
	b, m := newBroker(t), newForum()
	r := &record{history: history(leak(), paged(), over()), deliveries: map[string]Delivery{"slack": {Status: told, Finding: "f3", State: event.Resolved, Level: event.Page, Receipt: Receipt{TS: "0"}}}}
	if err := (outbox{kv: b.kv}).save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	d := deskOn(t, b, m, routing{})
	if err := d.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d.deliver(t.Context()); len(d.pending) != 0 || len(m.threads) != 0 {
		t.Errorf("%d pending, the thread says %q", len(d.pending), m.threads)
	}
}

// A notifier that was stopped finds when it goes on that another one has announced meanwhile, and does not reply again.
func TestReplyOfAnotherNotifierIsNotRepeated(t *testing.T) {
	b, m := newBroker(t), newForum()
	stopped := deskOn(t, b, m, routing{})
	stopped.foldAll(t, leak())
	stopped.settle(t, &m.medium)
	stopped.foldAll(t, paged()) // and stands still before it tells
	other := deskOn(t, b, m, routing{})
	if err := other.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.settle(t, &m.medium)
	stopped.settle(t, &m.medium)
	if got, want := m.all(), []string{"From suspected to confirmed.\nFrom ticket to page."}; !slices.Equal(got, want) {
		t.Errorf("the thread says %q, want %q", got, want)
	}
}

// A notifier that dies at any moment around a reply leaves what the next one goes on with: every state is told once.
func TestCrashAroundAReply(t *testing.T) {
	for cut := 0; cut <= 8; cut++ {
		for _, lost := range []bool{false, true} { // whether the medium's answer arrives
			b, m := newBroker(t), newForum()
			first := deskOn(t, b, m, routing{})
			first.foldAll(t, leak())
			first.settle(t, &m.medium)
			saves := 0
			first.box.saving = func() error {
				if saves++; saves > cut {
					return errors.New("the process is gone")
				}
				return nil
			}
			if lost {
				m.cut = func() error { return errors.New("no answer") }
			}
			err := first.fold(t.Context(), paged())
			for range 3 {
				m.now = m.now.Add(first.deliver(t.Context()))
			}
			m.cut = nil
			second := deskOn(t, b, m, routing{})
			if err := second.resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				second.foldAll(t, paged())
			}
			second.settle(t, &m.medium)
			if got := m.all(); !slices.Equal(got, []string{"From suspected to confirmed.\nFrom ticket to page."}) || len(m.posts) != 1 {
				t.Errorf("cut after %d saves, answer lost %v: %d posts, the thread says %q", cut, lost, len(m.posts), got)
			}
		}
	}
}

func TestSilence(t *testing.T) {
	b, m := newBroker(t), newForum()
	d := deskOn(t, b, m, routing{})
	// One that was told before: a reply says that it is silenced, and then the thread is quiet until that is over.
	d.foldAll(t, leak())
	d.settle(t, &m.medium)
	d.silence(t, leak(), 4)
	d.settle(t, &m.medium)
	d.foldAll(t, paged())
	d.settle(t, &m.medium)
	card := m.of(t, "inc-7f3a")
	if card.Severity != event.Page || len(card.People) != 1 || !strings.HasPrefix(card.People[0].Value, "until 2026-11-03 16:00:0") {
		t.Errorf("the card says %s, %v", card.Severity, card.People)
	}
	// One that begins in silence is not told, and one that ends in it never is.
	other, brief := gale(1), gale(2)
	for _, f := range []*event.Finding{other, brief} {
		f.Class, f.Severity, f.Slot = "retention", event.Ticket, leak().Slot
	}
	ended := *brief
	ended.ID, ended.State, ended.Time = "g2-over", event.Resolved, noon.Add(time.Hour)
	d.foldAll(t, other, brief, &ended)
	d.settle(t, &m.medium)
	if len(m.posts) != 1 {
		t.Fatalf("told in silence: %v", m.posts)
	}
	// Four hours later it is over by itself, without anybody saying so; also when the notifier was started anew meanwhile.
	d = deskOn(t, b, m, routing{})
	if err := d.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if wait := d.deliver(t.Context()); wait > idle {
		t.Errorf("waits %s", wait)
	}
	m.now = noon.Add(4*time.Hour + time.Minute)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if !slices.Equal(m.posts, []string{"inc-7f3a", "inc-0001"}) {
		t.Errorf("after the silence: %v", m.posts)
	}
	got := m.all()
	if len(got) != 2 || !strings.HasPrefix(got[0], "Silenced until 2026-11-03 16:00:0") || got[1] != "The silence is over and this is still open: confirmed, page." {
		t.Errorf("the thread says %q", got)
	}
	d.deliver(t.Context())
	if over := d.o.silences.Unnoticed(m.now); len(over) != 0 {
		t.Errorf("the end of the silence is not noted: %v", over)
	}
}

// A silence that somebody ends counts at once.
func TestSilenceEndedByHand(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	s := d.silence(t, leak(), 4)
	d.foldAll(t, leak())
	d.settle(t, &m.medium)
	if len(m.posts) != 0 {
		t.Fatalf("told in silence: %v", m.posts)
	}
	if _, err := d.o.silences.End(t.Context(), s.ID, "anna", m.now); err != nil {
		t.Fatal(err)
	}
	if err := d.review(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.settle(t, &m.medium)
	if len(m.posts) != 1 {
		t.Errorf("after the silence: %v", m.posts)
	}
}

func TestReminders(t *testing.T) {
	b, m := newBroker(t), newForum()
	routes := routing{routes: []route{{match: map[string]string{"severity": event.Page}, to: []string{"slack"}, term: term{remind: 30 * time.Minute, mention: "S0123"}}}, otherwise: []string{"slack"}}
	d := deskOn(t, b, m, routes)
	d.foldAll(t, leak())
	d.settle(t, &m.medium)
	m.now = noon.Add(2 * time.Hour)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if len(m.all()) != 0 {
		t.Fatalf("a ticket is reminded of: %q", m.all())
	}
	d.foldAll(t, paged())
	d.settle(t, &m.medium) // the reply that it is a page now
	m.now = m.now.Add(29 * time.Minute)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if n := len(m.all()); n != 1 {
		t.Fatalf("%d replies before the time: %q", n, m.all())
	}
	// The notifier is started anew, which does not start the clock anew.
	d = deskOn(t, b, m, routes)
	if err := d.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.now = m.now.Add(2 * time.Minute)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if got := m.all(); len(got) != 2 || !strings.HasPrefix(got[1], "Still open, and nobody has acknowledged it for 31 min 00 s: retention confirmed") || m.threads["0"][1].Mention != "S0123" {
		t.Fatalf("reminded by %q", got)
	}
	m.now = m.now.Add(31 * time.Minute)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if n := len(m.all()); n != 3 {
		t.Errorf("%d replies after another half hour", n)
	}
	d.act(t, paged(), Acknowledge, "anna")
	d.settle(t, &m.medium)
	m.now = m.now.Add(3 * time.Hour)
	d.deliver(t.Context())
	d.settle(t, &m.medium)
	if got := m.all(); len(got) != 4 || got[3] != "Acknowledged by anna." {
		t.Errorf("after somebody acknowledged it: %q", got[3:])
	}
}
