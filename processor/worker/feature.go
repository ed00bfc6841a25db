package worker

import (
	"math"
	"time"

	"lowtide/event"
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
	w.born, w.warmed = time.Time{}, warmed{}
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
	wanted := w.begin()
	w.newest(wanted)
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
	if wanted.engine {
		w.engineNow()
	}
	w.loadFeatures(at)
	if wanted.frozen {
		w.frozen()
	}
	w.oomFeatures(at)
	w.faultFeatures(at)
	w.snapshotFeatures(at)
	w.pressure()
	if wanted.room {
		w.headroom()
	}
	if wanted.forecasts {
		w.forecasts()
	}
	w.capacity()
	w.imminent(at)
	if wanted.ageing {
		w.ageing(at)
	}
	w.leave(wanted, at)
}

// ageing sets how old the process is.
func (w *Worker) ageing(at time.Time) {
	if w.born.IsZero() {
		w.born = w.First
		if s := w.Who.GetStartTime(); s != nil && s.AsTime().Before(w.born) {
			w.born = s.AsTime()
		}
	}
	w.sample.SetNumber(pointIDs.age, event.Ago(at, w.born).Hours())
}

// nowIDs are the variables of the newest values of a worker on one GPU, by column.
var nowIDs = func() (all [seriesCount]variable.ID) {
	for c := range all {
		series, _ := seriesOf(c)
		all[c] = ids[series].now
	}
	return all
}()

// newest sets the values as they were read; of several GPUs that of the one that leads.
func (w *Worker) newest(wanted *Wanted) {
	if wanted != everything {
		w.see(wanted)
		return
	}
	for i := range seriesCount {
		if v := w.value(w.leading(i)); !math.IsNaN(v) {
			w.sample.SetNumber(ids[i].now, v)
		}
	}
}

// leading is the column that speaks for a series: of several GPUs the one whose growth was called, else the one that grows most.
func (w *Worker) leading(series int) int {
	if series < deviceSeries && len(w.now.cards) > 1 {
		return w.leader(series)
	}
	return column(series, 0)
}

func (w *Worker) leader(series int) int {
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
		w.show()
		w.judgePoints(math.MaxInt)
	}
	return judged
}

// judgePoints judges the series whose points changed, as many as the budget allows: at quiet points where there are any of late, else at
// matched load.
func (w *Worker) judgePoints(budget int) {
	w.slopes.known = false
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
