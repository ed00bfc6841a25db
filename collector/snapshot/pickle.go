package snapshot

import "fmt"

// The opcodes that snapshots are made of. Those of protocol 4 and 5 come from CPython's pickler, those of 2 from it and from
// PyTorch's own (torch/csrc/jit/serialization/pickler.cpp, for snapshots that C++ takes).
const (
	opMark            = '('
	opStop            = '.'
	opAppend          = 'a'
	opAppends         = 'e'
	opBinFloat        = 'G'
	opBinGet          = 'h'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinPut          = 'q'
	opBinUnicode      = 'X'
	opEmptyDict       = '}'
	opEmptyList       = ']'
	opLongBinGet      = 'j'
	opLongBinPut      = 'r'
	opNone            = 'N'
	opSetItem         = 's'
	opSetItems        = 'u'
	opProto           = 0x80
	opTuple2          = 0x86
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opMemoize         = 0x94
	opFrame           = 0x95
)

// opcodeName is the name in Python's pickletools of an opcode, also of one that is refused.
func opcodeName(op byte) string {
	switch op {
	case '(':
		return "MARK"
	case '.':
		return "STOP"
	case '0':
		return "POP"
	case '1':
		return "POP_MARK"
	case '2':
		return "DUP"
	case 'F':
		return "FLOAT"
	case 'I':
		return "INT"
	case 'J':
		return "BININT"
	case 'K':
		return "BININT1"
	case 'L':
		return "LONG"
	case 'M':
		return "BININT2"
	case 'N':
		return "NONE"
	case 'P':
		return "PERSID"
	case 'Q':
		return "BINPERSID"
	case 'R':
		return "REDUCE"
	case 'S':
		return "STRING"
	case 'T':
		return "BINSTRING"
	case 'U':
		return "SHORT_BINSTRING"
	case 'V':
		return "UNICODE"
	case 'X':
		return "BINUNICODE"
	case 'a':
		return "APPEND"
	case 'b':
		return "BUILD"
	case 'c':
		return "GLOBAL"
	case 'd':
		return "DICT"
	case '}':
		return "EMPTY_DICT"
	case 'e':
		return "APPENDS"
	case 'g':
		return "GET"
	case 'h':
		return "BINGET"
	case 'i':
		return "INST"
	case 'j':
		return "LONG_BINGET"
	case 'l':
		return "LIST"
	case ']':
		return "EMPTY_LIST"
	case 'o':
		return "OBJ"
	case 'p':
		return "PUT"
	case 'q':
		return "BINPUT"
	case 'r':
		return "LONG_BINPUT"
	case 's':
		return "SETITEM"
	case 't':
		return "TUPLE"
	case ')':
		return "EMPTY_TUPLE"
	case 'u':
		return "SETITEMS"
	case 'G':
		return "BINFLOAT"
	case 'B':
		return "BINBYTES"
	case 'C':
		return "SHORT_BINBYTES"
	}
	high := [...]string{
		"PROTO", "NEWOBJ", "EXT1", "EXT2", "EXT4", "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE", "LONG1", "LONG4", "SHORT_BINUNICODE",
		"BINUNICODE8", "BINBYTES8", "EMPTY_SET", "ADDITEMS", "FROZENSET", "NEWOBJ_EX", "STACK_GLOBAL", "MEMOIZE", "FRAME", "BYTEARRAY8",
		"NEXT_BUFFER", "READONLY_BUFFER",
	}
	if op >= opProto && int(op-opProto) < len(high) {
		return high[op-opProto]
	}
	return fmt.Sprintf("0x%02x", op)
}

// runsCode says whether an opcode makes Python's own reader import or call something.
func runsCode(op byte) bool {
	switch op {
	case 'c', 'i', 'o', 'R', 'b', 'P', 'Q', 0x81, 0x82, 0x83, 0x84, 0x92, 0x93:
		return true
	}
	return false
}
