package worker

import (
	"time"

	"lowtide/rules/variable"
)

// Of what a tick tells, rules read a fifth; the rest is for the eyes of people, who look now and then. So a tick sets only what is read,
// and keeps what the rest is worked out from until Sample is asked for.

// Wanted is what is read at each tick of what could be left for later.
type Wanted struct {
	now                                     [seriesCount]bool // newest values, by column of a worker on one GPU
	engine, room, forecasts, frozen, ageing bool
}

// NewWanted returns what is wanted where these variables are read at each tick.
func NewWanted(read variable.Set) *Wanted {
	var w Wanted
	for c, id := range nowIDs {
		series, _ := seriesOf(c)
		// Live and graphs are what other features look at.
		w.now[c] = series == live || series == graphs || read.Has(id)
	}
	w.engine = read.Has(loadIDs.running) || read.Has(loadIDs.waiting) || read.Has(loadIDs.busy)
	h := &headroomIDs
	w.room = read.Has(h.bytes) || read.Has(h.limit) || read.Has(h.ratio) || read.Has(h.spare) || read.Has(h.prefill) || read.Has(h.decode)
	for i := range ids {
		w.forecasts = w.forecasts || read.Has(ids[i].hours) || read.Has(ids[i].hoursLow) || read.Has(ids[i].hoursHigh)
	}
	w.frozen, w.ageing = read.Has(progressIDs.frozen), read.Has(pointIDs.age)
	return &w
}

// everything is wanted of a worker whose reader did not say what it reads.
var everything = func() *Wanted {
	w := Wanted{engine: true, room: true, forecasts: true, frozen: true, ageing: true}
	for c := range w.now {
		w.now[c] = true
	}
	return &w
}()

// unshown is what was left for later by the newest tick: what it was told, since the next tick has begun when somebody looks.
type unshown struct {
	waits bool
	at    time.Time
	now   reading
	shape uint8
	seen  [seriesCount]float64 // the newest value of each column that was ever read; NaN before
	sees  bool                 // seen is valid
}

// Wanted says what is read at each tick from now on, and returns the sample in which that is up to date, and what is left for later is not.
func (w *Worker) Wanted(by *Wanted) *variable.Sample {
	w.wanted = by
	return w.sample
}

// Sheet is the sample for who sets variables that the worker does not.
func (w *Worker) Sheet() *variable.Sample { return w.sample }

// Sample returns the features as rules read them; it is the worker's own and changes with the next tick.
func (w *Worker) Sample() *variable.Sample {
	w.show()
	return w.sample
}

// show sets what was left for later, as it was at the end of that tick. It comes before all that could change what that is worked out from.
func (w *Worker) show() {
	u := &w.unshown
	if !u.waits {
		return
	}
	u.waits = false
	now := w.now
	w.now = u.now
	w.sample.Aside(w.unwanted)
	w.now = now
}

// unwanted sets what is not wanted at each tick; what is, is as it was.
func (w *Worker) unwanted() {
	for c, v := range w.unshown.seen {
		if v == v {
			w.sample.SetNumber(nowIDs[c], v)
		}
	}
	w.engineNow()
	w.headroom()
	w.forecasts()
	w.frozen()
	w.ageing(w.unshown.at)
}

// see takes the newest values in, and sets those that are wanted.
func (w *Worker) see(wanted *Wanted) {
	u := &w.unshown
	if !u.sees {
		u.sees = true
		for c := range u.seen {
			u.seen[c] = nan
		}
	}
	for c, v := range w.level[:min(len(w.level), len(u.seen))] {
		if v != v {
			continue
		}
		u.seen[c] = v
		if wanted.now[c] {
			w.sample.SetNumber(nowIDs[c], v)
		}
	}
}

// begin says what of the tick is wanted now. What the tick before left is shown first where this one could not tell it any more.
func (w *Worker) begin() *Wanted {
	wanted := w.wanted
	if wanted == nil || len(w.now.cards) > 1 { // which of several GPUs speaks may be another at the next tick
		wanted = everything
	}
	if u := &w.unshown; u.waits && (wanted == everything || u.shape&^w.now.shape() != 0) {
		w.show()
	}
	return wanted
}

// leave keeps what was not wanted until somebody looks.
func (w *Worker) leave(wanted *Wanted, at time.Time) {
	if wanted == everything {
		return
	}
	u := &w.unshown
	u.waits, u.at, u.shape = true, at, w.now.shape()
	cards := u.now.cards
	if u.now = w.now; len(cards) == 1 && len(w.now.cards) == 1 { // as nearly always
		cards[0] = w.now.cards[0]
	} else {
		cards = append(cards[:0], w.now.cards...)
	}
	u.now.cards = cards
}

// shape has a bit for each of the engine's gauges that is told and left for later.
func (r *reading) shape() (bits uint8) {
	e := r.engine
	if e == nil {
		return 0
	}
	if e.Running != nil {
		bits |= 1
	}
	if e.Waiting != nil {
		bits |= 2
	}
	if e.KvUsage != nil {
		bits |= 4
	}
	return bits
}
