package notifier

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

func openActions(t *testing.T) *Actions {
	t.Helper()
	_, _, js := brokertest.Start(t)
	a, err := OpenActions(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestActionsAreKept(t *testing.T) {
	_, _, js := brokertest.Start(t)
	here, err := OpenActions(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- here.Watch(watch) }()
	there, err := OpenActions(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := Action{Kind: Acknowledge, By: "ann", Via: "slack", At: noon}.On(leak())
	for range 2 { // a button is delivered twice
		list, err := there.Add(t.Context(), first)
		if err != nil || len(list) != 1 {
			t.Fatalf("acknowledged: %v, %v", list, err)
		}
	}
	await(t, here.Changed(), func() bool { return len(here.Of("inc-7f3a")) == 1 })
	if got := here.News(); len(got) != 1 || got[0] != "inc-7f3a" {
		t.Errorf("news %v", got)
	}
	list, err := here.Add(t.Context(), Action{Incident: "inc-7f3a", Kind: Remark, By: "bob", Via: "cli", At: noon.Add(time.Minute), Note: "draining\nnow\xff"})
	if err != nil || len(list) != 2 || list[0] != first || list[1].Note != "draining now\uFFFD" {
		t.Errorf("noted: %+v, %v", list, err)
	}
	if got := here.News(); len(got) != 1 || len(here.News()) != 0 {
		t.Errorf("news %v", got)
	}
	if _, err := here.Add(t.Context(), Action{Incident: "an incident/with odd letters", Kind: WasRight, By: "bob", At: noon}); err != nil {
		t.Error(err)
	}
	if all := here.All(); len(all) != 2 || len(all["inc-7f3a"]) != 2 || len(all["an incident/with odd letters"]) != 1 {
		t.Errorf("all %v", all)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("watch: %v", err)
	}
}

// Nine people press at once: nobody's word is lost.
func TestActionsOfManyAtOnce(t *testing.T) {
	_, _, js := brokertest.Start(t)
	var group sync.WaitGroup
	for i := range 9 {
		group.Go(func() {
			a, err := OpenActions(t.Context(), js, nil)
			if err == nil {
				_, err = a.Add(t.Context(), Action{Incident: "inc-1", Kind: Acknowledge, By: fmt.Sprintf("p%d", i), At: noon})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	a, err := OpenActions(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]bool{}
	for _, one := range a.Of("inc-1") {
		by[one.By] = true
	}
	if len(by) != 9 {
		t.Errorf("kept %d of 9 words", len(by))
	}
}

func TestActionsHaveLimits(t *testing.T) {
	a := openActions(t)
	for i := range maxActions + 3 {
		if _, err := a.Add(t.Context(), Action{Incident: "inc-1", Kind: Remark, By: strings.Repeat("b", maxBy), At: noon.Add(time.Duration(i) * time.Minute), Note: strings.Repeat(`"`, maxNote)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Of("inc-1"); len(got) != maxActions || !got[0].At.Equal(noon.Add(3*time.Minute)) {
		t.Errorf("kept %d from %v, want the newest %d", len(got), got[0].At, maxActions)
	}
	for want, one := range map[string]Action{
		"needs an incident":   {Kind: Remark, By: "x", At: noon},
		`kind "dance"`:        {Incident: "i", Kind: "dance", At: noon},
		"needs a time":        {Incident: "i", Kind: Remark},
		"note: 1025 bytes":    {Incident: "i", Kind: Remark, At: noon, Note: strings.Repeat("x", 1025)},
		"by: 129 bytes":       {Incident: "i", Kind: Remark, At: noon, By: strings.Repeat("x", 129)},
		"via: 129 bytes":      {Incident: "i", Kind: Remark, At: noon, Via: strings.Repeat("x", 129)},
		"class, state and se": {Incident: "i", Kind: Remark, At: noon, Class: strings.Repeat("x", 129)},
	} {
		if _, err := a.Add(t.Context(), one); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if len(a.All()) != 1 {
		t.Errorf("stored %v", a.All())
	}
}

// A bucket that fills forgets what nobody touched for half a year, and nothing else.
func TestActionsAreSwept(t *testing.T) {
	a := openActions(t)
	long := strings.Repeat(`"`, maxNote)
	for i := 0; ; i++ {
		status, err := a.book.kv.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Bytes() >= actionsSwept {
			break
		}
		var list []string
		incident := fmt.Sprintf("old-%d", i)
		for j := range maxActions {
			list = append(list, fmt.Sprintf(`{"incident":%q,"kind":"note","by":"ann","at":"2026-01-01T00:00:%02dZ","note":%q}`, incident, j%60, long))
		}
		if _, err := a.book.kv.Put(t.Context(), incident, []byte("["+strings.Join(list, ",")+"]")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := a.book.read(ctx, true); err != nil {
		t.Fatal(err)
	}
	for _, incident := range []string{"young", "new"} { // the first of them finds the bucket full
		if _, err := a.Add(ctx, Action{Incident: incident, Kind: Acknowledge, By: "ann", At: noon}); err != nil {
			t.Fatal(err)
		}
	}
	if all := a.All(); len(all) != 2 || all["young"] == nil {
		t.Errorf("%d incidents are kept, want the two that were touched", len(all))
	}
	if status, err := a.book.kv.Status(ctx); err != nil || status.Bytes() > broker.ActionBytes/8 {
		t.Errorf("the bucket has %d bytes (%v)", status.Bytes(), err)
	}
}

func TestStanding(t *testing.T) {
	at := func(i int) time.Time { return noon.Add(time.Duration(i) * time.Minute) }
	actions := []Action{
		Action{Kind: Acknowledge, By: "ann", At: at(1)}.On(leak()),
		Action{Kind: NotALeak, By: "ann", At: at(2)}.On(leak()),
		Action{Kind: WasRight, By: "bob", At: at(3)}.On(leak()),
		Action{Kind: WasRight, By: "ann", At: at(4), Note: "it was"}.On(leak()),
		Action{Kind: Resolve, By: "bob", At: at(5), Note: "replaced"}.On(leak()),
		{Incident: "inc-7f3a", Kind: "of a newer program", By: "x", At: at(6)},
		Action{Kind: Remark, By: "bob", At: at(7), Note: "see the thread"}.On(leak()),
	}
	s := Standing(actions)
	if s.Acknowledged.By != "ann" || s.Resolved.Note != "replaced" || len(s.Notes) != 1 {
		t.Errorf("stance %+v", s)
	}
	if len(s.Feedback) != 2 || s.Feedback[0].By != "bob" || s.Feedback[1].By != "ann" || s.Feedback[1].Kind != WasRight {
		t.Errorf("feedback %+v, want the latest of each", s.Feedback)
	}
	if s.AcknowledgedFor(leak()) == nil || s.ResolvedFor(leak()) == nil || s.ResolvedFor(over()) == nil {
		t.Error("what the person saw, and its end, are meant")
	}
	if s.AcknowledgedFor(paged()) != nil || s.ResolvedFor(paged()) != nil {
		t.Error("a page and a confirmation came after the acknowledgement of a suspicion")
	}
	if none := Standing(nil); none.Acknowledged != nil || none.AcknowledgedFor(leak()) != nil || none.ResolvedFor(leak()) != nil {
		t.Errorf("nobody did anything: %+v", none)
	}
	// On a finding that was over nobody foresaw that it comes back.
	if ended := Standing([]Action{Action{Kind: Acknowledge, By: "ann", At: at(1)}.On(over())}); ended.AcknowledgedFor(paged()) != nil {
		t.Error("an acknowledged end acknowledges the next beginning")
	}
	unknown := Standing([]Action{{Incident: "inc-7f3a", Kind: Acknowledge, By: "ann", At: at(1)}})
	if unknown.AcknowledgedFor(&event.Finding{State: event.Confirmed, Severity: event.Page}) == nil {
		t.Error("an acknowledgement that knew no finding stands")
	}
}

func FuzzDecodeActions(f *testing.F) {
	f.Add("inc-1", []byte(`[{"incident":"inc-1","kind":"acknowledge","by":"ann","via":"cli","at":"2026-11-03T12:00:00Z","severity":"page"}]`))
	f.Add("inc-1", []byte(`[]`))
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		list, err := decodeActions(key, text)
		if err != nil {
			return
		}
		if len(list) == 0 || len(list) > maxActions || keyOf(list[0].Incident) != key {
			t.Errorf("decoded %+v for key %q", list, key)
		}
		s := Standing(list)
		s.AcknowledgedFor(leak())
	})
}
