package rules

import "slices"

// spec is one rule as written: its fields, each still at its place in a file.
type spec struct {
	id     string
	fields map[string]field
	at     field   // the id, for messages about the rule as a whole
	layers int     // from how many files it was put together
	twins  []*spec // that have the same id in the same layer
	own    bool    // whether it holds is decided by what a user wrote
}

// deciding are the fields that say whether a rule holds; the others say what follows and what is told.
var deciding = []string{"class", "scope", "thresholds", "when", "confirm", "refute"}

// over returns the base with the fields of the user's part in front; thresholds are merged by name, every other field as a whole.
func (s *spec) over(base *spec) *spec {
	out := &spec{id: s.id, fields: make(map[string]field, len(base.fields)), at: s.at, layers: base.layers + 1, own: base.own}
	for name, f := range base.fields {
		out.fields[name] = f
	}
	for name, f := range s.fields {
		if name == "thresholds" {
			f.below = lower(base.fields[name])
		}
		out.fields[name] = f
		out.own = out.own || slices.Contains(deciding, name)
	}
	return out
}

func lower(f field) *field {
	if f.doc == nil {
		return nil
	}
	return &f
}

// merge lays the rules of a layer over those below it by id; new ids follow in their order.
func merge(below, above []*spec) []*spec {
	out := make([]*spec, len(below), len(below)+len(above))
	at := make(map[string]int, len(below))
	for i, s := range below {
		out[i], at[s.id] = s, i
	}
	for _, s := range above {
		if i, exists := at[s.id]; exists {
			out[i] = s.over(out[i])
			continue
		}
		at[s.id] = len(out)
		out = append(out, s)
	}
	return out
}
