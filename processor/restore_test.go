package processor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

// Whoever adds a field to one of these structs decides about it: it is among the parts, or stands here.
func TestEveryFieldIsDecidedAbout(t *testing.T) {
	anew := []string{ // from what is saved, or by the rules
		"Judge.asked", "Judge.calls", "Judge.epoch", "Judge.killed", "Judge.perCard", "Judge.perHost", "Judge.perInstance", "Judge.perWorker", "Judge.proofs", "Judge.rules",
		"Judge.incidents", "Judge.shadows", "Judge.board", "Judge.seat", // saved beside it
		"Judge.tried", "answers.shadow", // asked again
		"answers.open", "Judge.wanted", "answers.watch",
		"answers.rested", "answer.late", // beside a restored answer nothing is known to be as it was: it is asked for anew, and is the same
		"answer.decided",                                                // what the condition reads holds too, and costs a little more until it is asked again
		"card.related", "card.relatedAt", "card.wholeAt", "card.wholly", // as of an epoch, and of a layout
		"host.layout", // only whether it is the same is asked
		"instance.related", "instance.relatedAt", "watched.related", "watched.relatedAt",
		"peer.from", // who restores it
		"watched.speech",
	}
	moment := []string{ // of one event, or a setting of who made the judge
		"Judge.about", "Judge.emit", "Judge.fill", "Judge.labels", "host.labels", "Judge.last", "Judge.seen", "Judge.uncalibrated", "Judge.wish", "Judge.work",
		"Judge.clock", "host.near", "host.recent", "host.said", "watched.said", "watched.saidHost",
	}
	workers := []string{"Worker.born", "Worker.slopes", "Worker.unshown", "Worker.wanted", "Worker.warmed", "basis.config", "call.sentence", "caps.Asked", "caps.Card",
		"caps.CardKnown", "caps.Host", "caps.HostKnown", "caps.Spare", "caps.of", "sight.moved", "sight.points"} // its own test says why
	want := slices.Sorted(slices.Values(slices.Concat(anew, moment, workers)))
	if got := ownLayout().Unkept(); !slices.Equal(got, want) {
		t.Errorf("not saved are\n%v\nwant\n%v", got, want)
	}
}

func TestAStateOfAnotherKindIsNotRestored(t *testing.T) {
	r := newTrial(t, builtin(t))
	r.play(newChaos(1, 300), true)
	state := r.save()
	change := func(at int, by byte) []byte {
		other := slices.Clone(state)
		other[at] ^= by
		return other
	}
	seal := ownLayout().Seal
	parts, err := ownLayout().Open(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		name  string
		state []byte
		is    error
		says  string
	}{
		{"another version", change(3, 8), ErrStateVersion, "it is version 9, this build reads 1"},
		{"another layout", change(4, 1), ErrStateVersion, "layout"},
		{"a worker's", append([]byte("LTW"), state[3:]...), ErrState, "does not begin as one"},
		{"nothing", nil, ErrState, "does not begin as one"},
		{"a flipped bit", change(len(state)/2, 4), ErrState, "checksum"},
		{"half of it", state[:len(state)/2], ErrState, "checksum"},
		{"no parts", seal(nil), ErrState, "ends too early"},
		{"half of its parts", seal(parts[:len(parts)/2]), ErrState, ""},
		{"more", seal(append(slices.Clone(parts), 0)), ErrState, "more than it should hold"},
	} {
		board, emitted := NewBoard(), 0
		j, err := RestoreJudge(r.pack, board, func(*event.Finding) { emitted++ }, of.state)
		if j != nil || !errors.Is(err, of.is) || !strings.HasPrefix(err.Error(), "restore judge: ") || !strings.Contains(err.Error(), of.says) {
			t.Errorf("%s: %v", of.name, err)
		}
		if len(board.groups) > 0 || emitted > 0 {
			t.Errorf("%s: something came of it", of.name)
		}
	}
}

// changed is the built-in pack with a file of the user's laid over it.
func changed(t *testing.T, text string) *rules.Pack {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(path, []byte("rules:\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	pack, err := rules.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// The recording `leak` has its retention told in its third hour. What was saved after that is restored under other rules.
func TestRulesThatChangedWhileNobodyJudged(t *testing.T) {
	events := recorded(t, "testdata/leak.ndjson.gz")
	undisturbed := newTrial(t, builtin(t))
	first := 0
	for i, e := range events {
		if undisturbed.judge.Apply(e); first == 0 && len(undisturbed.found) > 0 {
			first = i
		}
	}
	undisturbed.judge.Flush()
	cut := first + 50
	before := newTrial(t, builtin(t))
	before.play(events[:cut], false)
	state := before.save()
	open := before.judge.incidents.State().Incidents
	if len(open) != 1 || open[0].Class != "retention" {
		t.Fatalf("open are %+v", open)
	}
	restored := func(pack *rules.Pack) *trial {
		r := newTrial(t, pack)
		j, err := RestoreJudge(pack, NewBoard(), r.emit, state)
		if err != nil {
			t.Fatal(err)
		}
		r.judge = j
		return r
	}
	rest := undisturbed.found[len(before.found):]

	t.Run("another rule is gone", func(t *testing.T) {
		r := restored(changed(t, "  - {id: thread_leak, enabled: false}\n  - {id: kv_pressure, shadow: true}\n"))
		r.play(events[cut:], false)
		if r.judge.Flush(); !slices.Equal(r.found, rest) {
			t.Errorf("found\n%s\nwant\n%s", strings.Join(r.found, "\n"), strings.Join(rest, "\n"))
		}
	})
	t.Run("its own sentence is another", func(t *testing.T) {
		r := restored(changed(t, "  - {id: retention, summary: It grows}\n"))
		r.play(events[cut:], false)
		r.judge.Flush()
		if len(r.found) != len(rest) {
			t.Fatalf("%d findings, want %d", len(r.found), len(rest))
		}
		for i, text := range r.found {
			f, err := event.UnmarshalFinding([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			g, err := event.UnmarshalFinding([]byte(rest[i]))
			if err != nil {
				t.Fatal(err)
			}
			if f.ID != g.ID || f.Incident != g.Incident || f.Class == "retention" && f.Summary != "It grows" {
				t.Errorf("found %s, want %s", text, rest[i])
			}
		}
	})
	for name, text := range map[string]string{"it is disabled": "{id: retention, enabled: false}", "it is in shadow": "{id: retention, shadow: true}", "it is of another scope": "{id: retention, scope: instance}"} {
		t.Run(name, func(t *testing.T) {
			r := restored(changed(t, "  - "+text+"\n"))
			if len(r.found) != 1 {
				t.Fatalf("found %v", r.found)
			}
			f, err := event.UnmarshalFinding([]byte(r.found[0]))
			if err != nil {
				t.Fatal(err)
			}
			if f.Incident != open[0].ID || f.State != event.Resolved || f.Resolution != "the rule retention is not asked any more: nobody says whether it goes on" || !f.Time.Equal(open[0].Seen) {
				t.Errorf("found %s", r.found[0])
			}
			if len(r.judge.incidents.State().Incidents) > 0 {
				t.Error("it is still open")
			}
		})
	}
	t.Run("another one watches its class", func(t *testing.T) {
		pack := changed(t, "  - {id: retention, enabled: false}\n  - {id: mine, class: retention, scope: worker, when: live.early, severity: {alone: ticket}, summary: Mine}\n")
		r := restored(pack)
		in := r.judge.incidents.State().Incidents
		if len(r.found) != 0 || len(in) != 1 || in[0].ID != open[0].ID || in[0].Rule != "mine" {
			t.Errorf("found %v, open are %+v", r.found, in)
		}
	})
}

// A host whose clock says 1970 keeps nobody's state from being saved: only its workers begin anew.
func TestAClockOf1970(t *testing.T) {
	s := newStage(t)
	s.apply(rank(10, "r1"), handles())
	at := s.at
	s.at, s.host = time.Unix(5000, 0), &event.Host{Cluster: "c", Name: "dark", BootId: "b"}
	for range 3 {
		s.at = s.at.Add(5 * time.Second)
		s.apply(rank(20, "r1"), handles())
	}
	state, err := s.judge.Save()
	if err != nil {
		t.Fatal(err)
	}
	j, err := RestoreJudge(builtin(t), NewBoard(), func(*event.Finding) {}, state)
	if err != nil {
		t.Fatal(err)
	}
	if len(j.workers) != 2 {
		t.Fatalf("%d workers", len(j.workers))
	}
	s.judge, s.at = j, at.Add(5*time.Second)
	for range 3 {
		s.at = s.at.Add(5 * time.Second)
		s.apply(rank(20, "r1"), handles())
	}
	if again, err := s.judge.Save(); err != nil {
		t.Fatal(err)
	} else if _, err := RestoreJudge(builtin(t), NewBoard(), func(*event.Finding) {}, again); err != nil {
		t.Fatal(err)
	}
	if r := s.judge.Reports(); len(r) != 2 {
		t.Errorf("%d reports", len(r))
	}
}

// A host that falls silent before the cut is missed after it, at the moment at which it would have been, and seen again.
func TestASilentHostIsMissedAfterTheCut(t *testing.T) {
	want, got := newTrial(t, builtin(t)), newTrial(t, builtin(t))
	at := time.Unix(1_790_000_000, 0).UTC()
	say := func(name string) *event.Event {
		return &event.Event{Time: timestamppb.New(at), Host: &event.Host{Cluster: "c", Name: name}, Worker: rank(10, "r1"), Process: &event.Process{Fds: event.Ptr(uint64(7))}}
	}
	blind := 0
	for i := range 240 { // two hours
		at = at.Add(30 * time.Second)
		for _, r := range []*trial{want, got} {
			if r.judge.Apply(say("loud")); i < 20 || i > 200 {
				r.judge.Apply(say("quiet"))
			}
			r.judge.Tick(at)
		}
		if i%7 == 3 {
			got.replace()
		}
		if blind == 0 && len(want.found) > 0 {
			blind = i
		}
	}
	if likewise(t, got, want); len(want.found) != 3 || !strings.Contains(want.found[0], `"class":"blind"`) || !strings.Contains(want.found[2], `"state":"resolved"`) || blind != 39 {
		t.Errorf("found %v, first in half minute %d", want.found, blind)
	}
}
