package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// headline is what an engineer needs when only one line is read.
func (c *card) headline() string {
	parts := []string{quantity(c.reserved) + " reserved, " + quantity(c.live) + " live"}
	if c.pending > 0 {
		parts = append(parts, fmt.Sprintf("%s freed but awaited by another stream", quantity(c.pending)))
	}
	if c.private.reserved > 0 {
		parts = append(parts, fmt.Sprintf("%s in %s", quantity(c.private.reserved), count(uint64(c.privatePools()), "private pool", "private pools")))
	}
	free := c.holesText(c.free, c.holes, c.largest)
	if n := len(c.past.ooms); n > 0 {
		if o := c.past.ooms[n-1]; o.known && o.usable < o.requested {
			free = c.holesText(o.free, o.holes, o.largest) + ": a request for " + quantity(o.requested) + " could not fit"
		} else {
			free += "; a request for " + quantity(o.requested) + " failed at " + clock(o.at)
		}
	}
	return strings.Join(append(parts, free), ", ")
}

func (c *card) holesText(free, holes, largest uint64) string {
	switch holes {
	case 0:
		return "nothing free"
	case 1:
		return quantity(free) + " free in one hole"
	}
	return fmt.Sprintf("%s free in %d holes, the largest %s", quantity(free), holes, quantity(largest))
}

// standing says what stands out, each with its numbers; what follows from them is said as far as it does.
func (c *card) standing() []string {
	var out []string
	say := func(form string, args ...any) { out = append(out, fmt.Sprintf(form, args...)) }
	if n := len(c.past.ooms); n > 0 {
		say("%s", c.past.ooms[n-1].sentence())
		if n > 1 {
			say("%d requests failed in the history; this is the last.", n)
		}
	}
	if c.pending*100 >= c.reserved && c.pending > 0 {
		say("%s were freed by the program and cannot be used again: another stream has not come past them%s. They come back when that stream is synchronised; record_stream for fewer tensors keeps it small.", quantity(c.pending), c.piled())
	}
	held := plus(c.live, c.pending)
	if len(c.holders) > 0 {
		h := c.holders[0]
		if bytes := plus(h.live, h.pending); bytes*20 >= held {
			say("%s holds %s in %s, %s of what is held%s.", where(h.frames[:min(2, len(h.frames))]), quantity(bytes), count(h.blocks, "block", "blocks"), percent(bytes, held), h.like())
		}
	}
	if n := len(c.past.points); n > 0 && c.past.odd == 0 {
		if rose := signed(c.live, c.past.before); rose >= 64<<20 && uint64(rose)*50 >= c.live {
			say("Live memory rose by %s in the %s of the history%s.", quantity(uint64(rose)), seconds(c.past.last.Sub(c.past.first)), c.newest())
		} else if len(c.past.ooms) == 0 && n > 1 && size64(rose)*100 < c.live {
			say("In the %s of the history no request failed, and live memory ended where it began.", seconds(c.past.last.Sub(c.past.first)))
		}
	}
	if c.bare.live*20 >= held && held > 0 {
		say("%s have no stack, they are older than the recording: %s.", quantity(c.bare.live), c.bare.sizesText(4))
	}
	if c.private.reserved > 0 {
		say("Private pools (CUDA graphs, MemPool) have reserved %s, %s of it free: other code cannot use that.", quantity(c.private.reserved), quantity(c.private.free))
	}
	if open := minus(c.free, c.private.free); open > 0 {
		back := "no whole segment of it, so that empty_cache would give nothing back"
		if c.expandable {
			back = "no whole page of it, so that empty_cache would give nothing back"
		}
		if c.releasable > 0 {
			back = "empty_cache would give " + quantity(c.releasable) + " back to the card"
		}
		say("%s are free%s: %s.", quantity(open), outside(c.private.reserved), back)
	}
	if h := c.keeper(); h != nil {
		say("%s of it lie in %s of which %s holds the most: while that lives, the segments stay.", quantity(h.kept), count(h.keeps, "segment", "segments"), cmp.Or(where(h.frames[:min(2, len(h.frames))]), "memory without a stack"))
	}
	if c.waste > 0 && c.waste*50 >= c.live {
		say("%s of live memory are rounding: more than was asked for.", quantity(c.waste))
	}
	if c.expandable {
		say("Segments are expandable: holes inside stay, but a segment can grow at its end, so that only a full card or limit ends it.")
	}
	return out
}

// piled says how much of what is pending came within the history.
func (c *card) piled() string {
	p := &c.past
	if rose := signed(c.pending, p.beforePending); len(p.points) > 1 && p.odd == 0 && rose > 0 {
		return fmt.Sprintf(" (%s in the %s of the history)", difference(rose), seconds(p.last.Sub(p.first)))
	}
	return ""
}

// newest names the place whose blocks of the history hold most.
func (c *card) newest() string {
	var most *holder
	for _, h := range c.holders {
		if most == nil || h.recent > most.recent {
			most = h
		}
	}
	if most == nil || most.recent == 0 {
		return ""
	}
	return fmt.Sprintf("; %s that were allocated in it at %s are still live", quantity(most.recent), where(most.frames[:min(2, len(most.frames))]))
}

// keeper is whoever holds most of the segments that most of the holes lie in; nil where holes are few or scattered among many.
func (c *card) keeper() *holder {
	most := &c.bare
	for _, h := range c.holders {
		if h.kept > most.kept {
			most = h
		}
	}
	if most.kept*20 < c.reserved || most.kept*2 < c.free {
		return nil
	}
	return most
}

func outside(private uint64) string {
	if private > 0 {
		return " outside of them"
	}
	return ""
}

// sentence says what a failed request met, and what follows from its numbers.
func (o *oom) sentence() string {
	text := fmt.Sprintf("OOM at %s: %s asked for %s", clock(o.at), cmp.Or(where(o.frames[:min(1, len(o.frames))]), "the program"), quantity(o.requested))
	if !o.known {
		return text + fmt.Sprintf("; what the allocator had then is not known. CUDA had %s free.", quantity(o.deviceFree))
	}
	text += fmt.Sprintf("; %s were free in %s, the largest %s. ", quantity(o.free), count(o.holes, "hole", "holes"), quantity(o.largest))
	switch {
	case o.usable >= o.requested:
		return text + "One was large enough and on the same stream: the request came from a private pool, or it was over by the time of the failure."
	case o.largest >= o.requested:
		text += "One was large enough, in a private pool or on another stream, where this request cannot be served. "
	case o.free >= o.requested && o.free*10 >= o.reserved:
		text += "Room in total, not in one piece: fragmentation. "
	case o.free >= o.requested:
		text += fmt.Sprintf("Room in total, not in one piece; but %s of what was reserved was live, and only %s free: it is what is live that fills the card. ", percent(o.live, o.reserved), percent(o.free, o.reserved))
	default:
		text += fmt.Sprintf("Not enough even in one piece: %s short. ", quantity(o.requested-o.free))
	}
	if o.deviceFree >= o.requested {
		return text + fmt.Sprintf("CUDA had %s free on the card, more than was asked for: what ended it is not the card but a limit of the process, under %s (set_per_process_memory_fraction).",
			quantity(o.deviceFree), quantity(plus(o.reserved, o.requested)))
	}
	return text + fmt.Sprintf("CUDA had %s free on the card.", quantity(o.deviceFree))
}

// like says whether all blocks of a holder are of one size.
func (h *holder) like() string {
	if len(h.sizes) == 1 && h.blocks > 1 {
		for bytes := range h.sizes {
			return ", " + quantity(bytes) + " each"
		}
	}
	return ""
}

// sizesText counts blocks by their size, those first that hold most.
func (h *holder) sizesText(most int) string {
	sizes := slices.Collect(maps.Keys(h.sizes))
	slices.SortFunc(sizes, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(float64(b)*float64(h.sizes[b]), float64(a)*float64(h.sizes[a])), cmp.Compare(b, a))
	})
	var parts []string
	counted := uint64(0)
	for _, bytes := range sizes[:min(most, len(sizes))] {
		parts = append(parts, fmt.Sprintf("%d × %s", h.sizes[bytes], quantity(bytes)))
		counted += h.sizes[bytes]
	}
	if counted < h.blocks {
		parts = append(parts, fmt.Sprintf("%d others", h.blocks-counted))
	}
	return strings.Join(parts, ", ")
}
