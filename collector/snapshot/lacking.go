package snapshot

import (
	"fmt"
	"strings"
)

// lacking says what the snapshot itself cannot tell, a sentence each, the most important first.
func (c *card) lacking(s *Snapshot) []string {
	var out []string
	say := func(form string, args ...any) { out = append(out, fmt.Sprintf(form, args...)) }
	held := plus(c.live, c.pending)
	bare := plus(c.bare.live, c.bare.pending)
	switch {
	case held == 0:
	case bare == held && len(c.trace) == 0:
		say("No block has a stack, and there is no history: recording was off when the snapshot was taken.")
	case bare == held:
		say("No block has a stack: everything was allocated before recording began.")
	case bare > 0:
		say("%s of what is held has no stack: %s were allocated before recording began.", percent(bare, held), quantity(bare))
	}
	if s.Legacy {
		say("The snapshot is of an old PyTorch: stacks come from the history of a block, of which the newest is used.")
	}
	switch p := &c.past; {
	case len(c.trace) == 0:
		if bare != held || held == 0 {
			say("There is no history: no timeline, and no OOM can be seen.")
		}
	default:
		if p.older > 0 {
			say("The history reaches back %s only, older entries were overwritten: %s with a stack, %s, are older.",
				seconds(p.last.Sub(p.first)), count(uint64(p.older), "block", "blocks"), quantity(p.olderBytes))
		}
		if p.odd > 0 {
			say("%s of the history contradict the blocks, so that the timeline before them is not exact.", count(uint64(p.odd), "entry", "entries"))
		}
		if n := len(p.ooms); n > 0 && !p.ooms[n-1].known {
			say("The largest hole at the last OOM is not known: newer entries of the history contradict the blocks.")
		}
		if rounds(s.Settings) {
			say("Requests are rounded up (roundup_power2_divisions): blocks that were freed since are taken for smaller than they were.")
		}
	}
	if c.unknown > 0 {
		say("%s are in blocks of a state that this version does not know.", quantity(c.unknown))
	}
	if len(s.Unknown) > 0 {
		say("Names that this version does not know: %s.", printable(strings.Join(s.Unknown[:min(len(s.Unknown), 8)], ", ")))
	}
	if strings.Contains(s.Settings.AllocConf, "cudaMallocAsync") {
		say("The backend is cudaMallocAsync, which keeps no snapshot: these are not its blocks.")
	}
	if n := c.privatePools(); n > 0 {
		say("Whether the graphs of %s are still needed, and so whether their free memory could be given back, is not in a snapshot.",
			count(uint64(n), "private pool", "private pools"))
	}
	return append(out, "It is PyTorch's view of one process: what other processes and other libraries hold is not in it.")
}
