package backtest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lowtide/event"
)

// incident is what one side said of one trouble.
type incident struct {
	ID          string    `json:"incident"`
	Rule        string    `json:"rule"`
	Class       string    `json:"class"`
	Key         string    `json:"key"` // slot, or the subject where no process is meant
	Severity    string    `json:"severity"`
	State       string    `json:"state"`
	Opened      time.Time `json:"opened"`
	Last        time.Time `json:"last"`
	Before      bool      `json:"before,omitzero"` // it was open when the window began
	Transitions int       `json:"transitions"`     // in the window
	Shadow      bool      `json:"shadow,omitzero"`
	Summary     string    `json:"summary"`

	ended time.Time // zero while it is open
}

// docket takes what is said of a window, and keeps of each incident what it came to. What was over before the window is forgotten.
type docket struct {
	from, to time.Time
	all      map[string]*incident
}

func newDocket(from, to time.Time) *docket {
	return &docket{from: from, to: to, all: map[string]*incident{}}
}

var ranks = map[string]int{event.Info: 1, event.Ticket: 2, event.Page: 3}

func (d *docket) take(f *event.Finding) {
	if !f.Time.Before(d.to) {
		return
	}
	in := d.all[f.Incident]
	if in == nil {
		in = &incident{ID: f.Incident, Opened: f.Time, Key: cmp.Or(f.Slot, f.Subject.Key)}
		d.all[f.Incident] = in
	}
	in.Rule, in.Class, in.State, in.Shadow, in.Last = f.Rule, f.Class, f.State, f.Shadow, f.Time
	if f.State == event.Resolved {
		in.ended = f.Time
	} else {
		in.ended, in.Summary = time.Time{}, f.Summary
	}
	if f.Time.Before(d.from) {
		if in.Severity = f.Severity; f.State == event.Resolved {
			delete(d.all, f.Incident)
			return
		}
		in.Before = true
		return
	}
	in.Transitions++
	if ranks[f.Severity] > ranks[in.Severity] {
		in.Severity = f.Severity
	}
}

// incidents returns them in the order in which they were opened.
func (d *docket) incidents() []*incident {
	out := make([]*incident, 0, len(d.all))
	for _, in := range d.all {
		out = append(out, in)
	}
	slices.SortFunc(out, func(a, b *incident) int {
		return cmp.Or(a.Opened.Compare(b.Opened), strings.Compare(a.Class, b.Class), strings.Compare(a.Key, b.Key), strings.Compare(a.ID, b.ID))
	})
	return out
}

// overlaps says whether two incidents are the same trouble: of one class and key, at one time.
func (in *incident) overlaps(other *incident, to time.Time) bool {
	end := func(i *incident) time.Time {
		if i.ended.IsZero() {
			return to
		}
		return i.ended
	}
	return in.Class == other.Class && in.Key == other.Key && !in.Opened.After(end(other)) && !other.Opened.After(end(in))
}

// pairing is how two sides compare.
type pairing struct {
	New     []*incident    `json:"new"`     // only what is tried says it
	Gone    []*incident    `json:"gone"`    // only what it is compared with does
	Same    [][2]*incident `json:"-"`       // what is tried, and the other
	Changed []change       `json:"changed"` // of the same, those with another severity
}

// change is an incident that both sides have, with different severities.
type change struct {
	Incident *incident `json:"incident"`
	Was      string    `json:"was"`
}

// pair compares what is tried with what is.
func pair(tried, active []*incident, to time.Time) pairing {
	p := pairing{New: []*incident{}, Gone: []*incident{}, Changed: []change{}}
	byPlace := map[[2]string][]*incident{}
	for _, in := range active {
		k := [2]string{in.Class, in.Key}
		byPlace[k] = append(byPlace[k], in)
	}
	used, matches := map[*incident]bool{}, map[*incident]*incident{}
	for _, sameRule := range []bool{true, false} { // a rule is compared with itself where it can be
		for _, in := range tried {
			for _, other := range byPlace[[2]string{in.Class, in.Key}] {
				if matches[in] == nil && !used[other] && in.overlaps(other, to) && (in.Rule == other.Rule || !sameRule) {
					matches[in], used[other] = other, true
				}
			}
		}
	}
	for _, in := range tried {
		match := matches[in]
		if match == nil {
			p.New = append(p.New, in)
			continue
		}
		p.Same = append(p.Same, [2]*incident{in, match})
		if in.Severity != match.Severity {
			p.Changed = append(p.Changed, change{in, match.Severity})
		}
	}
	for _, in := range active {
		if !used[in] {
			p.Gone = append(p.Gone, in)
		}
	}
	return p
}

// tally is what one rule said, and how that compares.
type tally struct {
	Rule      string    `json:"rule"`
	Class     string    `json:"class"`
	Tried     bool      `json:"tried"` // it is in the files
	Shadow    bool      `json:"shadow,omitzero"`
	Findings  int       `json:"findings"`  // transitions in the window
	Incidents int       `json:"incidents"` // open at some time of it
	Pages     int       `json:"pages"`
	Tickets   int       `json:"tickets"`
	Workers   int       `json:"workers"` // distinct workers, or cards, hosts and sensors where no process is meant
	First     time.Time `json:"first,omitzero"`
	Last      time.Time `json:"last,omitzero"`
	Active    int       `json:"active"` // incidents of the other side
	New       int       `json:"new"`
	Gone      int       `json:"gone"`
	Same      int       `json:"same"`
}

// tallies counts by rule; of the other side what is gone counts for the rule that said it there.
func tallies(tried, active []*incident, p pairing) []*tally {
	byRule, places := map[string]*tally{}, map[[2]string]bool{}
	of := func(in *incident) *tally {
		t := byRule[in.Rule]
		if t == nil {
			t = &tally{Rule: in.Rule, Class: in.Class}
			byRule[in.Rule] = t
		}
		return t
	}
	for _, in := range tried {
		t := of(in)
		t.Findings += in.Transitions
		t.Incidents++
		t.Shadow = t.Shadow || in.Shadow
		switch in.Severity {
		case event.Page:
			t.Pages++
		case event.Ticket:
			t.Tickets++
		}
		if place := [2]string{in.Rule, in.Key}; !places[place] {
			places[place] = true
			t.Workers++
		}
		if t.First.IsZero() || in.Opened.Before(t.First) {
			t.First = in.Opened
		}
		if in.Last.After(t.Last) {
			t.Last = in.Last
		}
	}
	for _, in := range active {
		of(in).Active++
	}
	for _, in := range p.New {
		of(in).New++
	}
	for _, in := range p.Gone {
		of(in).Gone++
	}
	for _, both := range p.Same {
		of(both[0]).Same++
	}
	out := make([]*tally, 0, len(byRule))
	for _, t := range byRule {
		out = append(out, t)
	}
	return out
}
