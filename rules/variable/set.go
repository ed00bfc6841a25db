package variable

// Set is a set of variables, a bit each.
type Set []uint64

// NewSet returns the set of the given variables.
func NewSet(ids ...ID) Set {
	s := make(Set, (len(All())+63)/64)
	for _, id := range ids {
		s.add(id)
	}
	return s
}

func (s Set) add(id ID) { s[id/64] |= 1 << (id % 64) }

// Join adds the members of another set.
func (s Set) Join(other Set) {
	for i := range s {
		s[i] |= other[i]
	}
}

// meets says whether two sets have a member in common.
func (s Set) meets(other Set) bool {
	for i, word := range s {
		if word&other[i] != 0 {
			return true
		}
	}
	return false
}
