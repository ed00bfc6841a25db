package worker

import (
	"math"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

// ids of one series' variables, found once.
type seriesIDs struct {
	now, level, growth, low, high, z, early, steady, isLevel, filling, step variable.ID
	per                                                                     [axisCount]variable.ID
	hours, hoursLow, hoursHigh                                              variable.ID
}

// The axes of work that growth is compared with, in the order of seriesIDs.per.
const (
	perRequest = iota
	perAbort
	perError
	perToken
	perAdapter
	axisCount
)

// along is the work of an axis.
func (t tally) along(axis int) float64 {
	switch axis {
	case perRequest:
		return float64(t.Requests) + float64(t.Cycles)
	case perAbort:
		return float64(t.Aborts)
	case perError:
		return float64(t.Errors)
	case perToken:
		return t.Tokens
	}
	return float64(t.Adapters)
}

var ids = func() (all [seriesCount]seriesIDs) {
	for i, name := range seriesNames {
		level := "level_" + map[string]string{"bytes": "bytes", "ratio": "ratio", "1": "count"}[units[i]]
		v := func(field string) variable.ID { return variable.Must(name + "." + field) }
		all[i] = seriesIDs{v("now"), v(level), v("growth"), v("growth_low"), v("growth_high"), v("z"), v("early"), v("steady"), v("level"), v("filling"), v("step"),
			[axisCount]variable.ID{v("per_request"), v("per_abort"), v("per_error"), v("per_token"), v("per_adapter")},
			v("hours_to_limit"), v("hours_to_limit_low"), v("hours_to_limit_high")}
	}
	return all
}()

var pointIDs = struct{ count, hours, matched, inferred, work, cap, kvQuiet, awaitingQuiet, age variable.ID }{
	variable.Must("quiet.count"), variable.Must("quiet.hours"), variable.Must("quiet.matched"), variable.Must("quiet.inferred"),
	variable.Must("proof.work"), variable.Must("proof.cap"), variable.Must("kv.quiet"), variable.Must("awaiting.quiet"), variable.Must("age.hours"),
}

var identityIDs = struct{ engine, model, release, role, cluster, host, rank variable.ID }{
	variable.Must("engine"), variable.Must("model"), variable.Must("release"), variable.Must("role"), variable.Must("cluster"), variable.Must("host"), variable.Must("rank"),
}

func (w *Worker) identify() {
	text := func(id variable.ID, value string) {
		if value != "" {
			w.sample.SetString(id, value)
		}
	}
	text(identityIDs.engine, w.Who.GetEngine())
	text(identityIDs.model, w.Who.GetModel())
	text(identityIDs.release, w.Who.GetRelease())
	text(identityIDs.role, w.Who.GetRole())
	text(identityIDs.cluster, w.Host.GetCluster())
	text(identityIDs.host, w.Host.GetName())
	w.sample.SetNumber(identityIDs.rank, float64(w.Who.GetRank()))
}

// basis is what the calls depend on, beside the points themselves.
type basis struct {
	changed bits // columns whose quiet points changed since they were judged
	windows bits // columns whose windows of matched load did
	owed    bits // columns whose slopes against work are still those of the point before
	ooms    int
	ready   time.Time
	config  *event.Config
	current bool // config was the worker's when it was prepared to be saved
	columns int
	last    time.Time // when something was judged, or could have been
	next    int       // the first column that was left for later
}

// Judging a series that moves takes as long as all else of a tick, and a quiet point is news of every series. So a tick judges what it
// has the time for, and leaves the rest to the next ones: within a minute, at a collector's pace, all are judged.
const (
	turn  = 4                // what one tick may spend, and a series that moves takes
	still = 1                // what one takes that stays within its noise
	paced = 15 * time.Second // ticks further apart than this leave nothing behind
)

// features fills the sample.
func (w *Worker) features(at time.Time) {
	w.newest()
	b, budget := &w.basis, turn
	if apart := event.Ago(w.tick, b.last); apart > paced || b.ooms != len(w.ooms.times) {
		budget = math.MaxInt // what an OOM changes is asked for now
	}
	b.last = w.tick
	if b.ooms != len(w.ooms.times) || b.ready != w.ready || b.config != w.Config || b.columns != len(w.level) {
		b.changed, b.windows = everyBit, everyBit
		b.ooms, b.ready, b.config, b.columns = len(w.ooms.times), w.ready, w.Config, len(w.level)
	}
	if b.changed.any() || b.windows.any() || b.owed.any() {
		w.judgePoints(budget)
	}
	w.qualityFeatures()
	w.loadFeatures(at)
	w.oomFeatures(at)
	w.faultFeatures(at)
	w.snapshotFeatures(at)
	w.headroom()
	w.capacity()
	w.imminent(at)
	start := w.First
	if s := w.Who.GetStartTime(); s != nil && s.AsTime().Before(start) {
		start = s.AsTime()
	}
	w.sample.SetNumber(pointIDs.age, event.Ago(at, start).Hours())
}

// newest sets the values as they were read; of several GPUs that of the one that leads.
func (w *Worker) newest() {
	for i := range seriesCount {
		if v := w.value(w.leading(i)); !math.IsNaN(v) {
			w.sample.SetNumber(ids[i].now, v)
		}
	}
}

// leading is the column that speaks for a series: of several GPUs the one whose growth was called, else the one that grows most.
func (w *Worker) leading(series int) int {
	if series >= deviceSeries || len(w.now.cards) < 2 {
		return column(series, 0)
	}
	best, rank := 0, math.Inf(-1)
	for i := range w.now.cards {
		if c := column(series, i); c < len(w.calls) {
			r := zeroIfUnknown(w.calls[c].Growth.Low)
			if w.calls[c].called() {
				r = math.MaxFloat64
			}
			if r > rank {
				best, rank = i, r
			}
		}
	}
	return column(series, best)
}

// settle judges all that waits for its turn.
func (w *Worker) settle() (judged bool) {
	if judged = w.basis.changed.any() || w.basis.windows.any() || w.basis.owed.any(); judged {
		w.judgePoints(math.MaxInt)
	}
	return judged
}

// judgePoints judges the series whose points changed, as many as the budget allows: at quiet points where there are any of late, else at
// matched load.
func (w *Worker) judgePoints(budget int) {
	w.residues()
	at := desks.Get().(*desk)
	defer at.leave()
	at.points = w.points(at.points[:0])
	points := at.points
	matched := w.busyToo(points)
	w.sample.SetBool(pointIDs.matched, matched)
	w.sample.SetBool(pointIDs.inferred, len(w.quiet.Points) > 0 && (w.now.engine == nil || w.now.engine.Waiting == nil))
	count, hours := len(points), 0.0
	if count > 0 {
		hours = event.Ago(points[count-1].at(), points[0].at()).Hours()
		w.movers(points)
	}
	waiting, other := &w.basis.changed, &w.basis.windows
	if matched {
		waiting, other = other, waiting
		count = w.Points()
		hours, _ = w.sample.Number(pointIDs.hours)
	}
	*other = bits{} // the other points are not compared now
	var judged bits
	var led [seriesCount]int // what speaks for a series so far, and is in the sample
	for i := range led {
		led[i] = w.leading(i)
	}
	at.hours = hoursOf(at.hours[:0], points)
	var later, owed bits // for the next ticks
	for i := range w.calls {
		c := (w.basis.next + i) % len(w.calls)
		anew := waiting.has(c)
		if !anew && !w.basis.owed.has(c) {
			continue
		}
		s, now := w.inTurn(at, c, matched, anew, &budget)
		if !now {
			if !later.any() && !owed.any() {
				w.basis.next = c
			}
			if anew {
				later.set(c)
			} else {
				owed.set(c)
			}
			continue
		}
		if s == nil {
			continue // nothing can be compared
		}
		if n := len(s.Hours); matched && n > 0 {
			count, hours = n, s.Hours[n-1]
		}
		series, _ := seriesOf(c)
		judged.set(c)
		switch owes := !anew || w.calls[c].judge(series, s, w, at); {
		case owes && anew && budget <= 0:
			owed.set(c)
		case owes:
			w.calls[c].follow(s, at.work)
		}
	}
	*waiting, w.basis.owed = later, owed
	w.sample.SetNumber(pointIDs.count, float64(count))
	w.sample.SetNumber(pointIDs.hours, hours)
	for i := range seriesCount {
		if c := w.leading(i); judged.has(c) || led[i] != c {
			w.publish(i)
		}
	}
	w.proofs()
}

// inTurn looks at a column, where this tick has the time for it; what is left of that time is told in budget. There may be nothing to see.
func (w *Worker) inTurn(at *desk, c int, matched, anew bool, budget *int) (s *sight, now bool) {
	if *budget <= 0 {
		return nil, false
	}
	series, _ := seriesOf(c)
	cost := turn
	if matched {
		var ready bool
		if s, ready = w.match.look(c); !ready {
			*budget -= cost
			if !w.match.see(at, series, c, len(w.level), w.warm()) {
				return nil, true
			}
		}
	} else {
		w.sight(at, series, c)
		if s = &at.sight; anew && !w.calls[c].moves(s) {
			cost = still
		}
		if cost > *budget && *budget < turn {
			*budget = 0 // this tick has begun with others
		}
	}
	if *budget <= 0 {
		return nil, false
	}
	*budget -= cost
	return s, true
}

// sight looks at one column of the quiet points.
func (w *Worker) sight(at *desk, series, column int) {
	points, hours := at.points, at.hours
	if series == graphs {
		at.pools = w.quiet.comparables(at.pools[:0], w.warm(), view.alike)
		at.poolHours = hoursOf(at.poolHours[:0], at.pools)
		points, hours = at.pools, at.poolHours
	}
	at.sight.take(series, column, points, hours, at.spreads[:0])
}

// points appends the quiet points after warm-up that are comparable to the newest one, oldest first.
func (w *Worker) points(dst []view) []view {
	return w.quiet.comparables(dst, w.warm(), view.comparable)
}

// busyToo says that quiet points are missing, or long past, so that a busy worker is compared with itself at the same load.
func (w *Worker) busyToo(points []view) bool {
	if len(w.match.Work) < matchCells {
		return false
	}
	return len(points) == 0 || event.Ago(w.tick, points[len(points)-1].at()).Hours() > trend.CallHours
}

// hoursOf appends how many hours after the first of them each point is.
func hoursOf(dst []float64, points []view) []float64 {
	for _, p := range points {
		dst = append(dst, (time.Duration(p.Unix-points[0].Unix) * time.Microsecond).Hours())
	}
	return dst
}

// take makes s one column of quiet points, with the noise: the larger of the floor and the median spread inside points.
func (s *sight) take(series, column int, points []view, hours, spreads []float64) {
	s.clear()
	s.Sigma = floors[series]
	if len(points) == 0 {
		return
	}
	s.From = points[0].at()
	for i, p := range points {
		low := p.low(column)
		if math.IsNaN(low) {
			continue
		}
		s.Hours = append(s.Hours, hours[i])
		s.Level = append(s.Level, low)
		s.points = append(s.points, p.point)
		spreads = append(spreads, p.spread(column))
	}
	if len(spreads) > 0 {
		s.Sigma = max(s.Sigma, trend.Median(spreads))
	}
}

func (s *sight) clear() {
	s.Hours, s.Level, s.Work, s.points = s.Hours[:0], s.Level[:0], s.Work[:0], s.points[:0]
}

// workAt is the work done until a level.
func (s *sight) workAt(i int) *tally {
	if len(s.Work) > 0 {
		return &s.Work[i]
	}
	return &s.points[i].Work
}

// publish sets what was concluded about a series.
func (w *Worker) publish(series int) {
	c, id := w.leadingCall(series), &ids[series]
	if c == nil || c.Points == 0 {
		return
	}
	s := w.sample
	s.SetNumber(id.level, c.Level)
	s.SetNumber(id.growth, c.Growth.Slope)
	s.SetNumber(id.low, c.Growth.Low)
	s.SetNumber(id.high, c.Growth.High)
	s.SetNumber(id.z, c.Growth.Z)
	if c.Growth.Level.Known() {
		s.SetBool(id.isLevel, c.Growth.Level.Level())
	}
	s.SetBool(id.step, c.Step)
	s.SetBool(id.filling, c.Filling)
	s.SetBool(id.early, c.Early)
	s.SetBool(id.steady, c.Steady)
	for axis, v := range c.Per {
		s.SetNumber(id.per[axis], v) // NaN is unknown
	}
}

// proofs sets the second axes that one worker can show by itself, about the first of its series that was called.
func (w *Worker) proofs() {
	for _, series := range bySeries {
		c := w.leadingCall(series)
		if c == nil || !c.called() {
			continue
		}
		w.sample.SetBool(pointIDs.work, c.Work)
		if w.caches(series) > 0 {
			w.sample.SetBool(pointIDs.cap, !c.Filling)
		}
		return
	}
}

// Axes says whether growth of the series follows work better than time, and whether it has exceeded every cap that is declared for
// it; capKnown is false where none is.
func (w *Worker) Axes(series string) (work bool, capExceeded, capKnown bool) {
	c := w.call(series)
	if c == nil || !c.called() {
		return false, false, false
	}
	return c.Work, !c.Filling, w.caches(seriesIndex(series)) > 0
}

// Called says whether growth of the series was called, and since when it grew.
func (w *Worker) Called(series string) (onset time.Time, called bool) {
	if c := w.call(series); c != nil {
		return c.Onset, c.called()
	}
	return time.Time{}, false
}

// Proven says whether the series is proven level, on every GPU: four comparable quiet points over three hours; and the proof in a
// sentence.
func (w *Worker) Proven(series string) (sentence string, proven bool) {
	i := seriesIndex(series)
	c, proven := w.proven(i)
	if !proven {
		return "", false
	}
	return w.calls[c].proof(i), true
}

// IsProven says what Proven does, without the sentence.
func (w *Worker) IsProven(series string) bool {
	_, proven := w.proven(seriesIndex(series))
	return proven
}

// proven also returns the last of the columns, whose proof is told.
func (w *Worker) proven(series int) (last int, proven bool) {
	if series < 0 {
		return 0, false
	}
	for card := range max(1, len(w.now.cards)) {
		last = column(series, card)
		if last >= len(w.calls) || !w.calls[last].Proven {
			return last, false
		}
		if series >= deviceSeries {
			break
		}
	}
	return last, true
}

// Slope returns the growth that the calls are made on.
func (w *Worker) Slope(series string) (trend.Growth, bool) {
	if c := w.call(series); c != nil && c.Points > 0 {
		return c.Growth, true
	}
	return trend.Growth{}, false
}

// Points is how many comparable points the calls rest on.
func (w *Worker) Points() int {
	n, _ := w.sample.Number(pointIDs.count)
	return int(n)
}

// Level returns the newest value of a series, and whether it was read.
func (w *Worker) Level(series string) (float64, bool) {
	i := seriesIndex(series)
	if i < 0 {
		return 0, false
	}
	return w.sample.Number(ids[i].now)
}

// Card is the GPU whose memory speaks for a series, "" for those of the process.
func (w *Worker) Card(series string) string {
	i := seriesIndex(series)
	if i < 0 || i >= deviceSeries {
		return ""
	}
	if _, card := seriesOf(w.leading(i)); card >= 0 && card < len(w.now.cards) {
		return w.now.cards[card].uuid
	}
	return ""
}

func seriesIndex(name string) int {
	for i, n := range seriesNames {
		if n == name {
			return i
		}
	}
	return -1
}

// call is nil for a series that does not exist or was never read.
func (w *Worker) call(series string) *call {
	if i := seriesIndex(series); i >= 0 {
		return w.leadingCall(i)
	}
	return nil
}
