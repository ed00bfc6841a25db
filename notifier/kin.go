package notifier

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lowtide/event"
)

// Alike incidents are those of one class in one release of a model. The first of them has a message; those that come while it is open are
// told on its card, each with its state, and have none of their own. What they are is written into the record of the first before their
// own is, so that a crash in between tells nobody twice.

// maxWorkers bounds the workers that a card names.
const maxWorkers = 16

// likeness is what makes incidents alike; empty for one that is alone.
func likeness(f *event.Finding) string {
	if f == nil || f.Group == "" {
		return ""
	}
	return f.Group + "\x00" + f.Class
}

// follow remembers a record as the one that its like join, or no longer.
func (d *desk) follow(r *record) {
	if r.digest() || r.storm != "" || r.history.Latest == nil {
		return
	}
	face := r.face()
	like := likeness(r.history.Latest)
	switch {
	case like == "":
	case face.State == event.Resolved || face.Severity == event.Info:
		d.unlead(r)
	case d.leads[like] == "":
		d.leads[like] = face.Incident
	}
}

func (d *desk) unlead(r *record) {
	if like := likeness(r.history.Latest); d.leads[like] == r.history.Latest.Incident {
		delete(d.leads, like)
	}
}

// accompany lets a new incident join the card of its like, if that goes to the same places and is not silenced.
func (d *desk) accompany(ctx context.Context, r *record) (joined bool, err error) {
	f := r.history.Latest
	id := d.leads[likeness(f)]
	if id == "" || id == f.Incident || r.members != nil {
		return false, nil
	}
	e, err := d.home(ctx, id)
	if err != nil {
		return false, err
	}
	if e == nil || e.record.storm != "" || likeness(e.record.history.Latest) != likeness(f) || e.record.filled() {
		delete(d.leads, likeness(f))
		return false, nil
	}
	s := d.look(e.record)
	if s.face.State == event.Resolved || s.now.Silenced != "" || s.now.Closed != "" {
		delete(d.leads, likeness(f)) // the next one of its kind has a card again
		return false, nil
	}
	together := *s.face
	together.Severity = worse(together.Severity, f.Severity)
	places := d.routes.of(&together)
	for name := range d.routes.of(f) {
		if _, told := places[name]; !told && e.record.deliveries[name].Status == untold {
			return false, nil
		}
	}
	r.storm = id
	if err := d.join(ctx, e, r); err != nil {
		r.storm = ""
		return false, err
	}
	return true, nil
}

// leave takes an incident out of the record whose message told about it.
func (d *desk) leave(ctx context.Context, e *entry, incident string) error {
	was, known := e.record.members[incident]
	if !known {
		return nil
	}
	history, id := e.record.history, e.record.history.Latest.Incident
	delete(e.record.members, incident)
	switch {
	case e.record.digest():
		e.record.retell(id)
	case len(e.record.members) == 0:
		e.record.members = nil
	}
	e.seen = nil
	if err := d.box.save(ctx, e.record); err != nil {
		if e.record.members == nil {
			e.record.members = map[string]member{}
		}
		e.record.members[incident], e.record.history, e.stale = was, history, true
		return err
	}
	e.unsaved = false
	d.follow(e.record)
	d.wind(e.record)
	if d.due(e.record) {
		d.pending[keyOf(id)] = e
	}
	return nil
}

func worse(a, b string) string {
	if severityRank(b) > severityRank(a) {
		return b
	}
	return a
}

func severityRank(severity string) int {
	return slices.Index([]string{event.Info, event.Ticket, event.Page}, severity)
}

// face is the finding that the record's card tells: its newest; of alike incidents the first one's, as open and as severe as the worst.
func (r *record) face() *event.Finding {
	own := r.history.Latest
	if own == nil || r.digest() || len(r.members) == 0 {
		return own
	}
	f := *own
	if own.State == event.Resolved && r.history.Case != nil {
		f = *r.history.Case
		f.ID, f.Time = own.ID, own.Time
	}
	open, confirmed, severity, worst := own.State != event.Resolved, own.State == event.Confirmed, own.Severity, own.Severity
	if !open {
		severity = event.Info
	}
	for _, m := range r.members {
		worst = worse(worst, m.Severity)
		if m.State != event.Resolved {
			open, confirmed, severity = true, confirmed || m.State == event.Confirmed, worse(severity, m.Severity)
		}
		if m.First.After(f.Time) {
			f.Time = m.First
		}
	}
	if !open {
		f = *own
		f.Severity = worst
		return &f
	}
	f.State, f.Severity, f.Resolution = event.Suspected, severity, ""
	if confirmed {
		f.State = event.Confirmed
	}
	return &f
}

// workers are the lines of a card that tells about several, the worst first; the count is that of all.
func (r *record) workers() (lines []Line, n int) {
	if r.digest() || len(r.members) == 0 {
		return nil, 0
	}
	all := maps.Clone(r.members)
	all[r.history.Latest.Incident] = memberOf(r.history)
	ids := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		x, y := all[a], all[b]
		return cmp.Or(worst(x)-worst(y), x.First.Compare(y.First), strings.Compare(a, b))
	})
	for i, id := range ids {
		if i == maxWorkers {
			lines = append(lines, Line{"and more", fmt.Sprintf("%d workers", len(ids)-i)})
			break
		}
		m := all[id]
		text := m.Severity + " " + m.State
		if m.Masked > 0 && m.State != event.Resolved {
			text += fmt.Sprintf(", masked by restart (%d)", m.Masked)
		}
		if id != r.history.Latest.Incident {
			text += ", incident " + id
		}
		lines = append(lines, Line{m.Subject, text})
	}
	return lines, len(ids)
}
