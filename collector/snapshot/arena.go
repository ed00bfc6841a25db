package snapshot

import (
	"cmp"
	"slices"
	"strings"
)

// The allocator's own bounds, from CUDACachingAllocator.cpp: sizes are multiples of unit; up to smallest goes to the small pool, whose
// segments have smallPage; what is left of a block of the large pool is split off only when it is more than smallest.
const (
	unit     = 512
	smallest = 1 << 20
)

// arena is the allocator of one device at a moment, taken back in time entry by entry. reserved is exact; of native segments a hole may
// be too large by smallest, and live memory too small by as much for every block that was freed since.
type arena struct {
	regions                 []region // by address, never over each other
	held                    map[uint64]piece
	live, pending, reserved uint64
	maxSplit                uint64 // 0 is unlimited
	odd                     int    // entries that did not fit
}

// region is mapped memory: a segment, or the run of pages of an expandable one.
type region struct {
	address, size uint64
	stream        int64
	pool          [2]uint64
	poolKnown     bool // of a segment that is gone the history does not tell it
	expandable    bool
	holes         []hole // by address, never touching
}

func (s *region) end() uint64 { return s.address + s.size }

type hole struct{ address, size uint64 }

// piece is a block that the program has, or has given back and another stream still uses.
type piece struct {
	size    uint64
	pending bool
}

// arenaOf is the allocator as the snapshot has it; segments over each other and blocks outside of theirs are left out.
func arenaOf(s *Snapshot, c *card) *arena {
	a := &arena{held: make(map[uint64]piece), live: c.live, pending: c.pending, reserved: c.reserved}
	if s.Settings.Known && s.Settings.MaxSplitSize > 0 {
		a.maxSplit = uint64(s.Settings.MaxSplitSize)
	}
	for _, p := range c.pools {
		for _, g := range p.parts {
			if g.Address+g.Total < g.Address {
				a.odd++
				continue
			}
			sp := region{address: g.Address, size: g.Total, stream: g.Stream, pool: g.Pool, poolKnown: true, expandable: g.Expandable}
			for _, b := range g.Blocks {
				if b.Address < g.Address || b.Size > g.Total || b.Address-g.Address > g.Total-b.Size {
					a.odd++
					continue
				}
				switch b.State {
				case Free:
					sp.holes = append(sp.holes, hole{b.Address, b.Size})
				case Live, Pending:
					a.held[b.Address] = piece{b.Size, b.State == Pending}
				}
			}
			slices.SortFunc(sp.holes, func(a, b hole) int { return cmp.Compare(a.address, b.address) })
			sp.holes = tidy(sp.holes)
			a.regions = append(a.regions, sp)
		}
	}
	slices.SortFunc(a.regions, func(a, b region) int { return cmp.Compare(a.address, b.address) })
	kept := a.regions[:0]
	for _, sp := range a.regions {
		if n := len(kept); n > 0 && kept[n-1].end() > sp.address {
			a.odd++
			continue
		}
		kept = append(kept, sp)
	}
	a.regions = kept
	return a
}

// tidy merges holes that touch.
func tidy(holes []hole) []hole {
	kept := holes[:0]
	for _, h := range holes {
		if n := len(kept); n > 0 && kept[n-1].address+kept[n-1].size >= h.address {
			kept[n-1].size = max(kept[n-1].address+kept[n-1].size, h.address+h.size) - kept[n-1].address
			continue
		}
		kept = append(kept, h)
	}
	return kept
}

// at is the index of the region that has the address, or of the one before which it would stand.
func (a *arena) at(address uint64) (int, bool) {
	i, found := slices.BinarySearchFunc(a.regions, address, func(s region, address uint64) int { return cmp.Compare(s.address, address) })
	if found {
		return i, true
	}
	if i > 0 && address < a.regions[i-1].end() {
		return i - 1, true
	}
	return i, false
}

// undo takes one entry back.
func (a *arena) undo(e Entry) {
	ok := true
	switch e.Action {
	case Alloc:
		ok = a.unalloc(e.Address)
	case FreeRequested:
		p, held := a.held[e.Address]
		if ok = held && p.pending; ok {
			a.held[e.Address] = piece{p.size, false}
			a.pending, a.live = minus(a.pending, p.size), plus(a.live, p.size)
		}
	case FreeCompleted:
		ok = a.unfree(e.Address, e.Size)
	case SegmentAlloc:
		ok = a.unmap(e.Address, e.Size)
	case SegmentFree:
		ok = a.remap(e, false)
	case SegmentMap:
		ok = a.unmap(e.Address, e.Size)
	case SegmentUnmap:
		ok = a.remap(e, true)
	}
	if !ok {
		a.odd++
	}
}

// unalloc makes a block free, as it was before it was asked for.
func (a *arena) unalloc(address uint64) bool {
	p, held := a.held[address]
	i, found := a.at(address)
	if !held || !found || p.size > a.regions[i].end()-address {
		return false
	}
	delete(a.held, address)
	if p.pending {
		a.pending = minus(a.pending, p.size)
	} else {
		a.live = minus(a.live, p.size)
	}
	a.regions[i].fill(hole{address, p.size})
	return true
}

// fill puts a hole back.
func (s *region) fill(h hole) {
	i, _ := slices.BinarySearchFunc(s.holes, h.address, func(h hole, address uint64) int { return cmp.Compare(h.address, address) })
	before := i > 0 && s.holes[i-1].address+s.holes[i-1].size >= h.address
	after := i < len(s.holes) && h.address+h.size >= s.holes[i].address
	switch {
	case before && after:
		s.holes[i-1].size = s.holes[i].address + s.holes[i].size - s.holes[i-1].address
		s.holes = slices.Delete(s.holes, i, i+1)
	case before:
		s.holes[i-1].size = h.address + h.size - s.holes[i-1].address
	case after:
		s.holes[i] = hole{h.address, s.holes[i].address + s.holes[i].size - h.address}
	default:
		s.holes = slices.Insert(s.holes, i, h)
	}
}

// holeAt is the index of the hole that has the address.
func (s *region) holeAt(address uint64) (int, bool) {
	i, found := slices.BinarySearchFunc(s.holes, address, func(h hole, address uint64) int { return cmp.Compare(h.address, address) })
	if found {
		return i, true
	}
	if i > 0 && address-s.holes[i-1].address < s.holes[i-1].size {
		return i - 1, true
	}
	return i, false
}

// carve takes a range out of a hole; the range lies inside.
func (s *region) carve(i int, address, size uint64) {
	h := s.holes[i]
	left := hole{h.address, address - h.address}
	right := hole{address + size, h.address + h.size - address - size}
	switch {
	case left.size > 0 && right.size > 0:
		s.holes[i] = left
		s.holes = slices.Insert(s.holes, i+1, right)
	case left.size > 0:
		s.holes[i] = left
	case right.size > 0:
		s.holes[i] = right
	default:
		s.holes = slices.Delete(s.holes, i, i+1)
	}
}

// unfree takes a block out of the hole that it became part of. The history has what was asked for; how large the block was follows
// from the rules by which the allocator splits, except where a block that kept a rest of up to smallest has a free neighbour: then the
// rest counts as free.
func (a *arena) unfree(address, requested uint64) bool {
	i, found := a.at(address)
	if _, held := a.held[address]; !found || held || requested > 1<<62 {
		return false
	}
	s := &a.regions[i]
	h, found := s.holeAt(address)
	if !found {
		return false
	}
	room := s.holes[h].address + s.holes[h].size - address
	size := max(unit, (requested+unit-1)/unit*unit)
	if size > room {
		return false
	}
	if !s.expandable && s.size > smallPage && (room-size <= smallest || a.maxSplit > 0 && size >= a.maxSplit) {
		size = room // it would not have been split
	}
	s.carve(h, address, size)
	a.held[address] = piece{size, true}
	a.pending = plus(a.pending, size)
	return true
}

// unmap takes free memory away that had not come yet.
func (a *arena) unmap(address, size uint64) bool {
	i, found := a.at(address)
	if !found || size == 0 {
		return false
	}
	s := &a.regions[i]
	h, found := s.holeAt(address)
	if !found || size > s.holes[h].address+s.holes[h].size-address || size > s.end()-address {
		return false
	}
	s.carve(h, address, size)
	a.reserved = minus(a.reserved, size)
	left, right := *s, *s
	left.size = address - s.address
	right.address, right.size = address+size, s.end()-address-size
	cut, _ := slices.BinarySearchFunc(s.holes, address, func(h hole, address uint64) int { return cmp.Compare(h.address, address) })
	left.holes, right.holes = slices.Clone(s.holes[:cut]), slices.Clone(s.holes[cut:])
	var rest []region
	for _, part := range []region{left, right} {
		if part.size > 0 {
			rest = append(rest, part)
		}
	}
	a.regions = slices.Replace(a.regions, i, i+1, rest...)
	return true
}

// remap brings memory back that was given to the driver since, all of it free. Pages of an expandable segment join those beside them.
func (a *arena) remap(e Entry, expandable bool) bool {
	end := e.Address + e.Size
	i, found := a.at(e.Address)
	if found || e.Size == 0 || end < e.Address || i < len(a.regions) && a.regions[i].address < end {
		return false
	}
	a.reserved = plus(a.reserved, e.Size)
	s := region{address: e.Address, size: e.Size, stream: e.Stream, expandable: expandable, holes: []hole{{e.Address, e.Size}}}
	joins := func(other region) bool { return expandable && other.expandable && other.stream == e.Stream }
	if i < len(a.regions) && a.regions[i].address == end && joins(a.regions[i]) {
		next := a.regions[i]
		s.size, s.pool, s.poolKnown = s.size+next.size, next.pool, next.poolKnown
		s.holes = tidy(append(s.holes, next.holes...))
		a.regions = slices.Delete(a.regions, i, i+1)
	}
	if i > 0 && a.regions[i-1].end() == e.Address && joins(a.regions[i-1]) {
		before := &a.regions[i-1]
		before.size += s.size
		before.holes = tidy(append(before.holes, s.holes...))
		return true
	}
	a.regions = slices.Insert(a.regions, i, s)
	return true
}

// room is what was free in the arena, and the largest hole that a request on a stream could have used: its own stream's, outside of
// private pools.
func (a *arena) room(stream int64) (r room) {
	for i := range a.regions {
		s := &a.regions[i]
		for _, h := range s.holes {
			r.free, r.holes, r.largest = plus(r.free, h.size), r.holes+1, max(r.largest, h.size)
			if s.stream == stream && (!s.poolKnown || s.pool == [2]uint64{}) {
				r.usable = max(r.usable, h.size)
			}
		}
	}
	return r
}

type room struct{ free, holes, largest, usable uint64 }

// rounds says whether requests are rounded up by more than the unit, so that the history does not tell a block's size.
func rounds(s Settings) bool { return strings.Contains(s.AllocConf, "roundup_power2_divisions") }
