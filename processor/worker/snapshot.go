package worker

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/rules/variable"
)

// The bounds of what is kept of a snapshot: its numbers and the stacks that a finding names. The whole summary may be 256 KiB, a worker's
// state a quarter of that.
const (
	maxSnapshots = 8   // GPUs of one process
	maxHolders   = 5   // stacks
	maxOthers    = 3   // stacks of what waits on other streams, and of what lives in most pieces
	maxFrames    = 6   // of a stack
	maxFrame     = 160 // bytes of a frame
	maxName      = 255 // bytes of a file's name
)

const (
	beforeFirst = time.Minute // a snapshot that is older than the process was known for is another process's
	ageStep     = time.Minute // the age is told in such steps: what changes at each tick would have rules asked at each tick
)

// snapshots are the newest allocator snapshot of each GPU of this process life.
type snapshots struct {
	Cards []snapshot
	Told  int // one more than the index of the one that the variables are of; 0 while they are of none
}

// snapshot is what is kept of one: Said without pools, sizes and what it lacks, and with the stacks that matter. Stuck and Hole are of
// the memory that eager code can use, outside private pools; NaN where that is not known.
type snapshot struct {
	At    time.Time
	Said  *event.Snapshot
	Stuck float64 // free, in segments that live blocks hold: neither given back nor moved together
	Hole  float64 // largest free block
}

// observe keeps a snapshot. It says false for one that is older than what is kept of its card.
func (s *snapshots) observe(at time.Time, e *event.Snapshot) bool {
	one := snapshot{At: at, Said: slim(e)}
	one.Stuck, one.Hole = eager(e)
	i := slices.IndexFunc(s.Cards, func(c snapshot) bool { return c.Said.GetGpuUuid() == e.GpuUuid })
	switch {
	case i >= 0 && at.Before(s.Cards[i].At):
		return false
	case i < 0 && len(s.Cards) == maxSnapshots:
		i = 0
		for k := range s.Cards {
			if s.Cards[k].At.Before(s.Cards[i].At) {
				i = k
			}
		}
		if at.Before(s.Cards[i].At) {
			return false
		}
	case i < 0:
		i = len(s.Cards)
		s.Cards = append(s.Cards, snapshot{})
	}
	s.Cards[i] = one
	if s.Told == i+1 {
		s.Told = 0
	}
	return true
}

func (s *snapshots) whole() bool {
	return len(s.Cards) <= maxSnapshots && s.Told >= 0 && s.Told <= len(s.Cards) && !slices.ContainsFunc(s.Cards, func(c snapshot) bool { return c.Said == nil || !counted(c.At) })
}

// eager is the free memory that is stuck outside private pools, and the largest block of what is free there. Blocks never move between
// pools and streams; a segment that is wholly free goes back to the driver when room is sought.
func eager(e *event.Snapshot) (stuck, hole float64) {
	if len(e.Pools) == 0 {
		stuck = number(e.FreeBytes) - zeroIfUnknown(number(e.ReleasableBytes)) - zeroIfUnknown(number(e.PrivateFreeBytes))
		return max(0, stuck), number(e.LargestFreeBytes)
	}
	stuck, hole = nan, nan
	for _, p := range e.Pools {
		if p.GetPrivate() {
			continue
		}
		if free := number(p.FreeBytes); free == free {
			stuck = zeroIfUnknown(stuck) + max(0, free-zeroIfUnknown(number(p.ReleasableBytes)))
		}
		if largest := number(p.LargestFreeBytes); largest == largest {
			hole = max(zeroIfUnknown(hole), largest)
		}
	}
	return stuck, hole
}

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

// clip cuts text that somebody else wrote to at most so many bytes, at a character.
func clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "?") // a state and a finding hold nothing else
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

var snapshotIDs = struct {
	reserved, live, pending, free, largest, releasable, fragmentation, privateFree, waste variable.ID
	stackBytes, stackGrowth, stackShare, growthSeconds, stack, grower                     variable.ID
	gradTensors, gradBytes, age, oomBytes, oomLargest, stuck, hole                        variable.ID
}{
	variable.Must("snapshot.reserved_bytes"), variable.Must("snapshot.live_bytes"), variable.Must("snapshot.pending_bytes"), variable.Must("snapshot.free_bytes"),
	variable.Must("snapshot.largest_free_bytes"), variable.Must("snapshot.releasable_bytes"), variable.Must("snapshot.fragmentation"),
	variable.Must("snapshot.private_free_bytes"), variable.Must("snapshot.waste_bytes"),
	variable.Must("snapshot.stack_bytes"), variable.Must("snapshot.stack_growth"), variable.Must("snapshot.stack_share"), variable.Must("snapshot.growth_seconds"),
	variable.Must("snapshot.stack"), variable.Must("snapshot.grower"),
	variable.Must("snapshot.grad_tensors"), variable.Must("snapshot.grad_bytes"), variable.Must("snapshot.age_seconds"),
	variable.Must("snapshot.oom_bytes"), variable.Must("snapshot.oom_largest_free_bytes"), variable.Must("snapshot.stuck_bytes"), variable.Must("snapshot.hole_bytes"),
}

// takeSnapshot keeps what a snapshot says, and lets it complete what is known of the OOM that it was written at. It returns false for one
// of another process life, or that is older than what is kept.
func (w *Worker) takeSnapshot(at time.Time, e *event.Snapshot) bool {
	if event.Ago(w.First, at) > beforeFirst || !counted(at) || !w.snapshots.observe(at, e) {
		return false
	}
	w.ooms.postMortem(at, e)
	return true
}

// story is the snapshot that the variables are of: all of them of one GPU, since one card's holes say nothing about another's request. It
// is the GPU of the newest OOM, by the snapshot's own account or by the OOM's; else the one whose growth was called; else the one with
// most memory stuck in pieces. It is told by its index; -1 before there is any.
func (w *Worker) story() (best int) {
	all := w.snapshots.Cards
	if len(all) < 2 {
		return len(all) - 1
	}
	grows := ""
	for _, i := range [...]int{live, graphs, awaiting} {
		if c := w.leadingCall(i); grows == "" && c != nil && c.called() {
			grows = w.Card(seriesNames[i])
		}
	}
	growing := func(s *snapshot) uint64 { return one(grows != "" && s.Said.GpuUuid == grows) }
	for i := range all {
		a, b := &all[i], &all[best]
		if cmp.Or(w.failedAt(a).Compare(w.failedAt(b)), cmp.Compare(growing(a), growing(b)), cmp.Compare(zeroIfUnknown(a.Stuck), zeroIfUnknown(b.Stuck))) > 0 {
			best = i
		}
	}
	return best
}

// failedAt is when an allocation last failed on the GPU of a snapshot; zero when none did.
func (w *Worker) failedAt(s *snapshot) (at time.Time) {
	if t := s.Said.GetLastOom().GetTime(); t != nil {
		at = t.AsTime()
	}
	if o := w.ooms.last; o != nil && o.GpuUuid != "" && o.GpuUuid == s.Said.GpuUuid && ofDevice(o) && w.ooms.lastAt.After(at) {
		at = w.ooms.lastAt
	}
	return at
}

// snapshotFeatures sets the variables of the snapshot.
func (w *Worker) snapshotFeatures(at time.Time) {
	i := w.story()
	if i < 0 {
		return
	}
	of := &w.snapshots.Cards[i]
	s, e := w.sample, of.Said
	s.SetNumber(snapshotIDs.age, max(0, event.Ago(at, of.At)).Truncate(ageStep).Seconds())
	if w.snapshots.Told == i+1 {
		return
	}
	w.snapshots.Told = i + 1
	// NaN is unknown, also of a later snapshot that does not say what the one before did.
	s.SetNumber(snapshotIDs.reserved, number(e.ReservedBytes))
	s.SetNumber(snapshotIDs.live, number(e.LiveBytes))
	s.SetNumber(snapshotIDs.pending, number(e.PendingBytes))
	s.SetNumber(snapshotIDs.free, number(e.FreeBytes))
	s.SetNumber(snapshotIDs.largest, number(e.LargestFreeBytes))
	s.SetNumber(snapshotIDs.releasable, number(e.ReleasableBytes))
	s.SetNumber(snapshotIDs.privateFree, number(e.PrivateFreeBytes))
	s.SetNumber(snapshotIDs.waste, number(e.WasteBytes))
	s.SetNumber(snapshotIDs.stuck, of.Stuck)
	s.SetNumber(snapshotIDs.hole, of.Hole)
	failed, census := cmp.Or(e.LastOom, new(event.SnapshotOom)), cmp.Or(e.Census, new(event.SnapshotCensus))
	s.SetNumber(snapshotIDs.oomBytes, number(failed.RequestedBytes))
	s.SetNumber(snapshotIDs.oomLargest, number(failed.LargestFreeBytes))
	s.SetNumber(snapshotIDs.gradTensors, number(census.Tensors))
	s.SetNumber(snapshotIDs.gradBytes, number(census.Bytes))
	s.SetNumber(snapshotIDs.fragmentation, ratio(e.Fragmentation))
	w.stackFeatures(e)
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

func ratio(v *float64) float64 {
	if v == nil {
		return nan
	}
	return *v
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

// EvidenceAt is when the snapshot was taken that Evidence tells of; zero before there is one.
func (w *Worker) EvidenceAt() time.Time {
	if i := w.story(); i >= 0 {
		return w.snapshots.Cards[i].At
	}
	return time.Time{}
}
