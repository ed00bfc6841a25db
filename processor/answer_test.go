package processor

import (
	"bytes"
	"path/filepath"
	"testing"

	"lowtide/event"
	"lowtide/rules"
)

// A rule is asked again only when something that decides its answer has changed. A judge that asks all rules at every event says the same.
func TestWhatWasNotAskedAgainWouldHaveSaidTheSame(t *testing.T) {
	for name := range verdicts {
		t.Run(name, func(t *testing.T) {
			all := events(t, filepath.Join("testdata", name+".ndjson.gz"))
			usual, thorough := said(t, builtin(t), all, func(*Judge) {}), said(t, builtin(t), all, askAll)
			if !bytes.Equal(usual, thorough) {
				t.Errorf("%d transitions, %d with all rules asked, or others", bytes.Count(usual, []byte("\n")), bytes.Count(thorough, []byte("\n")))
			}
		})
	}
}

// The same of more rules than have a bit each, some of them in shadow, in a world where all that they read comes and goes.
func TestWhatWasNotAskedAgainOfManyRulesWouldHaveSaidTheSame(t *testing.T) {
	pack := manyRules(t, 120)
	for seed := range uint64(3) {
		all := newChaos(seed, 3000)
		usual, thorough := said(t, pack, all, func(*Judge) {}), said(t, pack, all, askAll)
		if !bytes.Equal(usual, thorough) {
			t.Errorf("%d transitions, %d with all rules asked, or others", bytes.Count(usual, []byte("\n")), bytes.Count(thorough, []byte("\n")))
		}
		if bytes.Count(usual, []byte("\n")) == 0 {
			t.Error("nothing is said")
		}
	}
}

// askAll has all rules asked at the next event.
func askAll(j *Judge) {
	for _, w := range j.workers {
		w.answers.loosen()
		w.shared.loosen()
	}
	for _, h := range j.hosts {
		for _, c := range h.cards {
			c.answers.loosen()
		}
	}
}

// said returns what is said about some events, with something done before each.
func said(t *testing.T, pack *rules.Pack, all []*event.Event, before func(*Judge)) (out []byte) {
	j := NewJudge(pack, func(f *event.Finding) {
		text, err := event.MarshalFinding(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, text...), '\n')
	})
	for _, e := range all {
		before(j)
		j.Apply(e)
	}
	before(j)
	j.Flush()
	return out
}
