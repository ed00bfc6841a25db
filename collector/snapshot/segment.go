package snapshot

import "math"

func (m *machine) block(mask uint64) (value, bool) {
	var b Block
	var ok bool
	state := m.value(keyState)
	if state.kind != kindString {
		return m.not("block", keyState)
	}
	if b.State = stateOf(state.n); b.State == UnknownState {
		m.note(state.n)
	}
	if b.Size, ok = m.size(keySize); !ok {
		return m.not("block", keySize)
	}
	b.Requested = b.Size
	if b.Stack, ok = m.stackOf(mask, keyFrames); !ok {
		return m.not("block", keyFrames)
	}
	if mask&(1<<keyHistory) != 0 {
		switch h := m.value(keyHistory); h.kind {
		case kindHistories:
			newest := m.histories[h.n>>32]
			b.Requested = newest.size
			if mask&(1<<keyFrames) == 0 {
				b.Stack, m.legacy = newest.stack, true
			}
		case kindEmpty:
		default:
			return m.not("block", keyHistory)
		}
	}
	if mask&(1<<keyRequestedSize) != 0 {
		if b.Requested, ok = m.size(keyRequestedSize); !ok {
			return m.not("block", keyRequestedSize)
		}
	}
	if mask&(1<<keyAddress) != 0 {
		if b.Address, ok = m.address(keyAddress); !ok {
			return m.not("block", keyAddress)
		}
	}
	if len(m.blocks) == cap(m.blocks) {
		m.blocks = roomier(m.blocks, m.in.offset(), m.whole)
	}
	m.blocks = append(m.blocks, b)
	return value{kind: kindBlock, n: uint64(len(m.blocks) - 1)}, true
}

func (m *machine) history(mask uint64) (value, bool) {
	var h history
	var ok bool
	if h.size, ok = m.size(keyRealSize); !ok {
		return m.not("history", keyRealSize)
	}
	if h.stack, ok = m.stackOf(mask, keyFrames); !ok {
		return m.not("history", keyFrames)
	}
	m.histories = append(m.histories, h)
	return value{kind: kindHistory, n: uint64(len(m.histories) - 1)}, true
}

func (m *machine) segment(mask uint64) (value, bool) {
	var s Segment
	var ok bool
	for _, f := range [...]struct {
		key int
		to  *uint64
	}{{keyTotalSize, &s.Total}, {keyAllocatedSize, &s.Allocated}, {keyActiveSize, &s.Active}, {keyRequestedSize, &s.Requested}} {
		if mask&(1<<f.key) != 0 {
			if *f.to, ok = m.size(f.key); !ok {
				return m.not("segment", f.key)
			}
		}
	}
	if s.Address, ok = m.address(keyAddress); !ok {
		return m.not("segment", keyAddress)
	}
	if mask&(1<<keyDevice) != 0 {
		n, ok := m.size(keyDevice)
		if !ok || n > math.MaxInt32 {
			return m.not("segment", keyDevice)
		}
		s.Device = int32(n)
	}
	if mask&(1<<keyStream) != 0 {
		if s.Stream, ok = m.number(keyStream); !ok {
			return m.not("segment", keyStream)
		}
	}
	if mask&(1<<keySegmentPoolID) != 0 {
		pool := m.value(keySegmentPoolID)
		if pool.kind != kindTuple {
			return m.not("segment", keySegmentPoolID)
		}
		s.Pool = m.tuples[pool.n]
	}
	if mask&(1<<keyIsExpandable) != 0 {
		n, ok := m.size(keyIsExpandable)
		if !ok {
			return m.not("segment", keyIsExpandable)
		}
		s.Expandable = n != 0
	}
	if kind := m.value(keySegmentType); mask&(1<<keySegmentType) != 0 {
		if kind.kind != kindString {
			return m.not("segment", keySegmentType)
		}
		s.Large = kind.n == wordLarge
	}
	if s.Stack, ok = m.stackOf(mask, keyFrames); !ok {
		return m.not("segment", keyFrames)
	}
	blocks := m.value(keyBlocks)
	if blocks.kind != kindBlocks && blocks.kind != kindEmpty {
		return m.not("segment", keyBlocks)
	}
	if blocks.kind == kindBlocks {
		m.complete(&s, blocks.n, mask)
	}
	m.segments = append(m.segments, s)
	m.spans = append(m.spans, blocks.n)
	return value{kind: kindSegment, n: uint64(len(m.segments) - 1)}, true
}

// complete fills in what older layouts leave out: the addresses of blocks, which lie one after the other, and what was asked for.
func (m *machine) complete(s *Segment, blocks, mask uint64) {
	start, end := span(blocks)
	next := s.Address
	for i := start; i < end; i++ {
		b := &m.blocks[i]
		if b.Address == 0 {
			b.Address = next
		}
		next = b.Address + b.Size
		if mask&(1<<keyRequestedSize) == 0 && b.State == Live {
			s.Requested += b.Requested
		}
	}
}

func (m *machine) settingsOf(mask uint64) (value, bool) {
	s := Settings{Known: true}
	if v := m.value(keyAllocConf); mask&(1<<keyAllocConf) != 0 && v.kind == kindString {
		s.AllocConf = m.names.string(uint32(v.n))
	}
	if mask&(1<<keyMaxSplitSize) != 0 {
		s.MaxSplitSize, _ = m.number(keyMaxSplitSize)
	} else {
		s.MaxSplitSize = -1
	}
	if mask&(1<<keyExpandableSegments) != 0 {
		n, ok := m.size(keyExpandableSegments)
		s.Expandable = ok && n != 0
	}
	if v := m.value(keyGarbageCollection); mask&(1<<keyGarbageCollection) != 0 && v.kind == kindFloat {
		s.GarbageCollection = math.Float64frombits(v.n)
	}
	m.settings = s
	return value{kind: kindSettings}, true
}

func (m *machine) topOf(mask uint64) (value, bool) {
	m.tops++
	m.found = top{segments: value{kind: kindEmpty}, traces: value{kind: kindEmpty}}
	if mask&(1<<keySegments) != 0 {
		m.found.segments = *m.value(keySegments)
	}
	if mask&(1<<keyDeviceTraces) != 0 {
		m.found.traces = *m.value(keyDeviceTraces)
	}
	if mask&(1<<keyExternalAnnotations) != 0 {
		switch v := m.value(keyExternalAnnotations); v.kind {
		case kindMixed, kindBlocks, kindEntries, kindSegments, kindHistories, kindTraces:
			m.found.annotations = int(uint32(v.n))
		case kindStack: // annotations that look like frames
			m.found.annotations = len(m.stacks.bytes(uint32(v.n))) / 4
		}
	}
	m.found.settings = mask&(1<<keyAllocatorSettings) != 0 && m.value(keyAllocatorSettings).kind == kindSettings
	return value{kind: kindTop}, true
}
