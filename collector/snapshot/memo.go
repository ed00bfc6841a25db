package snapshot

// refer is a memo slot's content.
func refer(k kind, n uint64) uint32 { return uint32(k)<<refShift | uint32(n) }

func (m *machine) slot(i uint32) *uint32 { return &m.memo[i>>memoShift][i&(memoPage-1)] }

// get pushes what a memo slot holds.
func (m *machine) get(i uint32) error {
	if i >= uint32(m.memos) {
		return m.fault(ErrMalformed, "memo slot %d, of %d", i, m.memos)
	}
	ref := *m.slot(i)
	k, n := kind(ref>>refShift), uint64(ref&refMask)
	if k <= kindOpaque {
		m.push(k, n)
		return nil
	}
	// The object is still on the stack. It gets its final form here and now: another reference to it means that it is complete, unless
	// it contains itself.
	switch k {
	case slotList:
		*m.slot(i) = refer(kindEmpty, 0)
		m.push(kindEmpty, 0)
	case slotDict:
		*m.slot(i) = refer(kindOpaque, 0)
		m.push(kindOpaque, 0)
	default:
		list := &m.stack[n]
		m.close(list)
		if list.kind != kindStack {
			m.push(kindOpaque, 0)
		} else {
			m.push(kindStack, list.n)
		}
	}
	return nil
}

// put is memoize with the slot's number. Both picklers count up.
func (m *machine) put(i uint32) error {
	if i != uint32(m.memos) {
		return m.fault(ErrMalformed, "memo slot %d, where %d is next", i, m.memos)
	}
	return m.memoize()
}

// memoize gives the value on top of the stack the next memo slot.
func (m *machine) memoize() error {
	if m.top <= m.base {
		return m.underflow()
	}
	if m.memos >= m.limits.Memo {
		return m.fault(ErrLimit, "more than %d objects to refer back to", m.limits.Memo)
	}
	v := &m.stack[m.top-1]
	if v.slot != 0 {
		return m.fault(ErrMalformed, "of what has a memo slot already")
	}
	var ref uint32
	switch v.kind {
	case kindString, kindFrame, kindStack, kindTuple, kindEmpty, kindOpaque:
		ref = refer(v.kind, v.n)
	case kindDict:
		ref = refer(slotDict, 0)
		v.slot = uint32(m.memos + 1)
	case kindList:
		ref = refer(slotList, 0)
		v.slot = uint32(m.memos + 1)
	case kindFrames: // PyTorch's pickler memoizes what is complete
		m.close(v)
		ref = refer(kindStack, v.n)
	case kindNone, kindBool, kindInt, kindUint, kindFloat:
		return m.fault(ErrMalformed, "of a number, which no pickler does")
	default:
		ref = refer(kindOpaque, 0)
	}
	if m.memos == m.room {
		m.memo = append(m.memo, new([memoPage]uint32))
		m.room = min(len(m.memo)*memoPage, m.limits.Memo)
	}
	*m.slot(uint32(m.memos)) = ref
	m.memos++
	return nil
}

// close gives a list or dict its final form: it becomes part of another one, or is referred to. Nothing can be put into it after
// that, so that nothing ever contains itself.
func (m *machine) close(v *value) {
	ref := refer(kindOpaque, 0)
	switch v.kind {
	case kindDict:
		v.kind = kindOpaque
	case kindList:
		v.kind, v.n = kindEmpty, 0
		ref = refer(kindEmpty, 0)
	case kindFrames:
		start, end := span(v.n)
		id, _ := m.stacks.intern(m.pending[start:end]) // appendFrames keeps pending, and so the stacks, below 4 GiB
		v.kind, v.n = kindStack, uint64(id)
		if end == len(m.pending) {
			m.pending = m.pending[:start]
		}
		ref = refer(kindStack, v.n)
	case kindBlocks, kindEntries, kindSegments, kindHistories, kindTraces, kindMixed:
		if v.slot != 0 && v.slot != complete {
			*m.slot(v.slot - 1) = ref
		}
		v.slot = complete
		return
	default:
		return
	}
	if v.slot != 0 {
		*m.slot(v.slot - 1) = ref
		v.slot = 0
	}
}

// complete stands in the slot of a list that takes no more items.
const complete = 1<<32 - 1

// span are the bounds that a list's number holds.
func span(n uint64) (start, end int) { return int(n >> 32), int(n>>32) + int(uint32(n)) }
