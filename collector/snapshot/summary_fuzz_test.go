package snapshot

import (
	"encoding/binary"
	"io"
	"testing"

	"lowtide/event"
)

// hostile builds a snapshot of numbers that nobody would write: overlapping blocks, sizes over all bounds, a history of another world.
func hostile(b []byte) *Snapshot {
	take := func() uint64 {
		var n [8]byte
		b = b[copy(n[:], b):]
		v := binary.LittleEndian.Uint64(n[:])
		if v>>56&1 == 0 { // half of the numbers are small, so that some of them meet
			v = v & 0xff << 9
		}
		return v
	}
	s := &Snapshot{Frames: []Frame{{}, {"f", "/srv/a.py", 1}, {"g", "/x/site-packages/torch/a.py", 2}}, Stacks: []Stack{nil, {1}, {2, 1}, {9}}, Settings: Settings{Known: true, MaxSplitSize: int64(take())}}
	s.Traces = make([][]Entry, 2)
	for len(b) > 0 && len(s.Segments) < 64 && len(s.Traces[0])+len(s.Traces[1]) < 256 {
		kind := take()
		switch n := len(s.Segments); {
		case kind&3 == 0 || n == 0:
			s.Segments = append(s.Segments, Segment{Device: int32(kind >> 9 & 1), Stream: int64(kind >> 10 & 1), Pool: [2]uint64{0, kind >> 11 & 1}, Large: kind&1<<12 > 0, Expandable: kind&1<<13 > 0, Address: take(), Total: take()})
		case kind&3 == 1:
			s.Segments[n-1].Blocks = append(s.Segments[n-1].Blocks, Block{Address: take(), Size: take(), Requested: take(), State: State(kind >> 9 & 7), Stack: uint32(kind >> 12 & 7)})
		default:
			i := kind >> 9 & 1
			s.Traces[i] = append(s.Traces[i], Entry{Action: Action(kind >> 10 & 15), Stack: uint32(kind >> 14 & 7), Stream: int64(kind >> 10 & 1), Address: take(), Size: take(), Micros: int64(take())})
		}
	}
	return s
}

// Whatever numbers a snapshot has, its summary is an event of bounded size, and every page is printed.
func FuzzSummary(f *testing.F) {
	f.Add([]byte("\x00\x02\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\xff\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x0c\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := hostile(b)
		before := TotalsOf(hostile(b[len(b)/2:]))
		for _, r := range Summarise(s, Options{Before: before}) {
			text, err := event.MarshalEvent(&event.Event{Snapshot: r})
			if err != nil || len(text) > 256<<10 {
				t.Fatalf("%d bytes, %v", len(text), err)
			}
			line := append([]byte(`{"time":"2026-01-01T00:00:00Z","host":{"cluster":"c","name":"h"},`), text[1:]...)
			if _, _, err := event.UnmarshalEvent(line); err != nil {
				t.Fatalf("no event: %v\n%s", err, line)
			}
		}
		for _, style := range []Style{{Width: 100}, {ASCII: true, Width: 80}} {
			p := &page{style: style}
			(&shown{name: "a", s: s, cards: cards(s), top: 3}).write(p)
			differ(s, hostile(b[len(b)/2:])).write(p, 3)
			if err := p.flush(io.Discard); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeJSON(io.Discard, describe("a", s, Options{})); err != nil {
			t.Fatal(err)
		}
	})
}
