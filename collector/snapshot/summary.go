package snapshot

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// Options is what a summary is made with beside the snapshot. All of it may be zero.
type Options struct {
	Reason string                    // why the snapshot was taken
	GPU    func(device int32) string // the uuid of a device; empty where it is not known
	Before *Totals                   // of an earlier snapshot of the same process
	Time   time.Time                 // when it was taken; the zero time stands for the newest entry of the history
	Known  Known
}

const (
	maxSummary = 250 << 10 // bytes of a summary's JSON; 6 KiB of the 256 are left for what the collector adds
	keptStacks = 256
	keptPools  = 512
	keptCards  = 64
)

// Summarise says what is in a snapshot, one event a device in their order, each at most maxSummary as JSON. What it cannot say stands
// in `lacking`, a sentence each. Stacks are those of live and pending blocks, the largest first; blocks without a stack are in none.
func Summarise(s *Snapshot, o Options) []*event.Snapshot {
	all := cards(s)
	left := max(0, len(all)-keptCards)
	var out []*event.Snapshot
	for _, c := range all[:len(all)-left] {
		r := c.summary(s, o)
		if left > 0 {
			r.Lacking = append(r.Lacking, fmt.Sprintf("%d further devices are left out of the summary.", left))
		}
		out = append(out, r)
	}
	return out
}

func (c *card) summary(s *Snapshot, o Options) *event.Snapshot {
	growth := c.compare(s, o)
	r := &event.Snapshot{
		Reason: o.Reason, ReservedBytes: &c.reserved, LiveBytes: &c.live, PendingBytes: &c.pending, FreeBytes: &c.free,
		LargestFreeBytes: &c.largest, ReleasableBytes: &c.releasable, WasteBytes: &c.waste, Segments: &c.segments,
		ExpandableSegments: &c.expandable, PrivateBytes: &c.private.reserved, PrivateFreeBytes: &c.private.free,
		GrowthSeconds: growth.seconds, LastOom: c.lastOOM(),
	}
	if o.GPU != nil {
		r.GpuUuid = o.GPU(c.device)
	}
	if share, ok := c.fragmentation(); ok {
		r.Fragmentation = &share
	}
	for _, p := range c.pools[:min(len(c.pools), keptPools)] {
		r.Pools = append(r.Pools, p.summary())
	}
	kept := largestHolders(c.holders, keptStacks)
	for _, h := range kept {
		r.Stacks = append(r.Stacks, h.summary())
	}
	for exponent, n := range c.sizes {
		if n != (size{}) {
			r.Sizes = append(r.Sizes, &event.SnapshotSize{UpToBytes: atMost(exponent), LiveBlocks: &n.liveBlocks, LiveBytes: &n.liveBytes,
				FreeBlocks: &n.freeBlocks, FreeBytes: &n.freeBytes})
		}
	}
	var unfit []string
	r.Budget, unfit = c.budget(o.Known)
	r.Lacking = append(c.lacking(s), unfit...)
	if growth.lacking != "" {
		r.Lacking = append(r.Lacking, growth.lacking)
	}
	return c.fit(r, len(c.holders)-len(kept))
}

// atMost is the bound of the sizes of an exponent; the last is the largest number there is.
func atMost(exponent int) uint64 {
	if exponent >= 64 {
		return math.MaxUint64
	}
	return 1 << exponent
}

func (p *pool) summary() *event.SnapshotPool {
	private := p.private()
	r := &event.SnapshotPool{Name: p.name(), ReservedBytes: &p.reserved, LiveBytes: &p.live, PendingBytes: &p.pending, FreeBytes: &p.free,
		LargestFreeBytes: &p.largest, Stream: &p.stream, Private: &private, WasteBytes: &p.waste, Segments: &p.segments}
	if !private {
		r.ReleasableBytes = &p.releasable
	}
	if share, ok := p.fragmentation(); ok {
		r.Fragmentation = &share
	}
	return r
}

func (h *holder) summary() *event.SnapshotStack {
	r := &event.SnapshotStack{Frames: h.frames, LiveBytes: &h.live, Blocks: &h.blocks, GrowthBytes: h.growth}
	if h.pending > 0 {
		r.PendingBytes = &h.pending
	}
	return r
}

// lastOOM is the newest failed request, with the largest hole that the whole allocator had then.
func (c *card) lastOOM() *event.SnapshotOom {
	if len(c.past.ooms) == 0 {
		return nil
	}
	o := c.past.ooms[len(c.past.ooms)-1]
	r := &event.SnapshotOom{RequestedBytes: &o.requested, FreeBytes: &o.deviceFree, Time: timestamppb.New(o.at)}
	if o.known {
		r.LargestFreeBytes = &o.largest
	}
	return r
}

// fit cuts the summary until it is small enough: stacks first, then sizes, then pools. It says what it has cut.
func (c *card) fit(r *event.Snapshot, cutStacks int) *event.Snapshot {
	lacking, pools := r.Lacking, len(c.pools)
	sizes, said := len(r.Sizes), 0
	for {
		r.Lacking = lacking[:len(lacking):len(lacking)]
		if cutStacks > 0 {
			var bytes uint64
			for _, one := range r.Stacks {
				bytes = plus(bytes, plus(one.GetLiveBytes(), one.GetPendingBytes()))
			}
			var all uint64
			for _, h := range c.holders {
				all = plus(all, plus(h.live, h.pending))
			}
			r.Lacking = append(r.Lacking, fmt.Sprintf("%d smaller stacks, %s together, are left out of the summary.", cutStacks, quantity(minus(all, bytes))))
		}
		if sizes > len(r.Sizes) {
			r.Lacking = append(r.Lacking, "The sizes of blocks are left out of the summary, which would be too large.")
		}
		if pools > len(r.Pools) {
			r.Lacking = append(r.Lacking, fmt.Sprintf("%d smaller pools are left out of the summary.", pools-len(r.Pools)))
		}
		text, err := event.MarshalEvent(&event.Event{Snapshot: r})
		if err == nil && len(text) <= maxSummary || said > 64 {
			return r
		}
		said++
		switch {
		case len(r.Stacks) > 8:
			kept := largestHolders(c.holders, len(r.Stacks)*3/4)
			cutStacks, r.Stacks = len(c.holders)-len(kept), r.Stacks[:0]
			for _, h := range kept {
				r.Stacks = append(r.Stacks, h.summary())
			}
		case len(r.Sizes) > 0:
			r.Sizes = nil
		case len(r.Pools) > 0:
			r.Pools = r.Pools[:len(r.Pools)/2]
		default:
			r.Stacks = nil
		}
	}
}

func quantity(bytes uint64) string { return event.FormatQuantity(float64(bytes), "bytes") }

// difference is a number of bytes with its sign.
func difference(bytes int64) string {
	text := event.FormatQuantity(float64(bytes), "bytes")
	if bytes > 0 {
		return "+" + text
	}
	return text
}

// signed is after − before.
func signed(after, before uint64) int64 {
	if after >= before {
		return int64(min(after-before, math.MaxInt64))
	}
	return -int64(min(before-after, math.MaxInt64))
}

// count is a number of things.
func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// percent is the share of a part in whole per cent or better.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "0 %"
	}
	share := math.Round(float64(part)/float64(whole)*1000) / 1000
	if share == 0 && part > 0 {
		return "< 0.1 %"
	}
	return event.FormatQuantity(share, "ratio")
}
