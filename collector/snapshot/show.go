package snapshot

import (
	"fmt"
	"slices"
	"strings"
)

// shown is a snapshot with what a page about it says.
type shown struct {
	name  string // of the file
	s     *Snapshot
	cards []*card
	known Known
	top   int // rows of a table
}

// write prints the page: what stands out first.
func (v *shown) write(p *page) {
	if len(v.cards) == 0 {
		p.hang("", "Nothing is in this snapshot: PyTorch had reserved no memory on any GPU, or memory comes from another allocator (cudaMallocAsync, a plugged-in one), which keeps no snapshot.")
		v.file(p)
		return
	}
	for i, c := range v.cards {
		if i > 0 {
			p.line("")
		}
		p.hang(fmt.Sprintf("GPU %d: ", c.device), c.headline())
	}
	v.file(p)
	for _, c := range v.cards {
		if len(v.cards) > 1 {
			p.line("")
			p.line(strings.Repeat("─", p.style.Width))
			p.line(fmt.Sprintf("GPU %d", c.device))
		}
		v.card(p, c)
	}
}

func (v *shown) file(p *page) {
	p.line("")
	parts := []string{v.name, fmt.Sprintf("%s, protocol %d", quantity(uint64(max(0, v.s.Bytes))), v.s.Protocol)}
	for _, c := range v.cards {
		if n := len(c.trace); n > 0 {
			parts = append(parts, fmt.Sprintf("history of GPU %d: %s in %s until %s", c.device, count(uint64(n), "entry", "entries"), seconds(c.past.last.Sub(c.past.first)), day(c.past.last)))
		}
	}
	switch {
	case v.s.Settings.AllocConf != "":
		parts = append(parts, "allocator settings: "+v.s.Settings.AllocConf)
	case v.s.Settings.Known:
		parts = append(parts, "default allocator settings")
	}
	p.hang("", strings.Join(parts, " · "))
}

// card prints the sections of one device.
func (v *shown) card(p *page, c *card) {
	p.list("What stands out", c.standing())
	v.holders(p, c)
	v.failures(p, c)
	v.pools(p, c)
	p.chart(c)
	v.sizes(p, c)
	p.timeline(c)
	lacking := v.budget(p, c)
	p.list("Not in this snapshot", append(c.lacking(v.s), lacking...))
}

func (v *shown) holders(p *page, c *card) {
	held := plus(c.live, c.pending)
	var rows [][]string
	row := func(h *holder, text string) {
		rows = append(rows, []string{quantity(plus(h.live, h.pending)), percent(plus(h.live, h.pending), held), quantity(h.pending), quantity(h.recent), fmt.Sprint(h.blocks), text})
	}
	var rest holder
	for i, h := range c.holders {
		if i < v.top {
			row(h, where(h.frames))
			continue
		}
		rest.live, rest.pending, rest.blocks, rest.recent = plus(rest.live, h.live), plus(rest.pending, h.pending), rest.blocks+h.blocks, plus(rest.recent, h.recent)
	}
	if rest.blocks > 0 {
		row(&rest, fmt.Sprintf("%d other places", len(c.holders)-v.top))
	}
	if c.bare.blocks > 0 {
		row(&c.bare, "(no stack) "+c.bare.sizesText(6))
	}
	if len(rows) > 0 {
		heading := "Who holds it"
		if slices.ContainsFunc(c.holders, func(h *holder) bool { return h.recent > 0 }) {
			heading += " (new: allocated within the " + seconds(c.past.last.Sub(c.past.first)) + " of the history)"
		}
		p.heading(heading)
		p.table([]column{{title: "held"}, {title: "share", spare: 2}, {title: "pending", spare: 1}, {title: "new", spare: 3}, {title: "blocks"}, {title: "allocated at", left: true}}, rows)
	}
}

func (v *shown) failures(p *page, c *card) {
	var rows [][]string
	for i, o := range slices.Backward(c.past.ooms) {
		if len(c.past.ooms)-i > v.top {
			break
		}
		largest, free := "unknown", "unknown"
		if o.known {
			largest, free = quantity(o.largest), quantity(o.free)
		}
		rows = append(rows, []string{day(o.at), quantity(o.requested), largest, free, quantity(o.deviceFree), where(o.frames)})
	}
	if len(rows) > 0 {
		p.heading("Requests that failed, the last first")
		p.table([]column{{title: "at", left: true, spare: 1}, {title: "asked for"}, {title: "largest hole"}, {title: "free in all"}, {title: "free on card", spare: 2}, {title: "by", left: true}}, rows)
	}
}

func (v *shown) pools(p *page, c *card) {
	var rows [][]string
	row := func(name string, f *tally, private bool) {
		back, scattered := quantity(f.releasable), ""
		if private {
			back = ""
		}
		if share, ok := f.fragmentation(); ok {
			scattered = percent(uint64(share*1000+0.5), 1000)
		}
		rows = append(rows, []string{name, quantity(f.reserved), quantity(f.live), quantity(f.pending), quantity(f.free), quantity(f.largest), fmt.Sprint(f.holes), scattered, back, quantity(f.waste), fmt.Sprint(f.segments)})
	}
	most := max(v.top, 4)
	var rest tally
	for i, one := range c.pools {
		if i < most {
			row(one.name(), &one.tally, one.private())
			continue
		}
		rest.add(one.tally)
	}
	if len(c.pools) > most {
		row(fmt.Sprintf("%d smaller", len(c.pools)-most), &rest, true)
	}
	if len(c.pools) > 1 {
		row("all", &c.tally, false)
	}
	if len(rows) == 0 {
		return
	}
	p.heading(c.poolsText() + ": a block never leaves its stream, nor its private pool")
	p.table([]column{{title: "pool", left: true}, {title: "reserved"}, {title: "live"}, {title: "pending"}, {title: "free"}, {title: "largest"}, {title: "holes", spare: 1},
		{title: "scattered", spare: 2}, {title: "releasable", spare: 3}, {title: "rounding", spare: 5}, {title: "segments", spare: 4}}, rows)
}

// poolsText counts pools by their id, as PyTorch does; the table has them by stream.
func (c *card) poolsText() string {
	ids, streams := map[[2]uint64]bool{{}: true}, make(map[int64]bool)
	for _, one := range c.pools {
		ids[one.id], streams[one.stream] = true, true
	}
	text := "Pools"
	if len(ids) > 1 {
		delete(ids, [2]uint64{})
		text = fmt.Sprintf("%d pools, %d of them private", len(ids)+1, len(ids))
	}
	if len(streams) > 1 {
		text += fmt.Sprintf(", on %d streams", len(streams))
	}
	return text
}

func (v *shown) sizes(p *page, c *card) {
	var most uint64
	for _, n := range c.sizes {
		most = max(most, n.liveBytes, n.freeBytes)
	}
	if most == 0 {
		return
	}
	const columns = 16
	var rows [][]string
	for exponent, n := range c.sizes {
		if n == (size{}) {
			continue
		}
		rows = append(rows, []string{quantity(atMost(exponent)), fmt.Sprint(n.liveBlocks), quantity(n.liveBytes), bar(n.liveBytes, most, columns), fmt.Sprint(n.freeBlocks), quantity(n.freeBytes), bar(n.freeBytes, most, columns)})
	}
	p.heading("Blocks by size")
	p.table([]column{{title: "up to"}, {title: "live"}, {title: "bytes"}, {title: "", left: true, spare: 1}, {title: "free"}, {title: "bytes"}, {title: "", left: true}}, rows)
}

// budget prints the parts that are known and returns what is missing to the others.
func (v *shown) budget(p *page, c *card) []string {
	b, lacking := c.budget(v.known)
	whole := c.reserved
	of := "of reserved"
	if v.known.DeviceTotalBytes != nil {
		whole, of = *v.known.DeviceTotalBytes, "of the card"
	}
	var rows [][]string
	row := func(name string, bytes *uint64, note string) {
		if bytes != nil {
			rows = append(rows, []string{name, quantity(*bytes), percent(*bytes, whole), note})
		}
	}
	row("weights", b.Weights, "as given")
	row("KV pool", b.KvPool, "as given")
	row("activations", b.Activations, "live outside of private pools, less weights and KV pool")
	if b.Weights == nil || b.KvPool == nil {
		live := minus(c.live, c.private.live)
		row("live", &live, "weights, KV pool and activations together; --weights and --kv-pool tell them apart")
	}
	if b.Graphs != nil && *b.Graphs > 0 {
		row("graphs", b.Graphs, "reserved in private pools")
	}
	row("outside", b.Outside, "CUDA context, NCCL, native allocations")
	row("cached", b.Cached, "reserved and held by no tensor: free or pending")
	if k := v.known; k.DeviceUsedBytes != nil && k.ProcessUsedBytes != nil && *k.DeviceUsedBytes >= *k.ProcessUsedBytes {
		others := *k.DeviceUsedBytes - *k.ProcessUsedBytes
		row("others", &others, "used by other processes")
	}
	row("free", b.Free, "of the card")
	p.heading("Budget")
	p.table([]column{{title: "part", left: true}, {title: "bytes"}, {title: of}, {title: "", left: true}}, rows)
	return lacking
}
