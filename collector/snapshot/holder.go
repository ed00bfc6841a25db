package snapshot

import (
	"cmp"
	"slices"
	"strings"
)

// maxFrames is how many frames of a stack a summary keeps.
const maxFrames = 8

// holder is what one place in the program holds.
type holder struct {
	key           string // the frames, a line each; empty for blocks without a stack
	frames        []string
	live, pending uint64 // bytes
	blocks        uint64 // live and pending
	recent        uint64 // bytes that are live and were allocated within the history
	kept, keeps   uint64 // free bytes in segments of which it holds the most, and how many such segments; not of expandable ones
	sizes         map[uint64]uint64
	growth        *int64 // bytes of live memory since an earlier snapshot; nil where that is not known
}

// places groups stacks by the first frames that are the program's own.
type places struct {
	s     *Snapshot
	texts []string // of frames, by index; empty until asked for
	kins  []kin
	keys  []string // of stacks, by index
	known []bool
}

func newPlaces(s *Snapshot) *places {
	return &places{s: s, texts: make([]string, len(s.Frames)), kins: make([]kin, len(s.Frames)),
		keys: make([]string, len(s.Stacks)), known: make([]bool, len(s.Stacks))}
}

// key is the kept frames of a stack, a line each.
func (p *places) key(stack uint32) string {
	if int(stack) >= len(p.keys) {
		return ""
	}
	if !p.known[stack] {
		p.keys[stack], p.known[stack] = p.kept(p.s.Stacks[stack]), true
	}
	return p.keys[stack]
}

// kept starts at the first frame of the program's own; where there is none at the first of a package other than torch; else at the
// innermost.
func (p *places) kept(stack Stack) string {
	first, found := 0, plumbing
	for i, frame := range stack {
		if _, whose := p.frame(frame); whose < found {
			first, found = i, whose
		}
		if found == own {
			break
		}
	}
	lines := make([]string, 0, maxFrames)
	for _, frame := range stack[first:min(len(stack), first+maxFrames)] {
		text, _ := p.frame(frame)
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

func (p *places) frame(index uint32) (string, kin) {
	if int(index) >= len(p.texts) {
		return "??", plumbing
	}
	if p.texts[index] == "" {
		p.texts[index], p.kins[index] = p.s.Frames[index].text()
	}
	return p.texts[index], p.kins[index]
}

// add counts a block that is live or pending.
func (h *holder) add(b Block) {
	h.blocks++
	if b.State == Pending {
		h.pending = plus(h.pending, b.Size)
	} else {
		h.live = plus(h.live, b.Size)
	}
	if h.sizes == nil {
		h.sizes = make(map[uint64]uint64)
	}
	if _, seen := h.sizes[b.Size]; seen || len(h.sizes) < maxSizes {
		h.sizes[b.Size]++
	}
}

// maxSizes is how many sizes of blocks are counted one by one for a holder.
const maxSizes = 256

// split returns the frames of a key.
func split(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, "\n")
}

// bySize orders holders, the largest first.
func bySize(a, b *holder) int {
	return cmp.Or(cmp.Compare(plus(b.live, b.pending), plus(a.live, a.pending)), cmp.Compare(b.blocks, a.blocks), cmp.Compare(a.key, b.key))
}

// largestHolders returns at most so many holders, the largest first: half of the room is for those that grew most.
func largestHolders(all []*holder, most int) []*holder {
	if len(all) <= most {
		return all
	}
	grown := slices.Clone(all)
	slices.SortStableFunc(grown, func(a, b *holder) int { return cmp.Compare(grew(b), grew(a)) })
	chosen := make(map[*holder]bool, most)
	for _, h := range grown[:most/2] {
		if grew(h) > 0 {
			chosen[h] = true
		}
	}
	for _, h := range all {
		if len(chosen) >= most {
			break
		}
		chosen[h] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(h *holder) bool { return !chosen[h] })
}

func grew(h *holder) int64 {
	if h.growth == nil {
		return 0
	}
	return *h.growth
}
