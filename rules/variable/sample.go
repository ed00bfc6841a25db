package variable

import (
	"fmt"
	"maps"
	"math"
)

// Sample holds the value of every variable at one moment; what was never set is unknown, which is not zero.
// It is not safe for use by several goroutines.
type Sample struct {
	numbers    []float64 // numbers, and bools as 0 and 1
	strings    []string
	labels     map[string]string // there is one variable of kind Labels
	known      []uint64
	generation []uint64
	boxed      []any    // the form that a rule reads, made once per change
	boxedAt    []uint64 // the generation that boxed holds; the first value has generation 1
	touched    Set      // what has changed since Settle
	all        []Variable
}

// NewSample returns a sample in which everything is unknown.
func NewSample() *Sample {
	all := All()
	n := len(all)
	return &Sample{
		numbers: make([]float64, n), strings: make([]string, n), known: make([]uint64, (n+63)/64),
		generation: make([]uint64, n), boxed: make([]any, n), boxedAt: make([]uint64, n), touched: NewSet(), all: all,
	}
}

func (s *Sample) must(id ID, kind Kind) {
	if s.all[id].Kind != kind {
		s.wrong(id, kind)
	}
}

func (s *Sample) wrong(id ID, kind Kind) {
	panic(fmt.Sprintf("rule variable %s is a %s, not a %s", s.all[id].Name, s.all[id].Kind, kind))
}

func (s *Sample) mark(id ID) {
	s.known[id/64] |= 1 << (id % 64)
	s.generation[id]++
	s.touched.add(id)
}

// Touched says whether any variable of the set has changed since Settle; of a new sample, whether any was ever set.
func (s *Sample) Touched(of Set) bool { return s.touched.meets(of) }

// Settle forgets what has changed: whoever asks by Touched has taken all of it in.
func (s *Sample) Settle() { clear(s.touched) }

// SetNumber sets a number in base units; NaN makes it unknown. It panics when the variable is no number, as all setters do.
func (s *Sample) SetNumber(id ID, value float64) {
	s.must(id, Number)
	if math.IsNaN(value) {
		s.Unset(id)
		return
	}
	if s.Known(id) && s.numbers[id] == value {
		return
	}
	s.numbers[id] = value
	s.mark(id)
}

// SetBool sets a bool.
func (s *Sample) SetBool(id ID, value bool) {
	s.must(id, Bool)
	var n float64
	if value {
		n = 1
	}
	if s.Known(id) && s.numbers[id] == n {
		return
	}
	s.numbers[id] = n
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
		s.known[id/64] &^= 1 << (id % 64)
		s.generation[id]++
		s.touched.add(id)
	}
}

// Known says whether a variable has a value.
func (s *Sample) Known(id ID) bool { return s.known[id/64]&(1<<(id%64)) != 0 }

// Number returns a number, and whether it is known.
func (s *Sample) Number(id ID) (float64, bool) {
	s.must(id, Number)
	if !s.Known(id) {
		return 0, false
	}
	return s.numbers[id], true
}

// Bool returns a bool, and whether it is known.
func (s *Sample) Bool(id ID) (value, known bool) {
	s.must(id, Bool)
	if !s.Known(id) {
		return false, false
	}
	return s.numbers[id] == 1, true
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

// Generation counts the changes of a variable: the same number means the same value.
func (s *Sample) Generation(id ID) uint64 { return s.generation[id] }

// Boxed returns the value as box makes it (box is given float64, bool, string or map[string]string), made once per change;
// known is false when there is none. Every caller must give the same box.
func (s *Sample) Boxed(id ID, box func(any) any) (value any, known bool) {
	if !s.Known(id) {
		return nil, false
	}
	if s.boxedAt[id] == s.generation[id] {
		return s.boxed[id], true
	}
	switch s.all[id].Kind {
	case Number:
		value = box(s.numbers[id])
	case Bool:
		value = box(s.numbers[id] == 1)
	case String:
		value = box(s.strings[id])
	case Labels:
		value = box(s.labels)
	}
	s.boxed[id], s.boxedAt[id] = value, s.generation[id]
	return value, true
}
