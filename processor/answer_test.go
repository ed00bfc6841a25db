package processor

import (
	"bytes"
	"path/filepath"
	"testing"

	"lowtide/event"
)

// A rule is asked again only when something that decides its answer has changed. A judge that asks all rules at every event says the same.
func TestWhatWasNotAskedAgainWouldHaveSaidTheSame(t *testing.T) {
	for name := range verdicts {
		t.Run(name, func(t *testing.T) {
			all := events(t, filepath.Join("testdata", name+".ndjson.gz"))
			usual, thorough := said(t, all, func(*Judge) {}), said(t, all, func(j *Judge) {
				for _, w := range j.workers {
					w.answers.firm, w.shared.firm = false, false
				}
				for _, h := range j.hosts {
					for _, c := range h.cards {
						c.answers.firm = false
					}
				}
			})
			if !bytes.Equal(usual, thorough) {
				t.Errorf("%d transitions, %d with all rules asked, or others", bytes.Count(usual, []byte("\n")), bytes.Count(thorough, []byte("\n")))
			}
		})
	}
}

// said returns what is said about some events, with something done before each.
func said(t *testing.T, all []*event.Event, before func(*Judge)) (out []byte) {
	j := NewJudge(builtin(t), func(f *event.Finding) {
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
