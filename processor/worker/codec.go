package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	mathbits "math/bits"
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"
)

// ErrState says that what was to be restored is no saved worker, or is damaged.
var ErrState = errors.New("corrupt state of a worker")

// parted is what keeps fields to itself: its parts are pointers to those that make up its state. The others are worked out anew.
type parted interface{ parts() []any }

// flowing is what knows a shorter form of itself.
type flowing interface{ flow(c *codec) }

// codec writes values to bytes, or reads them: one walk for both, so that they cannot differ. Values stand one after the other without
// names: who reads has to know the layout. gob would do, but gives each stream its types again, and cannot tell a pointer to zero from
// none.
type codec struct {
	bytes   []byte // written so far, or read from
	at      int    // where the next is read
	reading bool
	second  int64 // of the time before, since 1970: most are near each other
	err     error
}

// fail notes the first error; nothing is read any more then.
func (c *codec) fail(format string, arguments ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrState}, arguments...)...)
	}
	if c.reading {
		c.at = len(c.bytes)
	}
}

// left is how many bytes can still be read.
func (c *codec) left() int { return len(c.bytes) - c.at }

// all walks what pointers point to.
func (c *codec) all(pointers []any) {
	for _, p := range pointers {
		c.value(reflect.ValueOf(p).Elem())
	}
}

func (c *codec) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		if b := c.whole(one(v.Bool()), 1); c.reading {
			v.SetBool(b == 1)
		}
	case reflect.Int, reflect.Int64:
		if n := unzigzag(c.uvarint(zigzag(v.Int()))); c.reading {
			v.SetInt(n)
		}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n := c.whole(v.Uint(), math.MaxUint64>>(64-v.Type().Bits())); c.reading {
			v.SetUint(n)
		}
	case reflect.Float32, reflect.Float64:
		if f := c.float(v.Float()); c.reading {
			v.SetFloat(f)
		}
	case reflect.String:
		if text := c.text(v.String()); c.reading {
			v.SetString(text)
		}
	case reflect.Array:
		for i := range v.Len() {
			c.value(v.Index(i))
		}
	case reflect.Slice:
		if n := c.length(v.Len(), maxElements); c.reading && n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			c.value(v.Index(i))
		}
	case reflect.Pointer:
		c.pointer(v)
	case reflect.Struct:
		c.structure(v)
	default:
		panic("worker state of kind " + v.Kind().String())
	}
}

// pointer tells none from a pointer to zero. A message is in its own form.
func (c *codec) pointer(v reflect.Value) {
	if there := c.whole(one(!v.IsNil()), 1); there == 0 {
		return
	}
	if c.reading {
		v.Set(reflect.New(v.Type().Elem()))
	}
	message, is := v.Interface().(proto.Message)
	if !is {
		c.value(v.Elem())
		return
	}
	var form []byte
	if !c.reading {
		var err error
		if form, err = (proto.MarshalOptions{Deterministic: true}).Marshal(message); err != nil {
			c.fail("%v", err)
			return
		}
	}
	if form = c.block(form); c.reading && c.err == nil {
		if err := proto.Unmarshal(form, message); err != nil {
			c.fail("%v", err)
		}
	}
}

func (c *codec) structure(v reflect.Value) {
	switch of := v.Addr().Interface().(type) {
	case *time.Time:
		c.time(of)
	case flowing:
		of.flow(c)
	case parted:
		c.all(of.parts())
	default:
		for i := range v.NumField() {
			c.value(v.Field(i))
		}
	}
}

// time is none, or how long after the time before.
func (c *codec) time(t *time.Time) {
	if there := c.whole(one(!t.IsZero()), 1); there == 0 {
		return
	}
	c.second += unzigzag(c.uvarint(zigzag(t.Unix() - c.second)))
	if part := c.whole(uint64(t.Nanosecond()), uint64(time.Second)-1); c.reading {
		*t = time.Unix(c.second, int64(part)).UTC()
	}
}

// uvarint writes a number, or reads one; in both cases it returns it. So do the others.
func (c *codec) uvarint(n uint64) uint64 {
	if !c.reading {
		if n < 0x80 { // nearly always
			c.bytes = append(c.bytes, byte(n))
		} else {
			c.bytes = binary.AppendUvarint(c.bytes, n)
		}
		return n
	}
	n, size := binary.Uvarint(c.bytes[c.at:])
	if size <= 0 {
		c.fail("it ends too early")
		return 0
	}
	c.at += size
	return n
}

// whole is a number of which it is known how large it may be.
func (c *codec) whole(n, most uint64) uint64 {
	if n = c.uvarint(n); n > most {
		c.fail("a number is too large")
		return 0
	}
	return n
}

// length is that of something that takes a byte or more for each of its elements.
func (c *codec) length(n, most int) int {
	n = int(c.whole(uint64(n), uint64(most)))
	if c.reading && n > c.left() {
		c.fail("it ends too early")
		return 0
	}
	return n
}

// float writes whole numbers and simple fractions short: the lower bytes of such a float64 are zero.
func (c *codec) float(f float64) float64 {
	if f != f {
		f = math.Float64frombits(0x7ff8 << 48) // of the many forms of NaN the shortest
	}
	return math.Float64frombits(mathbits.ReverseBytes64(c.uvarint(mathbits.ReverseBytes64(math.Float64bits(f)))))
}

func (c *codec) text(text string) string {
	if !c.reading {
		c.length(len(text), maxState)
		c.bytes = append(c.bytes, text...)
		return text
	}
	return string(c.block(nil))
}

// block is a slice of bytes; one that was read is part of what it was read from.
func (c *codec) block(b []byte) []byte {
	n := c.length(len(b), maxState)
	if !c.reading {
		c.bytes = append(c.bytes, b...)
		return b
	}
	c.at += n
	return c.bytes[c.at-n : c.at]
}

// flow writes each value as the difference to the row above: most of what is measured moves little.
func (m *matrix[T]) flow(c *codec) {
	m.Width = c.length(m.Width, maxElements)
	n := c.length(len(m.Values), maxState)
	if c.reading {
		if m.Width == 0 && n > 0 || m.Width > 0 && n%m.Width > 0 {
			c.fail("rows of different lengths")
			return
		}
		if n > 0 {
			m.Values = make([]T, n)
		}
	}
	switch values := any(m.Values).(type) {
	case []float32:
		for i := range values {
			above := uint32(0)
			if i >= m.Width {
				above = math.Float32bits(values[i-m.Width])
			}
			if bits := c.step(math.Float32bits(values[i]), above); c.reading {
				values[i] = math.Float32frombits(bits)
			}
		}
	case []half:
		for i := range values {
			above := half(0)
			if i >= m.Width {
				above = values[i-m.Width]
			}
			if bits := c.step(uint32(values[i]), uint32(above)); c.reading {
				values[i] = half(bits)
			}
		}
	}
}

func (c *codec) step(bits, above uint32) uint32 {
	return above + uint32(unzigzag(c.uvarint(zigzag(int64(int32(bits-above))))))
}

// zigzag makes numbers near zero small, whatever their sign.
func zigzag(n int64) uint64   { return uint64(n)<<1 ^ uint64(n>>63) }
func unzigzag(n uint64) int64 { return int64(n>>1) ^ -int64(n&1) }

func one(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// layout describes what is walked, in the order in which it is.
func layout(w io.Writer, t reflect.Type) {
	fmt.Fprint(w, t.Kind(), " ")
	switch t.Kind() {
	case reflect.Array:
		fmt.Fprint(w, t.Len(), " ")
		layout(w, t.Elem())
	case reflect.Slice:
		layout(w, t.Elem())
	case reflect.Pointer:
		if t.Implements(reflect.TypeFor[proto.Message]()) {
			fmt.Fprint(w, t) // its own form bears changes
			return
		}
		layout(w, t.Elem())
	case reflect.Struct:
		switch of := reflect.New(t).Interface().(type) {
		case *time.Time, flowing:
			fmt.Fprint(w, t)
		case parted:
			layouts(w, of.parts())
		default:
			for i := range t.NumField() {
				fmt.Fprint(w, t.Field(i).Name, " ")
				layout(w, t.Field(i).Type)
			}
		}
	}
}

func layouts(w io.Writer, pointers []any) {
	for _, p := range pointers {
		layout(w, reflect.TypeOf(p).Elem())
	}
}

// fingerprint32 tells layouts apart.
func fingerprint32(pointers []any) uint32 {
	sum := fnv.New32a()
	layouts(sum, pointers)
	return sum.Sum32()
}
