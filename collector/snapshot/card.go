package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
)

// tally is bytes and counts of a pool or a card. reserved is what the segments have; the rest is counted block by block.
type tally struct {
	reserved, live, pending, free uint64
	unknown                       uint64 // in blocks whose state has no name here
	largest                       uint64 // free block
	releasable                    uint64 // what empty_cache could give back to the card; not known of private pools
	waste                         uint64 // of live blocks, above what was asked for
	segments, holes, blocks       uint64 // holes are free blocks, blocks live ones
}

func (f *tally) add(o tally) {
	f.reserved, f.live, f.pending, f.free = plus(f.reserved, o.reserved), plus(f.live, o.live), plus(f.pending, o.pending), plus(f.free, o.free)
	f.unknown, f.releasable, f.waste = plus(f.unknown, o.unknown), plus(f.releasable, o.releasable), plus(f.waste, o.waste)
	f.segments, f.holes, f.blocks = f.segments+o.segments, f.holes+o.holes, f.blocks+o.blocks
	f.largest = max(f.largest, o.largest)
}

// fragmentation is 1 − largest free block / free bytes; not ok where nothing is free.
func (f *tally) fragmentation() (share float64, ok bool) {
	if f.free == 0 {
		return 0, false
	}
	return 1 - float64(f.largest)/float64(f.free), true
}

// pool is what blocks may move in: they never leave their stream, nor their private pool.
type pool struct {
	tally
	stream     int64
	id         [2]uint64
	expandable bool
	parts      []*Segment // in address order
}

func (p *pool) private() bool { return p.id != [2]uint64{} }

func (p *pool) name() string {
	name := "default"
	if p.private() {
		name = fmt.Sprintf("private (%d,%d)", p.id[0], p.id[1])
	}
	if p.stream != 0 {
		name += fmt.Sprintf(" stream %d", p.stream)
	}
	return name
}

// card is one device of a snapshot.
type card struct {
	tally
	device     int32
	expandable bool
	pools      []*pool   // default before private, then the largest first
	holders    []*holder // with a stack, the largest first
	bare       holder    // of blocks without one
	sizes      [65]size  // by the power of two that a block's size is at most
	private    tally     // of the private pools
	past       past      // what the trace ring tells
	trace      []Entry
	recorded   map[uint64]bool // addresses whose allocation is in the history
}

type size struct{ liveBlocks, liveBytes, freeBlocks, freeBytes uint64 }

// minus stops at zero.
func minus(a, b uint64) uint64 { return a - min(a, b) }

// power is the exponent of the least power of two that is not under v.
func power(v uint64) int {
	if v <= 1 {
		return 0
	}
	return bits.Len64(v - 1)
}

// plus does not wrap around.
func plus(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}

// cards returns the devices of a snapshot that have segments or a history, in order.
func cards(s *Snapshot) []*card {
	type poolKey struct {
		device int32
		stream int64
		id     [2]uint64
	}
	all, pools := make(map[int32]*card), make(map[poolKey]*pool)
	places := newPlaces(s)
	holders := make(map[int32]map[string]*holder)
	type stackKey struct {
		device int32
		stack  uint32
	}
	here := make(map[*holder]uint64)      // bytes in one segment
	byStack := make(map[stackKey]*holder) // so that a stack is put into words once
	of := func(device int32) *card {
		c := all[device]
		if c == nil {
			c = &card{device: device}
			all[device], holders[device] = c, make(map[string]*holder)
		}
		return c
	}
	for device, trace := range s.Traces {
		if len(trace) > 0 && device <= math.MaxInt32 {
			c := of(int32(device))
			c.trace, c.recorded = trace, make(map[uint64]bool)
			for _, e := range trace {
				if e.Action == Alloc {
					c.recorded[e.Address] = true
				}
			}
		}
	}
	for i := range s.Segments {
		g := &s.Segments[i]
		c := of(g.Device)
		key := poolKey{g.Device, g.Stream, g.Pool}
		p := pools[key]
		if p == nil {
			p = &pool{stream: g.Stream, id: g.Pool}
			pools[key] = p
			c.pools = append(c.pools, p)
		}
		p.segment(g, c)
		clear(here)
		open := uint64(0)
		for _, b := range g.Blocks {
			if b.State == Free {
				open = plus(open, b.Size)
			}
			if b.State != Live && b.State != Pending {
				continue
			}
			h := byStack[stackKey{g.Device, b.Stack}]
			if h == nil {
				h = holderOf(holders[g.Device], places.key(b.Stack), c)
				byStack[stackKey{g.Device, b.Stack}] = h
			}
			h.add(b)
			here[h] = plus(here[h], b.Size)
			if b.State == Live && c.recorded[b.Address] {
				h.recent = plus(h.recent, b.Size)
			} else if b.State == Live && b.Stack > 0 && len(c.trace) > 0 {
				c.past.older, c.past.olderBytes = c.past.older+1, plus(c.past.olderBytes, b.Size)
			}
		}
		if !g.Expandable && open > 0 && len(here) > 0 {
			most := slices.MaxFunc(slices.Collect(maps.Keys(here)), func(a, b *holder) int {
				return cmp.Or(cmp.Compare(here[a], here[b]), cmp.Compare(b.key, a.key))
			})
			most.kept, most.keeps = plus(most.kept, open), most.keeps+1
		}
	}
	sorted := slices.SortedFunc(maps.Values(all), func(a, b *card) int { return cmp.Compare(a.device, b.device) })
	for _, c := range sorted {
		c.settle(s, places, holders[c.device])
	}
	return sorted
}

func holderOf(holders map[string]*holder, key string, c *card) *holder {
	if key == "" {
		return &c.bare
	}
	h := holders[key]
	if h == nil {
		h = &holder{key: key, frames: split(key)}
		holders[key] = h
	}
	return h
}

// segment counts a segment and its blocks, also in the sizes of the card.
func (p *pool) segment(g *Segment, c *card) {
	f := tally{reserved: g.Total, segments: 1}
	for _, b := range g.Blocks {
		switch b.State {
		case Live:
			f.live, f.blocks = plus(f.live, b.Size), f.blocks+1
			if b.Requested < b.Size {
				f.waste = plus(f.waste, b.Size-b.Requested)
			}
			at := &c.sizes[power(b.Size)]
			at.liveBlocks, at.liveBytes = at.liveBlocks+1, plus(at.liveBytes, b.Size)
		case Pending:
			f.pending = plus(f.pending, b.Size)
		case Free:
			f.free, f.holes, f.largest = plus(f.free, b.Size), f.holes+1, max(f.largest, b.Size)
			f.releasable = plus(f.releasable, releasable(g, b))
			at := &c.sizes[power(b.Size)]
			at.freeBlocks, at.freeBytes = at.freeBlocks+1, plus(at.freeBytes, b.Size)
		default:
			f.unknown = plus(f.unknown, b.Size)
		}
	}
	if p.private() {
		f.releasable = 0 // whether a graph still needs the pool is not in a snapshot
	}
	p.add(f)
	p.parts = append(p.parts, g)
	p.expandable = p.expandable || g.Expandable
}

// What the driver maps into an expandable segment at a time.
const (
	smallPage = 2 << 20
	largePage = 20 << 20
)

// releasable is what empty_cache would give back of a free block: a whole segment, or whole pages of an expandable one.
func releasable(g *Segment, b Block) uint64 {
	if !g.Expandable {
		if b.Size == g.Total {
			return b.Size
		}
		return 0
	}
	page := uint64(smallPage)
	if g.Large {
		page = largePage
	}
	from := b.Address - g.Address
	if b.Address < g.Address || from > g.Total || b.Size > g.Total-from {
		return 0
	}
	first, last := (from+page-1)/page*page, (from+b.Size)/page*page
	if last <= first {
		return 0
	}
	return last - first
}

// settle sums up what the pools have.
func (c *card) settle(s *Snapshot, places *places, holders map[string]*holder) {
	for _, p := range c.pools {
		slices.SortStableFunc(p.parts, func(a, b *Segment) int { return cmp.Compare(a.Address, b.Address) })
		c.add(p.tally)
		c.expandable = c.expandable || p.expandable
		if p.private() {
			c.private.add(p.tally)
		}
	}
	slices.SortStableFunc(c.pools, func(a, b *pool) int {
		if a.private() != b.private() {
			if a.private() {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(b.reserved, a.reserved), cmp.Compare(a.stream, b.stream), slices.Compare(a.id[:], b.id[:]))
	})
	c.holders = slices.SortedFunc(maps.Values(holders), bySize)
	c.rewind(s, places)
}

// privatePools is how many private pools there are.
func (c *card) privatePools() int {
	n := 0
	for _, p := range c.pools {
		if p.private() {
			n++
		}
	}
	return n
}
