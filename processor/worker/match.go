package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/processor/trend"
)

const (
	matchWindow  = 30 * time.Minute
	maxWindows   = 48 // then two become one
	matchBins    = 6  // loads that one window keeps
	matchSamples = 2  // of one load in one window, for its lowest to mean anything
	matchRepeats = 3  // windows in which a load must come back to be compared
	matchCells   = 4  // windows that must be comparable, as quiet points
)

// match compares a worker that never drains with itself at the same load: per half hour and load (what runs, how full the KV cache
// is, whether something waits) it keeps the lowest value of each series.
type match struct {
	Start  time.Time
	Length time.Duration
	Cells  []cell          // in the order of windows
	Low    matrix[float32] // a row for each of Cells
	Work   []tally         // by window, at its last sample
}

type cell struct {
	Bin     uint16
	Window  uint8
	Samples uint8 // 255 are many
}

func (c *cell) more(samples uint8) { c.Samples += min(samples, math.MaxUint8-c.Samples) }

// matched lists the columns that are compared: of the process, then of each GPU.
func matched(dst []int, columns int) []int {
	for c := range columns {
		if s, _ := seriesOf(c); matchable[s] {
			dst = append(dst, c)
		}
	}
	return dst
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
	return uint16(math.Round(2*math.Log2(float64(min(running, 1<<20))+1)))<<5 | tenth<<1 | queue
}

// observe takes one sample of a busy worker. It returns true when a window was completed before it.
func (m *match) observe(moment time.Time, load uint16, values []float64, work axes) (completed bool) {
	var room [deviceSeries * maxCards]int
	columns := matched(room[:0], len(values))
	if m.Start.IsZero() || len(columns) != m.Low.Width {
		*m = match{Start: moment, Length: matchWindow, Low: matrix[float32]{Width: len(columns)}} // another GPU: what was kept has no place for it
	}
	for moment.Sub(m.Start) >= maxWindows*m.Length {
		m.halve()
	}
	window := uint8(moment.Sub(m.Start) / m.Length)
	completed = len(m.Work) > 0 && int(window) >= len(m.Work)
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
	for i, c := range columns {
		if v := held(values, c); !(float64(low[i]) <= v) && !math.IsNaN(v) {
			low[i] = float32(v)
		}
	}
	return completed
}

// held is the value of a column as it is compared. A busy worker shows no two points with the same private pools, as a quiet one does,
// so that what they hold is taken out of its live memory instead.
func held(values []float64, c int) float64 {
	v := values[c]
	if series, card := seriesOf(c); series == live {
		if pools := values[column(graphs, card)]; !math.IsNaN(pools) {
			v -= pools
		}
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

// sight is one series as it is judged: levels at comparable states, the noise of one of them, and the work done until each.
type sight struct {
	From  time.Time // hour zero
	Hours []float64
	Level []float64
	Work  []tally
	Sigma float64
}

// levels returns what a series holds apart from its load, by window: the effect of time in an additive model of load and time, fitted
// by Tukey's median polish (Exploratory Data Analysis, 1977, chapter 11), which a burst or a wrong reading moves little. The last
// window is left out while it is being filled. The noise is the larger of the floor and the spread of what the model leaves.
func (m *match) levels(series, column, columns int, from time.Time) (s sight, ok bool) {
	order := matched(nil, columns)
	index := slices.Index(order, column)
	if index < 0 || len(order) != m.Low.Width {
		return sight{}, false
	}
	seen := make(map[uint16]int, matchBins)
	usable := func(c cell) bool {
		return int(c.Window) < len(m.Work)-1 && c.Samples >= matchSamples && !m.Start.Add(time.Duration(c.Window)*m.Length).Before(from)
	}
	for i, c := range m.Cells {
		if usable(c) && !math.IsNaN(float64(m.Low.row(i)[index])) {
			seen[c.Bin]++
		}
	}
	var cells []polished
	for i, c := range m.Cells {
		v := float64(m.Low.row(i)[index])
		if usable(c) && seen[c.Bin] >= matchRepeats && !math.IsNaN(v) {
			cells = append(cells, polished{int(c.Window), int(c.Bin), v})
		}
	}
	times, left := polish(cells)
	windows := make([]int, 0, len(times))
	for w := range times {
		windows = append(windows, w)
	}
	slices.Sort(windows)
	if len(windows) < matchCells {
		return sight{}, false
	}
	s.From = m.Start.Add(time.Duration(windows[0]) * m.Length).Add(m.Length / 2)
	var steps []float64
	for i, w := range windows {
		s.Hours = append(s.Hours, float64(w-windows[0])*m.Length.Hours())
		s.Level = append(s.Level, times[w])
		s.Work = append(s.Work, m.Work[w])
		if i > 0 {
			steps = append(steps, s.Level[i]-s.Level[i-1])
		}
	}
	// The step from one window to the next has the noise of two.
	s.Sigma = max(floors[series], trend.Spread(left), trend.Spread(steps)/math.Sqrt2)
	return s, true
}

type polished struct {
	window, bin int
	value       float64
}

const polishRounds = 12

// polish fits value = load + time by medians, and returns the effect of time with the common level in it, and what is left.
func polish(cells []polished) (times map[int]float64, left []float64) {
	times = make(map[int]float64)
	bins := make(map[int]float64)
	effects := func(of func(polished) int, other func(polished) float64, into map[int]float64) {
		values := make(map[int][]float64)
		for _, c := range cells {
			values[of(c)] = append(values[of(c)], c.value-other(c))
		}
		for k, v := range values {
			into[k] = trend.Median(v)
		}
	}
	for range polishRounds {
		effects(func(c polished) int { return c.bin }, func(c polished) float64 { return times[c.window] }, bins)
		effects(func(c polished) int { return c.window }, func(c polished) float64 { return bins[c.bin] }, times)
	}
	var loads []float64
	for _, v := range bins {
		loads = append(loads, v)
	}
	common := 0.0
	if len(loads) > 0 {
		common = trend.Median(loads)
	}
	for _, c := range cells {
		left = append(left, c.value-bins[c.bin]-times[c.window])
	}
	for w := range times {
		times[w] += common
	}
	return times, left
}
