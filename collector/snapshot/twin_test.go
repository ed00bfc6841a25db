package snapshot

import (
	"math/rand/v2"
	"slices"
)

// twin is a caching allocator as CUDACachingAllocator.cpp has it: best fit in the pool of the stream, split and merged by its rules,
// whole segments given back when the cache is emptied. It writes the history, and knows the truth at every entry of it.
type twin struct {
	rng        *rand.Rand
	expandable bool
	maxSplit   uint64
	next       uint64 // address of the next segment
	segments   []*twinSegment
	trace      []Entry
	truth      []moments // before each entry
	open       []*twinBlock
	waiting    []*twinBlock
	micros     int64
}

type twinSegment struct {
	address, size uint64
	stream        int64
	pool          [2]uint64
	large         bool
	blocks        []*twinBlock // by address
}

type twinBlock struct {
	in                  *twinSegment
	address, size, want uint64
	state               State
}

// moments is what was true before an entry.
type moments struct {
	live, pending, reserved uint64
	room                    room
}

func newTwin(seed uint64, expandable bool, maxSplit uint64) *twin {
	return &twin{rng: rand.New(rand.NewPCG(seed, 5)), expandable: expandable, maxSplit: maxSplit, next: 1 << 40}
}

func (w *twin) record(e Entry) {
	w.truth = append(w.truth, w.now(e.Stream))
	w.micros += int64(w.rng.IntN(900))
	e.Micros = w.micros
	w.trace = append(w.trace, e)
}

// now is worked out from the blocks, anew every time.
func (w *twin) now(stream int64) (m moments) {
	for _, s := range w.segments {
		m.reserved += s.size
		for i, b := range s.blocks {
			switch b.state {
			case Live:
				m.live += b.size
			case Pending:
				m.pending += b.size
			case Free:
				if i > 0 && s.blocks[i-1].state == Free {
					panic("free blocks beside each other are merged")
				}
				m.room.free, m.room.holes, m.room.largest = m.room.free+b.size, m.room.holes+1, max(m.room.largest, b.size)
				if s.stream == stream && s.pool == [2]uint64{} {
					m.room.usable = max(m.room.usable, b.size)
				}
			}
		}
	}
	return m
}

// step does something.
func (w *twin) step() {
	streams := []int64{0, 0, 0, 77}
	stream := streams[w.rng.IntN(len(streams))]
	pool := [2]uint64{}
	if w.rng.IntN(6) == 0 {
		pool = [2]uint64{0, 1 + w.rng.Uint64N(2)}
	}
	switch pick := w.rng.IntN(100); {
	case pick < 50:
		w.alloc(w.size(), stream, pool)
	case pick < 88 && len(w.open) > 0:
		i := w.rng.IntN(len(w.open))
		b := w.open[i]
		w.open = slices.Delete(w.open, i, i+1)
		w.free(b, w.rng.IntN(4) == 0)
	case pick < 94 && len(w.waiting) > 0:
		i := w.rng.IntN(len(w.waiting))
		b := w.waiting[i]
		w.waiting = slices.Delete(w.waiting, i, i+1)
		w.complete(b)
	case pick < 96:
		w.record(Entry{Action: OOM, Stream: stream, Size: w.size(), Address: 1 << 33})
	case pick < 97:
		w.emptyCache()
	case pick < 98:
		w.record(Entry{Action: UserDefined, Stream: stream})
	}
}

func (w *twin) size() uint64 {
	switch w.rng.IntN(4) {
	case 0:
		return 1 + w.rng.Uint64N(4000)
	case 1:
		return 1 + w.rng.Uint64N(1<<20)
	case 2:
		return 1<<20 + w.rng.Uint64N(12<<20)
	}
	return 10<<20 + w.rng.Uint64N(60<<20)
}

func (w *twin) alloc(want uint64, stream int64, pool [2]uint64) {
	size := max(512, (want+511)/512*512)
	large := size > 1<<20
	var best *twinBlock
	for _, s := range w.segments {
		if s.stream != stream || s.pool != pool || s.large != large {
			continue
		}
		for _, b := range s.blocks {
			if b.state != Free || b.size < size || best != nil && best.size <= b.size {
				continue
			}
			if w.maxSplit > 0 && (size < w.maxSplit && b.size >= w.maxSplit || size >= w.maxSplit && b.size >= size+20<<20) {
				continue
			}
			best = b
		}
	}
	if best == nil {
		best = w.grow(size, stream, pool, large)
	}
	w.record(Entry{Action: Alloc, Stream: stream, Address: best.address, Size: want})
	rest := best.size - size
	split := rest >= 512
	if large && !w.expandable {
		split = (w.maxSplit == 0 || size < w.maxSplit) && rest > 1<<20
	}
	if split {
		s := best.in
		i := slices.Index(s.blocks, best)
		s.blocks = slices.Insert(s.blocks, i+1, &twinBlock{in: s, address: best.address + size, size: rest, state: Free})
		best.size = size
	}
	best.want, best.state = want, Live
	w.open = append(w.open, best)
}

// grow gets memory from the driver: a segment, or pages at the end of an expandable one.
func (w *twin) grow(size uint64, stream int64, pool [2]uint64, large bool) *twinBlock {
	if w.expandable {
		return w.extend(size, stream, pool, large)
	}
	total := uint64(2 << 20)
	if large && size < 10<<20 {
		total = 20 << 20
	} else if large {
		total = (size + 2<<20 - 1) / (2 << 20) * (2 << 20)
	}
	w.record(Entry{Action: SegmentAlloc, Stream: stream, Address: w.next, Size: total})
	s := &twinSegment{address: w.next, size: total, stream: stream, pool: pool, large: large}
	s.blocks = []*twinBlock{{in: s, address: s.address, size: total, state: Free}}
	w.segments = append(w.segments, s)
	w.next += total
	if w.rng.IntN(3) == 0 {
		w.next += 64 << 20
	}
	return s.blocks[0]
}

func (w *twin) extend(size uint64, stream int64, pool [2]uint64, large bool) *twinBlock {
	page := pageBytes(large)
	var s *twinSegment
	for _, one := range w.segments {
		if one.stream == stream && one.pool == pool && one.large == large && (s == nil || one.address > s.address) {
			s = one
		}
	}
	if s == nil {
		s = &twinSegment{address: w.next, stream: stream, pool: pool, large: large}
		w.next += 1 << 36
		w.segments = append(w.segments, s)
	}
	have := uint64(0)
	if n := len(s.blocks); n > 0 && s.blocks[n-1].state == Free {
		have = s.blocks[n-1].size
	}
	more := (size - have + page - 1) / page * page
	w.record(Entry{Action: SegmentMap, Stream: stream, Address: s.address + s.size, Size: more})
	if have > 0 {
		s.blocks[len(s.blocks)-1].size += more
	} else {
		s.blocks = append(s.blocks, &twinBlock{in: s, address: s.address + s.size, size: more, state: Free})
	}
	s.size += more
	return s.blocks[len(s.blocks)-1]
}

func pageBytes(large bool) uint64 {
	if large {
		return 20 << 20
	}
	return 2 << 20
}

func (w *twin) free(b *twinBlock, later bool) {
	w.record(Entry{Action: FreeRequested, Stream: b.in.stream, Address: b.address, Size: b.want})
	b.state = Pending
	if later {
		w.waiting = append(w.waiting, b)
		return
	}
	w.complete(b)
}

func (w *twin) complete(b *twinBlock) {
	w.record(Entry{Action: FreeCompleted, Stream: b.in.stream, Address: b.address, Size: b.want})
	b.state = Free
	s := b.in
	i := slices.Index(s.blocks, b)
	if i+1 < len(s.blocks) && s.blocks[i+1].state == Free {
		b.size += s.blocks[i+1].size
		s.blocks = slices.Delete(s.blocks, i+1, i+2)
	}
	if i > 0 && s.blocks[i-1].state == Free {
		s.blocks[i-1].size += b.size
		s.blocks = slices.Delete(s.blocks, i, i+1)
	}
}

// emptyCache gives whole segments back, or whole pages of an expandable one.
func (w *twin) emptyCache() {
	for _, s := range slices.Clone(w.segments) {
		switch {
		case s.pool != [2]uint64{}:
		case w.expandable:
			w.unmap(s)
		case len(s.blocks) == 1 && s.blocks[0].state == Free:
			w.record(Entry{Action: SegmentFree, Stream: s.stream, Address: s.address, Size: s.size})
			w.segments = slices.DeleteFunc(w.segments, func(o *twinSegment) bool { return o == s })
		}
	}
}

// unmap gives the whole pages of the first hole that has some back, which cuts a segment in two.
func (w *twin) unmap(s *twinSegment) {
	page := pageBytes(s.large)
	for i, b := range s.blocks {
		from := s.address + (b.address-s.address+page-1)/page*page
		to := s.address + (b.address+b.size-s.address)/page*page
		if b.state != Free || to <= from {
			continue
		}
		w.record(Entry{Action: SegmentUnmap, Stream: s.stream, Address: from, Size: to - from})
		left := &twinSegment{address: s.address, size: from - s.address, stream: s.stream, pool: s.pool, large: s.large, blocks: slices.Clone(s.blocks[:i])}
		right := &twinSegment{address: to, size: s.address + s.size - to, stream: s.stream, pool: s.pool, large: s.large}
		if from > b.address {
			left.blocks = append(left.blocks, &twinBlock{address: b.address, size: from - b.address, state: Free})
		}
		if end := b.address + b.size; end > to {
			right.blocks = append(right.blocks, &twinBlock{address: to, size: end - to, state: Free})
		}
		right.blocks = append(right.blocks, s.blocks[i+1:]...)
		w.segments = slices.DeleteFunc(w.segments, func(o *twinSegment) bool { return o == s })
		for _, part := range []*twinSegment{left, right} {
			if part.size > 0 {
				for _, one := range part.blocks {
					one.in = part
				}
				w.segments = append(w.segments, part)
			}
		}
		return
	}
}

// snapshot is what PyTorch would write, with the newest entries of the history.
func (w *twin) snapshot(entries int) *Snapshot {
	s := &Snapshot{Frames: make([]Frame, 1), Stacks: make([]Stack, 1), Traces: [][]Entry{w.trace[max(0, len(w.trace)-entries):]},
		Settings: Settings{Known: true, MaxSplitSize: -1, Expandable: w.expandable}}
	if w.maxSplit > 0 {
		s.Settings.MaxSplitSize = int64(w.maxSplit)
	}
	for _, one := range w.segments {
		g := Segment{Stream: one.stream, Pool: one.pool, Large: one.large, Expandable: w.expandable, Address: one.address, Total: one.size}
		for _, b := range one.blocks {
			g.Blocks = append(g.Blocks, Block{Address: b.address, Size: b.size, Requested: b.want, State: b.state})
		}
		s.Segments = append(s.Segments, g)
	}
	return s
}
