package snapshot

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// plotRows is the height of a timeline without its axis.
const plotRows = 8

// timeline draws live memory as a band from its lowest to its highest in every column, and reserved memory as a line above.
func (p *page) timeline(c *card) {
	points := c.past.points
	span := c.past.last.Sub(c.past.first)
	if len(points) < 2 || span <= 0 {
		return
	}
	low, high := uint64(math.MaxUint64), uint64(0)
	for _, one := range points {
		low, high = min(low, one.lowest), max(high, one.highest, one.highReserved)
	}
	if high-low < 1<<20 {
		low, high = minus(low, 1<<20), plus(high, 1<<20)
	}
	scale := scaleOf(low, high)
	labels := scale.labels()
	wide := 0
	for _, label := range labels {
		wide = max(wide, utf8.RuneCountInString(label))
	}
	columns := p.style.Width - wide - 6
	g := grain{2, 4}
	if p.style.ASCII {
		g = grain{1, 1}
	}
	lows, highs, tops := c.past.columns(columns * g.across)
	marks := []rune(strings.Repeat("─", columns))
	title := "Timeline of the history (" + g.sample() + " live, ▔ reserved"
	if len(c.past.ooms) > 0 {
		title += ", ✕ OOM"
		for _, one := range c.past.ooms {
			marks[c.past.column(one.at, columns)] = '✕'
		}
	}
	p.heading(title + ")")
	for r := range plotRows {
		side := "│"
		if labels[r] != "" {
			side = "┤"
		}
		row := make([]rune, columns)
		for x := range row {
			row[x] = g.cell(scale, r, lows[x*g.across:(x+1)*g.across], highs[x*g.across:(x+1)*g.across])
			if row[x] == ' ' && r == scale.row(slices.Max(tops[x*g.across:(x+1)*g.across]), plotRows) {
				row[x] = '▔'
			}
		}
		p.line("  " + strings.Repeat(" ", wide-utf8.RuneCountInString(labels[r])) + labels[r] + " " + side + string(row))
	}
	p.line("  " + strings.Repeat(" ", wide+1) + "└" + string(marks))
	from, to, between := c.past.first.UTC().Format("15:04:05"), c.past.last.UTC().Format("15:04:05")+" UTC", seconds(span)
	room := max(2, columns-len(from)-len(to)-len(between))
	p.line("  " + strings.Repeat(" ", wide+2) + from + strings.Repeat(" ", room/2) + between + strings.Repeat(" ", room-room/2) + to)
}

// column is where a moment stands in a plot.
func (p *past) column(t time.Time, columns int) int {
	return min(max(int(float64(t.Sub(p.first))/float64(p.last.Sub(p.first))*float64(columns-1)), 0), columns-1)
}

// columns are the lowest and highest live and the highest reserved bytes in so many pieces of the time. Where nothing happened, what
// the last entry left stayed.
func (p *past) columns(n int) (lows, highs, tops []uint64) {
	lows, highs, tops = make([]uint64, n), make([]uint64, n), make([]uint64, n)
	last, left := -1, p.points[0]
	for _, one := range p.points {
		x := max(p.column(one.at, n), last)
		for i := last + 1; i < x; i++ {
			lows[i], highs[i], tops[i] = left.live, left.live, left.reserved
		}
		if x > last {
			lows[x], highs[x], tops[x] = one.lowest, one.highest, one.highReserved
		} else {
			lows[x], highs[x], tops[x] = min(lows[x], one.lowest), max(highs[x], one.highest), max(tops[x], one.highReserved)
		}
		last, left = x, one
	}
	for i := last + 1; i < n; i++ {
		lows[i], highs[i], tops[i] = left.live, left.live, left.reserved
	}
	return lows, highs, tops
}

// grain is how many dots a character has.
type grain struct{ across, down int }

// sample is what live memory is drawn with.
func (g grain) sample() string {
	if g.down == 1 {
		return "#"
	}
	return "⣿"
}

// cell draws the band between the lows and highs in one character of a row.
func (g grain) cell(s scale, row int, lows, highs []uint64) rune {
	bits := [8]rune{0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80} // row by row, left then right
	pattern := rune(0)
	for x := range g.across {
		top, bottom := s.row(highs[x], plotRows*g.down), s.row(lows[x], plotRows*g.down)
		for y := range g.down {
			if at := row*g.down + y; at >= top && at <= bottom {
				pattern |= bits[y*2+x]
			}
		}
	}
	switch {
	case pattern == 0:
		return ' '
	case g.down == 1:
		return '#'
	}
	return 0x2800 + pattern
}

// scale is an axis of bytes.
type scale struct{ low, high, step float64 }

// scaleOf chooses round steps of a power of two.
func scaleOf(low, high uint64) scale {
	step := math.Exp2(math.Ceil(math.Log2(math.Max(float64(high)-float64(low), 1) / 4)))
	return scale{math.Floor(float64(low)/step) * step, math.Ceil(float64(high)/step) * step, step}
}

// row is the line of a value among so many, from the top.
func (s scale) row(v uint64, rows int) int {
	return rows - 1 - min(max(int((float64(v)-s.low)/(s.high-s.low)*float64(rows)), 0), rows-1)
}

func (s scale) labels() [plotRows]string {
	var out [plotRows]string
	for i := 0; i <= int(math.Round((s.high-s.low)/s.step)) && i < 64; i++ {
		tick := s.low + float64(i)*s.step
		out[s.row(uint64(max(0, tick)), plotRows)] = axisBytes(tick, s.step)
	}
	return out
}

// axisBytes writes a value with as many digits as its step needs.
func axisBytes(v, step float64) string {
	factor, name := float64(1<<20), "MiB"
	if v >= 1<<30 || step >= 1<<30 {
		factor, name = 1<<30, "GiB"
	}
	digits := max(0, int(math.Ceil(-math.Log2(step/factor)*0.302)))
	return fmt.Sprintf("%.*f %s", min(digits, 4), v/factor, name)
}
