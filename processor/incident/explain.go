package incident

import (
	"slices"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

// explains says whether a is why b is seen: its rule names b's class, and it began first. Where both began at the same moment the
// order of the classes decides.
func explains(a, b *Incident) bool {
	if a == b || a.Class == b.Class || !slices.Contains(a.Explains, b.Class) {
		return false
	}
	if a.Onset.Equal(b.Onset) {
		return precedence(a.Class) < precedence(b.Class)
	}
	return a.Onset.Before(b.Onset)
}

// continues says that a is open and b is the same trouble at a related key, as when an engine takes all its ranks with it: a rule that
// explains its own class says so. Which one was told first does not matter.
func continues(a, b *Incident) bool {
	return a != b && a.Class == b.Class && a.Key != b.Key && slices.Contains(a.Explains, b.Class)
}

// precedence is the place of a class in the order of vocabulary.md; a class that is not in it comes last.
func precedence(class string) int {
	all := rules.Classes()
	if i := slices.Index(all, class); i >= 0 {
		return i
	}
	return len(all)
}

// explainer returns the open incident that explains a trouble: the first in time, then in the order of classes, then of its own key.
func (t *Tracker) explainer(trouble *Incident, related []string) *Incident {
	if t.apart {
		return nil
	}
	var first *Incident
	look := func(key string) {
		for _, in := range t.open[key] {
			if (explains(in, trouble) || continues(in, trouble)) && (first == nil || earlier(in, first)) {
				first = in
			}
		}
	}
	look(trouble.Key)
	for _, key := range related {
		look(key)
	}
	return first
}

func earlier(a, b *Incident) bool {
	if !a.Onset.Equal(b.Onset) {
		return a.Onset.Before(b.Onset)
	}
	return precedence(a.Class) < precedence(b.Class)
}

// explained returns the open incidents that a new one explains: of its own key, and of those that are related to it. They come in
// the order of classes, then of keys.
func (t *Tracker) explained(cause *Incident) []*Incident {
	if t.apart {
		return nil
	}
	var out []*Incident
	for _, all := range [][]*Incident{t.open[cause.Key], t.related[cause.Key]} {
		for _, in := range all {
			if explains(cause, in) && !slices.Contains(out, in) {
				out = append(out, in)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Incident) int {
		switch {
		case a.Class != b.Class:
			return precedence(a.Class) - precedence(b.Class)
		case a.Key < b.Key:
			return -1
		}
		return 1
	})
	return out
}

// absorb keeps a trouble from being an incident of its own. If it is graver than what explains it, the explanation takes its
// severity over: a page must not be lost for being understood.
func (t *Tracker) absorb(cause, trouble *Incident, at time.Time) []*event.Finding {
	if cause.Class != trouble.Class {
		cause.note(trouble)
	}
	if !cause.raise(trouble.Severity) {
		return nil
	}
	return []*event.Finding{t.again(cause, at)}
}

// note keeps the first time that a class was explained, as a symptom with its lag: seen together.
func (in *Incident) note(trouble *Incident) {
	if !slices.ContainsFunc(in.Absorbed, func(s event.Symptom) bool { return s.Name == trouble.Class }) {
		in.Absorbed = append(in.Absorbed, event.Symptom{Name: trouble.Class, Time: trouble.Onset.UTC(), LagSeconds: trouble.Onset.Sub(in.Onset).Seconds()})
	}
}
