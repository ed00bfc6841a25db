package snapshot

import (
	"encoding/binary"
	"slices"
)

// appendItems puts what lies from there to the top into the list at the place. A list is of one kind, which its first item says; of
// a mixed one only the count is kept.
func (m *machine) appendItems(at, from int) error {
	items := m.stack[from:m.top]
	m.top = from
	if len(items) == 0 {
		return nil
	}
	if m.items += int64(len(items)); m.items > m.limits.Items {
		return m.fault(ErrLimit, "more than %d items", m.limits.Items)
	}
	list := &m.stack[at]
	switch {
	case list.kind < kindList || list.slot == complete:
		if list.kind == kindEmpty || list.kind == kindStack || list.slot == complete {
			return m.fault(ErrMalformed, "to a list that is already part of something: it would contain itself")
		}
		return m.fault(ErrMalformed, "to what is no list")
	case list.slot == 0:
		if list.kind == kindList {
			m.begin(list, &items[0])
		}
	case list.kind == kindList:
		if slot := m.slot(list.slot - 1); *slot != refer(slotList, 0) {
			return m.fault(ErrMalformed, "to a list that is already part of something: it would contain itself")
		} else {
			*slot = refer(slotFilled, uint64(at))
		}
		m.begin(list, &items[0])
	}
	var ok bool
	switch list.kind {
	case kindFrames:
		ok = m.appendFrames(list, items)
	case kindBlocks:
		ok = appendSpan(list, items, kindBlock)
	case kindEntries:
		ok = appendSpan(list, items, kindEntry)
	case kindSegments:
		ok = appendSpan(list, items, kindSegment)
	case kindHistories:
		ok = appendSpan(list, items, kindHistory)
	case kindTraces:
		ok = m.appendTraces(list, items)
	}
	if ok {
		return nil
	}
	had := list.n
	switch list.kind {
	case kindMixed:
	case kindFrames:
		had = uint64(uint32(had)) / 4
	default:
		had = uint64(uint32(had))
	}
	list.kind, list.n = kindMixed, had+uint64(len(items))
	for i := range items {
		m.close(&items[i])
	}
	return nil
}

// begin makes an empty list one of the kind that its first item is for.
func (m *machine) begin(list, first *value) {
	switch first.kind {
	case kindFrame:
		list.kind, list.n = kindFrames, uint64(len(m.pending))<<32
	case kindBlock:
		list.kind, list.n = kindBlocks, first.n<<32
	case kindEntry:
		list.kind, list.n = kindEntries, first.n<<32
	case kindSegment:
		list.kind, list.n = kindSegments, first.n<<32
	case kindHistory:
		list.kind, list.n = kindHistories, first.n<<32
	case kindEntries, kindList, kindEmpty:
		list.kind, list.n = kindTraces, uint64(len(m.traces))<<32
	default:
		list.kind, list.n = kindMixed, 0
	}
}

// appendSpan takes records that stand next to each other in their table, as all do that a pickler writes one after the other.
func appendSpan(list *value, items []value, record kind) bool {
	_, next := span(list.n)
	for i := range items {
		if items[i].kind != record || items[i].n != uint64(next+i) {
			return false
		}
	}
	list.n += uint64(len(items))
	return true
}

func (m *machine) appendFrames(list *value, items []value) bool {
	if _, end := span(list.n); end != len(m.pending) {
		return false
	}
	have := len(m.pending)
	if have+len(m.stacks.text) > maxStacks || len(m.stacks.ends) >= refMask/2 {
		return false
	}
	pending := slices.Grow(m.pending, 4*len(items))[:have+4*len(items)]
	for i, to := 0, pending[have:]; i < len(items) && len(to) >= 4; i, to = i+1, to[4:] {
		if items[i].kind != kindFrame {
			return false
		}
		binary.LittleEndian.PutUint32(to, uint32(items[i].n))
	}
	m.pending = pending
	list.n += uint64(4 * len(items))
	return true
}

func (m *machine) appendTraces(list *value, items []value) bool {
	if _, end := span(list.n); end != len(m.traces) || end+len(items) > maxDevices {
		return false
	}
	for i := range items {
		if k := items[i].kind; k != kindEntries && k != kindList && k != kindEmpty {
			return false
		}
	}
	for i := range items {
		m.close(&items[i])
		n := items[i].n
		if items[i].kind != kindEntries {
			n = 0
		}
		m.traces = append(m.traces, n)
	}
	list.n += uint64(len(items))
	return true
}
