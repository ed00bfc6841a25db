package worker

import (
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
)

const (
	halfHour     = 30 * time.Minute
	halfHours    = 48               // a day of them
	enoughHalves = 4                // before a median of them is a norm
	halfMinimum  = 20 * time.Minute // a half hour with less than this is not kept
	stormShare   = 0.1              // preemptions a request that are normal at saturation
	stormRatio   = 3                // against the worker's own half hours
	stormLeast   = 10               // preemptions; fewer are no storm
)

// medians keeps values of the last day's half hours.
type medians struct {
	Values  [halfHours]float32
	N, Next uint8
	Middle  float64
}

func (m *medians) add(v float64) {
	m.Values[m.Next] = float32(v)
	m.Next = (m.Next + 1) % halfHours
	m.N = min(m.N+1, halfHours)
	var all [halfHours]float64
	for i := range all[:m.N] {
		all[i] = float64(m.Values[i])
	}
	m.Middle = trend.Median(all[:m.N])
}

// median is NaN before there are enough.
func (m *medians) median() float64 {
	if m.N < enoughHalves {
		return nan
	}
	return m.Middle
}

// storm is preemption beyond what a full engine does: under a tenth of the requests and a few each is normal at saturation, ten times
// as much is not (real-cases.md, KV).
type storm struct {
	Hour hourly
	Own  medians // half hours without a storm
	At   time.Time
}

// preemptionsPerRequest is that of the last half hour. Where nothing finished at all, the preemptions are those of one request.
func (l *load) preemptionsPerRequest() (per float64, ok bool) {
	if !l.Preempted.Known || !l.Finished.Known || !l.covered() {
		return 0, false
	}
	return l.preempted(), true
}

func (l *load) preempted() float64 {
	return float64(l.Window.Preempted) / float64(max(1, l.Window.Finished))
}

func (s *storm) judge(at time.Time, per float64, preemptions uint64, ok bool) {
	if !ok || preemptions < stormLeast || per <= stormShare {
		return
	}
	if own := s.Own.median(); per <= stormRatio*own { // not so while the median is unknown
		return
	}
	s.At = at
}

// demand is what is asked of the engine, against the worker's own half hours.
type demand struct {
	Own      medians // demand of earlier half hours
	Held     float64 // of the newest one, which overlaps the window still; NaN when there is none
	Has      bool
	Closed   time.Time
	Ratio    float64    // NaN is unknown
	Requests [6]float32 // finished and aborted, by half hour
	N, Next  uint8
}

// observe is called once a minute. Arrivals are what ended and what became more in the engine; times the tokens of a request that
// ended they are what the half hour asked for.
func (d *demand) observe(at time.Time, l *load, preemptions float64) {
	if d.Closed.IsZero() || at.Before(d.Closed) || l.Since.After(d.Closed) {
		d.Closed = l.Since
	}
	asked, own, ends := nan, d.Own.median(), event.Ago(at, d.Closed) >= halfHour
	if own > 0 || ends {
		asked = l.asked(at)
	}
	d.Ratio = nan
	if own > 0 {
		d.Ratio = asked / own
	}
	if !ends {
		return
	}
	d.Closed = at
	if event.Ago(at, l.Since) < halfMinimum {
		return
	}
	if d.Has {
		d.Own.add(d.Held)
	}
	d.Held, d.Has = asked, asked == asked
	if l.Finished.Known {
		d.Requests[d.Next] = float32(float64(l.Window.Finished+l.Window.Aborted) / l.hours(at))
		d.Next = (d.Next + 1) % uint8(len(d.Requests))
		d.N = min(d.N+1, uint8(len(d.Requests)))
	}
	if l.Preempted.Known && l.Finished.Known && !within(at, l.Storm.At) {
		l.Storm.Own.add(preemptions)
	}
}

// asked is the demand of the window in tokens per hour, NaN where it is not known.
func (l *load) asked(at time.Time) float64 {
	ended := l.Window.Finished + l.Window.Aborted
	if !l.Finished.Known || !l.Prompt.Known && !l.Generated.Known || !l.covered() || ended == 0 {
		return nan
	}
	m := max(l.Newest-loadMinutes+1, l.Since.Unix()/60)
	for m < l.Newest && l.Ring[m%loadMinutes].Samples == 0 {
		m++
	}
	now := l.Ring[l.Newest%loadMinutes]
	arrived := float64(ended) + float64(now.Open) - float64(l.Ring[m%loadMinutes].Open)
	return max(0, arrived) / l.hours(at) * float64(l.Window.Done) / float64(ended)
}

// hours is the length of the window.
func (l *load) hours(at time.Time) float64 {
	return min(event.Ago(at, l.Since), (loadMinutes-1)*time.Minute).Hours()
}

// RequestRate is how many requests ended an hour, over the last three hours at most; it is not known in the first half hour.
func (w *Worker) RequestRate() (perHour float64, known bool) {
	d := &w.load.Demand
	if d.N == 0 {
		return 0, false
	}
	for _, r := range d.Requests[:d.N] {
		perHour += float64(r)
	}
	return perHour / float64(d.N), true
}
