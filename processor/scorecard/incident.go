package scorecard

import (
	"time"

	"lowtide/event"
)

// incident is the story of one incident as its transitions tell it. It holds no findings, so that thousands of recordings
// take little room.
type incident struct {
	class, slot      string
	summary          string    // of its first transition
	first, confirmed time.Time // confirmed is zero when it never was
	atOnce           bool      // confirmed when it opened
	suspected, sure  float64   // the confidence when it opened, and when it was confirmed
	page             bool
	about            about
}

// about is what a finding is about.
type about struct {
	kind, key, host string
	pid             int64
}

func aboutOf(f *event.Finding) about {
	return about{f.Subject.Kind, f.Subject.Key, f.Labels["cluster"] + "/" + f.Labels["host"], f.Worker.GetPid()}
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
			all = append(all, incident{class: f.Class, slot: f.Slot, summary: f.Summary, first: f.Time, atOnce: f.State == event.Confirmed, suspected: f.Confidence})
		}
		one := &all[n]
		one.about = aboutOf(f)
		one.page = one.page || f.Severity == event.Page
		if f.State == event.Confirmed && one.confirmed.IsZero() {
			one.confirmed, one.sure = f.Time, f.Confidence
		}
	}
	return all
}
