package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"lowtide/event"
)

// change is the form of `snapshot diff --json`: what changed between two snapshots.
type change struct {
	Before      sideJSON       `json:"before"`
	After       sideJSON       `json:"after"`
	Seconds     *float64       `json:"seconds,omitempty"`      // between the newest entries of the histories; absent where there are none
	SameProcess *bool          `json:"same_process,omitempty"` // absent: it cannot be told
	Warnings    []string       `json:"warnings,omitempty"`
	Devices     []deviceChange `json:"devices"`
}

type sideJSON struct {
	File string    `json:"file"`
	Time time.Time `json:"time,omitzero"` // of the newest entry of the history
}

// pair is a figure before and after, in bytes.
type pair struct {
	Before uint64 `json:"before_bytes"`
	After  uint64 `json:"after_bytes"`
	Growth int64  `json:"growth_bytes"`
}

func pairOf(before, after uint64) pair { return pair{before, after, signed(after, before)} }

type deviceChange struct {
	Device   int32         `json:"device"`
	Live     pair          `json:"live"`
	Reserved pair          `json:"reserved"`
	Pending  pair          `json:"pending"`
	Free     pair          `json:"free"`
	Largest  pair          `json:"largest_free"`
	Bare     pair          `json:"no_stack"` // live without a stack
	Stacks   []stackChange `json:"stacks"`   // of live memory, those that grew most first; all of them
	Pools    []poolChange  `json:"pools"`
}

type stackChange struct {
	Frames []string `json:"frames"`
	pair   `json:",embed"`
	Blocks struct {
		Before uint64 `json:"before"`
		After  uint64 `json:"after"`
	} `json:"blocks"`
	State string `json:"state"` // new, gone, grew, shrank, same
}

type poolChange struct {
	Name     string `json:"name"`
	Reserved pair   `json:"reserved"`
	Live     pair   `json:"live"`
	Pending  pair   `json:"pending"`
	Free     pair   `json:"free"`
	State    string `json:"state"` // of what is reserved: new, gone, grew, shrank, same
}

// fate says what became of something that was there before and is there after, or not.
func fate(was, is bool, growth int64) string {
	switch {
	case !was:
		return "new"
	case !is:
		return "gone"
	case growth > 0:
		return "grew"
	case growth < 0:
		return "shrank"
	}
	return "same"
}

// differ compares two snapshots.
func differ(before, after *Snapshot) *change {
	d := &change{Devices: []deviceChange{}}
	old, now := byDevice(before), byDevice(after)
	for _, c := range old {
		d.Before.Time = later(d.Before.Time, c.past.last)
	}
	for _, c := range now {
		d.After.Time = later(d.After.Time, c.past.last)
	}
	if !d.Before.Time.IsZero() && !d.After.Time.IsZero() {
		seconds := d.After.Time.Sub(d.Before.Time).Seconds()
		d.Seconds = &seconds
	}
	all := maps.Clone(old)
	maps.Copy(all, now)
	for _, device := range slices.Sorted(maps.Keys(all)) {
		a, b := old[device], now[device]
		if a == nil {
			a = &card{device: device}
		}
		if b == nil {
			b = &card{device: device}
		}
		d.Devices = append(d.Devices, cardChange(a, b))
		d.kinship(a, b)
	}
	d.warn(old, now)
	return d
}

func byDevice(s *Snapshot) map[int32]*card {
	out := make(map[int32]*card)
	for _, c := range cards(s) {
		out[c.device] = c
	}
	return out
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// kinship decides whether the cards are of one process, as far as their segments tell.
func (d *change) kinship(a, b *card) {
	was, is := a.totals(), b.totals()
	if len(was.Segments) == 0 || len(is.Segments) == 0 {
		return
	}
	same := !strangers(was, is) || d.SameProcess != nil && *d.SameProcess
	d.SameProcess = &same
}

func (d *change) warn(old, now map[int32]*card) {
	say := func(form string, args ...any) { d.Warnings = append(d.Warnings, fmt.Sprintf(form, args...)) }
	switch {
	case d.SameProcess == nil:
		say("Whether the snapshots are of one process cannot be told: they have no segments, or only expandable ones, whose addresses are alike everywhere.")
	case !*d.SameProcess:
		say("The snapshots do not look like one process: no segment has the same address in both. What follows compares two processes, it is not growth.")
	}
	if d.Seconds != nil && *d.Seconds < 0 {
		say("The second snapshot is the older one, by %s.", seconds(time.Duration(-*d.Seconds*float64(time.Second))))
	}
	for _, device := range slices.Sorted(maps.Keys(now)) {
		a, b := old[device], now[device]
		if a != nil && a.live > 0 && a.bare.live == a.live && len(b.holders) > 0 {
			say("The first snapshot has no stacks on GPU %d: everything with a stack counts as new.", device)
		}
	}
}

func cardChange(a, b *card) deviceChange {
	d := deviceChange{Device: b.device, Live: pairOf(a.live, b.live), Reserved: pairOf(a.reserved, b.reserved), Pending: pairOf(a.pending, b.pending),
		Free: pairOf(a.free, b.free), Largest: pairOf(a.largest, b.largest), Bare: pairOf(a.bare.live, b.bare.live), Stacks: []stackChange{}, Pools: []poolChange{}}
	was, is := make(map[string]*holder), make(map[string]*holder)
	for _, h := range a.holders {
		was[h.key] = h
	}
	for _, h := range b.holders {
		is[h.key] = h
	}
	keys := maps.Clone(was)
	maps.Copy(keys, is)
	for key := range keys {
		before, after := cmp.Or(was[key], new(holder)), cmp.Or(is[key], new(holder))
		one := stackChange{Frames: split(key), pair: pairOf(before.live, after.live)}
		one.Blocks.Before, one.Blocks.After = before.blocks, after.blocks
		one.State = fate(was[key] != nil, is[key] != nil, one.Growth)
		d.Stacks = append(d.Stacks, one)
	}
	slices.SortFunc(d.Stacks, func(a, b stackChange) int {
		return cmp.Or(cmp.Compare(b.Growth, a.Growth), cmp.Compare(b.After, a.After), slices.Compare(a.Frames, b.Frames))
	})
	d.Pools = poolChanges(a.pools, b.pools)
	return d
}

func poolChanges(old, now []*pool) []poolChange {
	was, is := make(map[string]*pool), make(map[string]*pool)
	for _, p := range old {
		was[p.name()] = p
	}
	for _, p := range now {
		is[p.name()] = p
	}
	names := maps.Clone(was)
	maps.Copy(names, is)
	out := []poolChange{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := cmp.Or(was[name], new(pool)), cmp.Or(is[name], new(pool))
		one := poolChange{Name: name, Reserved: pairOf(a.reserved, b.reserved), Live: pairOf(a.live, b.live), Pending: pairOf(a.pending, b.pending), Free: pairOf(a.free, b.free)}
		one.State = fate(was[name] != nil, is[name] != nil, one.Reserved.Growth)
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b poolChange) int { return cmp.Compare(b.Reserved.Growth, a.Reserved.Growth) })
	return out
}

// write prints the change for people.
func (d *change) write(p *page, top int) {
	for _, one := range d.Warnings {
		p.hang("warning: ", one)
	}
	if len(d.Devices) == 0 {
		p.hang("", "Nothing is in either snapshot.")
	}
	for _, one := range d.Devices {
		p.hang(fmt.Sprintf("GPU %d: ", one.Device), one.headline(d))
	}
	p.line("")
	p.hang("", d.Before.text()+" → "+d.After.text())
	for _, one := range d.Devices {
		if len(d.Devices) > 1 {
			p.line("")
			p.line(fmt.Sprintf("GPU %d", one.Device))
		}
		one.write(p, top)
	}
}

func (s sideJSON) text() string {
	if s.Time.IsZero() {
		return s.File
	}
	return s.File + " (" + day(s.Time) + ")"
}

// headline says how much live memory grew and where most of it was allocated.
func (c *deviceChange) headline(d *change) string {
	text := fmt.Sprintf("live %s (%s → %s), reserved %s", difference(c.Live.Growth), quantity(c.Live.Before), quantity(c.Live.After), difference(c.Reserved.Growth))
	if d.Seconds != nil && *d.Seconds > 0 {
		text += " in " + seconds(time.Duration(*d.Seconds*float64(time.Second)))
		if *d.Seconds >= 60 && c.Live.Growth != 0 {
			text += fmt.Sprintf(", a rate of %s", event.FormatQuantity(float64(c.Live.Growth)/(*d.Seconds)*3600, "bytes/h"))
		}
	}
	if len(c.Stacks) == 0 || c.Stacks[0].Growth <= 0 {
		return text
	}
	most := c.Stacks[0]
	text += fmt.Sprintf("; %s has %s more", where(most.Frames[:min(2, len(most.Frames))]), quantity(uint64(most.Growth)))
	var grown uint64
	for _, one := range c.Stacks {
		grown = plus(grown, uint64(max(0, one.Growth)))
	}
	grown = plus(grown, uint64(max(0, c.Bare.Growth)))
	return text + fmt.Sprintf(", %s of all that grew", percent(uint64(most.Growth), grown))
}

func (c *deviceChange) write(p *page, top int) {
	var rows [][]string
	row := func(one stackChange, text string) {
		blocks := ""
		if one.Blocks.Before+one.Blocks.After > 0 {
			blocks = fmt.Sprintf("%d → %d", one.Blocks.Before, one.Blocks.After)
		}
		rows = append(rows, []string{difference(one.Growth), quantity(one.Before), quantity(one.After), blocks, one.State, text})
	}
	changed := slices.DeleteFunc(slices.Clone(c.Stacks), func(s stackChange) bool { return s.Growth == 0 })
	slices.SortStableFunc(changed, func(a, b stackChange) int { return cmp.Compare(size64(b.Growth), size64(a.Growth)) })
	cut := changed[min(top, len(changed)):]
	changed = changed[:len(changed)-len(cut)]
	slices.SortStableFunc(changed, func(a, b stackChange) int { return cmp.Compare(b.Growth, a.Growth) })
	for _, one := range changed {
		row(one, where(one.Frames))
	}
	if len(cut) > 0 {
		var rest stackChange
		for _, one := range cut {
			rest.Before, rest.After = plus(rest.Before, one.Before), plus(rest.After, one.After)
		}
		rest.Growth = signed(rest.After, rest.Before)
		row(rest, fmt.Sprintf("%d others that changed less", len(cut)))
	}
	if c.Bare.Growth != 0 {
		row(stackChange{pair: c.Bare, State: fate(c.Bare.Before > 0, c.Bare.After > 0, c.Bare.Growth)}, "(no stack)")
	}
	p.heading("Live memory by where it was allocated")
	if len(rows) == 0 {
		p.line("  no place changed")
	} else {
		p.table([]column{{title: "growth"}, {title: "before", spare: 2}, {title: "after"}, {title: "blocks", spare: 1}, {title: "", left: true}, {title: "allocated at", left: true}}, rows)
	}
	c.writePools(p, top)
}

func (c *deviceChange) writePools(p *page, top int) {
	var rows [][]string
	same := 0
	for _, one := range c.Pools {
		if one.State == "same" && one.Live.Growth == 0 && one.Free.Growth == 0 && one.Pending.Growth == 0 {
			same++
			continue
		}
		if len(rows) < top {
			rows = append(rows, []string{one.Name, difference(one.Reserved.Growth), difference(one.Live.Growth), difference(one.Pending.Growth), difference(one.Free.Growth), quantity(one.Reserved.After), came(one.State)})
		}
	}
	p.heading("Pools")
	if len(rows) > 0 {
		p.table([]column{{title: "pool", left: true}, {title: "reserved"}, {title: "live"}, {title: "pending", spare: 1}, {title: "free"}, {title: "reserved now", spare: 2}, {title: "", left: true}}, rows)
	}
	if left := len(c.Pools) - same - len(rows); left > 0 {
		p.line("  and " + count(uint64(left), "pool", "pools") + " that changed less")
	}
	if same > 0 {
		p.line("  " + count(uint64(same), "pool is", "pools are") + " as before")
	}
}

// came says only whether a pool is new or gone: whether it grew, its numbers say.
func came(state string) string {
	if state == "new" || state == "gone" {
		return state
	}
	return ""
}

func size64(v int64) uint64 {
	if v < 0 {
		return uint64(-(v + 1)) + 1
	}
	return uint64(v)
}
