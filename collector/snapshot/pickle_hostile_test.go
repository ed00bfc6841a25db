package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
)

// littleOfAll is a snapshot that has a bit of everything.
func littleOfAll() []byte {
	return generate(shape{protocol: 4, devices: 2, segments: 2, blocks: 3, entries: 5, depth: 2, sites: 2})
}

// allocated is how many bytes the call took from the heap in all, freed ones included.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func gzipOf(t testing.TB, b []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// A snapshot that is cut off anywhere says so, whatever opcode the cut is in.
func TestReadRefusesTruncated(t *testing.T) {
	b := littleOfAll()
	for n := 1; n < len(b); n++ {
		_, err := Read(bytes.NewReader(b[:n]), Limits{})
		var fault *Fault
		if !errors.Is(err, ErrTruncated) || !errors.As(err, &fault) || fault.Offset != int64(n) || fault.Hint() == "" {
			t.Fatalf("the first %d of %d bytes: %v", n, len(b), err)
		}
	}
	if _, err := Read(strings.NewReader(""), Limits{}); !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), "byte 0: nothing is in it") {
		t.Errorf("nothing: %v", err)
	}
	packed := gzipOf(t, b)
	for n := 2; n < len(packed); n++ {
		if _, err := Read(bytes.NewReader(packed[:n]), Limits{}); !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) {
			t.Fatalf("the first %d of %d gzipped bytes: %v", n, len(packed), err)
		}
	}
}

func TestReadRefusesOpcodes(t *testing.T) {
	for name, body := range map[string]string{
		"GLOBAL":          "cos\nsystem\n(S'id'\ntR.",
		"STACK_GLOBAL":    "\x8c\x02os\x8c\x06system\x93.",
		"REDUCE":          "NNR.",
		"BUILD":           "NNb.",
		"INST":            "(ios\nsystem\n.",
		"OBJ":             "(o.",
		"NEWOBJ":          "NN\x81.",
		"NEWOBJ_EX":       "NNN\x92.",
		"EXT1":            "\x82\x01.",
		"EXT2":            "\x83\x01\x00.",
		"EXT4":            "\x84\x01\x00\x00\x00.",
		"PERSID":          "P1\n.",
		"BINPERSID":       "NQ.",
		"BINUNICODE8":     "\x8d\xff\xff\xff\xff\x00\x00\x00\x00",
		"BINBYTES":        "B\xff\xff\xff\xff",
		"BINBYTES8":       "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
		"SHORT_BINBYTES":  "C\x01x.",
		"BYTEARRAY8":      "\x96\x01\x00\x00\x00\x00\x00\x00\x00x.",
		"NEXT_BUFFER":     "\x97.",
		"READONLY_BUFFER": "\x98.",
		"LONG4":           "\x8b\xff\xff\xff\x7f",
		"LONG":            "L1L\n.",
		"INT":             "I1\n.",
		"FLOAT":           "F1\n.",
		"STRING":          "S'x'\n.",
		"BINSTRING":       "T\xff\xff\xff\x7f",
		"SHORT_BINSTRING": "U\x01x.",
		"UNICODE":         "Vx\n.",
		"POP":             "0.",
		"POP_MARK":        "1.",
		"DUP":             "2.",
		"GET":             "g0\n.",
		"PUT":             "p0\n.",
		"DICT":            "(d.",
		"LIST":            "(l.",
		"TUPLE":           "(t.",
		"EMPTY_TUPLE":     ").",
		"TUPLE1":          "N\x85.",
		"TUPLE3":          "NNN\x87.",
		"EMPTY_SET":       "\x8f.",
		"ADDITEMS":        "\x90.",
		"FROZENSET":       "\x91.",
		"0x00":            "\x00.",
		"0xff":            "\xff.",
	} {
		_, err := Read(strings.NewReader("\x80\x04"+body), Limits{})
		var fault *Fault
		if !errors.Is(err, ErrOpcode) || !errors.As(err, &fault) || fault.Opcode != name || !strings.Contains(err.Error(), ": "+name+": refused: ") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		why := "snapshots do not have it"
		if strings.Contains(" GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID ", " "+name+" ") {
			why = "names or calls a class"
		}
		if !strings.Contains(err.Error(), why) || !strings.Contains(fault.Hint(), "_dump_snapshot") {
			t.Errorf("%s: %v\nhint: %s", name, err, fault.Hint())
		}
	}
}

// repeat is a pickle of protocol 4 that goes on with the part until it is so long.
func repeat(before, part string, size int) []byte {
	b := []byte("\x80\x04" + before)
	for len(b) < size {
		b = append(b, part...)
	}
	return b
}

// Each of these wants memory, time or a program that never ends. Nothing may be taken by a length that is claimed, and no more than
// a small multiple of what was read.
func TestReadRefusesBombs(t *testing.T) {
	const size = 8 << 20
	for name, test := range map[string]struct {
		pickle []byte
		kind   error
		want   string
	}{
		"a string of 4 GiB":          {repeat("X\xff\xff\xff\xff", "x", 100), ErrLimit, "byte 2: BINUNICODE: a string of 4294967295 bytes, more than 1048576"},
		"a string of nearly 1 MiB":   {repeat("X\x00\x00\x10\x00", "x", 100), ErrTruncated, "byte 100: the pickle ends here"},
		"a frame of 4 GiB":           {repeat("\x95\x00\x00\x00\x00\x01\x00\x00\x00", "N", 100), ErrLimit, "byte 2: FRAME: a frame of 4294967296 bytes"},
		"a frame of 2^63":            {repeat("\x95\x00\x00\x00\x00\x00\x00\x00\x80", "N", 100), ErrLimit, "byte 2: FRAME: a frame of 9223372036854775808 bytes"},
		"a frame in a frame":         {repeat("\x95\x20\x00\x00\x00\x00\x00\x00\x00\x95\x01\x00\x00\x00\x00\x00\x00\x00", "N", 100), ErrMalformed, "byte 11: FRAME: begins before the last one ends"},
		"an integer of 255 bytes":    {repeat("\x8a\xff", "\x01", 300), ErrLimit, "byte 2: LONG1: an integer of 255 bytes"},
		"an integer of 65 bits":      {repeat("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", "N", 100), ErrLimit, "byte 2: LONG1: an integer of 9 bytes, more than 64 bits"},
		"a nest of lists":            {repeat("", "]", size), ErrLimit, "lists in each other: a nesting bomb"},
		"a nest of memoized lists":   {repeat("", "]\x94", size), ErrLimit, "lists in each other: a nesting bomb"},
		"a nest of marked lists":     {repeat("", "](", size), ErrLimit, "byte 131: MARK: more than 64 dicts, lists and tuples in each other"},
		"a nest of keyed dicts":      {repeat("\x8c\x01k\x94", "}h\x00", size), ErrLimit, "values wait to be put into something"},
		"values that nobody takes":   {repeat("", "N", size), ErrLimit, "values wait to be put into something"},
		"a memo slot of 2^32":        {repeat("Nr\xff\xff\xff\xff", "N", 100), ErrMalformed, "byte 3: LONG_BINPUT: memo slot 4294967295, where 0 is next"},
		"a memo slot that is not":    {repeat("j\xff\xff\xff\xff", "N", 100), ErrMalformed, "byte 2: LONG_BINGET: memo slot 4294967295, of 0"},
		"a slot of the first page":   {repeat("]\x94h\x01", "N", 100), ErrMalformed, "byte 4: BINGET: memo slot 1, of 1"},
		"a memo of one object":       {repeat("}", "\x94", size), ErrMalformed, "byte 4: MEMOIZE: of what has a memo slot already"},
		"a memo of a number":         {repeat("N", "\x94", size), ErrMalformed, "byte 3: MEMOIZE: of a number"},
		"a memo of nothing":          {repeat("", "\x94", size), ErrMalformed, "byte 2: MEMOIZE: takes more from the stack than there is"},
		"a list in itself":           {repeat("]\x94h\x00a", ".", 8), ErrMalformed, "byte 6: APPEND: to a list that is already part of something: it would contain itself"},
		"a list with more in itself": {repeat("]\x94K\x01ah\x00a", ".", 11), ErrMalformed, "byte 9: APPEND: to a list that is already part of something"},
		"lists in each other":        {repeat("]\x94]\x94h\x00aa", ".", 11), ErrMalformed, "byte 9: APPEND: to a list that is already part of something"},
		"a dict in itself":           {repeat("}\x94\x8c\x01kh\x00s", ".", 12), ErrMalformed, "byte 9: SETITEM: of a dict that is already part of something: it would contain itself"},
		"a dict under its list":      {repeat("}\x94]\x94h\x00as", ".", 11), ErrMalformed, "SETITEM: takes more from the stack than there is"},
		"a list as a key":            {repeat("}\x94]Ns", ".", 11), ErrMalformed, "byte 6: SETITEM: a key that is a dict or a list"},
		"a key without a value":      {repeat("}(Nu", ".", 7), ErrMalformed, "byte 5: SETITEMS: a key without a value"},
		"items of a number":          {repeat("K\x01(NNu", ".", 9), ErrMalformed, "byte 7: SETITEMS: of what is no dict"},
		"an append to a number":      {repeat("K\x01Na", ".", 7), ErrMalformed, "byte 5: APPEND: to what is no list"},
		"appends without a mark":     {repeat("]Ne", ".", 6), ErrMalformed, "byte 4: APPENDS: takes more from the stack than there is"},
		"below the mark":             {repeat("](Na", ".", 7), ErrMalformed, "byte 5: APPEND: takes more from the stack than there is"},
		"a pair of one":              {repeat("N\x86", ".", 5), ErrMalformed, "byte 3: TUPLE2: takes more from the stack than there is"},
		"nothing at the end":         {repeat("", ".", 3), ErrMalformed, "byte 2: STOP: 0 values and 0 marks are left"},
		"two values at the end":      {repeat("NN", ".", 5), ErrMalformed, "byte 4: STOP: 2 values and 0 marks are left"},
		"protocol 6":                 {[]byte("\x80\x06N."), ErrLayout, "byte 0: PROTO: protocol 6, only 2 to 5 are read"},
		"protocol 0":                 {[]byte("(lp0\n."), ErrLayout, "byte 0: no pickle of protocol 2 or later"},
		"protocol twice":             {[]byte("\x80\x04\x80\x04N."), ErrMalformed, "byte 2: PROTO: a second one"},
		"a frame that goes on":       {repeat("\x95\x03\x00\x00\x00\x00\x00\x00\x00N.", "N", 100), ErrMalformed, "byte 12: STOP: the frame should have 1 bytes more"},
		"bytes after the end":        {append(littleOfAll(), 'N'), ErrMalformed, "bytes after the pickle's STOP"},
		"a zip file":                 {[]byte("PK\x03\x04data"), ErrLayout, "byte 0: no pickle"},
	} {
		var err error
		taken := allocated(func() { _, err = Read(bytes.NewReader(test.pickle), Limits{}) })
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if limit := uint64(4<<20 + 8*len(test.pickle)); taken > limit {
			t.Errorf("%s: %d bytes taken for %d, want at most %d", name, taken, len(test.pickle), limit)
		}
	}
}

// What is well-formed and only large takes a multiple of its own size, however it is made.
func TestReadTakesAMultiple(t *testing.T) {
	const size = 8 << 20
	short := []byte("\x80\x04]\x94(") // strings of three bytes, each another one
	for i := uint32(0); len(short) < size; i++ {
		s := binary.LittleEndian.AppendUint32(nil, i)
		short = append(short, opShortBinUnicode, 3, s[0], s[1], s[2], opMemoize)
		if i%1000 == 999 {
			short = append(short, "e("...)
		}
	}
	// The same two frames, in another order each time.
	stacks := []byte("\x80\x04}\x94(\x8c\x04name\x94\x8c\x01f\x94\x8c\x08filename\x94\x8c\x01g\x94\x8c\x04line\x94K\x01u}\x94(h\x01h\x02h\x03h\x04h\x05K\x02u]\x94")
	for i := uint32(0); len(stacks) < size; i++ {
		stacks = append(stacks, "](h\x00h\x06"...)
		for bit := range 20 {
			stacks = append(stacks, opBinGet, byte(i>>bit&1)*6)
		}
		stacks = append(stacks, "ea"...)
	}
	for name, b := range map[string][]byte{
		"short strings": short, "stacks": stacks,
		"empty dicts": repeat("]\x94", "}\x94a", size), "empty lists": repeat("]\x94", "]\x94a", size),
		"small entries":  repeat("\x8c\x06action\x94\x8c\x04size\x94]\x94", "}(h\x00h\x00h\x01K\x01ua", size),
		"small blocks":   repeat("\x8c\x05state\x94\x8c\x04size\x94]\x94", "}(h\x00h\x00h\x01K\x01ua", size),
		"small segments": repeat("\x8c\x07address\x94\x8c\x0atotal_size\x94\x8c\x06blocks\x94]\x94]\x94", "}(h\x00K\x01h\x01K\x01h\x02h\x03ua", size),
		"references":     repeat("\x8c\x01x\x94]\x94", "h\x00a", size),
		"numbers":        repeat("]\x94", "K\x01a", size),
		"pairs":          repeat("]\x94", "K\x01K\x02\x86\x94a", size),
	} {
		var err error
		taken := allocated(func() { _, err = Read(bytes.NewReader(b), Limits{}) })
		t.Logf("%s: %.1f bytes taken for each of %d; %v", name, float64(taken)/float64(len(b)), len(b), err)
		if name == "small segments" {
			if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "which no allocator has") {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v, want to get to the end", name, err)
		}
		if taken > 20*uint64(len(b)) {
			t.Errorf("%s: %d bytes taken for %d; %v", name, taken, len(b), err)
		}
	}
}

func TestReadRefusesOverLimits(t *testing.T) {
	b := littleOfAll()
	for name, test := range map[string]struct {
		limits Limits
		want   string
	}{
		"bytes":  {Limits{Bytes: int64(len(b)) - 1}, "more than"},
		"depth":  {Limits{Depth: 4}, "MARK: more than 4 dicts, lists and tuples in each other"},
		"memo":   {Limits{Memo: 100}, "MEMOIZE: more than 100 objects to refer back to"},
		"string": {Limits{String: 10}, "SHORT_BINUNICODE: a string of 14 bytes, more than 10"},
		"items":  {Limits{Items: 100}, "more than 100 items"},
	} {
		if _, err := Read(bytes.NewReader(b), test.limits); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if _, err := Read(bytes.NewReader(b), Limits{Bytes: int64(len(b)), Depth: 7}); err != nil {
		t.Errorf("just within the limits: %v", err)
	}
}

// A gzip stream that unpacks to 1 GiB, of nonsense or of good opcodes, is over at the limit of bytes.
func TestReadRefusesGzipBomb(t *testing.T) {
	endless := func(part string) io.Reader {
		r, w := io.Pipe()
		z := gzip.NewWriter(w)
		done := make(chan struct{})
		t.Cleanup(func() {
			r.Close()
			<-done
		})
		go func() {
			defer close(done)
			b := repeat("]\x94", part, 1<<20)
			for range 1 << 10 {
				if _, err := z.Write(b); err != nil {
					return
				}
				b = bytes.Repeat([]byte(part), 1<<20/len(part))
			}
			w.CloseWithError(z.Close())
		}()
		return r
	}
	for part, want := range map[string]string{"\x00": "0x00: refused", "}\x94a": "more than 16777216 bytes"} {
		var err error
		taken := allocated(func() { _, err = Read(endless(part), Limits{Bytes: 16 << 20}) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", part, err, want)
		}
		if taken > 64<<20 {
			t.Errorf("%q: %d bytes taken", part, taken)
		}
	}
	packed := gzipOf(t, littleOfAll())
	packed[len(packed)-5]++
	if _, err := Read(bytes.NewReader(packed), Limits{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("a wrong checksum: %v", err)
	}
	if _, err := Read(io.MultiReader(bytes.NewReader(gzipOf(t, littleOfAll())), strings.NewReader("more")), Limits{}); err == nil {
		t.Error("bytes after the gzip stream are passed over")
	}
}
