package incident

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"lowtide/event"
	"lowtide/rules"
)

// State is all that a tracker holds: what it does next depends on nothing else.
type State struct {
	Incidents []Incident // sorted by key; those of one key in the order in which they opened
	Refused   int
}

// State returns a copy of what the tracker holds. The findings in it are shared, and never written again.
func (t *Tracker) State() State {
	s := State{Refused: t.refused}
	for _, key := range slices.Sorted(maps.Keys(t.open)) {
		for _, in := range t.open[key] {
			s.Incidents = append(s.Incidents, in.clone())
		}
	}
	return s
}

// Restore replaces what the tracker holds. A second incident of the same key and class, or shadow rule, is left out.
func (t *Tracker) Restore(s State) {
	fresh := NewTracker()
	fresh.limit, fresh.refused, fresh.turn, fresh.apart = t.limit, s.Refused, t.turn+1, t.apart
	for _, one := range s.Incidents {
		if fresh.find(one.Key, one.Class, one.Rule) != nil {
			continue
		}
		in := one.clone()
		related := in.Related
		in.Related = nil
		fresh.add(&in, related)
	}
	*t = *fresh
}

func (in *Incident) clone() Incident {
	out := *in
	out.Explains, out.Related, out.Past, out.Absorbed = slices.Clone(in.Explains), slices.Clone(in.Related), slices.Clone(in.Past), slices.Clone(in.Absorbed)
	return out
}

// Check refuses a state that no tracker can have written.
func (s *State) Check() error {
	if s.Refused < 0 {
		return errors.New("read incidents: fewer than none were refused")
	}
	for i := range s.Incidents {
		if err := s.Incidents[i].check(); err != nil {
			return fmt.Errorf("read incident %d of %d: %w", i+1, len(s.Incidents), err)
		}
	}
	return nil
}

func (in *Incident) check() error {
	switch {
	case in.ID == "" || in.Key == "" || in.Class == "":
		return errors.New("it has no id, key or class")
	case in.State != event.Suspected && in.State != event.Confirmed:
		return fmt.Errorf("state %q is not that of an open incident", in.State)
	case rank(in.Severity) < 0:
		return fmt.Errorf("severity %q is none", in.Severity)
	case in.Transitions < 1 || in.Last == nil:
		return errors.New("it was never told")
	}
	return nil
}

// Reassign follows a change of the rules. Heir names the rule that judges an open incident from now on, and all are the rules by their ids; an
// incident without one ends, which the findings tell in the order of keys.
func (t *Tracker) Reassign(heir func(*Incident) string, all map[string]*rules.Rule) (told []*event.Finding) {
	for _, key := range slices.Sorted(maps.Keys(t.open)) {
		for _, in := range slices.Clone(t.open[key]) {
			rule := all[heir(in)]
			if rule == nil {
				told = append(told, t.end(in, in.Seen, "the rule "+in.Rule+" is not asked any more: nobody says whether it goes on"))
				continue
			}
			in.Rule, in.Explains = rule.ID, slices.Clone(rule.Explains)
		}
	}
	return told
}
