package worker

import (
	"math"
	"slices"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

// call is what was concluded about one series, kept between points.
type call struct {
	early, steady bool
	onset         time.Time
	growth        trend.Growth
	proven        bool // level, with four points over three hours that say so
}

// ids of one series' variables, found once.
type seriesIDs struct {
	now, level, growth, low, high, z, early, steady, isLevel, filling, step variable.ID
	request, abort, errors, token, adapter, hours, hoursLow, hoursHigh      variable.ID
}

var ids = func() (all [seriesCount]seriesIDs) {
	for i, name := range seriesNames {
		level := "level_bytes"
		switch i {
		case kv:
			level = "level_ratio"
		case fds, threads, sockets:
			level = "level_count"
		}
		v := func(field string) variable.ID { return variable.Must(name + "." + field) }
		all[i] = seriesIDs{v("now"), v(level), v("growth"), v("growth_low"), v("growth_high"), v("z"), v("early"), v("steady"), v("level"), v("filling"),
			v("step"), v("per_request"), v("per_abort"), v("per_error"), v("per_token"), v("per_adapter"),
			v("hours_to_limit"), v("hours_to_limit_low"), v("hours_to_limit_high")}
	}
	return all
}()

func (w *Worker) identify() {
	text := func(name, value string) {
		if value != "" {
			w.sample.SetString(variable.Must(name), value)
		}
	}
	text("engine", w.Who.GetEngine())
	text("model", w.Who.GetModel())
	text("release", w.Who.GetRelease())
	text("role", w.Who.GetRole())
	text("cluster", w.Host.GetCluster())
	text("host", w.Host.GetName())
	w.sample.SetNumber(variable.Must("rank"), float64(w.Who.GetRank()))
}

func (w *Worker) set(name string, v float64) { w.sample.SetNumber(variable.Must(name), v) }
func (w *Worker) flag(name string, v bool)   { w.sample.SetBool(variable.Must(name), v) }

// features fills the sample.
func (w *Worker) features(at time.Time, now levels) {
	for i := range now {
		if !math.IsNaN(now[i]) {
			w.sample.SetNumber(ids[i].now, now[i])
		}
	}
	if !math.IsNaN(now[outside]) {
		w.beside = now[outside]
	}
	if basis := (basis{w.quiet.version, len(w.ooms.times), w.ready, w.Config}); basis != w.basis {
		w.basis = basis // nothing else can change what quiet points say
		w.judgePoints()
	}
	w.loadFeatures(at)
	w.oomFeatures(at)
	w.faultFeatures(at)
	w.headroom()
	start := w.First
	if s := w.Who.GetStartTime(); s != nil && s.AsTime().Before(start) {
		start = s.AsTime()
	}
	w.set("age.hours", at.Sub(start).Hours())
}

// basis is all that judgePoints depends on.
type basis struct {
	points, ooms int
	ready        time.Time
	config       *event.Config
}

func (w *Worker) judgePoints() {
	points := w.quiet.comparables(w.warm())
	for i := range w.calls {
		w.series(i, points)
	}
	w.set("quiet.count", float64(len(points)))
	if len(points) > 0 {
		w.set("quiet.hours", points[len(points)-1].at.Sub(points[0].at).Hours())
	}
	w.flag("quiet.matched", false)
	w.flag("quiet.inferred", w.now.engine == nil && w.marks.said)
	w.residues()
	w.movers(points)
}

// columns returns hours and levels of one series, and the noise: the larger of the floor and the median spread inside points.
func columns(series int, points []*point) (x, y []float64, sigma float64) {
	var spreads []float64
	for _, p := range points {
		if math.IsNaN(p.low[series]) {
			continue
		}
		x = append(x, p.at.Sub(points[0].at).Hours())
		y = append(y, p.low[series])
		spreads = append(spreads, p.high[series]-p.low[series])
	}
	sigma = floors[series]
	if len(spreads) > 0 {
		sigma = max(sigma, trend.Median(spreads))
	}
	return x, y, sigma
}

// levelFloor is the growth per hour under which a series counts as proven level.
func levelFloor(series int) float64 {
	switch series {
	case kv:
		return 0.01
	case fds, threads, sockets:
		return 4
	}
	return 5 << 20
}

func (w *Worker) series(i int, points []*point) {
	c := &w.calls[i]
	if len(points) == 0 {
		return
	}
	x, y, sigma := columns(i, points)
	if len(x) == 0 {
		return
	}
	id := ids[i]
	w.sample.SetNumber(id.level, y[len(y)-1])
	c.growth = trend.Measure(x, y, sigma)
	w.sample.SetNumber(id.growth, c.growth.Slope)
	w.sample.SetNumber(id.low, c.growth.Low)
	w.sample.SetNumber(id.high, c.growth.High)
	w.sample.SetNumber(id.z, c.growth.Z)
	if c.growth.Level.Known() {
		w.sample.SetBool(id.isLevel, c.growth.Level.Level())
	}
	early := trend.Early(x, y, sigma, trend.CallHours)
	w.sample.SetBool(id.step, early.Step > 8*sigma && early.Rise-early.Step < 8*sigma && early.Lacking != trend.Met)
	filling := w.filling(y, sigma)
	w.sample.SetBool(id.filling, filling)
	called := early.Called || w.calledBeforeOOM(i, points)
	if called && !c.early && !c.steady {
		c.onset = points[0].at
	}
	c.early = c.early || called
	if trend.Steady(x, y, sigma, 0, trend.CallHours).Called {
		if !c.early && !c.steady {
			c.onset = points[0].at
		}
		c.steady = true
	}
	c.proven = levelNow(x, y, sigma, levelFloor(i))
	if c.proven {
		c.early, c.steady = false, false
	}
	w.sample.SetBool(id.early, c.early)
	w.sample.SetBool(id.steady, c.steady)
	if c.growth.Low > 0 {
		w.perWork(i, points)
		return
	}
	for _, per := range []variable.ID{id.request, id.abort, id.errors, id.token} {
		w.sample.Unset(per)
	}
}

// levelNow is the proof that growth ended: the last four or more points, over three hours, whose upper bound of growth is under
// the floor.
func levelNow(x, y []float64, sigma, floor float64) bool {
	last := len(x) - 1
	from := last
	for from > 0 && x[last]-x[from] < trend.CallHours {
		from--
	}
	if len(x)-from < 4 || x[last]-x[from] < trend.CallHours-1.0/12 {
		return false
	}
	g := trend.LeastSquares(x[from:], y[from:])
	return g.High < floor
}

// calledBeforeOOM judges the points before the first OOM without the three hours: an OOM ends the wait.
func (w *Worker) calledBeforeOOM(i int, points []*point) bool {
	if len(w.ooms.times) == 0 {
		return false
	}
	var before []*point
	for _, p := range points {
		if p.at.Before(w.ooms.times[0]) {
			before = append(before, p)
		}
	}
	x, y, sigma := columns(i, before)
	return trend.Early(x, y, sigma, 0).Called
}

// filling says that the growth since the first point still fits into the caches that the worker declared.
func (w *Worker) filling(y []float64, sigma float64) bool {
	caps := w.declaredCaps()
	return caps > 0 && y[len(y)-1]-y[0] <= caps*1.05+4*sigma
}

func (w *Worker) declaredCaps() (sum float64) {
	for _, c := range w.Config.GetDeclaredCaches() {
		sum += float64(c.GetCapBytes())
	}
	return sum
}

// perWork sets the slopes against work. Proof wants more than a fit, since any two running totals fit each other: the steps of
// the series must follow the steps of the work better than the passing of time.
func (w *Worker) perWork(i int, points []*point) {
	id := ids[i]
	hours := make([]float64, 0, len(points))
	for _, p := range points {
		hours = append(hours, p.at.Sub(points[0].at).Hours())
	}
	proof := false
	for _, axis := range []struct {
		id variable.ID
		of func(*point) float64
	}{
		{id.request, func(p *point) float64 { return p.finished + p.aborted }}, {id.abort, func(p *point) float64 { return p.aborted }},
		{id.errors, func(p *point) float64 { return p.errors }}, {id.token, func(p *point) float64 { return p.tokens }},
	} {
		work, y := make([]float64, 0, len(points)), make([]float64, 0, len(points))
		for _, p := range points {
			work, y = append(work, axis.of(p)), append(y, p.low[i])
		}
		fit := trend.Regress(work, y)
		if !fit.Significant {
			w.sample.Unset(axis.id)
			continue
		}
		w.sample.SetNumber(axis.id, fit.Slope)
		if better := trend.Compare(hours, work, y); fit.Slope > 0 && better.Better == trend.SecondAxis && better.Decided {
			proof = true
		}
	}
	if i == live || i == outside || i == anon {
		if c := w.calls[i]; c.early || c.steady {
			w.flag("proof.work", proof)
			if caps := w.declaredCaps(); caps > 0 {
				w.flag("proof.cap", !w.filling([]float64{points[0].low[i], points[len(points)-1].low[i]}, floors[i]))
			}
		}
	}
}

// Called says whether growth of the series was called, and since when it grew.
func (w *Worker) Called(series string) (onset time.Time, called bool) {
	c := w.call(series)
	return c.onset, c.early || c.steady
}

// Proven says whether the series is proven level: four comparable quiet points over three hours.
func (w *Worker) Proven(series string) bool { return w.call(series).proven }

// call is empty for a series that does not exist.
func (w *Worker) call(series string) call {
	if i := slices.Index(seriesNames[:], series); i >= 0 {
		return w.calls[i]
	}
	return call{}
}
