package report

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// scale is the axis of values: from low to high in steps of step, all in the unit that the labels show.
type scale struct {
	low, high, step float64
	factor          float64 // of the unit, in base units
	unit            string
}

// calm is the least part of a value that a plot's height stands for, so that the noise of a level series does not fill it. A series
// that was called has something to show.
const calm = 0.05

// scaleOf chooses an axis for values between low and high, in base units; not ok where there is none.
func scaleOf(low, high float64, unit string, called bool) (s scale, ok bool) {
	size := max(math.Abs(low), math.Abs(high))
	s.factor, s.unit = 1, ""
	least := 8.0 // handles
	switch unit {
	case "bytes":
		s.factor, s.unit, least = 1, "B", 32<<20
		for _, one := range []struct {
			size float64
			name string
		}{{1 << 10, "KiB"}, {1 << 20, "MiB"}, {1 << 30, "GiB"}, {1 << 40, "TiB"}} {
			if max(size, least) >= one.size {
				s.factor, s.unit = one.size, one.name
			}
		}
	case "ratio":
		s.factor, s.unit, least = 0.01, "%", 0.05
	}
	if !called {
		least = max(least, calm*size)
	}
	if room := least - (high - low); room > 0 {
		negative := low < 0
		low, high = low-room/2, high+room/2
		if low < 0 && !negative {
			low, high = 0, high-low
		}
	}
	low, high = low/s.factor, high/s.factor
	if !(high-low < math.MaxFloat64) || !(high > low) {
		return s, false
	}
	s.step = nice((high - low) / 4)
	s.low, s.high = math.Floor(low/s.step)*s.step, math.Ceil(high/s.step)*s.step
	return s, s.step > 0 && s.high-s.low < math.MaxFloat64 && s.high > s.low && (s.high-s.low)/s.step < 64
}

// nice is the smallest of 1, 2 and 5 times a power of ten that is not under v.
func nice(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// share is where a value in base units stands, 0 to 1.
func (s scale) share(v float64) float64 { return (v/s.factor - s.low) / (s.high - s.low) }

// labels are one per row, from the top; rows between two ticks have none.
func (s scale) labels(rows int) []string {
	out := make([]string, rows)
	digits := min(6, max(0, int(math.Ceil(-math.Log10(s.step)-1e-9))))
	for i := 0; i <= int(math.Round((s.high-s.low)/s.step)); i++ {
		tick := s.low + float64(i)*s.step
		row := rows - 1 - int(math.Round((tick-s.low)/(s.high-s.low)*float64(rows-1)))
		out[row] = strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, tick, s.unit))
	}
	return out
}

// axisLine is the lower edge with its marks; those outside of the plot's time are left out.
func axisLine(marks []mark, first, last time.Time, columns, wide int, g glyphs) string {
	edge := []rune(strings.Repeat(string(g.bottom), columns))
	for _, m := range marks {
		if !m.at.Before(first) && !m.at.After(last) {
			edge[int(math.Round(m.at.Sub(first).Seconds()/last.Sub(first).Seconds()*float64(columns-1)))] = m.glyph
		}
	}
	return strings.Repeat(" ", wide+1) + string(g.corner) + string(edge)
}

// timeLine has the first and the last moment and the time between them.
func timeLine(first, last time.Time, columns, wide int) string {
	form := "15:04"
	if first, last := first.UTC(), last.UTC(); first.YearDay() != last.YearDay() || first.Year() != last.Year() {
		form = "01-02 15:04"
	}
	from, to, span := first.UTC().Format(form), last.UTC().Format(form)+" UTC", duration(last.Sub(first))
	room := columns - len(from) - len(to) - len(span)
	if room < 2 {
		span, room = "", columns-len(from)-len(to)
	}
	left := max(0, room/2)
	return strings.Repeat(" ", wide+2) + from + strings.Repeat(" ", left) + span + strings.Repeat(" ", max(0, room-left)) + to
}
