package variable

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Sample holds the value of every variable at one moment; what was never set is unknown, which is not zero.
// It is not safe for use by several goroutines.
type Sample struct {
	numbers    []float64         // NaN where a number is not known, and of other kinds
	bools      []truth           // none of other kinds
	strings    map[ID]string     // few of the variables are
	labels     map[string]string // there is one variable of kind Labels
	known      Set
	generation []uint32
	boxed      map[ID]box // the form that a rule reads, made once per change; few are asked for
	touched    Set        // what has changed since Settle
	flipped    Set        // what has become known, or unknown, since then
	kinds      []Kind     // shared, as all
	all        []Variable
}

// truth is a bool that may be unknown.
type truth uint8

const (
	unknown truth = iota
	no
	yes
)

// box is a value as a rule reads it, and the generation that it was made from.
type box struct {
	value any
	of    uint32
}

// NewSample returns a sample in which everything is unknown.
func NewSample() *Sample {
	t := table()
	n := len(t.all)
	numbers := make([]float64, n)
	for i := range numbers {
		numbers[i] = math.NaN()
	}
	return &Sample{
		numbers: numbers, bools: make([]truth, n), strings: make(map[ID]string), known: NewSet(), generation: make([]uint32, n), boxed: make(map[ID]box),
		touched: NewSet(), flipped: NewSet(), kinds: t.kinds, all: t.all,
	}
}

func (s *Sample) must(id ID, kind Kind) {
	if s.kinds[id] != kind {
		s.wrong(id, kind)
	}
}

func (s *Sample) wrong(id ID, kind Kind) {
	panic(fmt.Sprintf("rule variable %s is a %s, not a %s", s.all[id].Name, s.all[id].Kind, kind))
}

func (s *Sample) mark(id ID) {
	if !s.Known(id) {
		s.known.Add(id)
		s.flipped.Add(id)
	}
	s.generation[id]++
	s.touched.Add(id)
}

// Touched says whether any variable of the set has changed since Settle; of a new sample, whether any was ever set.
func (s *Sample) Touched(of Set) bool { return s.touched.meets(of) }

// Moved is Touched for a reading.
func (s *Sample) Moved(r *Reading) bool {
	return s.touched.meets(r.Values) || s.flipped.meets(r.Presence)
}

// Changed says whether a variable has changed since Settle.
func (s *Sample) Changed(id ID) bool { return s.touched.Has(id) }

// Flipped says whether a variable has become known, or unknown, since Settle.
func (s *Sample) Flipped(id ID) bool { return s.flipped.Has(id) }

// Settle forgets what has changed: whoever asks by Touched has taken all of it in.
func (s *Sample) Settle() {
	clear(s.touched)
	clear(s.flipped)
}

// Aside lets set change variables that no rule reads, without a trace: when it is called must make no difference to what has changed.
func (s *Sample) Aside(set func()) {
	touched, flipped := slices.Clone(s.touched), slices.Clone(s.flipped)
	set()
	copy(s.touched, touched)
	copy(s.flipped, flipped)
}

// SetNumber sets a number in base units; NaN makes it unknown, and so does what is infinite, which no finding
// can carry. It panics when the variable is no number, as all setters do.
func (s *Sample) SetNumber(id ID, value float64) {
	if s.numbers[id] != value { // by far the most often it is the same
		s.setNumber(id, value)
	}
}

func (s *Sample) setNumber(id ID, value float64) {
	s.must(id, Number)
	if math.IsNaN(value) || math.IsInf(value, 0) {
		s.Unset(id)
		return
	}
	s.numbers[id] = value
	s.mark(id)
}

// SetBool sets a bool.
func (s *Sample) SetBool(id ID, value bool) {
	is := no
	if value {
		is = yes
	}
	if s.bools[id] != is {
		s.setBool(id, is)
	}
}

func (s *Sample) setBool(id ID, value truth) {
	s.must(id, Bool)
	s.bools[id] = value
	s.mark(id)
}

// SetString sets a string; the empty string is a known value.
func (s *Sample) SetString(id ID, value string) {
	s.must(id, String)
	if s.Known(id) && s.strings[id] == value {
		return
	}
	s.strings[id] = value
	s.mark(id)
}

// SetLabels sets the map; the sample keeps it, so the caller no longer changes it.
func (s *Sample) SetLabels(id ID, value map[string]string) {
	s.must(id, Labels)
	if s.Known(id) && maps.Equal(s.labels, value) {
		return
	}
	s.labels = value
	s.mark(id)
}

// Unset makes a variable unknown.
func (s *Sample) Unset(id ID) {
	if s.Known(id) {
		s.numbers[id], s.bools[id] = math.NaN(), unknown
		s.known[id/64] &^= 1 << (id % 64)
		s.flipped.Add(id)
		s.generation[id]++
		s.touched.Add(id)
	}
}

// Known says whether a variable has a value.
func (s *Sample) Known(id ID) bool { return s.known[id/64]&(1<<(id%64)) != 0 }

// Number returns a number, and whether it is known.
func (s *Sample) Number(id ID) (float64, bool) {
	if v := s.numbers[id]; v == v {
		return v, true
	}
	s.must(id, Number)
	return 0, false
}

// Bool returns a bool, and whether it is known.
func (s *Sample) Bool(id ID) (value, known bool) {
	if is := s.bools[id]; is != unknown {
		return is == yes, true
	}
	s.must(id, Bool)
	return false, false
}

// Text returns a string, and whether it is known.
func (s *Sample) Text(id ID) (string, bool) {
	s.must(id, String)
	if !s.Known(id) {
		return "", false
	}
	return s.strings[id], true
}

// Labels returns the map, and whether it is known.
func (s *Sample) Labels(id ID) (map[string]string, bool) {
	s.must(id, Labels)
	return s.labels, s.Known(id)
}

// Generation counts the changes of a variable: the same number means the same value, until it has changed 2³² times.
func (s *Sample) Generation(id ID) uint64 { return uint64(s.generation[id]) }

// Boxed returns the value as the function makes it (it is given float64, bool, string or map[string]string), made once per change;
// known is false when there is none. Every caller must give the same function.
func (s *Sample) Boxed(id ID, as func(any) any) (value any, known bool) {
	if !s.Known(id) {
		return nil, false
	}
	if made, is := s.boxed[id]; is && made.of == s.generation[id] {
		return made.value, true
	}
	switch s.kinds[id] {
	case Number:
		value = as(s.numbers[id])
	case Bool:
		value = as(s.bools[id] == yes)
	case String:
		value = as(s.strings[id])
	case Labels:
		value = as(s.labels)
	}
	s.boxed[id] = box{value, s.generation[id]}
	return value, true
}
