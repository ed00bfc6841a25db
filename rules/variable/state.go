package variable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
)

// ErrState says that what was to be restored is no saved sample.
var ErrState = errors.New("corrupt state of a sample")

// What stands beside the kind of an entry.
const (
	isKnown = 1 << (iota + 4)
	isTouched
	isFlipped
	kindBits = isKnown - 1
)

// AppendBinary adds what the sample knows and what has changed since Settle, by the names of the variables, since an ID means something else
// in another build. Each name gives how much it has in common with the one before. It never fails.
func (s *Sample) AppendBinary(out []byte) ([]byte, error) {
	entries := 0
	for i := range s.known {
		entries += bits.OnesCount64(s.known[i] | s.touched[i])
	}
	out, before := binary.AppendUvarint(out, uint64(entries)), ""
	for i := range s.known {
		for word := s.known[i] | s.touched[i]; word != 0; word &= word - 1 {
			id := ID(i*64 + bits.TrailingZeros64(word))
			v := &s.all[id]
			shared := 0
			for shared < min(len(before), len(v.Name)) && before[shared] == v.Name[shared] {
				shared++
			}
			out = appendText(binary.AppendUvarint(out, uint64(shared)), v.Name[shared:])
			before = v.Name
			out = s.appendValue(out, id, v.Kind)
		}
	}
	return out, nil
}

func (s *Sample) appendValue(out []byte, id ID, kind Kind) []byte {
	how := byte(kind)
	if s.touched.Has(id) {
		how |= isTouched
	}
	if s.flipped.Has(id) {
		how |= isFlipped
	}
	if !s.Known(id) {
		return append(out, how)
	}
	out = append(out, how|isKnown)
	switch kind {
	case Number:
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(s.numbers[id]))
	case Bool:
		out = append(out, byte(s.bools[id]-no))
	case String:
		out = appendText(out, s.strings[id])
	case Labels:
		out = binary.AppendUvarint(out, uint64(len(s.labels)))
		for _, key := range slices.Sorted(maps.Keys(s.labels)) {
			out = appendText(appendText(out, key), s.labels[key])
		}
	}
	return out
}

func appendText(out []byte, text string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(text))), text...)
}

// UnmarshalBinary makes the sample what AppendBinary saw. A name that the table does not hold any more is left out, since no rule of this
// build can read it; one whose kind is another now is an error. An error is an ErrState, and leaves the sample half filled.
func (s *Sample) UnmarshalBinary(state []byte) error {
	*s = *NewSample()
	r := reader{rest: state}
	touched, flipped, seen := NewSet(), NewSet(), NewSet()
	name := ""
	for range r.length() {
		shared := r.lengthTo(len(name))
		name = name[:shared] + r.text()
		how := r.byte()
		kind := Kind(how & kindBits)
		id, known := Lookup(name)
		if known && r.err == nil && All()[id].Kind != kind {
			r.fail(fmt.Sprintf("%s is a %s and was saved as a %s", name, All()[id].Kind, kind))
		}
		if known && seen.Has(id) {
			r.fail(name + " comes twice")
		}
		if how&(isKnown|isTouched) == 0 || how&isFlipped > 0 && how&isTouched == 0 || how >= isFlipped<<1 {
			r.fail(name + " is marked in no known way")
		}
		if how&isKnown > 0 {
			r.value(s, id, kind, known)
		}
		if r.err != nil {
			return r.err
		}
		if !known {
			continue
		}
		seen.Add(id)
		if how&isTouched > 0 {
			touched.Add(id)
		}
		if how&isFlipped > 0 {
			flipped.Add(id)
		}
	}
	if len(r.rest) > 0 {
		r.fail("more than it should hold")
	}
	s.touched, s.flipped = touched, flipped
	return r.err
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
