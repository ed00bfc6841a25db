package worker

import (
	"time"

	"lowtide/processor/trend"
)

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

// Curve returns the levels that the growth of a series is the slope of, oldest first; none where it was never read.
func (w *Worker) Curve(series string) []Dot {
	i := seriesIndex(series)
	if i < 0 || w.leading(i) >= len(w.calls) {
		return nil
	}
	matched, _ := w.Sample().Bool(pointIDs.matched)
	if i == graphs && !matched {
		return w.levels(i, w.leading(i), w.quiet.comparables(nil, w.warm(), false), false)
	}
	return w.levels(i, w.leading(i), w.points(nil), matched)
}

// Level returns the newest value of a series, and whether it was read.
func (w *Worker) Level(series string) (float64, bool) {
	i := seriesIndex(series)
	if i < 0 {
		return 0, false
	}
	return w.Sample().Number(ids[i].now)
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
