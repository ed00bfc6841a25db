package sink

import (
	"encoding/binary"
)

// Keys of the dictionary of one column, as ClickHouse's Native format has them.
const (
	dictionaryVersion = 1            // a dictionary of this block's own keys
	dictionaryFlags   = 1<<9 | 1<<10 // additional keys follow; no dictionary from before is needed
)

// appendNative appends the rows as one block of ClickHouse's Native format, the plain form that INSERT … FORMAT Native takes. A column
// of few texts goes as a dictionary, which the server would have to make otherwise. The rows must have passed check.
func (r Rows) appendNative(out []byte) []byte {
	out = binary.AppendUvarint(out, uint64(len(r.Columns)))
	out = binary.AppendUvarint(out, uint64(r.Count))
	var d dictionary
	for i := range r.Columns {
		c := &r.Columns[i]
		out = appendText(out, c.name)
		out = appendText(out, c.typeName())
		out = append(out, c.absent...)
		switch c.kind {
		case kindText:
			for _, s := range c.text {
				out = appendText(out, s)
			}
		case kindName:
			out = binary.LittleEndian.AppendUint64(out, dictionaryVersion)
			out = d.append(out, c.text)
		case kindNames:
			out = d.appendLists(out, c.lists)
		case kindSmall:
			for _, v := range c.bits {
				out = binary.LittleEndian.AppendUint16(out, uint16(v))
			}
		case kindBool:
			out = append(out, c.flags...)
		default:
			for _, v := range c.bits {
				out = binary.LittleEndian.AppendUint64(out, v)
			}
		}
	}
	return out
}

func appendText(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// nativeSize is at least how many bytes appendNative makes, and little more where rows are sorted.
func (r Rows) nativeSize() int {
	const head, text = 128, binary.MaxVarintLen32 // bytes before a column; before a text
	size := head
	for i := range r.Columns {
		c := &r.Columns[i]
		size += head + len(c.absent) + len(c.flags)
		switch c.kind {
		case kindText:
			for _, s := range c.text {
				size += len(s) + text
			}
		case kindName:
			runs, last := 0, ""
			for n, s := range c.text {
				if n == 0 || s != last {
					runs, last = runs+1, s
					size += len(s) + text
				}
			}
			size += len(c.text) * indexBytes(runs)
		case kindNames:
			texts := 0
			for _, list := range c.lists {
				texts += len(list)
				for _, s := range list {
					size += len(s) + text
				}
			}
			size += 8*len(c.lists) + texts*indexBytes(texts)
		case kindSmall:
			size += 2 * len(c.bits)
		default:
			size += 8 * len(c.bits)
		}
	}
	return size
}

// indexBytes is how many bytes an index into a dictionary of so many keys has.
func indexBytes(keys int) int {
	switch {
	case keys > 1<<16:
		return 4
	case keys > 1<<8:
		return 2
	}
	return 1
}

// dictionary numbers the texts of a column; it is used again for the next.
type dictionary struct {
	numbers map[string]uint32
	keys    []string
	indexes []uint32
	all     []string
}

// appendLists writes where each list ends, and then what stands in all of them.
func (d *dictionary) appendLists(out []byte, lists [][]string) []byte {
	out = binary.LittleEndian.AppendUint64(out, dictionaryVersion)
	all := d.all[:0]
	for _, list := range lists {
		all = append(all, list...)
		out = binary.LittleEndian.AppendUint64(out, uint64(len(all)))
	}
	d.all = all
	if len(all) == 0 {
		return out
	}
	return d.append(out, all)
}

func (d *dictionary) append(out []byte, texts []string) []byte {
	if d.numbers == nil {
		d.numbers = make(map[string]uint32)
	}
	clear(d.numbers)
	d.keys, d.indexes = d.keys[:0], d.indexes[:0]
	last, number := "", uint32(0)
	for i, s := range texts {
		if i == 0 || s != last { // rows are sorted: most have the text of the row before
			n, ok := d.numbers[s]
			if !ok {
				n = uint32(len(d.keys))
				d.numbers[s] = n
				d.keys = append(d.keys, s)
			}
			last, number = s, n
		}
		d.indexes = append(d.indexes, number)
	}
	width := uint64(0) // of an index: 0 is one byte, 1 two, 2 four
	switch {
	case len(d.keys) > 1<<16:
		width = 2
	case len(d.keys) > 1<<8:
		width = 1
	}
	out = binary.LittleEndian.AppendUint64(out, dictionaryFlags|width)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(d.keys)))
	for _, s := range d.keys {
		out = appendText(out, s)
	}
	out = binary.LittleEndian.AppendUint64(out, uint64(len(d.indexes)))
	for _, n := range d.indexes {
		switch width {
		case 0:
			out = append(out, byte(n))
		case 1:
			out = binary.LittleEndian.AppendUint16(out, uint16(n))
		default:
			out = binary.LittleEndian.AppendUint32(out, n)
		}
	}
	return out
}
