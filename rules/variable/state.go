package variable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// ErrState says that what was to be restored is no saved sample.
var ErrState = errors.New("corrupt state of a sample")

// Save returns what the sample knows, by the names of the variables, since an ID means something else in another build. Each name
// gives how much it has in common with the one before.
func (s *Sample) Save() []byte {
	known := 0
	for id := range s.all {
		if s.Known(ID(id)) {
			known++
		}
	}
	out, before := binary.AppendUvarint(nil, uint64(known)), ""
	for id := range s.all {
		v := &s.all[id]
		if !s.Known(ID(id)) {
			continue
		}
		shared := 0
		for shared < min(len(before), len(v.Name)) && before[shared] == v.Name[shared] {
			shared++
		}
		out = appendText(binary.AppendUvarint(out, uint64(shared)), v.Name[shared:])
		before = v.Name
		out = append(out, byte(v.Kind))
		switch v.Kind {
		case Number:
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(s.numbers[id]))
		case Bool:
			out = append(out, byte(s.bools[id]-no))
		case String:
			out = appendText(out, s.strings[ID(id)])
		case Labels:
			out = binary.AppendUvarint(out, uint64(len(s.labels)))
			for _, key := range slices.Sorted(maps.Keys(s.labels)) {
				out = appendText(appendText(out, key), s.labels[key])
			}
		}
	}
	return out
}

func appendText(out []byte, text string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(text))), text...)
}

// Restore makes a sample from what Save returned; all that it knows counts as touched. A name that the table does not hold any more
// is left out, since no rule of this build can read it; one whose kind is another now is an error. An error is an ErrState.
func Restore(state []byte) (*Sample, error) {
	s, r := NewSample(), reader{rest: state}
	name := ""
	for range r.length() {
		shared := r.lengthTo(len(name))
		name = name[:shared] + r.text()
		kind := Kind(r.byte())
		id, known := Lookup(name)
		if known && r.err == nil && All()[id].Kind != kind {
			r.fail(fmt.Sprintf("%s is a %s and was saved as a %s", name, All()[id].Kind, kind))
		}
		if known && s.Known(id) {
			r.fail(name + " comes twice")
		}
		r.value(s, id, kind, known)
		if r.err != nil {
			return nil, r.err
		}
	}
	if len(r.rest) > 0 {
		r.fail("more than it should hold")
	}
	if r.err != nil {
		return nil, r.err
	}
	return s, nil
}

// reader takes a state apart; after an error it reads nothing any more.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(why string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrState, why)
	}
	r.rest = nil
}

// length is a count of things that take up a byte or more each.
func (r *reader) length() int { return r.lengthTo(len(r.rest)) }

// lengthTo is a count that is at most so much.
func (r *reader) lengthTo(most int) int {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > uint64(most) {
		r.fail("a length is wrong")
		return 0
	}
	r.rest = r.rest[size:]
	return int(n)
}

func (r *reader) bytes(n int) []byte {
	if len(r.rest) < n {
		r.fail("it ends too early")
		return make([]byte, n)
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) byte() byte   { return r.bytes(1)[0] }
func (r *reader) text() string { return string(r.bytes(min(r.length(), len(r.rest)))) }

// value reads the value of a variable, and sets it where there is one.
func (r *reader) value(s *Sample, id ID, kind Kind, known bool) {
	known = known && r.err == nil
	switch kind {
	case Number:
		v := math.Float64frombits(binary.LittleEndian.Uint64(r.bytes(8)))
		if v != v {
			r.fail("a number that is known is none")
		} else if known {
			s.SetNumber(id, v)
		}
	case Bool:
		v := r.byte()
		if v > 1 {
			r.fail("a bool is neither true nor false")
		} else if known {
			s.SetBool(id, v == 1)
		}
	case String:
		if v := r.text(); known {
			s.SetString(id, v)
		}
	case Labels:
		labels := make(map[string]string)
		for range r.length() {
			key := r.text()
			labels[key] = r.text()
		}
		if known {
			s.SetLabels(id, labels)
		}
	default:
		r.fail("a kind of variable that does not exist")
	}
}
