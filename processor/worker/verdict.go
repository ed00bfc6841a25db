package worker

import (
	"fmt"

	"lowtide/event"
)

// Verdict says in a word what the memory of the worker does when no incident is open: steady, filling, step, caching, starved,
// insufficient or watching (vocabulary.md, Not findings), or which series grows.
func (w *Worker) Verdict() string {
	word, _ := w.verdict()
	return word
}

// cachingShare is the part of live memory above which a level reserve is worth a word.
const cachingShare = 0.2

// bySeries is the order in which growth is told.
var bySeries = [...]int{live, outside, graphs, awaiting, pinned, anon, fds, threads, sockets}

func (w *Worker) verdict() (word, why string) {
	for _, i := range bySeries {
		if c := w.leadingCall(i); c != nil && c.called() && !c.Filling {
			return seriesNames[i] + " grows", event.FormatQuantity(c.Growth.Slope, units[i]) + "/h since " + c.Onset.UTC().Format("15:04")
		}
	}
	if e := w.now.engine; e != nil && e.Running != nil && *e.Running == 0 && e.GetWaiting() > 0 {
		return "starved", fmt.Sprintf("nothing runs, %d wait", e.GetWaiting())
	}
	if n := w.Points(); n < 4 {
		if c := w.leadingCall(live); c != nil && n > 1 && c.Growth.Slope > 0 && c.Growth.Hours*c.Growth.Slope > floors[live] {
			return "watching", fmt.Sprintf("live rises over %d quiet points, too young to call", n)
		}
		return "insufficient", w.tooFew(n)
	}
	for _, i := range bySeries {
		if c := w.leadingCall(i); c != nil && c.Filling && (c.Growth.Low > 0 || c.called()) {
			return "filling", seriesNames[i] + " grows inside its declared caches"
		}
	}
	for _, i := range bySeries {
		if c := w.leadingCall(i); c != nil && c.Growth.Low > levelFloors[i] && c.Growth.Level.Rising() && c.Growth.Slope*c.Growth.Hours > 2*floors[i] {
			return "watching", seriesNames[i] + " rises, too young or too uneven to call: " + c.Lacking.String()
		}
	}
	for _, i := range bySeries {
		if c := w.leadingCall(i); c != nil && c.Step {
			return "step", seriesNames[i] + " jumped once and is level"
		}
	}
	reserve, held := w.leadingCall(cached), w.leadingCall(live)
	if reserve != nil && reserve.Points > 0 && held.Points > 0 && reserve.Level > cachingShare*held.Level {
		return "caching", event.FormatQuantity(reserve.Level, "bytes") + " reserved above live memory, and level"
	}
	for _, i := range bySeries {
		if c := w.leadingCall(i); c != nil && c.Points > 0 {
			return "steady", fmt.Sprintf("level over %d quiet points", w.Points())
		}
	}
	return "insufficient", "no memory is read"
}

func (w *Worker) leadingCall(series int) *call {
	if c := w.leading(series); c < len(w.calls) {
		return &w.calls[c]
	}
	return nil
}

func (w *Worker) tooFew(n int) string {
	switch {
	case w.Last.Before(w.warm()):
		return "still warming up, until " + w.warm().UTC().Format("15:04")
	case len(w.quiet.Points) == 0 && len(w.match.Work) > 0:
		return "never drains, and has not been busy for long enough to compare loads"
	case w.now.engine == nil && len(w.quiet.Points) == 0:
		return "nobody says when the worker is quiet: no engine metrics, no marks, and its GPU never idles"
	}
	return fmt.Sprintf("%d comparable quiet points since warm-up, four are needed", n)
}
