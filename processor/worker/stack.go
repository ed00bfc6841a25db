package worker

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/rules/variable"
)

// The bounds of what is kept of a snapshot's stacks, which a finding names. The whole summary may be 256 KiB, a worker's state a quarter of
// that.
const (
	maxHolders = 5   // stacks
	maxOthers  = 3   // stacks of what waits on other streams, and of what lives in most pieces
	maxFrames  = 6   // of a stack
	maxFrame   = 160 // bytes of a frame
	maxName    = 255 // bytes of a file's name
)

// slim is a snapshot without what neither rules nor findings name. Frames that have no place in a program's source say nothing.
func slim(e *event.Snapshot) *event.Snapshot {
	out := &event.Snapshot{
		GpuUuid: e.GpuUuid, Reason: clip(e.Reason, maxName), File: clip(e.File, maxName),
		ReservedBytes: e.ReservedBytes, LiveBytes: e.LiveBytes, PendingBytes: e.PendingBytes, FreeBytes: e.FreeBytes,
		LargestFreeBytes: e.LargestFreeBytes, ReleasableBytes: e.ReleasableBytes, Fragmentation: e.Fragmentation, WasteBytes: e.WasteBytes,
		PrivateFreeBytes: e.PrivateFreeBytes, HistorySeconds: e.HistorySeconds, GrowthSeconds: e.GrowthSeconds,
	}
	if e.LastOom != nil {
		out.LastOom = proto.CloneOf(e.LastOom)
	}
	if e.Census != nil {
		out.Census = proto.CloneOf(e.Census)
	}
	named := make([]*event.SnapshotStack, 0, len(e.Stacks))
	for _, s := range e.Stacks {
		if len(s.GetFrames()) > 0 {
			named = append(named, s)
		}
	}
	keep := func(most func(a, b *event.SnapshotStack) int, room int, bytes func(*event.SnapshotStack) uint64) {
		slices.SortStableFunc(named, most)
		for _, s := range named {
			if room == 0 || bytes(s) == 0 {
				continue
			}
			room--
			short := &event.SnapshotStack{LiveBytes: s.LiveBytes, Blocks: s.Blocks, GrowthBytes: s.GrowthBytes, PendingBytes: s.PendingBytes}
			for _, f := range s.Frames[:min(len(s.Frames), maxFrames)] {
				short.Frames = append(short.Frames, clip(f, maxFrame))
			}
			if !slices.ContainsFunc(out.Stacks, func(other *event.SnapshotStack) bool { return proto.Equal(other, short) }) {
				out.Stacks = append(out.Stacks, short)
			}
		}
	}
	keep(byGrowth, maxHolders, (*event.SnapshotStack).GetLiveBytes)
	keep(byPending, maxOthers, (*event.SnapshotStack).GetPendingBytes)
	keep(byBlocks, maxOthers, (*event.SnapshotStack).GetLiveBytes)
	return out
}

// byGrowth puts what grew most first, then the largest.
func byGrowth(a, b *event.SnapshotStack) int {
	return cmp.Or(cmp.Compare(max(0, b.GetGrowthBytes()), max(0, a.GetGrowthBytes())), cmp.Compare(b.GetLiveBytes(), a.GetLiveBytes()))
}

func byPending(a, b *event.SnapshotStack) int {
	return cmp.Compare(b.GetPendingBytes(), a.GetPendingBytes())
}

func byBlocks(a, b *event.SnapshotStack) int {
	return cmp.Or(cmp.Compare(b.GetBlocks(), a.GetBlocks()), cmp.Compare(b.GetLiveBytes(), a.GetLiveBytes()))
}

// clip cuts text that somebody else wrote to at most so many bytes, at a character, and makes one line of it: names of files and functions
// go to terminals, cards and logs.
func clip(text string, most int) string {
	text = strings.ToValidUTF8(event.Shorten(text, 4*most), "?") // a state and a finding hold nothing else
	text = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || r == '\u2028' || r == '\u2029' { // control characters, and those that turn the direction of writing
			return -1
		}
		return r
	}, text)
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// stackFeatures names the stack that grew most since an earlier snapshot of the process; where growth is not known, the largest.
func (w *Worker) stackFeatures(e *event.Snapshot) {
	largest, growth, grown := nan, nan, 0.0
	var holds, grows *event.SnapshotStack
	for _, one := range e.Stacks {
		if v := number(one.LiveBytes); v > 0 && !(v <= largest) {
			largest, holds = v, one
		}
		if one.GrowthBytes != nil {
			v := float64(*one.GrowthBytes)
			if grown += max(0, v); !(v <= growth) {
				growth, grows = v, one
			}
		}
	}
	s, share := w.sample, nan
	if growth > 0 {
		share = growth / grown // of the stacks that are told
	}
	s.SetNumber(snapshotIDs.stackBytes, largest)
	s.SetNumber(snapshotIDs.stackGrowth, growth)
	s.SetNumber(snapshotIDs.stackShare, share)
	s.SetNumber(snapshotIDs.growthSeconds, ratio(e.GrowthSeconds))
	name := func(id variable.ID, of *event.SnapshotStack) {
		if of == nil {
			s.Unset(id)
			return
		}
		s.SetString(id, placeOf(of.Frames))
	}
	if !(growth > 0) {
		grows = nil
	} else {
		holds = nil // growth tells more
	}
	name(snapshotIDs.grower, grows)
	name(snapshotIDs.stack, holds)
}

// placeOf is a stack in a phrase: where memory was allocated, and by whom that was called.
func placeOf(frames []string) string {
	if len(frames) == 1 {
		return frames[0]
	}
	return frames[0] + ", from " + frames[1]
}

// Evidence is what the newest snapshot adds to a finding of a class: the name of its file, and the stacks that hold the
// memory. For stream_backlog these are what waits, in LiveBytes; for fragmentation what lives in most pieces, since a snapshot's summary
// does not say which of them lie between the holes; for the others what grew most, else the largest. Nothing before there is one.
func (w *Worker) Evidence(class string) (file string, holders []event.Holder) {
	i := w.story()
	if i < 0 {
		return "", nil
	}
	of := &w.snapshots.Cards[i]
	stacks := slices.Clone(of.Said.Stacks)
	bytes := (*event.SnapshotStack).GetLiveBytes
	switch class {
	case "stream_backlog":
		bytes = (*event.SnapshotStack).GetPendingBytes
		slices.SortStableFunc(stacks, byPending)
	case "fragmentation":
		slices.SortStableFunc(stacks, byBlocks)
	default:
		slices.SortStableFunc(stacks, byGrowth)
	}
	for _, s := range stacks {
		if held := bytes(s); held > 0 && len(holders) < maxHolders {
			holders = append(holders, event.Holder{Frames: s.Frames, LiveBytes: held, Blocks: s.GetBlocks(), GrowthBytes: s.GrowthBytes})
		}
	}
	return of.Said.File, holders
}
