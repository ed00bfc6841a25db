package incident

import (
	"slices"
)

// maxAlike bounds the slots that a finding names.
const maxAlike = 16

// alikeness is what makes incidents alike: one class in one group, which is a release of a model in a cluster. Of a rule that is tried out
// only its own are.
type alikeness struct{ group, class, rule string }

func (t *Tracker) alikeness(in *Incident) alikeness {
	if t.apart {
		return alikeness{in.Group, in.Class, in.Rule}
	}
	return alikeness{group: in.Group, class: in.Class}
}

func (t *Tracker) join(in *Incident) {
	if in.Group == "" {
		return
	}
	of := t.alikeness(in)
	at, _ := slices.BinarySearch(t.groups[of], in.Key)
	t.groups[of] = slices.Insert(t.groups[of], at, in.Key)
}

func (t *Tracker) leave(in *Incident) {
	of := t.alikeness(in)
	keys := t.groups[of]
	at, found := slices.BinarySearch(keys, in.Key)
	if !found {
		return
	}
	if t.groups[of] = slices.Delete(keys, at, at+1); len(t.groups[of]) == 0 {
		delete(t.groups, of)
	}
}

// regroup follows a trouble that is seen in another group, as the next release with the same leak.
func (t *Tracker) regroup(in *Incident, group string) {
	if group == "" || group == in.Group {
		return
	}
	t.leave(in)
	in.Group = group
	t.join(in)
}

// alike returns how many incidents of the class are open in the group, this one included, and the first of their keys. One alone is
// no roll-up: zero.
func (t *Tracker) alike(in *Incident) (int, []string) {
	keys := t.groups[t.alikeness(in)]
	if in.Group == "" || len(keys) < 2 {
		return 0, nil
	}
	return len(keys), slices.Clone(keys[:min(len(keys), maxAlike)])
}
