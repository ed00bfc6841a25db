package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/processor/worker"
)

// Case is one incident as far as one process life had a part in it. Findings are its transitions in that life, in order; Ended is
// the newest transition of the incident, when that came in a later life.
type Case struct {
	Findings []*event.Finding
	Ended    *event.Finding
	Carried  bool // it began in an earlier life of the slot and was open when this one began
}

func (c Case) latest() *event.Finding { return c.Findings[len(c.Findings)-1] }

// told is the latest finding that says what was seen: a resolution often comes without the evidence.
func (c Case) told() *event.Finding {
	for _, f := range slices.Backward(c.Findings) {
		if f.State != event.Resolved {
			return f
		}
	}
	return c.latest()
}

// Open says that the incident was not resolved, in this life or a later one.
func (c Case) Open() bool {
	if c.Ended != nil {
		return c.Ended.State != event.Resolved
	}
	return c.latest().State != event.Resolved
}

// title is the verdict in one line.
func title(c Case, key string) string {
	f := c.latest()
	text := fmt.Sprintf("%s %s · %s · confidence %.0f %%", f.Class, f.State, f.Severity, f.Confidence*100)
	if f.Shadow {
		text += " · rule " + f.Rule + " in shadow: told to nobody"
	}
	if c.Carried {
		text += " · from an earlier process of this slot"
	} else if f.Subject.Kind != "" && f.Subject.Key != key && f.Subject.Kind != "worker" {
		text += " · of the " + f.Subject.Kind
	}
	return text
}

// fate is what became of the incident: the proof of its end, restarts that mask it, the incidents that are like it.
func (c Case) fate() string {
	f := c.latest()
	var parts []string
	if f.Resolution != "" {
		parts = append(parts, "resolved: "+f.Resolution)
	}
	if f.MaskedRestarts > 0 && f.State != event.Resolved {
		parts = append(parts, fmt.Sprintf("masked by restart (%d): a restart gives the memory back and proves nothing", f.MaskedRestarts))
	}
	if e := c.Ended; e != nil {
		parts = append(parts, fmt.Sprintf("later, in another process of this slot: %s, %s at %s%s", e.State, e.Severity, minute(e.Time), prefixed(", ", e.Resolution)))
	}
	if f.Alike > 1 {
		parts = append(parts, fmt.Sprintf("one of %d alike in %s", f.Alike, f.Group))
	}
	return strings.Join(parts, "; ")
}

// course are the transitions in order of time.
func (c Case) course() []row {
	var rows []row
	for _, f := range c.Findings {
		text := fmt.Sprintf("%s, %s, %.0f %%: %s", f.State, f.Severity, f.Confidence*100, f.Summary)
		if f.MaskedRestarts > 0 {
			text += fmt.Sprintf(" (masked by restart: %d)", f.MaskedRestarts)
		}
		rows = append(rows, row{minute(f.Time), text})
	}
	return rows
}

// Assign gives findings to the process lives that they are about, in the order of the reports; what belongs to none of them (a
// card, a host, a sensor) comes back as cases of its own.
func Assign(reports []worker.Report, findings []*event.Finding) (subjects []Subject, rest []Case) {
	own := make([][]*event.Finding, len(reports))
	newest := make(map[string]*event.Finding) // by incident
	holder := make(map[string]int)            // incident → the life of its newest finding
	var others []*event.Finding
	for _, f := range findings {
		i := lifeOf(reports, f)
		if i < 0 {
			others = append(others, f)
			continue
		}
		own[i] = append(own[i], f)
		if last := newest[f.Incident]; last == nil || !f.Time.Before(last.Time) {
			newest[f.Incident], holder[f.Incident] = f, i
		}
	}
	for i, r := range reports {
		s := Subject{Report: r}
		for _, c := range cases(own[i]) {
			if last := newest[c.latest().Incident]; last != c.latest() && holder[c.latest().Incident] != i {
				c.Ended = last
			}
			s.Cases = append(s.Cases, c)
		}
		s.Cases = append(s.Cases, carried(r, i, reports, newest, holder)...)
		slices.SortStableFunc(s.Cases, worse)
		subjects = append(subjects, s)
	}
	return subjects, cases(others)
}

// carried are the incidents that earlier lives of the slot left open and that this life added nothing to.
func carried(r worker.Report, at int, reports []worker.Report, newest map[string]*event.Finding, holder map[string]int) (found []Case) {
	for _, f := range newest {
		before := reports[holder[f.Incident]]
		if holder[f.Incident] != at && f.State != event.Resolved && before.Slot == r.Slot && before.First.Before(r.First) {
			found = append(found, Case{Findings: []*event.Finding{f}, Carried: true})
		}
	}
	slices.SortFunc(found, func(a, b Case) int { return strings.Compare(a.latest().Incident, b.latest().Incident) })
	return found
}

// lifeOf returns the index of the process life that a finding is about, or -1: the one that it names, else the newest of its slot
// that had begun by then.
func lifeOf(reports []worker.Report, f *event.Finding) int {
	for i, r := range reports {
		if f.Subject.Kind == "worker" && f.Subject.Key == r.Key {
			return i
		}
	}
	found := -1
	for i, r := range reports {
		host := event.HostKey(r.Host) + "/"
		switch {
		case f.Worker != nil && strings.HasPrefix(f.Subject.Key, host) && event.WorkerKey(r.Host, f.Worker) == r.Key:
			return i
		case f.Slot != "" && f.Slot == r.Slot && !r.First.After(f.Time) && (found < 0 || r.First.After(reports[found].First)):
			found = i
		}
	}
	return found
}

// cases groups findings by incident, each in order of time, the incidents by their first finding.
func cases(findings []*event.Finding) (out []Case) {
	findings = slices.Clone(findings)
	slices.SortStableFunc(findings, func(a, b *event.Finding) int { return a.Time.Compare(b.Time) })
	at := make(map[string]int)
	for _, f := range findings {
		i, known := at[f.Incident]
		if !known {
			i = len(out)
			at[f.Incident] = i
			out = append(out, Case{})
		}
		out[i].Findings = append(out[i].Findings, f)
	}
	return out
}

var severities = []string{event.Info, event.Ticket, event.Page}

// worse orders open incidents before resolved ones, then by severity, then by time.
func worse(a, b Case) int {
	rank := func(c Case) int {
		n := slices.Index(severities, c.latest().Severity)
		if c.Open() {
			n += len(severities)
		}
		return -n
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Findings[0].Time.Compare(b.Findings[0].Time))
}

// Began is when the first finding of the worker was made, or the first event of a worker that is well.
func (s Subject) Began() time.Time {
	began := s.First
	for i, c := range s.Cases {
		if first := c.Findings[0].Time; i == 0 || first.Before(began) {
			began = first
		}
	}
	return began
}
