package worker

import (
	"math"
	"slices"

	"lowtide/processor/trend"
)

const polishRounds = 6

// polished is the change of an effect by one more round, of the smallest noise that is believed, at which the fit is good enough.
const polished = 1.0 / 16

// entry is a cell with the number of its load.
type entry struct {
	window, load int
	value        float64
}

// polish is the room in which value = load + time is fitted by medians.
type polish struct {
	bins    [maxBins]uint8  // in how many windows a load was seen; zero between two fits
	numbers [maxBins]uint16 // of the loads that are compared
	byTime  []entry         // in the order of windows
	byLoad  []entry
	next    []int     // where the next cell of a load goes
	loads   []float64 // the effect of each load
	times   []float64 // that of time with the common level in it, by window; NaN where there is no cell
	before  []float64
	values  []float64
	left    []float64 // what the model leaves of each cell
}

// gather takes the cells of one column from a window on whose loads come back.
func (p *polish) gather(m *match, index, first int) {
	p.byTime = p.byTime[:0]
	usable := func(i int) (v float64, ok bool) {
		c := &m.Cells[i]
		low := m.Low.row(i)[index]
		ok = low == low && int(c.Window) >= first && int(c.Window) < len(m.Work)-1 && c.Samples >= matchSamples && int(c.Bin) < maxBins
		return float64(low), ok
	}
	for i := range m.Cells {
		if _, ok := usable(i); ok {
			p.bins[m.Cells[i].Bin]++
		}
	}
	loads := 0
	for i := range m.Cells {
		c := &m.Cells[i]
		if int(c.Bin) < maxBins && p.bins[c.Bin] >= matchRepeats && p.numbers[c.Bin] == 0 {
			loads++
			p.numbers[c.Bin] = uint16(loads)
		}
	}
	for i := range m.Cells {
		if v, ok := usable(i); ok && p.bins[m.Cells[i].Bin] >= matchRepeats {
			p.byTime = append(p.byTime, entry{int(m.Cells[i].Window), int(p.numbers[m.Cells[i].Bin]) - 1, v})
		}
	}
	for i := range m.Cells {
		if c := &m.Cells[i]; int(c.Bin) < maxBins {
			p.bins[c.Bin], p.numbers[c.Bin] = 0, 0
		}
	}
	p.arrange(loads)
}

// arrange makes room for the fit of the cells in p.byTime, which are of so many loads.
func (p *polish) arrange(loads int) {
	p.loads = grown(p.loads, loads)
	p.next = slices.Grow(p.next[:0], loads+1)[:loads+1]
	clear(p.next)
	for _, e := range p.byTime {
		p.next[e.load+1]++
	}
	for load := range loads {
		p.next[load+1] += p.next[load]
	}
	p.byLoad = slices.Grow(p.byLoad[:0], len(p.byTime))[:len(p.byTime)]
	for _, e := range p.byTime {
		p.byLoad[p.next[e.load]] = e
		p.next[e.load]++
	}
	windows := 0
	if n := len(p.byTime); n > 0 {
		windows = p.byTime[n-1].window + 1
	}
	p.times, p.before = grown(p.times, windows), grown(p.before, windows)
}

// grown returns n zeros.
func grown(values []float64, n int) []float64 {
	values = slices.Grow(values[:0], n)[:n]
	clear(values)
	return values
}

// fit leaves the effect of time in p.times. It begins with the loads, so that what load and time could both explain is the load's: a
// worker that is asked for more and more does not leak.
func (p *polish) fit(noise float64) {
	for range polishRounds {
		copy(p.before, p.times)
		for from := 0; from < len(p.byLoad); {
			load := p.byLoad[from].load
			p.values = p.values[:0]
			for ; from < len(p.byLoad) && p.byLoad[from].load == load; from++ {
				p.values = append(p.values, p.byLoad[from].value-p.times[p.byLoad[from].window])
			}
			p.loads[load] = trend.MedianOf(p.values)
		}
		for from := 0; from < len(p.byTime); {
			window := p.byTime[from].window
			p.values = p.values[:0]
			for ; from < len(p.byTime) && p.byTime[from].window == window; from++ {
				p.values = append(p.values, p.byTime[from].value-p.loads[p.byTime[from].load])
			}
			p.times[window] = trend.MedianOf(p.values)
		}
		apart := 0.0
		for w, v := range p.times {
			apart = max(apart, math.Abs(v-p.before[w]))
		}
		if apart <= polished*noise {
			break
		}
	}
	common := trend.Median(p.loads)
	p.left = p.left[:0]
	seen := p.before
	clear(seen)
	for _, e := range p.byTime {
		p.left = append(p.left, e.value-p.loads[e.load]-p.times[e.window])
		seen[e.window] = 1
	}
	for w := range p.times {
		if p.times[w] += common; seen[w] == 0 {
			p.times[w] = nan
		}
	}
}
