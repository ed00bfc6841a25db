// Package layout owns how what the processor knows becomes bytes, and comes back: values and graphs of values, walked by plans that are
// made from their types, with a fingerprint of the layout, a checksum, and bounds on all that is read. It refuses to know what the values
// mean, and to guess at a state of another layout.
package layout

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"reflect"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/klauspost/compress/s2"
)

// Layout is what a state consists of. It may be used by several goroutines.
type Layout struct {
	o       Options
	print   uint32
	roots   []reflect.Type
	planner planner
	nodes   []*nodes
	size    atomic.Int64 // of the last state, which the next will about have
}

// Options say what kind of state it is.
type Options struct {
	Magic   string // begins each state
	Version byte   // raised when a part begins to mean something else
	Most    int    // bytes, not compressed
	Nodes   []Node // the kinds of what refers to each other
}

// New returns the layout of a state that consists of what some pointers point to, in their order. It panics on types that no state
// can hold: channels, functions and interfaces.
func New(o Options, roots ...any) *Layout {
	l := &Layout{o: o, planner: planner{plans: make(map[reflect.Type]*plan), nodes: make(map[reflect.Type]int)}}
	for i, n := range o.Nodes {
		of := reflect.TypeOf(n.Of).Elem()
		l.planner.nodes[of] = i
		l.nodes = append(l.nodes, &nodes{of: of, most: n.Most})
	}
	for _, n := range l.nodes {
		n.plan = l.planner.of(n.of)
	}
	for _, root := range roots {
		t := reflect.TypeOf(root).Elem()
		l.planner.of(t)
		l.roots = append(l.roots, t)
	}
	l.print = l.fingerprint()
	return l
}

// Write returns the state that the roots make up, not sealed yet. It fails with an ErrState for what no state can hold, such as text that is not UTF-8.
func (l *Layout) Write(roots ...any) ([]byte, error) {
	last := int(l.size.Load())
	c := &Codec{bytes: make([]byte, 32<<10+last+last/8), graph: l.graph(true)}
	l.walk(c, roots)
	if c.err == nil && c.at > l.o.Most {
		c.Fail("%d bytes are too much", c.at)
	}
	if c.err != nil {
		return nil, c.err
	}
	l.size.Store(int64(c.at))
	return c.bytes[:c.at], nil
}

// Read fills the roots, which point to zero values, from what Write returned. An error is an ErrState, and leaves them half filled.
func (l *Layout) Read(parts []byte, roots ...any) (*Graph, error) {
	c := &Codec{bytes: parts, reading: true, room: freeRoom + swelling*len(parts), graph: l.graph(false)}
	l.walk(c, roots)
	if c.left() > 0 {
		c.Fail("more than it should hold")
	}
	if c.err != nil {
		return nil, c.err
	}
	return &Graph{c.graph}, nil
}

func (l *Layout) graph(numbered bool) []kindOfNode {
	all := make([]kindOfNode, len(l.nodes))
	for i, n := range l.nodes {
		all[i].nodes = n
		if numbered {
			all[i].numbers = make(map[unsafe.Pointer]uint64)
		}
	}
	return all
}

func (l *Layout) walk(c *Codec, roots []any) {
	for i, root := range roots {
		v := reflect.ValueOf(root)
		if v.Type().Elem() != l.roots[i] {
			panic("a root of another layout: " + v.Type().String())
		}
		(*l.planner.plans[l.roots[i]])(c, v.UnsafePointer())
	}
	c.rest()
}

// A sealed state is the magic, the version in one byte, the layout and a checksum of the rest in four each, lowest first, how the parts are
// packed in one byte, and the parts.
func (l *Layout) header() int { return len(l.o.Magic) + 1 + 4 + 4 }

const (
	packed   = 's' // by s2
	unpacked = 'r' // what s2 makes so small of that nobody would believe it
)

// Seal makes a state of parts that can be kept.
func (l *Layout) Seal(parts []byte) []byte {
	head := l.header()
	out := make([]byte, head+1+s2.MaxEncodedLen(len(parts)))
	body := s2.Encode(out[head+1:], parts)
	out[head] = packed
	if len(parts) > freeRoom+swelling*len(body) {
		body, out[head] = parts, unpacked
		out = append(out[:head+1], parts...)
	}
	out = out[:head+1+len(body)]
	copy(out, l.o.Magic)
	out[len(l.o.Magic)] = l.o.Version
	binary.LittleEndian.PutUint32(out[len(l.o.Magic)+1:], l.print)
	binary.LittleEndian.PutUint32(out[len(l.o.Magic)+5:], checksum(out[head:]))
	return slices.Clip(out)
}

func checksum(body []byte) uint32 { return crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) }

// Open returns the parts of a state that was sealed. An error is an ErrState or an ErrVersion.
func (l *Layout) Open(state []byte) ([]byte, error) {
	m := len(l.o.Magic)
	if len(state) <= l.header() || string(state[:m]) != l.o.Magic {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrState)
	}
	if v := state[m]; v != l.o.Version {
		return nil, fmt.Errorf("%w: it is version %d, this build reads %d", ErrVersion, v, l.o.Version)
	}
	if print := binary.LittleEndian.Uint32(state[m+1:]); print != l.print {
		return nil, fmt.Errorf("%w: it has layout %08x, this build reads %08x", ErrVersion, print, l.print)
	}
	body := state[l.header():]
	if binary.LittleEndian.Uint32(state[m+5:]) != checksum(body) {
		return nil, fmt.Errorf("%w: the checksum is wrong", ErrState)
	}
	how, body := body[0], body[1:]
	switch how {
	case unpacked:
		if len(body) > l.o.Most {
			return nil, fmt.Errorf("%w: %d bytes, %d at most", ErrState, len(body), l.o.Most)
		}
		return body, nil
	case packed:
	default:
		return nil, fmt.Errorf("%w: it is packed in no known way", ErrState)
	}
	if n, err := s2.DecodedLen(body); err != nil || n > l.o.Most || n > freeRoom+swelling*len(body) {
		return nil, fmt.Errorf("%w: %d bytes, %d at most", ErrState, n, l.o.Most)
	}
	parts, err := s2.Decode(nil, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	return parts, nil
}

// Unkept returns the fields that are left out, as type.field and sorted: those of what names its parts. Whoever adds a field there has to
// decide about it; of all other structs every field is kept.
func (l *Layout) Unkept() (names []string) {
	for t := range l.planner.plans {
		at := reflect.PointerTo(t)
		if t.Kind() != reflect.Struct || !at.Implements(partedType) || at.Implements(flowingType) {
			continue
		}
		kept := fieldsOf(t)
		for i := range t.NumField() {
			if f := t.Field(i); !slices.ContainsFunc(kept, func(p part) bool { return p.offset == f.Offset && p.of == f.Type }) {
				names = append(names, t.Name()+"."+f.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// fingerprint tells layouts apart.
func (l *Layout) fingerprint() uint32 {
	sum := fnv.New32a()
	for _, t := range l.roots {
		l.describe(sum, t)
	}
	for _, n := range l.nodes {
		fmt.Fprint(sum, n.of, " ")
		l.fields(sum, n.of)
	}
	return sum.Sum32()
}

// describe tells what is walked, in the order in which it is.
func (l *Layout) describe(w io.Writer, t reflect.Type) {
	fmt.Fprint(w, t.Kind(), " ")
	switch t.Kind() {
	case reflect.Array:
		fmt.Fprint(w, t.Len(), " ")
		l.describe(w, t.Elem())
	case reflect.Slice:
		l.describe(w, t.Elem())
	case reflect.Map:
		l.describe(w, t.Key())
		l.describe(w, t.Elem())
	case reflect.Pointer:
		if t.Implements(messageType) || l.planner.refers(t) {
			fmt.Fprint(w, t) // its own form bears changes; a node is described once
			return
		}
		l.describe(w, t.Elem())
	case reflect.Struct:
		if at := reflect.PointerTo(t); t == timeType || at.Implements(flowingType) || at.Implements(formedType) {
			fmt.Fprint(w, t)
			return
		}
		l.fields(w, t)
	}
}

func (l *Layout) fields(w io.Writer, t reflect.Type) {
	for _, f := range fieldsOf(t) {
		fmt.Fprint(w, f.name, " ")
		l.describe(w, f.of)
	}
}
