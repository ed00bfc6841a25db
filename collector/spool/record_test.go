package spool

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"lowtide/event"
)

// The bytes were put together by another program, from the layout in record.go and a bitwise CRC-32C that gives 0xE3069283 for
// "123456789" (RFC 3720, B.4).
const (
	goldenRecord = "3b00000091c1705a0500b49376e2fa1803000000160011006c6f77746964652e6576656e742e6c61622e68312e736c61622f68312f702f757267656e742f3764617461"
	goldenCursor = "0700000000000000001000000000000054acd70b"
)

func TestRecordAndCursorHaveTheirBytes(t *testing.T) {
	r := Record{At: time.Unix(1_800_000_000, 5), Events: 3, Subject: "lowtide.event.lab.h1.s", ID: "lab/h1/p/urgent/7", Data: []byte("data")}
	got, err := appendRecord(nil, &r)
	if err != nil || hex.EncodeToString(got) != goldenRecord {
		t.Errorf("record %x, %v, want %s", got, err, goldenRecord)
	}
	back, size, err := decodeRecord(append(got, "behind"...))
	if err != nil || size != len(got) || !reflect.DeepEqual(back, r) {
		t.Errorf("read %+v of %d bytes, %v", back, size, err)
	}
	c := cursor{7, 4096}
	if got := hex.EncodeToString(c.encode()); got != goldenCursor {
		t.Errorf("cursor %s, want %s", got, goldenCursor)
	}
	if back, err := decodeCursor(c.encode()); err != nil || back != c {
		t.Errorf("cursor read as %+v, %v", back, err)
	}
}

// Every byte that is changed and every end that is missing is found out.
func TestDamageIsFound(t *testing.T) {
	whole, err := hex.DecodeString(goldenRecord)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x10
		if _, _, err := decodeRecord(bad); err == nil {
			t.Errorf("byte %d is changed, and the record is read", i)
		}
		if _, _, err := decodeRecord(whole[:i]); !errors.Is(err, errTorn) {
			t.Errorf("%d bytes of a record: %v, want torn", i, err)
		}
	}
	if _, _, err := decodeRecord(make([]byte, 64)); !errors.Is(err, errDamaged) {
		t.Errorf("zeros: %v, want damaged", err)
	}
	c := cursor{7, 4096}.encode()
	c[3]++
	if _, err := decodeCursor(c); err == nil {
		t.Error("a changed cursor is read")
	}
}

func TestWhatIsTooLargeIsRefused(t *testing.T) {
	for name, r := range map[string]*Record{
		"data":    {Data: make([]byte, event.MaxBatch+8<<10)},
		"subject": {Subject: string(make([]byte, 1<<16))},
		"events":  {Events: -1},
	} {
		if b, err := appendRecord(nil, r); !errors.Is(err, ErrTooLarge) || len(b) != 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if _, err := appendRecord(nil, &Record{Subject: "s", Data: make([]byte, event.MaxBatch)}); err != nil {
		t.Errorf("the largest message of the wire: %v", err)
	}
}

// FuzzRecord reads whatever stands in a file: it must not panic, what it takes must be written the same way again, and a segment ends
// at its first record that is none, wherever reading begins.
func FuzzRecord(f *testing.F) {
	whole, _ := hex.DecodeString(goldenRecord)
	f.Add(whole, int64(0))
	f.Add(append(bytes.Clone(whole), whole...), int64(len(magic)+len(whole)))
	f.Add(whole[:len(whole)-1], int64(1))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, int64(-1))
	f.Add(make([]byte, 40), int64(1)<<62)
	f.Fuzz(func(t *testing.T, b []byte, from int64) {
		good, records, events := 0, 0, uint64(0)
		for good < len(b) {
			r, size, err := decodeRecord(b[good:])
			if err != nil {
				if !errors.Is(err, errTorn) && !errors.Is(err, errDamaged) {
					t.Fatalf("error %v", err)
				}
				break
			}
			again, err := appendRecord(nil, &r)
			if err != nil || !bytes.Equal(again, b[good:good+size]) {
				t.Fatalf("read %+v, which is written as %x, %v", r, again, err)
			}
			good, records, events = good+size, records+1, events+uint64(r.Events)
		}
		file := append([]byte(magic), b...)
		all := scan(bytes.NewReader(file), int64(len(file)), 0)
		if all.size != headerBytes+int64(good) || all.left != (Amount{uint64(records), events}) || (all.fault == nil) != (good == len(b)) {
			t.Fatalf("scanned %+v, want %d bytes, %d records, %d events", all, good, records, events)
		}
		part := scan(bytes.NewReader(file), int64(len(file)), from)
		if part.size != all.size || part.from < headerBytes || part.from > part.size || part.left.Messages > all.left.Messages {
			t.Fatalf("scanned from %d: %+v", from, part)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	r := numbered(1, 2<<10)
	whole, err := appendRecord(nil, r)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(whole)))
		b.ReportAllocs()
		var to []byte
		for b.Loop() {
			to, _ = appendRecord(to[:0], r)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(whole)))
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := decodeRecord(whole); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// numbered is the record of a sequence, with so many bytes that follow from it.
func numbered(n uint64, size int) *Record {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(n + uint64(i)*7)
	}
	return &Record{At: time.Unix(1_800_000_000+int64(n), 0), Events: 2, Subject: "lowtide.event.lab.h1.s", ID: fmt.Sprintf("lab/h1/p/samples/%d", n), Data: data}
}
