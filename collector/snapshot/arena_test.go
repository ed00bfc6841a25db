package snapshot

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// What is played backwards is what an allocator of the same rules had at every single entry: live, pending, reserved and every hole. Of
// a native segment the history does not tell the rest of up to 1 MiB that the allocator left on a block: where the block's neighbour was
// free, that rest counts as free, so that a hole is at most 1 MiB too large.
func TestRewind(t *testing.T) {
	for _, c := range []struct {
		name       string
		expandable bool
		maxSplit   uint64
	}{{"native", false, 0}, {"expandable", true, 0}, {"max_split_size", false, 32 << 20}} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprint(c.name, " ", seed), func(t *testing.T) {
				w := newTwin(seed, c.expandable, c.maxSplit)
				for range 800 {
					w.step()
				}
				a := arenaOf(w.snapshot(len(w.trace)), only(t, w.snapshot(len(w.trace))))
				freed := uint64(0)
				for i, e := range slices.Backward(w.trace) {
					a.undo(e)
					if e.Action == FreeCompleted && !c.expandable {
						freed++
					}
					want, got := w.truth[i], moments{a.live, a.pending, a.reserved, a.room(e.Stream)}
					one := min(freed, 1)
					if a.odd > 0 || got.reserved != want.reserved || got.live+got.pending+got.room.free != got.reserved ||
						!within(want.live, got.live, freed) || !within(want.pending, got.pending, freed) || !within(got.room.free, want.room.free, freed) ||
						!within(got.room.largest, want.room.largest, one) || !within(got.room.usable, want.room.usable, one) {
						t.Fatalf("before entry %d of %d, %s: %+v, it was %+v; %d odd", i, len(w.trace), e.Action, got, want, a.odd)
					}
					if c.expandable && got != want {
						t.Fatalf("before entry %d of %d, %s: %+v, it was %+v", i, len(w.trace), e.Action, got, want)
					}
				}
				if a.live != 0 || a.reserved != 0 || len(a.held) != 0 || len(a.regions) != 0 {
					t.Errorf("before everything: live %d, reserved %d, %d blocks, %d regions", a.live, a.reserved, len(a.held), len(a.regions))
				}
			})
		}
	}
}

// A block that was not split, since the rest was no more than 1 MiB, comes back in its whole size; one whose rest is larger does not.
func TestRewindKnowsWhatIsNotSplit(t *testing.T) {
	for _, c := range []struct{ size, asked, want uint64 }{{11 << 20, 10<<20 - 5, 11 << 20}, {11<<20 + 512, 10 << 20, 10 << 20}} {
		s := &Snapshot{Segments: []Segment{{Large: true, Total: 40 << 20, Blocks: []Block{{Address: 0, Size: c.size, State: Free}, {Address: c.size, Size: 40<<20 - c.size, State: Live}}}},
			Traces: [][]Entry{{{Action: FreeRequested, Size: c.asked}, {Action: FreeCompleted, Size: c.asked, Micros: 1}}}}
		card := only(t, s)
		if got := card.past.before - card.live; got != c.want || card.past.odd != 0 {
			t.Errorf("%d asked for in %d: %d, want %d", c.asked, c.size, got, c.want)
		}
	}
}

// within says whether a value is at least another, and by how many MiB it is larger at most.
func within(v, least, mib uint64) bool { return v >= least && v-least <= mib<<20 }

// A history that does not reach back to the beginning gives the same values, as far as it goes; so do the OOMs in it.
func TestPastOfARing(t *testing.T) {
	w := newTwin(99, true, 0)
	for range 1500 {
		w.step()
	}
	const entries = 1000
	first := len(w.trace) - entries
	p := only(t, w.snapshot(entries)).past
	if p.odd != 0 || p.before != w.truth[first].live {
		t.Errorf("%d odd; %d live before the oldest entry, it was %d", p.odd, p.before, w.truth[first].live)
	}
	var failed []int
	for i := first; i < len(w.trace); i++ {
		if w.trace[i].Action == OOM {
			failed = append(failed, i)
		}
	}
	if len(failed) < 5 || len(failed) > maxOOMs || len(p.ooms) != len(failed) {
		t.Fatalf("%d OOMs, %d were recorded", len(p.ooms), len(failed))
	}
	for n, i := range failed {
		o := p.ooms[n]
		if got := (moments{o.live, o.pending, o.reserved, o.room}); got != w.truth[i] || !o.known || o.requested != w.trace[i].Size || o.undone != len(w.trace)-1-i || o.deviceFree != 1<<33 {
			t.Errorf("OOM %d: %+v, it was %+v", n, o, w.truth[i])
		}
	}
	for _, one := range p.points { // a point is the state after the last entry of its piece
		i := slices.IndexFunc(w.trace, func(e Entry) bool { return e.Micros > one.at.UnixMicro() })
		want := w.now(0)
		if i >= 0 {
			want = w.truth[i]
		}
		if one.live != want.live || one.reserved != want.reserved || one.pending != want.pending {
			t.Fatalf("at %s: live %d reserved %d pending %d, it was %+v", one.at, one.live, one.reserved, one.pending, want)
		}
	}
}

// The history of a process that was recorded from its first second reaches back to what it had loaded before: 17 blocks of 8 GiB.
func TestRewindReachesTheBeginning(t *testing.T) {
	s := recordedFile(t, "stream_await")
	c := only(t, s)
	a := arenaOf(s, c)
	for _, e := range slices.Backward(c.trace) {
		a.undo(e)
	}
	if a.live != 8<<30 || a.pending != 0 || len(a.held) != 17 || a.odd != 0 {
		t.Errorf("live %d, pending %d, %d blocks, %d odd", a.live, a.pending, len(a.held), a.odd)
	}
	for _, name := range recorded {
		if c := only(t, recordedFile(t, name)); c.past.odd != 0 {
			t.Errorf("%s: %d entries contradict the blocks", name, c.past.odd)
		}
	}
}

// Entries that are missing from the history are noticed, and what lies behind them is not claimed.
func TestRewindNoticesGaps(t *testing.T) {
	w := newTwin(3, false, 0)
	for range 300 {
		w.step()
	}
	w.record(Entry{Action: OOM, Size: 1 << 30, Address: 5})
	last := w.micros
	for range 200 {
		w.step()
	}
	s := w.snapshot(len(w.trace))
	s.Traces[0] = slices.DeleteFunc(slices.Clone(w.trace), func(e Entry) bool {
		return e.Action == Alloc && e.Micros > last || e.Action == OOM && e.Address != 5
	})
	c := only(t, s)
	if len(c.past.ooms) != 1 || c.past.odd == 0 || c.past.ooms[0].known {
		t.Errorf("%d odd, OOMs %+v", c.past.odd, c.past.ooms)
	}
	if o := c.lastOOM(); o.GetRequestedBytes() != 1<<30 || o.LargestFreeBytes != nil {
		t.Errorf("OOM %v", o)
	}
}

// A time that no calendar has would make a summary that cannot be written.
func TestMomentIsInTheCalendar(t *testing.T) {
	for micros, want := range map[int64]string{-1 << 63: "1970-01-01T00:00:00Z", 1796006932204909: "2026-11-30T02:48:52.204909Z", 1<<63 - 1: "9999-12-31T23:59:59.999999Z"} {
		if got := moment(micros).Format(time.RFC3339Nano); got != want {
			t.Errorf("%d: %s, want %s", micros, got, want)
		}
	}
}
