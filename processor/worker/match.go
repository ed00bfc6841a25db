package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
)

const (
	matchWindow  = 30 * time.Minute
	maxWindows   = 32 // then two become one
	matchBins    = 6  // loads that one window keeps
	matchSamples = 2  // of one load in one window, for its lowest to mean anything
	matchRepeats = 3  // windows in which a load must come back to be compared
	matchCells   = 4  // windows that must be comparable, as quiet points
	maxBins      = 41 << 5
)

// match compares a worker that never drains with itself at the same load: per half hour and load (what runs, how full the KV cache
// is, whether something waits) it keeps the lowest value of each series.
type match struct {
	Start  time.Time
	Length time.Duration
	Cells  []cell          // in the order of windows
	Low    matrix[float32] // a row for each of Cells
	Work   []tally         // by window, at its last sample

	// Taking the load out is half of the work of a judgement, so that it has a turn of its own.
	Seen   sight
	SeenOf uint16 // the column whose Seen is, plus one; 0 when there is none
}

type cell struct {
	Bin     uint16
	Window  uint8
	Samples uint8 // 255 are many
}

func (c *cell) more(samples uint8) { c.Samples += min(samples, math.MaxUint8-c.Samples) }

// The columns that are compared, of the process and of each GPU, and how many there are.
var matchedOwn, matchedDevice = func() (own, device []int) {
	for series, is := range matchable {
		switch {
		case is && series < deviceSeries:
			device = append(device, series)
		case is:
			own = append(own, series-deviceSeries)
		}
	}
	return own, device
}()

// width is the number of columns that are compared.
func width(columns int) int {
	return len(matchedOwn) + (columns-ownSeries)/deviceSeries*len(matchedDevice)
}

// place is that of a column among those that are compared, -1 for the others.
func place(column int) int {
	series, card := seriesOf(column)
	if card < 0 {
		return slices.Index(matchedOwn, column)
	}
	if i := slices.Index(matchedDevice, series); i >= 0 {
		return len(matchedOwn) + card*len(matchedDevice) + i
	}
	return -1
}

// bin is what a load is compared by. What runs is told apart by factors of √2, the cache in tenths.
func bin(running, waiting uint64, kv float64) uint16 {
	tenth := uint16(15)
	if kv >= 0 && kv <= 1.5 {
		tenth = uint16(kv * 10)
	}
	queue := uint16(0)
	if waiting > 0 {
		queue = 1
	}
	return step(running)<<5 | tenth<<1 | queue
}

// step is how many factors of √2 some running requests are.
func step(running uint64) uint16 {
	if running < uint64(len(usualSteps)) {
		return usualSteps[running]
	}
	return uint16(math.Round(2 * math.Log2(float64(min(running, 1<<20))+1)))
}

var usualSteps = func() (all [256]uint16) {
	for running := range all {
		all[running] = uint16(math.Round(2 * math.Log2(float64(running)+1)))
	}
	return all
}()

// observe takes one sample of a busy worker. It returns true when a window was completed before it.
func (m *match) observe(moment time.Time, load uint16, values []float64, work axes) (completed bool) {
	if w := width(len(values)); m.Start.IsZero() || w != m.Low.Width {
		*m = match{Start: moment, Length: matchWindow, Low: matrix[float32]{Width: w}} // another GPU: what was kept has no place for it
	}
	age := event.Ago(moment, m.Start)
	for age >= maxWindows*m.Length {
		m.halve()
	}
	window := uint8(stretch(age, m.Length, len(m.Work)-1))
	if completed = len(m.Work) > 0 && int(window) >= len(m.Work); completed {
		m.SeenOf = 0
	}
	for len(m.Work) <= int(window) {
		m.Work = push(m.Work, work.tally())
	}
	m.Work[window] = work.tally()
	at := m.find(window, load)
	if at < 0 {
		return completed
	}
	m.Cells[at].more(1)
	low := m.Low.row(at)
	for i, c := range matchedOwn {
		least(&low[i], values[c])
	}
	low = low[len(matchedOwn):]
	for card := values[ownSeries:]; len(card) >= deviceSeries; card = card[deviceSeries:] {
		for i, series := range matchedDevice {
			least(&low[i], held(card, series))
		}
		low = low[len(matchedDevice):]
	}
	return completed
}

func least(low *float32, v float64) {
	if !(float64(*low) <= v) && v == v {
		*low = float32(v)
	}
}

// held is the value of a series of a GPU as it is compared. A busy worker shows no two points with the same private pools, as a quiet
// one does, so that what they hold is taken out of its live memory instead.
func held(card []float64, series int) float64 {
	v := card[series]
	if pools := card[graphs]; series == live && pools == pools {
		v -= pools
	}
	return v
}

// find returns the cell of a load in the newest window, -1 when that holds enough loads already.
func (m *match) find(window uint8, load uint16) int {
	used, single := 0, -1
	for i := len(m.Cells) - 1; i >= 0 && m.Cells[i].Window == window; i-- {
		if m.Cells[i].Bin == load {
			return i
		}
		if used++; m.Cells[i].Samples == 1 {
			single = i
		}
	}
	if used >= matchBins {
		if single < 0 {
			return -1
		}
		forget(m.Low.row(single))
		m.Cells[single] = cell{Window: window, Bin: load}
		return single
	}
	m.Cells = push(m.Cells, cell{Window: window, Bin: load})
	m.Low.add()
	return len(m.Cells) - 1
}

// halve makes one window of two.
func (m *match) halve() {
	old, low := m.Cells, m.Low
	m.Cells, m.Low = nil, matrix[float32]{Width: low.Width}
	m.Length *= 2
	for i, c := range old {
		at := m.find(c.Window/2, c.Bin)
		if at < 0 {
			continue
		}
		m.Cells[at].more(c.Samples)
		lower(m.Low.row(at), low.row(i))
	}
	work := m.Work[:0]
	for i := 0; i < len(m.Work); i += 2 {
		work = append(work, m.Work[min(i+1, len(m.Work)-1)])
	}
	m.Work = work
}

// look returns what a series holds apart from its load, where that is known already.
func (m *match) look(column int) (s *sight, ready bool) { return &m.Seen, int(m.SeenOf) == column+1 }

// see works it out. It returns false where nothing can be compared.
func (m *match) see(at *desk, series, column, columns int, from time.Time) bool {
	m.SeenOf = 0
	if !m.levels(&m.Seen, at, series, column, columns, from) {
		return false
	}
	m.SeenOf = uint16(column) + 1
	return true
}

// levels makes s what a series holds apart from its load, by window: the effect of time in an additive model of load and time, fitted
// by Tukey's median polish (Exploratory Data Analysis, 1977, chapter 11), which a burst or a wrong reading moves little. The last
// window is left out while it is being filled. The noise is the larger of the floor and the spread of what the model leaves. It returns
// false where too few windows can be compared.
func (m *match) levels(s *sight, at *desk, series, column, columns int, from time.Time) bool {
	index := place(column)
	if index < 0 || width(columns) != m.Low.Width {
		return false
	}
	first := 0 // window that begins after warm-up
	for first < len(m.Work) && m.Start.Add(time.Duration(first)*m.Length).Before(from) {
		first++
	}
	p := &at.polish
	p.gather(m, index, first)
	p.fit(floors[series])
	s.clear()
	s.Sigma = floors[series]
	steps := p.values[:0]
	begin := -1
	for w, v := range p.times {
		if v != v {
			continue
		}
		if begin < 0 {
			begin = w
		}
		s.Hours = append(s.Hours, float64(w-begin)*m.Length.Hours())
		s.Level = append(s.Level, v)
		s.Work = append(s.Work, m.Work[w])
		if n := len(s.Level); n > 1 {
			steps = append(steps, v-s.Level[n-2])
		}
	}
	if len(s.Level) < matchCells {
		return false
	}
	s.From = m.Start.Add(time.Duration(begin) * m.Length).Add(m.Length / 2)
	// The step from one window to the next has the noise of two.
	s.Sigma = max(s.Sigma, trend.Spread(p.left), trend.Spread(steps)/math.Sqrt2)
	return true
}
