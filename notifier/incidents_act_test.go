package notifier

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

func TestPeopleAct(t *testing.T) {
	begin, end := ended()
	w := newWard(t, begin, leak(), crash())
	w.tell(end)
	if out := w.does("incidents", "acknowledge", "inc-7", "--by", "ann"); !strings.Contains(out, "acknowledged by ann: nobody is reminded of it unless it becomes worse") {
		t.Error(out)
	}
	if out := w.does("incidents", "acknowledge", "inc-7", "--by", "ann"); !strings.Contains(out, "by you at 2026-11-03 14:00:00 UTC already") {
		t.Error(out)
	}
	if out := w.does("incidents", "acknowledge", "inc-7", "--by", "bob"); !strings.Contains(out, "acknowledged by bob, and was by ann") {
		t.Error(out)
	}
	if out := w.does("incidents"); !strings.Contains(out, "acknowledged by bob") {
		t.Errorf("listed\n%s", out)
	}
	w.refuses(2, "say why", "-m", "incidents", "resolve", "inc-9")
	w.refuses(2, "1025 bytes", "shorten", "incidents", "resolve", "inc-9", "-m", strings.Repeat("x", 1025))
	if out := w.does("incidents", "resolve", "inc-9", "-m", "it was me", "--by", "ann"); !strings.Contains(out, "The judge goes on by itself") {
		t.Error(out)
	}
	if out := w.does("incidents"); !strings.Contains(out, "said to be over by ann") {
		t.Errorf("listed\n%s", out)
	}
	w.refuses(1, "inc-0d01 is over since 2026-11-03 11:00:00 UTC", "lowtide incidents", "incidents", "acknowledge", "inc-0")
	w.refuses(1, "the judge resolved inc-0d01 at 2026-11-03 11:00:00 UTC: 24 h without it", "feedback", "incidents", "resolve", "inc-0", "-m", "over")

	// What is worse than what people saw is not covered by what they said.
	worse := crash()
	worse.ID, worse.Time, worse.Severity = "c2", noon.Add(time.Hour), event.Page
	w.tell(worse, paged())
	out := w.does("incidents")
	if strings.Contains(out, "said to be over") || !strings.Contains(out, "worse since bob acknowledged it") {
		t.Errorf("listed\n%s", out)
	}
	a, err := OpenActions(t.Context(), w.js, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Of("inc-9c01"); len(got) != 1 || got[0].Note != "it was me" || got[0].Class != "crash_loop" || got[0].Severity != event.Ticket || got[0].Via != "cli" {
		t.Errorf("kept %+v", got)
	}
}

// Whoever acknowledges one of several alike incidents acknowledges the card that tells about it, unless that says worse of another one.
func TestActingOnAMemberActsOnItsCard(t *testing.T) {
	b, m := newBroker(t), newForum()
	routes := routing{routes: []route{{match: map[string]string{"severity": event.Page}, to: []string{"slack"}, term: term{remind: 30 * time.Minute}}}, otherwise: []string{"slack"}}
	d := deskOn(t, b, m, routes)
	paged := alike(1)
	paged.Severity = event.Page
	d.foldAll(t, alike(0), paged, alike(2))
	d.settle(t, &m.medium)
	docketOf := func() *docket {
		desk, err := readDocket(t.Context(), b.js, m.now, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return desk
	}
	does := func(id string, kind ActionKind) string {
		desk := docketOf()
		one, err := desk.find("test", id)
		if err != nil {
			t.Fatal(err)
		}
		if err := act(t.Context(), desk, one, kind, "ann", ""); err != nil {
			t.Fatal(err)
		}
		var err2 error
		if d.o.actions, err2 = OpenActions(t.Context(), b.js, nil); err2 != nil { // what the watch of a notifier would read
			t.Fatal(err2)
		}
		d.heed(t.Context())
		d.settle(t, &m.medium)
		return one.elsewhere(desk)
	}
	reminded := func() (n int) {
		for _, text := range m.all() {
			if strings.HasPrefix(text, "Still open, and nobody has acknowledged it") {
				n++
			}
		}
		return n
	}
	pass := func() {
		m.now = m.now.Add(31 * time.Minute)
		d.deliver(t.Context())
		d.settle(t, &m.medium)
	}
	if text := does("inc-0002", Acknowledge); text != "; people read of it in the message of inc-0000, which says worse of others and is still to be acknowledged" {
		t.Error(text)
	}
	if pass(); reminded() != 1 {
		t.Errorf("a ticket was acknowledged, and of the page people are reminded %d times", reminded())
	}
	if text := does("inc-0001", Acknowledge); text != "; people read of it in the message of inc-0000" {
		t.Error(text)
	}
	if card := m.of(t, "inc-0000"); !card.Acknowledged {
		t.Errorf("the card says %v", card.People)
	}
	pass()
	if pass(); reminded() != 1 {
		t.Errorf("reminded %d times of what ann acknowledged: %q", reminded(), m.all())
	}
	does("inc-0001", Resolve)
	if stance := Standing(d.o.actions.Of("inc-0000")); stance.Resolved == nil || stance.Resolved.By != "ann" {
		t.Errorf("the card is not said to be over: %+v", stance)
	}
	does("inc-0002", NotALeak)
	if stance := Standing(d.o.actions.Of("inc-0000")); len(stance.Feedback) != 0 {
		t.Errorf("feedback on one is feedback on another: %+v", stance.Feedback)
	}
}

func TestFeedbackIsCounted(t *testing.T) {
	begin, end := ended()
	quiet := crash()
	quiet.ID, quiet.Incident, quiet.Severity = "q1", "inc-quiet", event.Info
	w := newWard(t, begin, leak(), crash(), quiet)
	w.tell(end)
	if _, messages, err := w.run("incidents", "feedback", "inc-7", "--not-a-leak", "-m", "a cache that fills", "--by", "ann"); err != nil || messages != "" {
		t.Errorf("%q, %v", messages, err)
	}
	w.does("incidents", "feedback", "inc-7", "--was-right", "--by", "bob") // the latest word counts
	w.does("incidents", "feedback", "inc-0", "--not-a-leak", "--by", "bob")
	a, err := OpenActions(t.Context(), w.js, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // what the outbox has forgotten
		if _, err := a.Add(t.Context(), Action{Incident: fmt.Sprintf("inc-old-%d", i), Kind: WasRight, By: "ann", At: noon, Class: "stall"}); err != nil {
			t.Fatal(err)
		}
	}
	want := [][]string{{"CLASS", "RIGHT", "WRONG", "UNANSWERED"}, {"crash_loop", "0", "1", "1"}, {"stall", "2", "0", "0"}, {"retention", "1", "0", "0"}}
	got := rows(w.does("incidents", "feedback"))
	if len(got) != len(want) {
		t.Fatalf("counted %v", got)
	}
	for i := range want {
		if strings.Join(got[i], " ") != strings.Join(want[i], " ") {
			t.Errorf("line %d is %v, want %v", i, got[i], want[i])
		}
	}
	if out := w.does("incidents", "feedback", "--json"); !strings.HasPrefix(out, `{"class":"crash_loop","right":0,"wrong":1,"unanswered":1}`) {
		t.Error(out)
	}
	w.refuses(2, "on what", "name the incident", "incidents", "feedback", "--was-right")
	w.refuses(2, "right or not", "--was-right and --not-a-leak", "incidents", "feedback", "inc-7")
}
