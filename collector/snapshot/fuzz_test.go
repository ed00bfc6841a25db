package snapshot

import (
	"bytes"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// sound says what is wrong with what Read returned: everything in it must point to something that is there.
func sound(s *Snapshot) string {
	stack := func(id uint32) bool { return int(id) < len(s.Stacks) }
	if len(s.Frames) == 0 || len(s.Stacks) == 0 || s.Frames[0] != (Frame{}) || len(s.Stacks[0]) != 0 {
		return "the first frame or stack is not empty"
	}
	for _, list := range s.Stacks[1:] {
		if len(list) == 0 {
			return "a second empty stack"
		}
		for _, f := range list {
			if f == 0 || int(f) >= len(s.Frames) {
				return "a frame that is not there"
			}
		}
	}
	items := 0
	for _, g := range s.Segments {
		if !stack(g.Stack) || g.Device < 0 {
			return "a segment's stack or device"
		}
		for _, b := range g.Blocks {
			if !stack(b.Stack) || b.State > Free || int64(b.Size) < 0 || int64(b.Requested) < 0 {
				return "a block's stack, state or size"
			}
		}
		items += 1 + len(g.Blocks)
	}
	for _, trace := range s.Traces {
		for _, e := range trace {
			if !stack(e.Stack) || e.Action > UserDefined || int64(e.Size) < 0 {
				return "an entry's stack, action or size"
			}
		}
		items += len(trace)
	}
	if int64(items) > s.Bytes {
		return "more records than bytes"
	}
	if len(s.Unknown) > maxUnknown || !slices.IsSorted(s.Unknown) || s.Annotations < 0 || s.Protocol < 2 || s.Protocol > 5 {
		return "unknown names, annotations or protocol"
	}
	return ""
}

// FuzzRead reads whatever comes: it must not panic, must take memory in proportion, must return something sound or an error, and the same
// however the bytes arrive.
func FuzzRead(f *testing.F) {
	cut, err := os.ReadFile("testdata/cut.pickle") // of a real snapshot
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cut)
	f.Add(littleOfAll())
	f.Add(gzipOf(f, littleOfAll()))
	for _, s := range []shape{
		{protocol: 2, devices: 1, segments: 1, blocks: 2, entries: 4, depth: 2, sites: 2, metadata: true},
		{protocol: 2, torch: true, devices: 1, segments: 2, blocks: 1, entries: 4, depth: 3, sites: 2},
		{protocol: 3, devices: 1, segments: 1, blocks: 1, entries: 2, depth: 2, sites: 1, unshared: true},
		{protocol: 5, devices: 9, segments: 0, blocks: 0, entries: 1},
	} {
		f.Add(generate(s))
	}
	f.Add(pickled(4, pyList{pyDict{"address", 512, "total_size", 1024, "blocks", pyList{pyDict{"size", 9, "state", "lent", "history", pyList{
		pyDict{"real_size", 5, "frames", pyList{pyFrame("f", 3)}},
	}}}}}))
	f.Add([]byte("\x80\x02}q\x00]q\x01h\x00a(K\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00u."))
	f.Add([]byte("\x80\x04cos\nsystem\n."))
	limits := Limits{Bytes: 1 << 20, Depth: 20, Memo: 1 << 16, String: 1 << 12, Items: 1 << 16}
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := Read(bytes.NewReader(b), limits)
		runtime.ReadMemStats(&after)
		raw := len(b)
		if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
			raw = int(limits.Bytes)
		}
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 4<<20+64*uint64(raw) {
			t.Fatalf("%d bytes taken for %d", taken, len(b))
		}
		again, err2 := Read(iotest.OneByteReader(bytes.NewReader(b)), limits)
		if err != nil {
			if s != nil || !strings.HasPrefix(err.Error(), "read snapshot: ") {
				t.Fatalf("%v, and a snapshot %v", err, s)
			}
			if err2 == nil || err2.Error() != err.Error() {
				t.Fatalf("%v; byte by byte: %v", err, err2)
			}
			return
		}
		if wrong := sound(s); wrong != "" {
			t.Fatalf("%s: %+v", wrong, s)
		}
		if err2 != nil || !reflect.DeepEqual(s, again) && s.Settings.GarbageCollection == s.Settings.GarbageCollection {
			t.Fatalf("%+v; byte by byte: %+v, %v", s, again, err2)
		}
	})
}
