package event

import (
	"encoding/binary"
	"math/bits"
)

// The wire types of protobuf that events have.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

const (
	noTag = 0  // of what is not in the plain form. No field has it, since there is no field 0
	slack = 16 // bytes behind a message that may be read, and say nothing
)

// maxBits are those of maxNumber. Of a double whose absolute value is larger they are larger, and so are those of infinity and of what is no
// number.
const maxBits = 0x43abc16d674ec800

// scalar reads a field that begins at a position and ends by another one, behind which there are slack bytes. It returns its tag, its value
// and the position behind it. The value of bytes is their length: they are the last ones before that position. A tag of more than two bytes, a
// wire type that events have not, and a double that nobody measured are not in the plain form.
func scalar(data []byte, at, end int) (tag, value uint64, next int) {
	x := binary.LittleEndian.Uint64(data[at:])
	if tag = x & 0xff; tag < 0x80 {
		x >>= 8
		at++
	} else {
		if x&0x8000 != 0 {
			return noTag, 0, end
		}
		tag = tag&0x7f | x>>8&0x7f<<7
		x >>= 16
		at += 2
	}
	if tag&7 == wireFixed64 {
		value = binary.LittleEndian.Uint64(data[at:])
		if at += 8; at > end || value&^(1<<63) > maxBits {
			return noTag, 0, end
		}
		return tag, value, at
	}
	if x&0x80 == 0 {
		value = x & 0x7f
		at++
	} else {
		// Up to eight bytes are read at once. The first whose highest bit is not set is the last one; of each, seven bits are of the number,
		// and are moved together two by two.
		x = binary.LittleEndian.Uint64(data[at:])
		if stop := ^x & 0x8080808080808080; stop != 0 {
			x &= stop ^ (stop - 1)
			x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
			x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
			value = x&0x000000000fffffff | x&0x0fffffff00000000>>4
			at += bits.TrailingZeros64(stop)/8 + 1
		} else if value, at = longVarint(data, at, end); at < 0 {
			return noTag, 0, end
		}
	}
	if at > end {
		return noTag, 0, end
	}
	switch tag & 7 {
	case wireVarint:
		return tag, value, at
	case wireBytes:
		if value <= uint64(end-at) {
			return tag, value, at + int(value)
		}
	}
	return noTag, 0, end
}

// longVarint reads a number of any length. The position behind it is negative where there is none.
func longVarint(data []byte, at, end int) (value uint64, next int) {
	if at < end {
		if value, n := binary.Uvarint(data[at:end]); n > 0 {
			return value, at + n
		}
	}
	return 0, -1
}
