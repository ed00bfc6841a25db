package event

import (
	"encoding/binary"
	"math"
)

// A message within a message stands behind its tag and its length, which is known only when it is written: opened leaves a byte for it,
// which is enough for most, and closed moves what is longer.

// opened begins a message of that field number.
func opened(out []byte, number uint64) []byte { return append(appendTag(out, number<<3|wireBytes), 0) }

// closed ends the message whose tag stands at start. Nil stays nil.
func closed(out []byte, start int) []byte {
	if out == nil {
		return nil
	}
	at := start + 1 // of the length
	if out[start] >= 0x80 {
		at++
	}
	length := uint64(len(out) - at - 1)
	if length < 0x80 {
		out[at] = byte(length)
		return out
	}
	var head [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(head[:], length)
	out = append(out, head[1:size]...) // room
	copy(out[at+size:], out[at+1:len(out)-size+1])
	copy(out[at:], head[:size])
	return out
}

// appendTag writes a field number and its wire type.
func appendTag(out []byte, tag uint64) []byte {
	if tag < 0x80 {
		return append(out, byte(tag))
	}
	return binary.AppendUvarint(out, tag)
}

func appendNumber(out []byte, tag, v uint64) []byte {
	return binary.AppendUvarint(appendTag(out, tag), v)
}

// appendText writes a text that is not empty.
func appendText(out []byte, tag uint64, s string) []byte {
	if s == "" {
		return out
	}
	return append(appendNumber(out, tag, uint64(len(s))), s...)
}

// Each of these writes a number that is there.

func appendUint(out []byte, tag uint64, v *uint64) []byte {
	if v == nil {
		return out
	}
	return appendNumber(out, tag, *v)
}

func appendInt(out []byte, tag uint64, v *int64) []byte {
	if v == nil {
		return out
	}
	return appendNumber(out, tag, uint64(*v))
}

func appendFloat(out []byte, tag uint64, v *float64) []byte {
	if v == nil {
		return out
	}
	return binary.LittleEndian.AppendUint64(appendTag(out, tag), math.Float64bits(*v))
}

func appendBool(out []byte, tag uint64, v *bool) []byte {
	if v == nil {
		return out
	}
	if *v {
		return appendNumber(out, tag, 1)
	}
	return appendNumber(out, tag, 0)
}
