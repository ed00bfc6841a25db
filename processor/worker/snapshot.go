package worker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

const maxSnapshots = 8 // GPUs of one process

const (
	beforeFirst = time.Minute     // a snapshot that is older than the process was known for is another process's
	ahead       = time.Hour       // of all that was heard of the process: a snapshot is not of then
	ageGap      = 5 * time.Minute // between two snapshots that growth is measured by: less of it would be chance
	ageStep     = time.Minute     // the age is told in such steps: what changes at each tick would have rules asked at each tick
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

	// Reserved in private pools, and as it was in an earlier snapshot of this life, at least ageGap before; NaN where that is not known.
	Private, Before float64
	BeforeAt        time.Time
}

// observe keeps a snapshot. It says false for one that is older than what is kept of its card, unless that is of a time that has yet to
// come: a clock that was wrong once does not keep out what comes after. Newest is when the process was last heard.
func (s *snapshots) observe(at, newest time.Time, e *event.Snapshot) bool {
	one := snapshot{At: at, Said: slim(e)}
	one.Stuck, one.Hole = eager(e)
	one.Private, one.Before = private(e), nan
	i := slices.IndexFunc(s.Cards, func(c snapshot) bool { return c.Said.GetGpuUuid() == e.GpuUuid })
	switch {
	case i >= 0 && at.Before(s.Cards[i].At) && event.Ago(s.Cards[i].At, newest) < ahead:
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
	switch old := &s.Cards[i]; {
	case old.Said == nil:
	case event.Ago(at, old.At) >= ageGap && old.Private == old.Private:
		one.Before, one.BeforeAt = old.Private, old.At
	default:
		one.Before, one.BeforeAt = old.Before, old.BeforeAt
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
		if p == nil || p.GetPrivate() {
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

// private is what private pools have reserved; NaN where that is not told.
func private(e *event.Snapshot) float64 {
	if e.PrivateBytes != nil || len(e.Pools) == 0 {
		return number(e.PrivateBytes)
	}
	sum := 0.0
	for _, p := range e.Pools {
		if p.GetPrivate() {
			sum += number(p.ReservedBytes)
		}
	}
	return sum
}

var snapshotIDs = struct {
	reserved, live, pending, free, largest, releasable, fragmentation, privateFree, waste variable.ID
	stackBytes, stackGrowth, stackShare, growthSeconds, stack, grower                     variable.ID
	gradTensors, gradBytes, age, oomBytes, oomLargest, stuck, hole                        variable.ID
	private, privateGrowth                                                                variable.ID
}{
	variable.Must("snapshot.reserved_bytes"), variable.Must("snapshot.live_bytes"), variable.Must("snapshot.pending_bytes"), variable.Must("snapshot.free_bytes"),
	variable.Must("snapshot.largest_free_bytes"), variable.Must("snapshot.releasable_bytes"), variable.Must("snapshot.fragmentation"),
	variable.Must("snapshot.private_free_bytes"), variable.Must("snapshot.waste_bytes"),
	variable.Must("snapshot.stack_bytes"), variable.Must("snapshot.stack_growth"), variable.Must("snapshot.stack_share"), variable.Must("snapshot.growth_seconds"),
	variable.Must("snapshot.stack"), variable.Must("snapshot.grower"),
	variable.Must("snapshot.grad_tensors"), variable.Must("snapshot.grad_bytes"), variable.Must("snapshot.age_seconds"),
	variable.Must("snapshot.oom_bytes"), variable.Must("snapshot.oom_largest_free_bytes"), variable.Must("snapshot.stuck_bytes"), variable.Must("snapshot.hole_bytes"),
	variable.Must("snapshot.private_bytes"), variable.Must("snapshot.private_growth"),
}

// ofSnapshot are all of them.
var ofSnapshot = func() (all []variable.ID) {
	for id, one := range variable.All() {
		if strings.HasPrefix(one.Name, "snapshot.") {
			all = append(all, variable.ID(id))
		}
	}
	return all
}()

// takeSnapshot keeps what a snapshot says, and lets it complete what is known of the OOM that it was written at. It returns false for one
// of another process life, or that is older than what is kept.
func (w *Worker) takeSnapshot(at time.Time, e *event.Snapshot) bool {
	if event.Ago(w.First, at) > beforeFirst || !counted(at) || !w.snapshots.observe(at, later(w.Last, at), e) {
		return false
	}
	w.ooms.postMortem(at, e)
	return true
}

// story is the snapshot that the variables are of: all of them of one GPU, since one card's holes say nothing about another's request. It
// is the GPU of the newest OOM, by the snapshot's own account or by the OOM's; else the one whose growth was called, or whose cache grows
// where nobody tells of private pools; else the one with most memory stuck in pieces. It is told by its index; -1 before there is any, and
// while an allocation has just failed on a GPU that there is none of.
func (w *Worker) story() (best int) {
	all := w.snapshots.Cards
	if o := w.ooms.last; o != nil && o.GpuUuid != "" && ofDevice(o) && within(w.Last, w.ooms.lastAt) &&
		!slices.ContainsFunc(all, func(s snapshot) bool { return s.Said.GpuUuid == "" || s.Said.GpuUuid == o.GpuUuid }) {
		return -1
	}
	if len(all) < 2 {
		return len(all) - 1
	}
	grows := ""
	for _, i := range [...]int{live, graphs, awaiting} {
		if c := w.leadingCall(i); grows == "" && c != nil && c.called() {
			grows = w.Card(seriesNames[i])
		}
	}
	if c := w.leadingCall(cached); grows == "" && c != nil && c.Growth.Low > levelFloors[cached] && !w.sample.Known(ids[graphs].now) {
		grows = w.Card(seriesNames[cached])
	}
	growing := func(s *snapshot) int {
		if grows != "" && s.Said.GpuUuid == grows {
			return 1
		}
		return 0
	}
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
	if t := s.Said.GetLastOom().GetTime(); t != nil && !t.AsTime().After(s.At.Add(sameOOM)) { // what is yet to come did not fail
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
		if w.snapshots.Told > 0 {
			w.snapshots.Told = 0
			for _, id := range ofSnapshot {
				w.sample.Unset(id)
			}
		}
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
	s.SetNumber(snapshotIDs.private, of.Private)
	s.SetNumber(snapshotIDs.privateGrowth, (of.Private-of.Before)/event.Ago(of.At, of.BeforeAt).Hours())
	failed, census := cmp.Or(e.LastOom, new(event.SnapshotOom)), cmp.Or(e.Census, new(event.SnapshotCensus))
	s.SetNumber(snapshotIDs.oomBytes, number(failed.RequestedBytes))
	s.SetNumber(snapshotIDs.oomLargest, number(failed.LargestFreeBytes))
	s.SetNumber(snapshotIDs.gradTensors, number(census.Tensors))
	s.SetNumber(snapshotIDs.gradBytes, number(census.Bytes))
	s.SetNumber(snapshotIDs.fragmentation, ratio(e.Fragmentation))
	w.stackFeatures(e)
}

func ratio(v *float64) float64 {
	if v == nil {
		return nan
	}
	return *v
}

// EvidenceAt is when the snapshot was taken that Evidence tells of; zero before there is one.
func (w *Worker) EvidenceAt() time.Time {
	if i := w.story(); i >= 0 {
		return w.snapshots.Cards[i].At
	}
	return time.Time{}
}
