package scorecard

import (
	"strings"
	"time"

	"lowtide/event"
)

// incident is the story of one incident as its transitions tell it.
type incident struct {
	class, rule, slot string
	first, confirmed  time.Time // confirmed is zero when it never was
	suspected, sure   float64   // the confidence when it opened, and when it was confirmed
	page              bool
	overtaken         string // the class that explained it later
	last              *event.Finding
	opened            *event.Finding
}

// incidents puts the transitions of a recording together, in the order in which they began.
func incidents(told []*event.Finding) []incident {
	var all []incident
	at := make(map[string]int)
	for _, f := range told {
		n, known := at[f.Incident]
		if !known {
			n = len(all)
			at[f.Incident] = n
			all = append(all, incident{class: f.Class, rule: f.Rule, slot: f.Slot, first: f.Time, suspected: f.Confidence, opened: f})
		}
		one := &all[n]
		one.last = f
		one.page = one.page || f.Severity == event.Page
		if f.State == event.Confirmed && one.confirmed.IsZero() {
			one.confirmed, one.sure = f.Time, f.Confidence
		}
		if f.State == event.Resolved {
			one.overtaken = strings.TrimPrefix(f.Resolution, "explained by ")
			if one.overtaken == f.Resolution {
				one.overtaken = ""
			}
		}
	}
	return all
}
