package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxTotals    = 2048 // stacks of a device
	maxAddresses = 256  // segments of a device
)

// Totals is what of a snapshot is kept to tell the growth until the next one of the same process.
type Totals struct {
	Time    time.Time      `json:"time,omitzero"` // of the newest entry of the history; whoever knows when the snapshot was taken sets it
	Devices []DeviceTotals `json:"devices"`
}

// DeviceTotals is one card. Bytes and counts are of live blocks.
type DeviceTotals struct {
	Device    int32        `json:"device"`
	LiveBytes uint64       `json:"live_bytes"`
	BareBytes uint64       `json:"bare_bytes"`          // without a stack
	RestBytes uint64       `json:"rest_bytes,omitzero"` // of smaller stacks that are not kept
	Segments  []uint64     `json:"segments,omitempty"`  // addresses of the largest that are not expandable
	Stacks    []StackTotal `json:"stacks,omitempty"`    // the largest first
}

// StackTotal is one place in the program.
type StackTotal struct {
	Frames    []string `json:"frames"`
	LiveBytes uint64   `json:"live_bytes"`
	Blocks    uint64   `json:"blocks"`
}

// TotalsOf returns the live bytes by stack, at most maxTotals of them a device.
func TotalsOf(s *Snapshot) *Totals {
	t := new(Totals)
	for _, c := range cards(s) {
		t.Devices = append(t.Devices, c.totals())
		if c.past.last.After(t.Time) {
			t.Time = c.past.last
		}
	}
	return t
}

func (c *card) totals() DeviceTotals {
	d := DeviceTotals{Device: c.device, LiveBytes: c.live, BareBytes: c.bare.live, Segments: c.addresses()}
	for _, h := range c.holders {
		switch {
		case h.live == 0:
		case len(d.Stacks) < maxTotals:
			d.Stacks = append(d.Stacks, StackTotal{h.frames, h.live, h.blocks})
		default:
			d.RestBytes = plus(d.RestBytes, h.live)
		}
	}
	return d
}

// addresses are those of the largest segments. Expandable ones are left out: their addresses are the same in every process.
func (c *card) addresses() []uint64 {
	var all []*Segment
	for _, p := range c.pools {
		for _, g := range p.parts {
			if !g.Expandable {
				all = append(all, g)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *Segment) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Address, b.Address))
	})
	var out []uint64
	for _, g := range all[:min(len(all), maxAddresses)] {
		out = append(out, g.Address)
	}
	slices.Sort(out)
	return out
}

// device returns the totals of a card.
func (t *Totals) device(id int32) (DeviceTotals, bool) {
	i := slices.IndexFunc(t.Devices, func(d DeviceTotals) bool { return d.Device == id })
	if i < 0 {
		return DeviceTotals{}, false
	}
	return t.Devices[i], true
}

// strangers says whether two cards look like those of two processes: both have segments, and none at the same address.
func strangers(a, b DeviceTotals) bool {
	if len(a.Segments) == 0 || len(b.Segments) == 0 {
		return false
	}
	for _, address := range a.Segments {
		if _, found := slices.BinarySearch(b.Segments, address); found {
			return false
		}
	}
	return true
}

// grown is what compare found.
type grown struct {
	seconds *float64
	lacking string
}

// compare sets the growth of every holder since the earlier snapshot.
func (c *card) compare(s *Snapshot, o Options) (g grown) {
	if o.Before == nil {
		return g
	}
	before, known := o.Before.device(c.device)
	switch {
	case !known:
		g.lacking = "The earlier snapshot of the process does not have this card: growth is not known."
		return g
	case strangers(before, c.totals()):
		g.lacking = "The earlier snapshot shares no segment with this one: it is of another process, and growth is not known."
		return g
	case before.LiveBytes > 0 && before.BareBytes == before.LiveBytes && len(c.holders) > 0:
		g.lacking = fmt.Sprintf("The earlier snapshot has no stacks: what a stack holds now counts as its growth, as far as it was allocated while recording; live memory changed by %s in all.",
			difference(signed(c.live, before.LiveBytes)))
	case c.bare.live != before.BareBytes:
		g.lacking = fmt.Sprintf("Live memory without a stack changed by %s, which belongs to no line of code.", difference(signed(c.bare.live, before.BareBytes)))
	}
	c.grow(before)
	taken := o.Time
	if taken.IsZero() {
		taken = c.past.last
	}
	if !taken.IsZero() && !o.Before.Time.IsZero() && taken.After(o.Before.Time) {
		seconds := taken.Sub(o.Before.Time).Seconds()
		g.seconds = &seconds
	}
	return g
}

// grow compares stack by stack. A stack that the earlier totals may have cut has no growth.
func (c *card) grow(before DeviceTotals) {
	was := make(map[string]uint64, len(before.Stacks))
	for _, one := range before.Stacks {
		was[strings.Join(one.Frames, "\n")] = one.LiveBytes
	}
	for _, h := range c.holders {
		bytes, known := was[h.key]
		if known || before.RestBytes == 0 {
			growth := signed(h.live, bytes)
			h.growth = &growth
		}
	}
}
