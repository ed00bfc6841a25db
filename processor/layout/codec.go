package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mathbits "math/bits"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"
)

// ErrState says that what was to be read is no state, or is damaged.
var ErrState = errors.New("corrupt state")

// ErrVersion says that a state was written by a build that keeps other things. It is not guessed at: what it holds begins anew.
var ErrVersion = errors.New("state from another version")

// Codec writes values to bytes, or reads them: one walk for both, so that they cannot differ. Values stand one after the other without
// names: who reads has to know the layout. gob would do, but gives each stream its types again, cannot tell a pointer to zero from none,
// and knows no graphs. It is not safe for concurrent use.
type Codec struct {
	bytes   []byte // room that is written to, or what is read from
	at      int    // where the next is written or read
	reading bool
	room    int   // bytes that may still be allocated for what is read
	second  int64 // of the time before, since 1970: most are near each other
	graph   []kindOfNode
	waiting []waiting // nodes that were named, and are written or read later
	scratch []byte
	err     error
}

const (
	longest  = 1 << 20       // bytes of one text or block
	elements = 1 << 20       // of one list
	freeRoom = 32 << 20      // bytes that any state may take up in memory
	swelling = 64            // and so much for each byte that it has
	rawFloat = 0x7ff8 << 48  // of the many forms of NaN the shortest
	maxPart  = 1_000_000_000 // nanoseconds
)

// Reading says that values are read, not written.
func (c *Codec) Reading() bool { return c.reading }

// Fail notes the first error; nothing is read any more then.
func (c *Codec) Fail(format string, arguments ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrState}, arguments...)...)
	}
	if c.reading {
		c.at = len(c.bytes)
	}
}

// left is how many bytes can still be read.
func (c *Codec) left() int { return len(c.bytes) - c.at }

// take says whether so much more may be allocated: a state of a few bytes must not fill the memory.
func (c *Codec) take(bytes uintptr) bool {
	if bytes > uintptr(c.room) {
		c.Fail("it takes up too much memory")
		return false
	}
	c.room -= int(bytes)
	return true
}

// grow makes room for so many bytes. The room is not appended to: a slice that changes with each number costs a write barrier.
func (c *Codec) grow(n int) {
	c.bytes = append(c.bytes, make([]byte, max(n, len(c.bytes)/2))...)
}

func (c *Codec) add(b []byte) {
	if len(c.bytes)-c.at < len(b) {
		c.grow(len(b))
	}
	c.at += copy(c.bytes[c.at:], b)
}

// Uvarint writes a number, or reads one; in both cases it returns it. So do the others.
func (c *Codec) Uvarint(n uint64) uint64 {
	if !c.reading {
		if len(c.bytes)-c.at < binary.MaxVarintLen64 {
			c.grow(binary.MaxVarintLen64)
		}
		if n < 0x80 { // nearly always
			c.bytes[c.at] = byte(n)
			c.at++
		} else {
			c.at += binary.PutUvarint(c.bytes[c.at:], n)
		}
		return n
	}
	if c.at < len(c.bytes) && c.bytes[c.at] < 0x80 {
		c.at++
		return uint64(c.bytes[c.at-1])
	}
	n, size := binary.Uvarint(c.bytes[c.at:])
	if size <= 0 {
		c.Fail("it ends too early")
		return 0
	}
	c.at += size
	return n
}

// Whole is a number of which it is known how large it may be.
func (c *Codec) Whole(n, most uint64) uint64 {
	if n = c.Uvarint(n); n > most {
		c.Fail("a number is too large")
		return 0
	}
	return n
}

// Length is that of something that takes a byte or more for each of its elements.
func (c *Codec) Length(n, most int) int {
	n = int(c.Whole(uint64(n), uint64(most)))
	if c.reading && n > c.left() {
		c.Fail("it ends too early")
		return 0
	}
	return n
}

// Difference is a number as its distance to another one, which who reads knows.
func (c *Codec) Difference(bits, from uint32) uint32 {
	return from + uint32(unzigzag(c.Uvarint(zigzag(int64(int32(bits-from))))))
}

// Make returns a list of n elements that is to be read, nil where there is no room for it.
func Make[T any](c *Codec, n int) []T {
	if n == 0 || !c.take(uintptr(n)*unsafe.Sizeof(*new(T))) {
		return nil
	}
	return make([]T, n)
}

// zigzag makes numbers near zero small, whatever their sign.
func zigzag(n int64) uint64   { return uint64(n)<<1 ^ uint64(n>>63) }
func unzigzag(n uint64) int64 { return int64(n>>1) ^ -int64(n&1) }

func (c *Codec) integer(n int64) int64 { return unzigzag(c.Uvarint(zigzag(n))) }

func (c *Codec) bool(b bool) bool {
	n := uint64(0)
	if b {
		n = 1
	}
	return c.Whole(n, 1) == 1
}

// float writes whole numbers and simple fractions short: the lower bytes of such a float64 are zero.
func (c *Codec) float(f float64) float64 {
	if f != f {
		f = math.Float64frombits(rawFloat)
	}
	return math.Float64frombits(mathbits.ReverseBytes64(c.Uvarint(mathbits.ReverseBytes64(math.Float64bits(f)))))
}

// time is none, or how long after the time before.
func (c *Codec) time(t *time.Time) {
	if !c.bool(!t.IsZero()) {
		return
	}
	c.second += c.integer(t.Unix() - c.second)
	if part := c.Whole(uint64(t.Nanosecond()), maxPart-1); c.reading {
		*t = time.Unix(c.second, int64(part)).UTC()
	}
}

func (c *Codec) text(text string) string {
	if !c.reading {
		c.Length(len(text), longest)
		if len(c.bytes)-c.at < len(text) {
			c.grow(len(text))
		}
		c.at += copy(c.bytes[c.at:], text)
		return text
	}
	part := c.block(nil)
	if !c.take(uintptr(len(part))) {
		return ""
	}
	return string(part)
}

// block is a slice of bytes; one that was read is part of what it was read from.
func (c *Codec) block(b []byte) []byte {
	n := c.Length(len(b), longest)
	if !c.reading {
		c.add(b)
		return b
	}
	c.at += n
	return c.bytes[c.at-n : c.at]
}

// message is in its own form.
func (c *Codec) message(m proto.Message) {
	if !c.reading {
		o := proto.MarshalOptions{Deterministic: true}
		out, err := o.MarshalAppend(c.scratch[:0], m)
		if err != nil {
			c.Fail("%v", err)
			return
		}
		c.block(out)
		c.scratch = out
		return
	}
	if form := c.block(nil); c.err == nil && c.take(8*uintptr(len(form))) {
		if err := proto.Unmarshal(form, m); err != nil {
			c.Fail("%v", err)
		}
	}
}
