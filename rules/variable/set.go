package variable

import (
	"math/bits"
	"slices"
)

// Set is a set of variables, a bit each.
type Set []uint64

// NewSet returns the set of the given variables.
func NewSet(ids ...ID) Set {
	s := make(Set, (len(All())+63)/64)
	for _, id := range ids {
		s.Add(id)
	}
	return s
}

// Add adds one variable.
func (s Set) Add(id ID) { s[id/64] |= 1 << (id % 64) }

// Join adds the members of another set.
func (s Set) Join(other Set) {
	for i := range s {
		s[i] |= other[i]
	}
}

// With returns the members of both.
func (s Set) With(other Set) Set {
	both := slices.Clone(s)
	both.Join(other)
	return both
}

// Has says whether a variable is in the set.
func (s Set) Has(id ID) bool { return s[id/64]&(1<<(id%64)) != 0 }

// meets says whether two sets have a member in common.
func (s Set) meets(other Set) bool {
	other = other[:len(s)]
	for i, word := range s {
		if word&other[i] != 0 {
			return true
		}
	}
	return false
}

// Reading is what is read of a sample: the values of some variables, and of others only whether they are known.
type Reading struct{ Values, Presence Set }

// NewReading returns the reading of the values of the given variables.
func NewReading(ids ...ID) Reading { return Reading{NewSet(ids...), NewSet()} }

// Clear makes it the reading of nothing.
func (r *Reading) Clear() {
	clear(r.Values)
	clear(r.Presence)
}

// Join adds what another reads.
func (r *Reading) Join(other *Reading) {
	r.Values.Join(other.Values)
	r.Presence.Join(other.Presence)
}

// Clone returns a copy.
func (r *Reading) Clone() Reading { return Reading{slices.Clone(r.Values), slices.Clone(r.Presence)} }

// Equal compares two of them.
func (r *Reading) Equal(other *Reading) bool {
	return slices.Equal(r.Values, other.Values) && slices.Equal(r.Presence, other.Presence)
}

// Readers tells for each variable who reads it, as bits: reader i is bit i%32, so that of more than 32 some share one.
type Readers struct {
	of   []uint32
	read Set // those that anybody reads: most of what changes at a tick is for people's eyes
}

// NewReaders returns an index in which nobody reads anything.
func NewReaders() Readers { return Readers{make([]uint32, len(All())), NewSet()} }

// Add says that a reader reads a variable.
func (r *Readers) Add(id ID, reader int) {
	r.of[id] |= 1 << (reader % 32)
	r.read.Add(id)
}

// Read returns what anybody reads; it is shared and must not be changed.
func (r *Readers) Read() Set { return r.read }

// Of returns the bits of those who read a variable.
func (r *Readers) Of(id ID) uint32 { return r.of[id] }

// Concerned returns the bits of those who read something that has changed since Settle.
func (s *Sample) Concerned(readers *Readers) (who uint32) {
	read := readers.read[:len(s.touched)]
	for i, word := range s.touched {
		for word &= read[i]; word != 0; word &= word - 1 {
			who |= readers.of[i*64+bits.TrailingZeros64(word)]
		}
	}
	return who
}
