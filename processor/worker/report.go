package worker

import (
	"fmt"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
)

// Report is what one worker looks like to a person: plain values, nothing formatted. What is not known is NaN, zero time or "".
type Report struct {
	Key, Slot, Instance string
	Who                 *event.Worker
	Host                *event.Host
	Config              *event.Config
	First, Last, Ready  time.Time

	Verdict string // one of the "Not findings" of vocabulary.md, or "<series> grows"
	Why     string // a clause
	Quiet   QuietReport
	Cards   []CardReport
	Series  []SeriesReport    // those that are known, in the order of vocabulary.md
	Lacking []string          // what would be needed to be surer
	Missing map[string]string // class → the sensor that is missing
	Quality []string          // what is wrong with the data
	Asked   []string          // snapshots that were asked for without a suspicion, a sentence each; the judge's to fill
}

// QuietReport is what levels are compared at.
type QuietReport struct {
	Count             int // comparable points since warm-up
	Hours             float64
	Matched, Inferred bool
	Newest            time.Time
}

// CardReport is the newest memory of the worker on one GPU, in bytes.
type CardReport struct {
	UUID                                                                          string
	Total, Used, Free, Reserved, Live, Cached, Awaiting, Outside, Limit, Headroom float64
}

// SeriesReport is one series with what it was judged by.
type SeriesReport struct {
	Name, GPU, Unit     string // unit: bytes, ratio, 1
	Now, Level          float64
	Growth              trend.Growth
	Called              bool
	Onset               time.Time
	Lacking             string // why it is not called
	Points              []Dot  // quiet levels
	Trace               []Dot  // the lowest value in equal stretches of the life so far
	HoursLow, HoursHigh float64
}

// Dot is one value at one moment.
type Dot struct {
	At    time.Time
	Value float64
}

// Report returns all that a person may want to see of the worker.
func (w *Worker) Report() Report {
	w.show()
	word, why := w.verdict()
	r := Report{Key: w.Key, Slot: w.Slot, Instance: w.Instance, Who: w.Who, Host: w.Host, Config: w.Config, First: w.First, Last: w.Last, Ready: w.ready,
		Verdict: word, Why: why, Cards: w.cardReports(), Missing: w.Missing(), Quality: w.quality.remarks(w.counters.Resets)}
	points := w.points(nil)
	r.Quiet.Count = w.Points()
	r.Quiet.Hours, _ = w.sample.Number(pointIDs.hours)
	r.Quiet.Matched, _ = w.sample.Bool(pointIDs.matched)
	r.Quiet.Inferred, _ = w.sample.Bool(pointIDs.inferred)
	if n := len(points); n > 0 {
		r.Quiet.Newest = points[n-1].at()
	}
	for i := range seriesCount {
		for card := range max(1, len(w.now.cards)) {
			if s, ok := w.seriesReport(i, card, points, r.Quiet.Matched); ok {
				r.Series = append(r.Series, s)
			}
			if i >= deviceSeries {
				break
			}
		}
	}
	r.Lacking = w.lacking(points)
	return r
}

func (w *Worker) seriesReport(series, card int, points []view, matched bool) (s SeriesReport, ok bool) {
	c := column(series, card)
	trace := w.trace.dots(c)
	if len(trace) == 0 || c >= len(w.calls) {
		return s, false
	}
	of := &w.calls[c]
	s = SeriesReport{Name: seriesNames[series], Unit: units[series], Now: trace[len(trace)-1].Value, Level: of.Level, Growth: of.Growth, Called: of.called(),
		Onset: of.Onset, Trace: trace, HoursLow: nan, HoursHigh: nan}
	if v := w.value(c); v == v {
		s.Now = v
	}
	if series < deviceSeries && card < len(w.now.cards) {
		s.GPU = w.now.cards[card].uuid
	}
	if judged[series] && !s.Called {
		s.Lacking = of.Lacking.String()
	}
	if c == w.leading(series) {
		if low, known := w.sample.Number(ids[series].hoursLow); known {
			s.HoursLow = low
			s.HoursHigh, _ = w.sample.Number(ids[series].hoursHigh)
		}
	}
	s.Points = w.levels(series, c, points, matched)
	return s, true
}

// levels are what a column is judged by: at matched load, or at the quiet points.
func (w *Worker) levels(series, c int, points []view, matched bool) (dots []Dot) {
	if matched {
		var seen sight
		if w.match.levels(&seen, new(desk), series, c, len(w.level), w.warm()) {
			for i, h := range seen.Hours {
				dots = append(dots, Dot{At: seen.From.Add(time.Duration(h * float64(time.Hour))), Value: seen.Level[i]})
			}
		}
		return dots
	}
	for _, p := range points {
		if v := p.low(c); v == v {
			dots = append(dots, Dot{At: p.at(), Value: v})
		}
	}
	return dots
}

func (w *Worker) cardReports() (out []CardReport) {
	for i := range w.now.cards {
		c := &w.now.cards[i]
		r := CardReport{UUID: c.uuid, Total: nan, Used: nan, Free: nan, Reserved: nan, Live: nan, Cached: nan, Awaiting: nan, Outside: nan, Limit: nan, Headroom: nan}
		if c.device != nil {
			r.Total, r.Free = number(c.device.TotalBytes), number(c.device.FreeBytes)
		}
		if c.process != nil {
			r.Used = number(c.process.UsedBytes)
		}
		if a := c.allocator; a != nil {
			active := number(a.ActiveBytes)
			r.Live, r.Reserved, r.Limit = number(a.AllocatedBytes), number(a.ReservedBytes), number(a.LimitBytes)
			r.Cached, r.Awaiting, r.Outside = r.Reserved-active, active-r.Live, r.Used-r.Reserved
		}
		if v, known := w.sample.Number(headroomIDs.bytes); known {
			r.Headroom = v
		}
		out = append(out, r)
	}
	return out
}

// lacking says what would make the verdict surer.
func (w *Worker) lacking(points []view) (out []string) {
	if n := w.Points(); n < 4 {
		out = append(out, fmt.Sprintf("%d more comparable quiet points (%d of 4)", 4-n, n))
	}
	if hours, _ := w.sample.Number(pointIDs.hours); hours < trend.CallHours && len(points) > 0 {
		out = append(out, fmt.Sprintf("quiet points over %.0f hours (%.1f so far)", trend.CallHours, hours))
	}
	if matched, _ := w.sample.Bool(pointIDs.matched); matched {
		out = append(out, "a moment in which the worker drains: it is compared with itself at the same load only")
	}
	if inferred, _ := w.sample.Bool(pointIDs.inferred); inferred {
		out = append(out, "the engine's metrics, or the probe's busy() and idle(): quiet is only inferred")
	}
	for _, i := range bySeries {
		c := w.leadingCall(i)
		if c == nil || !c.called() {
			continue
		}
		if !c.Work {
			out = append(out, "a second axis for "+seriesNames[i]+": growth that follows requests or aborts better than time, a peer of another release that does not grow, or the same slope after a restart")
		}
	}
	return out
}

// remarks are what is wrong with the data, in sentences.
func (q *quality) remarks(resets int) (out []string) {
	if q.Late > 0 {
		out = append(out, fmt.Sprintf("%.0f events came after their tick was judged, and were left out", q.Late))
	}
	if q.Longest > 10*time.Minute {
		out = append(out, "silent for "+q.Longest.Round(time.Minute).String()+" once")
	}
	if q.Steps > 0 {
		out = append(out, fmt.Sprintf("the host's clock was set back %d times", q.Steps))
	}
	if q.Frozen > 0 {
		out = append(out, fmt.Sprintf("the engine's metrics stood still in %d samples while the GPU worked", q.Frozen))
	}
	if resets > 0 {
		out = append(out, fmt.Sprintf("%d counters fell and were taken as reset", resets))
	}
	return out
}
