package snapshot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
)

const mib = 1 << 20

// leaking is a process in which one line keeps a block of 8 MiB at each step, beside 100 MiB that stay and 64 MiB that went at step 3;
// it has a history of its steps, a minute each.
func leaking(step int) *Snapshot {
	s := &Snapshot{Frames: []Frame{{}, {"keep", "/srv/app/debug.py", 41}, {"load", "/srv/app/model.py", 7}, {"warm", "/srv/app/warm.py", 3}},
		Stacks: []Stack{nil, {1}, {2}, {3}}, Traces: [][]Entry{nil}}
	base := uint64(1 << 40)
	g := Segment{Large: true, Address: base, Total: 512 * mib}
	at := base
	put := func(size uint64, state State, stack uint32) {
		g.Blocks = append(g.Blocks, Block{Address: at, Size: size, Requested: size, State: state, Stack: stack})
		at += size
	}
	put(100*mib, Live, 2)
	if step < 3 {
		put(64*mib, Live, 3)
	} else {
		put(64*mib, Free, 0)
	}
	for i := range step {
		s.Traces[0] = append(s.Traces[0], Entry{Action: Alloc, Address: at, Size: 8 * mib, Micros: int64(i+1) * 60_000_000, Stack: 1})
		put(8*mib, Live, 1)
	}
	put(base+g.Total-at, Free, 0)
	s.Segments = []Segment{g}
	return s
}

func TestGrowth(t *testing.T) {
	before := TotalsOf(leaking(2))
	text, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	kept := new(Totals) // between the two it lies in a file
	if err := json.Unmarshal(text, kept); err != nil {
		t.Fatal(err)
	}
	r := Summarise(leaking(12), Options{Before: kept})[0]
	var got []string
	for _, one := range r.Stacks {
		got = append(got, fmt.Sprintf("%s %d MiB %+d MiB", one.Frames[0], one.GetLiveBytes()/mib, one.GetGrowthBytes()/mib))
	}
	if want := "app/model.py:7 load 100 MiB +0 MiB, app/debug.py:41 keep 96 MiB +80 MiB"; strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
	if r.GetGrowthSeconds() != 600 {
		t.Errorf("over %g s, want 600", r.GetGrowthSeconds())
	}
	r = Summarise(leaking(12), Options{Before: kept, Time: kept.Time.Add(42 * time.Second)})[0]
	if r.GetGrowthSeconds() != 42 {
		t.Errorf("over %g s although it was taken 42 s later", r.GetGrowthSeconds())
	}
	if without := Summarise(leaking(12), Options{})[0]; without.Stacks[0].GrowthBytes != nil || without.GrowthSeconds != nil {
		t.Errorf("growth since no snapshot: %v", without.Stacks[0])
	}
}

func TestGrowthIsNotClaimed(t *testing.T) {
	said := func(before *Totals) (string, bool) {
		r := Summarise(leaking(12), Options{Before: before})[0]
		return strings.Join(r.Lacking, "\n"), r.Stacks[0].GrowthBytes != nil
	}
	other := TotalsOf(leaking(2))
	other.Devices[0].Segments = []uint64{5}
	if text, grew := said(other); grew || !strings.Contains(text, "another process") {
		t.Errorf("another process: growth %v, %s", grew, text)
	}
	other = TotalsOf(leaking(2))
	other.Devices[0].Device = 3
	if text, grew := said(other); grew || !strings.Contains(text, "does not have this card") {
		t.Errorf("another card: growth %v, %s", grew, text)
	}
	bare := leaking(2)
	for i := range bare.Segments[0].Blocks {
		bare.Segments[0].Blocks[i].Stack = 0
	}
	if text, grew := said(TotalsOf(bare)); !grew || !strings.Contains(text, "has no stacks") || !strings.Contains(text, "by +16 MiB in all") {
		t.Errorf("without stacks before: growth %v, %s", grew, text)
	}
	cut := TotalsOf(leaking(2))
	cut.Devices[0].Stacks, cut.Devices[0].RestBytes = cut.Devices[0].Stacks[:1], 16*mib
	r := Summarise(leaking(12), Options{Before: cut})[0]
	if r.Stacks[0].GrowthBytes == nil || r.Stacks[1].GrowthBytes != nil {
		t.Errorf("a stack that may have been cut: %v", r.Stacks)
	}
}

func TestTotalsAreBounded(t *testing.T) {
	s := &Snapshot{Frames: make([]Frame, 1), Stacks: make([]Stack, 1)}
	for i := range 3000 {
		s.Frames = append(s.Frames, Frame{"f", "/srv/app/a.py", int32(i)})
		s.Stacks = append(s.Stacks, Stack{uint32(i + 1)})
		s.Segments = append(s.Segments, Segment{Address: uint64(i+1) << 21, Total: 2 * mib, Blocks: []Block{{Address: uint64(i+1) << 21, Size: uint64(1+i) * 512, State: Live, Stack: uint32(i + 1)}}})
	}
	d := TotalsOf(s).Devices[0]
	sum := d.RestBytes + d.BareBytes
	for _, one := range d.Stacks {
		sum += one.LiveBytes
	}
	if len(d.Stacks) != maxTotals || len(d.Segments) != maxAddresses || sum != d.LiveBytes || d.RestBytes != 512*952*953/2 {
		t.Errorf("%d stacks, %d segments, %d of %d bytes, %d in the rest", len(d.Stacks), len(d.Segments), sum, d.LiveBytes, d.RestBytes)
	}
}

func TestDiffer(t *testing.T) {
	d := differ(leaking(2), leaking(12))
	if d.SameProcess == nil || !*d.SameProcess || len(d.Warnings) > 0 || d.Seconds == nil || *d.Seconds != 600 {
		t.Errorf("same process %v, seconds %v, warnings %q", d.SameProcess, d.Seconds, d.Warnings)
	}
	var got []string
	for _, one := range d.Devices[0].Stacks {
		got = append(got, fmt.Sprintf("%s %s %+d MiB, %d → %d blocks", one.Frames[0], one.State, one.Growth/mib, one.Blocks.Before, one.Blocks.After))
	}
	want := "app/debug.py:41 keep grew +80 MiB, 2 → 12 blocks; app/model.py:7 load same +0 MiB, 1 → 1 blocks; app/warm.py:3 warm gone -64 MiB, 1 → 0 blocks"
	if strings.Join(got, "; ") != want {
		t.Errorf("%s, want %s", strings.Join(got, "; "), want)
	}
	if p := d.Devices[0].Pools; len(p) != 1 || p[0].State != "same" || p[0].Live.Growth != 16*mib || p[0].Free.Growth != -16*mib {
		t.Errorf("pools %+v", p)
	}
	for _, c := range []struct {
		name, want    string
		before, after *Snapshot
	}{
		{"swapped", "second snapshot is the older one, by 10 min 00 s", leaking(12), leaking(2)},
		{"two processes", "do not look like one process", recordedFile(t, "leak-oom"), recordedFile(t, "frag")},
		{"expandable segments", "cannot be told", recordedFile(t, "expandable-oom"), recordedFile(t, "expandable-oom")},
	} {
		if said := strings.Join(differ(c.before, c.after).Warnings, "\n"); !strings.Contains(said, c.want) {
			t.Errorf("%s: warnings %q, want %q", c.name, said, c.want)
		}
	}
}
