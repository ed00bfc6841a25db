package snapshot

import (
	"encoding/binary"
	"math"
)

// step executes one opcode that run does not, or refuses.
func (m *machine) step(b []byte) error {
	in := m.in
	m.op, m.at = b[0], in.offset()
	switch m.op {
	case opSetItems:
		in.pos++
		from := m.mark()
		if from <= m.base {
			return m.underflow()
		}
		return m.setItems(from-1, from)
	case opAppends:
		in.pos++
		from := m.mark()
		if from <= m.base {
			return m.underflow()
		}
		return m.appendItems(from-1, from)
	case opShortBinUnicode:
		in.pos += 2
		return m.text(uint32(b[1]))
	case opBinUnicode:
		in.pos += 5
		return m.text(binary.LittleEndian.Uint32(b[1:]))
	case opEmptyList:
		in.pos++
		return m.emptyList()
	case opSetItem:
		in.pos++
		if m.top-3 < m.base {
			return m.underflow()
		}
		return m.setItems(m.top-3, m.top-2)
	case opAppend:
		in.pos++
		if m.top-2 < m.base {
			return m.underflow()
		}
		return m.appendItems(m.top-2, m.top-1)
	case opTuple2:
		in.pos++
		return m.pair()
	case opNewFalse:
		in.pos++
		m.push(kindBool, 0)
	case opNewTrue:
		in.pos++
		m.push(kindBool, 1)
	case opNone:
		in.pos++
		m.push(kindNone, 0)
	case opBinFloat:
		in.pos += 9
		m.push(kindFloat, binary.BigEndian.Uint64(b[1:]))
	case opBinGet:
		in.pos += 2
		return m.get(uint32(b[1]))
	case opLongBinGet:
		in.pos += 5
		return m.get(binary.LittleEndian.Uint32(b[1:]))
	case opMemoize:
		in.pos++
		return m.memoize()
	case opBinPut:
		in.pos += 2
		return m.put(uint32(b[1]))
	case opLongBinPut:
		in.pos += 5
		return m.put(binary.LittleEndian.Uint32(b[1:]))
	case opLong1:
		in.pos += 2 + int(b[1])
		return m.long(int(b[1]), b[2:])
	case opMark:
		return m.fault(ErrLimit, "more than %d dicts, lists and tuples in each other", m.limits.Depth)
	case opFrame:
		in.pos += 9
		return m.startFrame(binary.LittleEndian.Uint64(b[1:]))
	case opProto:
		in.pos += 2
		return m.proto(int(b[1]))
	default:
		in.pos++
		return m.refuse()
	}
	return nil
}

// long is an integer of more than eight bytes, of which the last one may only make it unsigned.
func (m *machine) long(size int, b []byte) error {
	if size != 9 || b[8] != 0 {
		return m.fault(ErrLimit, "an integer of %d bytes, more than 64 bits", size)
	}
	if u := binary.LittleEndian.Uint64(b); u > math.MaxInt64 {
		m.push(kindUint, u)
	} else {
		m.push(kindInt, u)
	}
	return nil
}

func (m *machine) text(size uint32) error {
	if uint64(size) > uint64(m.limits.String) {
		return m.fault(ErrLimit, "a string of %d bytes, more than %d", size, m.limits.String)
	}
	kept, ok, err := m.in.text(int(size))
	if err != nil {
		return err
	}
	if !ok {
		return m.truncated()
	}
	id, ok := m.names.intern(kept)
	if !ok {
		return m.fault(ErrLimit, "too many different strings")
	}
	if rest := int(size) - len(kept); rest > 0 {
		if ok, err := m.in.skip(rest); err != nil {
			return err
		} else if !ok {
			return m.truncated()
		}
	}
	m.push(kindString, uint64(id))
	return nil
}

func (m *machine) emptyList() error {
	var run uint64
	if m.top > m.base {
		if below := &m.stack[m.top-1]; below.kind == kindList {
			run = below.n + 1
		}
	}
	if run > maxDevices+uint64(m.limits.Depth) {
		return m.fault(ErrLimit, "more than %d lists in each other: a nesting bomb", run-1)
	}
	m.push(kindList, run)
	return nil
}

// pair makes a tuple of two integers; a tuple of other things is kept as opaque.
func (m *machine) pair() error {
	if m.top-2 < m.base {
		return m.underflow()
	}
	a, b := &m.stack[m.top-2], &m.stack[m.top-1]
	made := value{kind: kindOpaque}
	if a.kind == kindInt && b.kind == kindInt {
		n, ok := m.tuple([2]uint64{a.n, b.n})
		if !ok {
			return m.fault(ErrLimit, "more than %d different pairs of numbers", maxTuples)
		}
		made = value{kind: kindTuple, n: uint64(n)}
	} else {
		m.close(a)
		m.close(b)
	}
	*a = made
	m.top--
	return nil
}

func (m *machine) proto(version int) error {
	if m.protocol != 0 {
		return m.fault(ErrMalformed, "a second one")
	}
	if version < 2 || version > 5 {
		return m.fault(ErrLayout, "protocol %d, only 2 to 5 are read", version)
	}
	m.protocol = version
	return nil
}

func (m *machine) startFrame(size uint64) error {
	here := m.in.offset()
	if here-9 < m.frame {
		return m.fault(ErrMalformed, "begins before the last one ends")
	}
	if size > uint64(m.limits.Bytes) {
		return m.fault(ErrLimit, "a frame of %d bytes, more than %d", size, m.limits.Bytes)
	}
	m.frame = here + int64(size)
	return nil
}

func (m *machine) stop() error {
	switch {
	case m.in.offset() < m.frame:
		return m.fault(ErrMalformed, "the frame should have %d bytes more", m.frame-m.in.offset())
	case len(m.marks) > 0 || m.top != 1:
		return m.fault(ErrMalformed, "%d values and %d marks are left, not one value", m.top, len(m.marks))
	}
	return nil
}

func (m *machine) refuse() error {
	if runsCode(m.op) {
		return m.fault(ErrOpcode, "refused: it names or calls a class of the program that reads it, and a snapshot has none")
	}
	return m.fault(ErrOpcode, "refused: snapshots do not have it")
}
