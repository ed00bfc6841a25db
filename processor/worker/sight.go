package worker

import (
	"time"

	"lowtide/event"
	"lowtide/processor/trend"
)

// sight is one series as it is judged: levels at comparable states, the noise of one of them, and the work done until each.
type sight struct {
	From  time.Time // hour zero
	Hours []float64
	Level []float64
	Work  []tally // of levels at matched load; workAt knows that of quiet points too
	Sigma float64

	points []*point // of quiet levels
	moved  moved
}

// moved is how far a series has moved, once somebody asked.
type moved struct {
	known bool
	by    float64
}

// sight looks at one column of the quiet points.
func (w *Worker) sight(at *desk, series, column int) {
	points, hours := at.points, at.hours
	if series == graphs {
		at.pools = w.quiet.comparables(at.pools[:0], w.warm(), false)
		at.poolHours = hoursOf(at.poolHours[:0], at.pools)
		points, hours = at.pools, at.poolHours
	}
	at.sight.take(series, column, points, hours, at.spreads[:0])
}

// points appends the quiet points after warm-up that are comparable to the newest one, oldest first.
func (w *Worker) points(dst []view) []view {
	return w.quiet.comparables(dst, w.warm(), true)
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
	most := 0.0
	for i, p := range points {
		low := p.low(column)
		if low != low {
			continue
		}
		s.Hours = append(s.Hours, hours[i])
		s.Level = append(s.Level, low)
		s.points = append(s.points, p.point)
		if v := p.spread(column); v-v == 0 { // finite
			spreads = append(spreads, v)
			most = max(most, v)
		}
	}
	if len(s.Level) > 0 && (most > s.Sigma || len(spreads) == 0) { // else the floor is the larger, wherever the middle lies
		s.Sigma = max(s.Sigma, trend.MedianOf(spreads))
	}
}

func (s *sight) clear() {
	s.Hours, s.Level, s.Work, s.points, s.moved = s.Hours[:0], s.Level[:0], s.Work[:0], s.points[:0], moved{}
}

// distance is that between the lowest level and the highest.
func (s *sight) distance() float64 {
	if !s.moved.known {
		s.moved = moved{true, trend.Moved(s.Level)}
	}
	return s.moved.by
}

// workAt is the work done until a level.
func (s *sight) workAt(i int) *tally {
	if len(s.Work) > 0 {
		return &s.Work[i]
	}
	return &s.points[i].Work
}
