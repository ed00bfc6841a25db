package snapshot

import (
	"fmt"
	"math"
	"strings"
)

// mapRows is how many lines the map of a card has at most, about.
const mapRows = 10

// share is what of a cell is what, in bytes.
type share struct{ live, pending, free uint64 }

// glyph is what most of a cell is. A cell that holds something is never drawn as free, and one with a hole never as full.
func (s share) glyph() rune {
	whole := float64(s.live) + float64(s.pending) + float64(s.free)
	switch {
	case whole == 0:
		return ' '
	case float64(s.pending) >= whole/2:
		return '▒'
	case float64(s.live)+float64(s.pending) == 0:
		return '·'
	case s.free == 0 && s.pending == 0:
		return '█'
	case float64(s.live)+float64(s.pending) >= whole/2:
		return '▓'
	}
	return '░'
}

// chart draws the segments of every pool, in the order of their addresses: so many bytes a cell, a line between two segments of more
// than a cell.
func (p *page) chart(c *card) {
	if c.reserved == 0 {
		return
	}
	columns := p.style.Width - 4
	cell := float64(uint64(1) << 20)
	for float64(c.reserved)/cell > float64(columns*mapRows)*0.75 {
		cell *= 2
	}
	p.heading(fmt.Sprintf("Segments by address, %s a cell (█ live, ▓ mostly live, ░ mostly free, · free, ▒ pending, │ edge)", quantity(uint64(cell))))
	shown := c.pools
	if len(shown) > maxMaps {
		shown = shown[:maxMaps]
	}
	for _, one := range shown {
		p.line("  " + one.name() + ", " + quantity(one.reserved) + " in " + count(one.segments, "segment", "segments"))
		row := []rune(one.cells(cell))
		for len(row) > 0 {
			n := min(columns, len(row))
			p.line("    " + string(row[:n]))
			row = row[n:]
		}
	}
	if left := len(c.pools) - len(shown); left > 0 {
		p.line(fmt.Sprintf("  and %s", count(uint64(left), "smaller pool", "smaller pools")))
	}
}

// maxMaps is how many pools are drawn.
const maxMaps = 6

// cells draws the segments of a pool. Small ones share cells.
func (p *pool) cells(cell float64) string {
	var b strings.Builder
	var open share // of segments that share a cell
	filled := 0.0
	edge := false // a large segment stands before
	put := func() {
		if filled > 0 {
			b.WriteRune(open.glyph())
			open, filled = share{}, 0
		}
	}
	for _, g := range p.parts {
		if float64(g.Total) < 1.5*cell {
			if filled+float64(g.Total) > cell {
				put()
			}
			if edge {
				b.WriteRune('│')
				edge = false
			}
			for _, block := range g.Blocks {
				open.add(block.State, block.Size)
			}
			filled += float64(g.Total)
			continue
		}
		small := filled > 0
		put()
		if edge || small {
			b.WriteRune('│')
		}
		for _, s := range g.cells(cell) {
			b.WriteRune(s.glyph())
		}
		edge = true
	}
	put()
	return b.String()
}

func (s *share) add(state State, bytes uint64) {
	switch state {
	case Live:
		s.live = plus(s.live, bytes)
	case Pending:
		s.pending = plus(s.pending, bytes)
	case Free:
		s.free = plus(s.free, bytes)
	}
}

// cells divides a segment into cells of about equal size.
func (g *Segment) cells(cell float64) []share {
	n := max(1, int(math.Round(float64(g.Total)/cell)))
	out := make([]share, n)
	for _, b := range g.Blocks {
		if b.Address < g.Address || b.Address-g.Address >= g.Total {
			continue
		}
		from := b.Address - g.Address
		to := min(g.Total, plus(from, b.Size))
		for i := int(float64(from) / float64(g.Total) * float64(n)); i < n && from < to; i++ {
			end := uint64(float64(g.Total) / float64(n) * float64(i+1))
			if i == n-1 {
				end = g.Total
			}
			if end <= from {
				continue
			}
			part := min(end, to)
			out[i].add(b.State, part-from)
			from = part
		}
	}
	return out
}
