package layout

import (
	"cmp"
	"encoding"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"
)

// Parted is what does not keep all of its fields: its parts are pointers to those that make up its state. The others are worked out anew.
type Parted interface{ Parts() []any }

// Flowing is what knows a shorter form of itself.
type Flowing interface{ Flow(c *Codec) }

// formed is what has a form of its own, made of what the codec cannot see.
type formed interface {
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// plan writes or reads the value at an address. It is made once for a type: a walk by reflection takes five times as long, in which
// a partition stands still.
type plan func(c *Codec, p unsafe.Pointer)

// planner makes the plans of a layout.
type planner struct {
	plans map[reflect.Type]*plan
	nodes map[reflect.Type]int // the struct types of the graph: which kind
}

var (
	messageType = reflect.TypeFor[proto.Message]()
	formedType  = reflect.TypeFor[formed]()
	flowingType = reflect.TypeFor[Flowing]()
	partedType  = reflect.TypeFor[Parted]()
	timeType    = reflect.TypeFor[time.Time]()
)

// of returns the plan of a type, which is complete once the planner has returned to its caller: types may contain themselves.
func (l *planner) of(t reflect.Type) *plan {
	if p := l.plans[t]; p != nil {
		return p
	}
	p := new(plan)
	l.plans[t] = p
	*p = l.make(t)
	return p
}

func (l *planner) make(t reflect.Type) plan {
	switch t.Kind() {
	case reflect.Bool:
		return single(func(c *Codec, v bool) bool { return c.bool(v) })
	case reflect.Int, reflect.Int64: // int has 64 bits wherever this is built
		return single(func(c *Codec, v int64) int64 { return c.integer(v) })
	case reflect.Uint8:
		return single(func(c *Codec, v uint8) uint8 { return uint8(c.Whole(uint64(v), math.MaxUint8)) })
	case reflect.Uint16:
		return single(func(c *Codec, v uint16) uint16 { return uint16(c.Whole(uint64(v), math.MaxUint16)) })
	case reflect.Uint32:
		return single(func(c *Codec, v uint32) uint32 { return uint32(c.Whole(uint64(v), math.MaxUint32)) })
	case reflect.Uint64:
		return single(func(c *Codec, v uint64) uint64 { return c.Uvarint(v) })
	case reflect.Float32:
		return single(func(c *Codec, v float32) float32 { return float32(c.float(float64(v))) })
	case reflect.Float64:
		return single(func(c *Codec, v float64) float64 { return c.float(v) })
	case reflect.String:
		return single(func(c *Codec, v string) string { return c.text(v) })
	case reflect.Array:
		return l.array(t)
	case reflect.Slice:
		return l.slice(t)
	case reflect.Map:
		return l.mapping(t)
	case reflect.Pointer:
		return l.pointer(t)
	case reflect.Struct:
		return l.structure(t)
	}
	panic("state of kind " + t.String())
}

// single is the plan of one value. Nothing is written to what is saved: others may read it meanwhile.
func single[T any](each func(c *Codec, v T) T) plan {
	return func(c *Codec, p unsafe.Pointer) {
		if v := each(c, *(*T)(p)); c.reading {
			*(*T)(p) = v
		}
	}
}

func (l *planner) array(t reflect.Type) plan {
	one, size, n := l.of(t.Elem()), t.Elem().Size(), t.Len()
	return func(c *Codec, p unsafe.Pointer) {
		for i := range n {
			(*one)(c, unsafe.Add(p, uintptr(i)*size))
		}
	}
}

// slice reads one without elements as nil: nothing tells them apart.
func (l *planner) slice(t reflect.Type) plan {
	one, size, refers := l.of(t.Elem()), t.Elem().Size(), l.refers(t.Elem())
	return func(c *Codec, p unsafe.Pointer) {
		v := reflect.NewAt(t, p).Elem()
		n := c.Length(v.Len(), elements)
		if c.reading {
			if n == 0 || !c.take(uintptr(n)*size) {
				return
			}
			v.Set(reflect.MakeSlice(t, n, n))
		}
		at := v.UnsafePointer()
		for i := 0; i < n && c.err == nil; i++ {
			element := unsafe.Add(at, uintptr(i)*size)
			if (*one)(c, element); refers && *(*unsafe.Pointer)(element) == nil {
				c.Fail("a list that names nobody")
			}
		}
	}
}

// mapping writes a map in the order of its keys. One that is read is there, and may be empty.
func (l *planner) mapping(t reflect.Type) plan {
	key, one, refers := l.of(t.Key()), l.of(t.Elem()), l.refers(t.Elem())
	size := t.Key().Size() + t.Elem().Size() + 16
	return func(c *Codec, p unsafe.Pointer) {
		m := reflect.NewAt(t, p).Elem()
		n := c.Length(m.Len(), elements)
		k, v := reflect.New(t.Key()), reflect.New(t.Elem())
		if !c.reading {
			keys := m.MapKeys()
			slices.SortFunc(keys, compare)
			for _, of := range keys {
				k.Elem().Set(of)
				v.Elem().Set(m.MapIndex(of))
				(*key)(c, k.UnsafePointer())
				(*one)(c, v.UnsafePointer())
			}
			return
		}
		if !c.take(uintptr(n) * size) {
			return
		}
		m.Set(reflect.MakeMapWithSize(t, n))
		before := reflect.New(t.Key()).Elem()
		for i := 0; i < n && c.err == nil; i++ {
			k.Elem().SetZero()
			v.Elem().SetZero()
			(*key)(c, k.UnsafePointer())
			(*one)(c, v.UnsafePointer())
			switch {
			case c.err != nil:
				return
			case i > 0 && compare(before, k.Elem()) >= 0:
				c.Fail("keys that are not in order")
				return
			case refers && v.Elem().IsNil():
				c.Fail("a map that names nobody")
				return
			}
			before.Set(k.Elem())
			m.SetMapIndex(k.Elem(), v.Elem())
		}
	}
}

// compare orders the keys of maps: texts, numbers, and structs of them.
func compare(a, b reflect.Value) int {
	switch a.Kind() {
	case reflect.String:
		return strings.Compare(a.String(), b.String())
	case reflect.Int, reflect.Int64:
		return cmp.Compare(a.Int(), b.Int())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return cmp.Compare(a.Uint(), b.Uint())
	case reflect.Struct:
		for i := range a.NumField() {
			if order := compare(a.Field(i), b.Field(i)); order != 0 {
				return order
			}
		}
		return 0
	}
	panic("key of kind " + a.Type().String())
}

// refers says that a type is a reference to a node of the graph.
func (l *planner) refers(t reflect.Type) bool {
	if t.Kind() != reflect.Pointer {
		return false
	}
	_, is := l.nodes[t.Elem()]
	return is
}

// pointer tells none from a pointer to zero.
func (l *planner) pointer(t reflect.Type) plan {
	if kind, is := l.nodes[t.Elem()]; is {
		l.of(t.Elem())
		return func(c *Codec, p unsafe.Pointer) { c.refer(kind, (*unsafe.Pointer)(p)) }
	}
	to := t.Elem()
	size := to.Size()
	fresh := func(c *Codec, p unsafe.Pointer) bool {
		there := c.bool(*(*unsafe.Pointer)(p) != nil)
		if there && c.reading {
			if !c.take(size) {
				return false
			}
			*(*unsafe.Pointer)(p) = reflect.New(to).UnsafePointer()
		}
		return there
	}
	if t.Implements(messageType) {
		return func(c *Codec, p unsafe.Pointer) {
			if fresh(c, p) {
				c.message(reflect.NewAt(t, p).Elem().Interface().(proto.Message))
			}
		}
	}
	one := l.of(to)
	return func(c *Codec, p unsafe.Pointer) {
		if fresh(c, p) {
			(*one)(c, *(*unsafe.Pointer)(p))
		}
	}
}

func (l *planner) structure(t reflect.Type) plan {
	switch at := reflect.PointerTo(t); {
	case t == timeType:
		return func(c *Codec, p unsafe.Pointer) { c.time((*time.Time)(p)) }
	case at.Implements(flowingType):
		return func(c *Codec, p unsafe.Pointer) { reflect.NewAt(t, p).Interface().(Flowing).Flow(c) }
	case at.Implements(formedType):
		return func(c *Codec, p unsafe.Pointer) { c.form(reflect.NewAt(t, p).Interface().(formed)) }
	}
	type field struct {
		offset uintptr
		plan   *plan
	}
	var fields []field
	for _, f := range fieldsOf(t) {
		fields = append(fields, field{f.offset, l.of(f.of)})
	}
	return func(c *Codec, p unsafe.Pointer) {
		for i := range fields {
			(*fields[i].plan)(c, unsafe.Add(p, fields[i].offset))
		}
	}
}

// form is a block that a type makes of itself; nobody knows how large it becomes in memory.
func (c *Codec) form(of formed) {
	if !c.reading {
		out, err := of.AppendBinary(c.scratch[:0])
		if err != nil {
			c.Fail("%v", err)
			return
		}
		c.block(out)
		c.scratch = out
		return
	}
	if block := c.block(nil); c.err == nil && c.take(8<<10+8*uintptr(len(block))) {
		if err := of.UnmarshalBinary(block); err != nil {
			c.Fail("%v", err)
		}
	}
}

// part is one field that is kept.
type part struct {
	name   string
	offset uintptr
	of     reflect.Type
}

// fieldsOf returns the fields of a struct that are kept: its parts, or all of them.
func fieldsOf(t reflect.Type) (kept []part) {
	v := reflect.New(t)
	parted, is := v.Interface().(Parted)
	if !is {
		for i := range t.NumField() {
			f := t.Field(i)
			kept = append(kept, part{f.Name, f.Offset, f.Type})
		}
		return kept
	}
	for _, p := range parted.Parts() {
		at := reflect.ValueOf(p)
		offset := at.Pointer() - v.Pointer()
		i := slices.IndexFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
			return len(f.Index) == 1 && f.Offset == offset && f.Type == at.Type().Elem()
		})
		if i < 0 {
			panic("a part of " + t.String() + " is no field of it")
		}
		kept = append(kept, part{reflect.VisibleFields(t)[i].Name, offset, at.Type().Elem()})
	}
	return kept
}
