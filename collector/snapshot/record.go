package snapshot

import (
	"fmt"
	"hash/maphash"
	"math"
)

// tables are the records of a snapshot, and what their dicts and lists are while the pickle runs.
type tables struct {
	names     texts
	frames    frames
	stacks    texts  // of frames, four bytes each
	pending   []byte // frames of lists that are still open, one after the other, in the form of stacks
	blocks    []Block
	entries   []Entry
	segments  []Segment
	spans     []uint64 // by segment: its blocks
	histories []history
	traces    []uint64 // spans of entries
	tuples    [][2]uint64
	tupleAt   map[[2]uint64]uint32
	settings  Settings
	found     top
	tops      int
	unknown   map[uint64]struct{} // names
	legacy    bool

	field [keys]int32 // places on the stack of the values of the dict under way, those that its mask has
	wrong string      // why the first dict that looks like a record is none
}

// history is the newest life of a block, in the layout of PyTorch 1 and 2.0.
type history struct {
	size  uint64
	stack uint32
}

// top is what the outermost dict has.
type top struct {
	segments, traces value
	annotations      int
	settings         bool
}

func newTables() tables {
	seed := maphash.MakeSeed()
	t := tables{
		names: newTexts(seed), frames: frames{index: newIndex()}, stacks: newTexts(seed), unknown: map[uint64]struct{}{},
		tuples: [][2]uint64{{}}, tupleAt: map[[2]uint64]uint32{{}: 0},
	}
	for _, word := range vocabulary() {
		if word != "" {
			t.names.intern([]byte(word))
		}
	}
	return t
}

// tuple is the identifier of a pair of numbers; false where there are too many.
func (t *tables) tuple(pair [2]uint64) (uint32, bool) {
	if pair == [2]uint64{} {
		return 0, true
	}
	id, ok := t.tupleAt[pair]
	if !ok {
		if len(t.tuples) >= maxTuples {
			return 0, false
		}
		id = uint32(len(t.tuples))
		t.tuples = append(t.tuples, pair)
		t.tupleAt[pair] = id
	}
	return id, true
}

// setItems gives the dict at the place the keys and values from there to the top, and so its meaning.
func (m *machine) setItems(at, from int) error {
	pairs := m.stack[from:m.top]
	m.top = from
	if len(pairs) == 0 {
		return nil
	}
	if len(pairs)%2 != 0 {
		return m.fault(ErrMalformed, "a key without a value")
	}
	if m.items += int64(len(pairs) / 2); m.items > m.limits.Items {
		return m.fault(ErrLimit, "more than %d items", m.limits.Items)
	}
	dict := &m.stack[at]
	if dict.kind != kindDict && dict.kind != kindOpaque {
		return m.fault(ErrMalformed, "of what is no dict, or is complete")
	}
	if dict.slot != 0 && *m.slot(dict.slot - 1) != refer(slotDict, 0) {
		return m.fault(ErrMalformed, "of a dict that is already part of something: it would contain itself")
	}
	var mask uint64
	for i := 0; i < len(pairs); i += 2 {
		key, v := &pairs[i], &pairs[i+1]
		if v.kind >= kindDict {
			m.close(v)
		}
		if key.kind == kindString && key.n < keys {
			mask |= 1 << key.n
			m.field[key.n] = int32(from + i + 1)
		} else if key.kind >= kindDict || key.kind == kindEmpty {
			return m.fault(ErrMalformed, "a key that is a dict or a list")
		}
	}
	made := value{kind: kindOpaque}
	if dict.kind == kindDict {
		made = m.record(mask)
		if made.kind == kindTop {
			m.noteKeys(pairs)
		}
	}
	if read := m.in.offset(); made.kind == kindSegment && int64(len(m.segments)) > firstStack+read/segmentBytes {
		return m.fault(ErrLimit, "%d segments in %d bytes, which no allocator has", len(m.segments), read)
	}
	if dict.slot != 0 {
		ref := refer(kindOpaque, 0)
		if made.kind == kindFrame {
			ref = refer(kindFrame, made.n)
		}
		*m.slot(dict.slot - 1) = ref
	}
	*dict = made
	return nil
}

const (
	entryKeys    = 1<<keyAction | 1<<keySize
	frameKeys    = 1<<keyName | 1<<keyFilename | 1<<keyLine
	blockKeys    = 1<<keySize | 1<<keyState
	segmentKeys  = 1<<keyAddress | 1<<keyTotalSize | 1<<keyBlocks
	settingsKeys = 1<<keyAllocConf | 1<<keyMaxSplitSize
)

// record is what a dict of these keys is. One that has a value of the wrong type is opaque, and only refused where the record is needed:
// the metadata of an annotation may look like anything.
func (m *machine) record(mask uint64) value {
	var made value
	var ok bool
	switch {
	case mask&entryKeys == entryKeys:
		made, ok = m.entry(mask)
	case mask&frameKeys == frameKeys:
		made, ok = m.frameOf()
	case mask&blockKeys == blockKeys:
		made, ok = m.block(mask)
	case mask&segmentKeys == segmentKeys:
		made, ok = m.segment(mask)
	case mask&(1<<keyRealSize) != 0:
		made, ok = m.history(mask)
	case mask&settingsKeys != 0:
		made, ok = m.settingsOf(mask)
	case mask&(1<<keySegments|1<<keyDeviceTraces) != 0:
		made, ok = m.topOf(mask)
	}
	if !ok {
		return value{kind: kindOpaque}
	}
	return made
}

// not remembers why a dict is no record.
func (m *machine) not(record string, key int) (value, bool) {
	if m.wrong == "" {
		m.wrong = fmt.Sprintf("the %s of the %s that ends at byte %d is of another type or out of range", vocabulary()[key], record, m.in.offset())
	}
	return value{}, false
}

// value is that of a key that the mask has.
func (m *machine) value(key int) *value { return &m.stack[m.field[key]] }

// size is a number that is not negative.
func (m *machine) size(key int) (uint64, bool) {
	v := m.value(key)
	return v.n, (v.kind == kindInt && int64(v.n) >= 0) || v.kind == kindBool
}

// address is any number, as its 64 bits.
func (m *machine) address(key int) (uint64, bool) {
	v := m.value(key)
	return v.n, v.kind == kindInt || v.kind == kindUint || v.kind == kindBool
}

// number is one of 64 bits with a sign; an unsigned one beyond that, as a handle of a stream may be, is taken by its bits.
func (m *machine) number(key int) (int64, bool) {
	n, ok := m.address(key)
	return int64(n), ok
}

// stackOf is the stack in a field; the key may be absent.
func (m *machine) stackOf(mask uint64, key int) (uint32, bool) {
	if mask&(1<<key) == 0 {
		return 0, true
	}
	switch v := m.value(key); v.kind {
	case kindStack:
		return uint32(v.n), true
	case kindEmpty, kindNone:
		return 0, true
	}
	return 0, false
}

func (m *machine) frameOf() (value, bool) {
	name, file := m.value(keyName), m.value(keyFilename)
	line, ok := m.number(keyLine)
	switch {
	case name.kind != kindString:
		return m.not("frame", keyName)
	case file.kind != kindString:
		return m.not("frame", keyFilename)
	case !ok || line < math.MinInt32 || line > math.MaxInt32:
		return m.not("frame", keyLine)
	}
	if len(m.frames.keys) >= refMask {
		return m.not("frame, of too many different ones,", keyName)
	}
	return value{kind: kindFrame, n: uint64(m.frames.intern(frameKey{uint32(name.n), uint32(file.n), int32(line)}))}, true
}

func (m *machine) entry(mask uint64) (value, bool) {
	var e Entry
	var ok bool
	action := m.value(keyAction)
	if action.kind != kindString {
		return m.not("entry", keyAction)
	}
	if e.Action = actionOf(action.n); e.Action == UnknownAction {
		m.note(action.n)
	}
	if e.Size, ok = m.size(keySize); !ok {
		return m.not("entry", keySize)
	}
	if e.Stack, ok = m.stackOf(mask, keyFrames); !ok {
		return m.not("entry", keyFrames)
	}
	if mask&(1<<keyAddr) != 0 {
		if e.Address, ok = m.address(keyAddr); !ok {
			return m.not("entry", keyAddr)
		}
	} else if mask&(1<<keyDeviceFree) != 0 {
		if e.Address, ok = m.address(keyDeviceFree); !ok {
			return m.not("entry", keyDeviceFree)
		}
	}
	if mask&(1<<keyStream) != 0 {
		if e.Stream, ok = m.number(keyStream); !ok {
			return m.not("entry", keyStream)
		}
	}
	if mask&(1<<keyTimeUs) != 0 {
		if e.Micros, ok = m.number(keyTimeUs); !ok {
			return m.not("entry", keyTimeUs)
		}
	}
	if len(m.entries) == cap(m.entries) {
		m.entries = roomier(m.entries, m.in.offset(), m.whole)
	}
	m.entries = append(m.entries, e)
	return value{kind: kindEntry, n: uint64(len(m.entries) - 1)}, true
}

// note remembers a name that this version does not know.
func (t *tables) note(name uint64) {
	if len(t.unknown) < maxUnknown {
		t.unknown[name] = struct{}{}
	}
}

// noteKeys does so with the keys of the outermost dict.
func (m *machine) noteKeys(pairs []value) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].kind == kindString && pairs[i].n >= keys {
			m.note(pairs[i].n)
		}
	}
}

// roomier is the table with room for more. Where the size of the pickle is known the rest is taken to be like what was read so far, so that
// little is copied and nothing kept twice; but never for more than four times what there is.
func roomier[T any](table []T, read, whole int64) []T {
	have := len(table)
	room := have + have/2
	if read > 0 && whole > read {
		like := int(float64(have) * (float64(whole) / float64(read)) * 1.01)
		room = min(max(like, have+have/8), 4*have)
	}
	more := make([]T, have, max(room, 1024))
	copy(more, table)
	return more
}
