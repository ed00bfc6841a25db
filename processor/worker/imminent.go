package worker

import (
	"math"
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
	"lowtide/rules/variable"
)

const (
	trackPoints  = 12               // that are judged
	trackWindow  = 3                // of the rolling minimum
	trackMinute  = 55 * time.Second // samples closer than this are one point, the lowest
	trackGap     = 3 * time.Minute  // a longer silence begins a new line
	trackAge     = 45 * time.Minute // of watching before a rise is believed: something must be there to rise above
	trackTail    = 3                // newest points, not yet in the rolling minimum, over which a rise must still go on
	trackHours   = 6                // in which a level was reached before
	trackSwing   = 0.5              // of the range of those levels, by which a rise must lead above them
	trackRate    = 500 << 20        // bytes per hour that growth must exceed for certain
	trackHalves  = 0.6
	trackZ       = 2
	trackRepeats = 3       // judgements in a row
	trackNoise   = 4 << 20 // two quanta of the driver
	trackSlack   = 512 << 20
)

// track is what cannot be given back, by the minute.
type track struct {
	At     [trackPoints + trackWindow - 1]int64 // unix seconds, oldest first
	Value  [trackPoints + trackWindow - 1]float64
	N      int
	Newest int64 // unix seconds of the newest sample
	First  int64
	Turned bool // a point was added since the last judgement

	Highs [trackHours]float64 // highest and lowest rolling minimum by hour, of points that have left the line; 0 is none
	Lows  [trackHours]float64
	Hour  int64
	Least float64 // lowest since the engine was ready
	Ready bool

	Repeats int
	Growth  trend.Line
}

// add takes a sample. What is reached before warm-up ends, weights that load above all, is no level to compare with.
func (t *track) add(at time.Time, v float64, warm time.Time) {
	now := at.Unix()
	last := t.N - 1
	switch {
	case t.First == 0:
		t.First = now
	case now-t.Newest > int64(trackGap/time.Second):
		t.N, t.Repeats = 0, 0
	case last >= 0 && now-t.At[last] < int64(trackMinute/time.Second):
		t.Value[last], t.Newest = min(t.Value[last], v), now
		return
	}
	if t.N == len(t.At) {
		if t.At[0] >= warm.Unix() {
			t.leave(t.At[0], min(t.Value[0], t.Value[1], t.Value[2]))
		}
		copy(t.At[:], t.At[1:])
		copy(t.Value[:], t.Value[1:])
		t.N--
	}
	t.At[t.N], t.Value[t.N] = now, v
	t.N++
	t.Newest, t.Turned = now, true
}

// leave remembers a level that was reached before the line.
func (t *track) leave(at int64, level float64) {
	hour := at / 3600
	for h := max(t.Hour+1, hour-trackHours+1); h <= hour; h++ {
		t.Highs[h%trackHours], t.Lows[h%trackHours] = 0, 0
	}
	t.Hour = hour
	high, low := &t.Highs[hour%trackHours], &t.Lows[hour%trackHours]
	*high = max(*high, level)
	if *low == 0 || level < *low {
		*low = level
	}
}

// waits says that there is a point to judge, or that what was seen before may be believed no more.
func (t *track) waits() bool { return t.Turned || t.Repeats > 0 }

// waits says that of any of them, which is so once a minute.
func (r *room) waits() bool {
	for i := range r.Cards {
		if r.Cards[i].Track.waits() {
			return true
		}
	}
	return r.Host.waits()
}

// take judges a point that came. While the load is not settled, or the line began before warm-up ended, nothing is believed.
func (t *track) take(believed, ready bool, caches float64) {
	turned := t.Turned
	t.Turned = false
	if turned {
		t.ready(ready)
	}
	switch {
	case !believed:
		t.Repeats = 0
	case turned:
		t.judge(caches)
	}
}

// judge looks for a straight rise, once a point; caches is what declared caches may still take up. A rise must be certain (the 95 %
// bounds widened by the serial correlation of what the line leaves over), it must go on, it must be made of more than two steps, and it
// must lead above where the worker has been in the last hours: what is given back in time is no exhaustion.
func (t *track) judge(caches float64) {
	if !t.rises(caches) {
		t.Repeats = 0
		return
	}
	t.Repeats++
}

func (t *track) rises(caches float64) bool {
	if t.N < len(t.At) || t.Newest-t.First < int64(trackAge/time.Second) {
		return false
	}
	n := len(t.Value) - 1
	last := min(t.Value[n], t.Value[n-1], t.Value[n-2])
	rise := last - min(t.Value[0], t.Value[1], t.Value[2])
	if rise < trackRate*float64(t.At[n]-t.At[0])/3600/2 {
		return false // nearly always the end
	}
	high, least := t.usual()
	if last <= high+trackSwing*(high-least) {
		return false
	}
	if caches > 0 && last-t.Least <= 1.05*caches+trackSlack {
		return false
	}
	var x, y [trackPoints]float64
	var low [len(t.Value)]float64
	trend.RollingMinimum(low[:0], t.Value[:], trackWindow)
	for i := range y {
		at := i + trackWindow - 1
		x[i], y[i] = float64(t.At[at]-t.At[trackWindow-1])/3600, low[at]
	}
	var most, next float64
	for i := 1; i < trackPoints; i++ {
		if step := y[i] - y[i-1]; step > most {
			most, next = step, most
		} else if step > next {
			next = step
		}
	}
	if rise-most-next < rise/2 {
		return false
	}
	line := trend.LeastSquares(x[:], y[:])
	serial := trend.Autocorrelation(x[:], y[:], line.Slope)
	wider := math.Sqrt((1 + max(0, serial)) / (1 - min(max(0, serial), 0.95)))
	line.Low, line.High = line.Slope-wider*(line.Slope-line.Low), line.Slope+wider*(line.High-line.Slope)
	if !(line.Low > trackRate) || !(trend.Level(x[:], y[:]).Halves >= trackHalves) ||
		!(trend.MannKendall(y[:], trackNoise).Corrected(serial) >= trackZ) {
		return false
	}
	// The rolling minimum lags by two points; a cache that has just reached its cap shows only in the points themselves.
	if hours := float64(t.At[n]-t.At[n-trackTail]) / 3600; t.Value[n]-t.Value[n-trackTail] < line.Slope*hours/2 {
		return false
	}
	t.Growth = line
	return true
}

// usual is the highest and lowest level of the hours before the line.
func (t *track) usual() (high, least float64) {
	for i, h := range t.Highs {
		if h > high {
			high = h
		}
		if l := t.Lows[i]; l > 0 && (least == 0 || l < least) {
			least = l
		}
	}
	return high, least
}

// began says that the line began before a time, or has ended because nothing is read any more.
func (t *track) began(at, before time.Time) bool {
	return t.N == 0 || t.At[0] < before.Unix() || at.Unix()-t.Newest > int64(trackGap/time.Second)
}

// ready keeps the lowest level since the engine was ready: what declared caches began to fill from.
func (t *track) ready(is bool) {
	if t.N == 0 || !is {
		return
	}
	if v := t.Value[t.N-1]; !t.Ready || v < t.Least {
		t.Least, t.Ready = v, true
	}
}

var imminentIDs = struct{ growth, low, high, hostLow, hostHigh variable.ID }{
	variable.Must("imminent.growth"), variable.Must("imminent.hours_low"), variable.Must("imminent.hours_high"),
	variable.Must("imminent.host_hours_low"), variable.Must("imminent.host_hours_high"),
}

// imminent forecasts from a dozen one-minute points, where memory that cannot be given back rises in a line. It says nothing in
// warm-up, while the engine sleeps, while its load rises or is not known, and inside the declared caches. Reserved memory is not
// looked at: a caching allocator fills its reserve and that is no exhaustion.
//
// After warm-up, an undeclared cache that fills in a line for longer than fourteen minutes cannot be told from a leak; it is called as
// one when its end would lie beyond the limit, and "cause unproven" is what the rule says about it.
func (w *Worker) imminent(at time.Time) {
	l, r := &w.load, &w.load.Room
	if !r.Imminent && !r.waits() {
		return
	}
	is := !w.ready.IsZero() && !at.Before(w.ready)
	settled := !at.Before(l.Warm) && !l.Last.IsZero() && event.Ago(at, l.Last) <= loadGap && l.RisingKnown && !l.Rising && !l.Progress.Sleeping
	growth, low, high := nan, nan, nan
	for i := range r.Cards {
		t := &r.Cards[i].Track
		t.take(settled && !t.began(at, l.Warm), is, r.Caps.Card)
		if t.Repeats < trackRepeats || i >= len(w.now.cards) || w.now.cards[i].allocator == nil {
			continue
		}
		c := &w.now.cards[i]
		room, _ := w.limits(c).left(number(c.allocator.ActiveBytes), outsideOf(c))
		if h := max(0, room) / t.Growth.Low; h < high || high != high {
			growth, low, high = t.Growth.Slope, max(0, room)/t.Growth.High, h
		}
		r.RoseAt = at
	}
	t := &r.Host
	t.take(settled && !t.began(at, l.Warm), is, r.Caps.Host)
	hostLow, hostHigh := nan, nan
	if p := w.now.process; p != nil && t.Repeats >= trackRepeats {
		room := max(0, number(p.CgroupLimitBytes)-hostHeld(p))
		hostLow, hostHigh = room/t.Growth.High, room/t.Growth.Low
	}
	shows := high == high || hostHigh == hostHigh
	if shows || r.Imminent {
		s := w.sample
		s.SetNumber(imminentIDs.growth, growth)
		s.SetNumber(imminentIDs.low, low)
		s.SetNumber(imminentIDs.high, high)
		s.SetNumber(imminentIDs.hostLow, hostLow)
		s.SetNumber(imminentIDs.hostHigh, hostHigh)
	}
	r.Imminent = shows
}
