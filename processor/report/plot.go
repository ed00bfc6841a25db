package report

import (
	"math"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/processor/worker"
)

// The size of a plot in characters, its axes included.
const (
	plotColumns = 72
	plotLines   = 10
	areaRows    = plotLines - 2 // below stand the axis and its times
)

// glyphs are what a plot is drawn with; each cell has so many dots.
type glyphs struct {
	across, down               int
	quiet, onset, symptom      rune
	side, tick, corner, bottom rune
	dots                       func(set [8]bool) rune
}

var braille = glyphs{across: 2, down: 4, quiet: '●', onset: '▲', symptom: '✕', side: '│', tick: '┤', corner: '└', bottom: '─', dots: func(set [8]bool) rune {
	pattern := rune(0x2800)
	for i, bit := range [8]rune{0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80} { // row by row, left then right
		if set[i] {
			pattern |= bit
		}
	}
	return pattern
}}

var letters = glyphs{across: 1, down: 1, quiet: 'o', onset: '^', symptom: 'x', side: '|', tick: '+', corner: '+', bottom: '-', dots: func([8]bool) rune { return '.' }}

// mark is a moment on the time axis.
type mark struct {
	at    time.Time
	glyph rune
}

// plot prints the series in question, with onset and symptoms of an incident on the time axis.
func (p *page) plot(r worker.Report, c *Case) {
	var told *event.Finding
	if c != nil {
		told = c.told()
	}
	if s, found := inQuestion(r, told); found {
		p.draw(s, told, "quiet level, line: lowest value between")
	}
}

// draw prints a series under a heading that says what its points are. The finding may be nil.
func (p *page) draw(s worker.SeriesReport, told *event.Finding, points string) {
	g := braille
	if p.style.ASCII {
		g = letters
	}
	var marks []mark
	legend := string(g.quiet) + " " + points
	if told != nil && !told.Onset.IsZero() {
		marks = append(marks, mark{told.Onset, g.onset})
		legend += ", " + string(g.onset) + " onset"
	}
	if told != nil && len(told.Symptoms) > 0 {
		for _, one := range told.Symptoms {
			marks = append(marks, mark{one.Time, g.symptom})
		}
		legend += ", " + string(g.symptom) + " " + symptomNames(told.Symptoms)
	}
	lines := plotOf(s, marks, g)
	if len(lines) == 0 {
		return
	}
	p.heading(join(" ", s.Name, short(s.GPU)) + " (" + legend + ")")
	for _, line := range lines {
		p.b.WriteString(line + "\n")
	}
}

func symptomNames(all []event.Symptom) string {
	var names []string
	for _, one := range all {
		if !slices.Contains(names, one.Name) {
			names = append(names, one.Name)
		}
	}
	return strings.Join(names, ", ")
}

// plotOf draws a series in at most plotLines lines of plotColumns characters: the trace as a line, the quiet levels on top of it.
// A series with fewer than two values, or in no time, is no plot.
func plotOf(s worker.SeriesReport, marks []mark, g glyphs) []string {
	trace, points := finiteDots(s.Trace), finiteDots(s.Points)
	all := slices.Concat(trace, points)
	if len(all) < 2 {
		return nil
	}
	first, last := all[0].At, all[0].At
	low, high := all[0].Value, all[0].Value
	for _, d := range all {
		if d.At.Before(first) {
			first = d.At
		}
		if d.At.After(last) {
			last = d.At
		}
		low, high = min(low, d.Value), max(high, d.Value)
	}
	span := last.Sub(first).Seconds()
	if span <= 0 {
		return nil
	}
	axis, ok := scaleOf(low, high, s.Unit, s.Called)
	if !ok {
		return nil
	}
	labels := axis.labels(areaRows)
	wide := 0
	for _, label := range labels {
		wide = max(wide, len([]rune(label)))
	}
	columns := plotColumns - wide - 2
	if columns < 16 {
		return nil
	}
	c := &canvas{g: g, columns: columns, dots: make([][8]bool, columns*areaRows), over: make([]rune, columns*areaRows)}
	x := func(at time.Time) int {
		return int(math.Round(at.Sub(first).Seconds() / span * float64(columns*g.across-1)))
	}
	y := func(v float64) int { return int(math.Round(axis.share(v) * float64(areaRows*g.down-1))) }
	gap := 2.5 * usualStep(trace)
	for i, d := range trace {
		if i > 0 && d.At.Sub(trace[i-1].At).Seconds() <= gap {
			c.line(x(trace[i-1].At), y(trace[i-1].Value), x(d.At), y(d.Value))
		}
		c.dot(x(d.At), y(d.Value))
	}
	for _, d := range points {
		c.mark(x(d.At), y(d.Value))
	}
	return append(c.lines(labels, wide), axisLine(marks, first, last, columns, wide, g), timeLine(first, last, columns, wide))
}

func finiteDots(dots []worker.Dot) []worker.Dot {
	out := make([]worker.Dot, 0, len(dots))
	for _, d := range dots {
		if d.Value-d.Value == 0 {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b worker.Dot) int { return a.At.Compare(b.At) })
	return out
}

// usualStep is the median time between two dots in seconds: a longer one is a gap, in which nothing is drawn.
func usualStep(dots []worker.Dot) float64 {
	var steps []float64
	for i := 1; i < len(dots); i++ {
		steps = append(steps, dots[i].At.Sub(dots[i-1].At).Seconds())
	}
	if len(steps) == 0 {
		return 0
	}
	slices.Sort(steps)
	return steps[len(steps)/2]
}

// canvas is the area of a plot. Dots are counted from the lower left.
type canvas struct {
	g       glyphs
	columns int
	dots    [][8]bool
	over    []rune
}

func (c *canvas) cell(x, y int) (cell, bit int) {
	x = min(max(x, 0), c.columns*c.g.across-1)
	y = areaRows*c.g.down - 1 - min(max(y, 0), areaRows*c.g.down-1)
	return y/c.g.down*c.columns + x/c.g.across, y%c.g.down*c.g.across + x%c.g.across
}

func (c *canvas) dot(x, y int) {
	cell, bit := c.cell(x, y)
	c.dots[cell][bit] = true
}

func (c *canvas) mark(x, y int) {
	cell, _ := c.cell(x, y)
	c.over[cell] = c.g.quiet
}

// line draws between two dots, at least one dot in every column and row between.
func (c *canvas) line(x1, y1, x2, y2 int) {
	steps := max(abs(x2-x1), abs(y2-y1))
	for i := 1; i < steps; i++ {
		c.dot(x1+(x2-x1)*i/steps, y1+(y2-y1)*i/steps)
	}
}

func abs(v int) int { return max(v, -v) }

func (c *canvas) lines(labels []string, wide int) []string {
	var out []string
	for r := range areaRows {
		var b strings.Builder
		side := c.g.side
		if labels[r] != "" {
			side = c.g.tick
		}
		b.WriteString(strings.Repeat(" ", wide-len([]rune(labels[r]))) + labels[r] + " " + string(side))
		for x := range c.columns {
			cell := r*c.columns + x
			switch {
			case c.over[cell] != 0:
				b.WriteRune(c.over[cell])
			case c.dots[cell] != [8]bool{}:
				b.WriteRune(c.g.dots(c.dots[cell]))
			default:
				b.WriteByte(' ')
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}
