package snapshot

import (
	"encoding/binary"
	"fmt"
)

// kind is what a value on the stack of the machine is. The first ones are shareable: a memo slot holds them as they are.
type kind uint8

const (
	_          kind = iota
	kindString      // n is an identifier of names
	kindFrame       // n is an identifier of frames
	kindStack       // a list of frames; n is an identifier of stacks
	kindTuple       // n is an index into tuples
	kindEmpty       // an empty list that must stay empty
	kindOpaque      // something of which nothing is kept

	slotList   // in a memo slot only: an empty list, still on the stack
	slotDict   // in a memo slot only: an empty dict, still on the stack
	slotFilled // in a memo slot only: the list at this place of the stack, which has items

	kindNone
	kindBool
	kindInt  // n is an int64
	kindUint // n is more than an int64 holds
	kindFloat
	kindBlock   // n is an index into blocks
	kindEntry   // n is an index into entries
	kindSegment // n is an index into segments
	kindHistory // n is an index into histories
	kindSettings
	kindTop

	// What other values can still be put into, and what has to be told to the memo when it becomes part of something.
	kindDict      // empty
	kindList      // empty; n is how many of them lie on each other
	kindFrames    // n is start<<32|bytes in pending
	kindBlocks    // so in blocks
	kindEntries   // so in entries
	kindSegments  // so in segments
	kindHistories // so in histories
	kindTraces    // so in traces
	kindMixed     // of anything else; n is the count
)

// refMask are the bits of a memo slot that hold a number; the four above hold a kind.
const (
	refShift = 28
	refMask  = 1<<refShift - 1
)

// value is one object on the stack.
type value struct {
	n    uint64
	slot uint32 // 1 + its place in the memo, of what can still change
	kind kind
}

const (
	memoShift = 14
	memoPage  = 1 << memoShift
)

// machine runs a pickle. It keeps records, not objects: a dict becomes a block, an entry, a frame in the tables when its items are set,
// and what the memo or a list knows of it is a number.
type machine struct {
	in     *input
	limits Limits
	whole  int64   // bytes of the whole pickle, 0 where that is not known; a hint
	stack  []value // all of it; top says how much is in use
	top    int
	marks  []int32
	base   int // the lowest place of the stack that the innermost mark leaves to an opcode
	memo   []*[memoPage]uint32
	memos  int
	room   int // slots that the memo's pages have, as far as the limit allows
	items  int64

	protocol int
	frame    int64 // offset at which the frame ends
	op       byte  // the opcode under way, and where it stands
	at       int64

	tables
}

// run executes the pickle to its STOP. What makes up nearly all of a snapshot is done here, on local variables: numbers, references to
// the memo and new slots in it.
func (m *machine) run() error {
	in := m.in
	if err := in.fill(lookahead); err != nil {
		return err
	}
	if in.end == 0 {
		return &Fault{Text: "nothing is in it", Kind: ErrTruncated}
	}
	if in.buffer[0] != opProto {
		return &Fault{Text: "no pickle of protocol 2 or later, which begins with PROTO", Kind: ErrLayout}
	}
	var (
		buffer = in.buffer
		pos    = in.pos
		end    = in.end
		stack  = m.stack
		top    = m.top
		memo   = m.memo
	)
next:
	for {
		if end-pos < lookahead {
			in.pos = pos
			if err := in.fill(lookahead); err != nil {
				return err
			}
			if pos, end = in.pos, in.end; pos >= end {
				return m.truncated()
			}
		}
		if top >= len(stack) {
			in.pos, m.top = pos, top
			m.op, m.at = buffer[pos], in.offset()
			if err := m.grow(); err != nil {
				return err
			}
			stack = m.stack
		}
		b := buffer[pos : pos+lookahead : pos+lookahead]
	again:
		switch op := b[0]; op {
		case opLongBinGet:
			// The frames of a stack follow one on the other.
			slot := binary.LittleEndian.Uint32(b[1:])
			for page := slot >> memoShift; page < uint32(len(memo)); page = slot >> memoShift {
				ref := memo[page][slot%memoPage]
				k := kind(ref >> refShift)
				if k-1 >= kindOpaque { // 0, of an empty slot, is none of the shareable ones
					break
				}
				stack[top] = value{n: uint64(ref & refMask), kind: k}
				top++
				pos += 5
				if end-pos < lookahead || top >= len(stack) {
					continue next
				}
				if b = buffer[pos : pos+lookahead : pos+lookahead]; b[0] != opLongBinGet {
					goto again
				}
				slot = binary.LittleEndian.Uint32(b[1:])
			}
		case opBinGet:
			if len(memo) > 0 {
				ref := memo[0][b[1]]
				if k := kind(ref >> refShift); k-1 < kindOpaque {
					stack[top] = value{n: uint64(ref & refMask), kind: k}
					top++
					pos += 2
					continue
				}
			}
		case opMemoize:
			if top > m.base && m.memos < m.room {
				v := &stack[top-1]
				slot := &memo[m.memos>>memoShift][uint(m.memos)%memoPage]
				switch {
				case v.kind <= kindOpaque:
					*slot = uint32(v.kind)<<refShift | uint32(v.n)
				case v.kind == kindDict && v.slot == 0:
					*slot = uint32(slotDict) << refShift
					v.slot = uint32(m.memos + 1)
				case v.kind == kindList && v.slot == 0:
					*slot = uint32(slotList) << refShift
					v.slot = uint32(m.memos + 1)
				default:
					goto other
				}
				m.memos++
				pos++
				continue
			}
		case opBinInt1:
			stack[top] = value{n: uint64(b[1]), kind: kindInt}
			top++
			pos += 2
			continue
		case opBinInt2:
			stack[top] = value{n: uint64(binary.LittleEndian.Uint16(b[1:])), kind: kindInt}
			top++
			pos += 3
			continue
		case opBinInt:
			stack[top] = value{n: uint64(int64(int32(binary.LittleEndian.Uint32(b[1:])))), kind: kindInt}
			top++
			pos += 5
			continue
		case opLong1:
			if size := uint(b[1]); size <= 8 {
				shift := 64 - 8*size
				stack[top] = value{n: uint64(int64(binary.LittleEndian.Uint64(b[2:])<<shift) >> shift), kind: kindInt}
				top++
				pos += 2 + int(size)
				continue
			}
		case opMark:
			if len(m.marks) < m.limits.Depth {
				m.marks = append(m.marks, int32(top))
				m.base = top
				pos++
				continue
			}
		case opEmptyDict:
			stack[top] = value{kind: kindDict}
			top++
			pos++
			continue
		case opShortBinUnicode:
			if size := int(b[1]); end-pos-2 >= size {
				if id, ok := m.names.intern(buffer[pos+2 : pos+2+size]); ok && size <= m.limits.String {
					stack[top] = value{n: uint64(id), kind: kindString}
					top++
					pos += 2 + size
					continue
				}
			}
		case opStop:
			in.pos, m.top = pos+1, top
			m.op, m.at = op, in.before+int64(pos)
			return m.stop()
		}
	other:
		in.pos, m.top = pos, top
		if err := m.step(b); err != nil {
			return err
		}
		pos, end, top, memo = in.pos, in.end, m.top, m.memo
	}
}

func (m *machine) push(k kind, n uint64) {
	m.stack[m.top] = value{n: n, kind: k}
	m.top++
}

// mark takes the innermost mark away and returns its place, -1 where there is none.
func (m *machine) mark() int {
	last := len(m.marks) - 1
	if last < 0 {
		return -1
	}
	at := int(m.marks[last])
	m.marks = m.marks[:last]
	m.base = 0
	if last > 0 {
		m.base = int(m.marks[last-1])
	}
	return at
}

// grow makes room for more values, as far as the bytes read so far justify them.
func (m *machine) grow() error {
	read := m.in.offset()
	if allowed := firstStack + read/stackFactor; int64(m.top) >= allowed || m.top >= refMask {
		return m.fault(ErrLimit, "%d values wait to be put into something after %d bytes: a nesting bomb", m.top, read)
	}
	grown := make([]value, min(max(firstStack, 2*len(m.stack)), int(firstStack+read/stackFactor)))
	copy(grown, m.stack)
	m.stack = grown
	return nil
}

func (m *machine) underflow() error {
	return m.fault(ErrMalformed, "takes more from the stack than there is")
}

func (m *machine) truncated() error {
	return &Fault{Offset: m.in.before + int64(m.in.end), Text: "the pickle ends here, before its STOP", Kind: ErrTruncated}
}

// fault blames the opcode under way. Where that one is cut off at the end of the stream, and so was read with zeros behind it, the
// fault is the end.
func (m *machine) fault(kind error, format string, args ...any) error {
	if m.in.pos > m.in.end && m.in.over {
		return m.truncated()
	}
	return &Fault{Offset: m.at, Opcode: opcodeName(m.op), Text: fmt.Sprintf(format, args...), Kind: kind}
}
