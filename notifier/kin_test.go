package notifier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// alike is the n-th incident of one class in one release.
func alike(n int) *event.Finding {
	f := gale(n)
	f.Class, f.Severity, f.Group = "retention", event.Ticket, "prod/llama-70b/r41"
	return f
}

func TestAlikeIncidentsHaveOneCard(t *testing.T) {
	b, m := newBroker(t), newForum()
	d := deskOn(t, b, m, routing{})
	d.foldAll(t, alike(0))
	d.settle(t, &m.medium)
	d.foldAll(t, alike(1), alike(2))
	d.settle(t, &m.medium)
	if !slices.Equal(m.posts, []string{"inc-0000"}) {
		t.Fatalf("three alike incidents are told by %v", m.posts)
	}
	card := m.of(t, "inc-0000")
	if want := "retention suspected on 3 workers · confidence 72 % · ticket"; card.Title != want {
		t.Errorf("title %q, want %q", card.Title, want)
	}
	if want := (Line{"prod/gpu-01/vllm-a/0/1", "ticket suspected, incident inc-0001"}); len(card.Workers) != 3 || card.Workers[1] != want {
		t.Errorf("workers %v", card.Workers)
	}
	// One of another release, or of another class, is not alike.
	other, kind := alike(3), alike(4)
	other.Group, kind.Class = "prod/llama-70b/r42", "host_memory"
	d.foldAll(t, other, kind)
	d.settle(t, &m.medium)
	if len(m.posts) != 3 {
		t.Errorf("posts %v", m.posts)
	}
	// The worst of them counts, and the last one that ends, ends it.
	worse := alike(2)
	worse.ID, worse.State, worse.Severity, worse.Time = "g2b", event.Confirmed, event.Page, noon.Add(time.Hour)
	d.foldAll(t, worse)
	d.settle(t, &m.medium)
	if card = m.of(t, "inc-0000"); card.State != event.Confirmed || card.Severity != event.Page || card.Workers[0].Value != "page confirmed, incident inc-0002" {
		t.Errorf("%s %s, workers %v", card.State, card.Severity, card.Workers)
	}
	end := func(n int) *event.Finding {
		f := alike(n)
		f.ID, f.State, f.Time, f.Evidence = f.ID+"-over", event.Resolved, noon.Add(time.Duration(2+n)*time.Hour), nil
		return f
	}
	d.foldAll(t, end(0))
	d.settle(t, &m.medium)
	if card = m.of(t, "inc-0000"); card.State != event.Confirmed || card.Evidence == nil || card.Workers[2] != (Line{"prod/gpu-00/vllm-a/0/1", "ticket resolved"}) {
		t.Errorf("after the first one ended: %s, workers %v, evidence %v", card.State, card.Workers, card.Evidence)
	}
	d.foldAll(t, end(1), end(2))
	d.settle(t, &m.medium)
	if card = m.of(t, "inc-0000"); card.State != event.Resolved || len(m.posts) != 3 {
		t.Errorf("after the last one ended: %s, posts %v", card.State, m.posts)
	}
	want := []string{"Now on 3 workers of the release.", "From suspected to confirmed.\nFrom ticket to page.", "Resolved."}
	var got []string
	for _, reply := range m.threads["0"] {
		got = append(got, reply.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the thread says %q, want %q", got, want)
	}
	// The next one begins anew.
	d.foldAll(t, alike(9))
	d.settle(t, &m.medium)
	if last := m.posts[len(m.posts)-1]; last != "inc-0009" {
		t.Errorf("posts %v", m.posts)
	}
}

// Many alike incidents are no storm: they have one card.
func TestAlikeIncidentsAreNoStorm(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	for n := range 60 {
		d.foldAll(t, alike(n))
	}
	d.settle(t, &m.medium)
	card := m.of(t, "inc-0000")
	if len(m.posts) != 1 || !strings.Contains(card.Title, "on 60 workers") || len(card.Workers) != maxWorkers+1 || card.Workers[maxWorkers].Value != "44 workers" {
		t.Errorf("%d posts, %q, %v", len(m.posts), card.Title, card.Workers[len(card.Workers)-1])
	}
}

// One whose like are silenced, or told elsewhere, has a card of its own.
func TestAlikeButNotTogether(t *testing.T) {
	m := newForum()
	d := deskOn(t, newBroker(t), m, routing{})
	d.foldAll(t, alike(0))
	d.settle(t, &m.medium)
	d.silence(t, alike(0), 4) // its slot alone
	d.settle(t, &m.medium)
	d.foldAll(t, alike(1), alike(2))
	d.settle(t, &m.medium)
	if !slices.Equal(m.posts, []string{"inc-0000", "inc-0001"}) || len(m.of(t, "inc-0001").Workers) != 2 {
		t.Errorf("posts %v, workers %v", m.posts, m.of(t, "inc-0001").Workers)
	}
}

// A notifier that dies at any moment leaves what the next one goes on with: every incident is told in one message.
func TestCrashAmongAlikeIncidents(t *testing.T) {
	for cut := 0; cut <= 14; cut++ {
		b, m := newBroker(t), newForum()
		first := deskOn(t, b, m, routing{})
		saves := 0
		first.box.saving = func() error {
			if saves++; saves > cut {
				return errors.New("the process is gone")
			}
			return nil
		}
		unacked := []*event.Finding{}
		for n := range 4 {
			if err := first.fold(t.Context(), alike(n)); err != nil {
				unacked = append(unacked, alike(n))
			}
			m.now = m.now.Add(first.deliver(t.Context()))
		}
		second := deskOn(t, b, m, routing{})
		if err := second.resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		second.foldAll(t, unacked...)
		second.settle(t, &m.medium)
		told := map[string]int{}
		for _, id := range m.posts {
			told[id]++
			r, err := second.box.load(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			for member := range r.members {
				told[member]++
			}
		}
		for n := range 4 {
			if id := fmt.Sprintf("inc-%04d", n); told[id] != 1 {
				t.Errorf("cut after %d saves: %d messages tell of %s (%v)", cut, told[id], id, m.posts)
			}
		}
	}
}
