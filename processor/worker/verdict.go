package worker

// Verdict says in a word or two what the memory of the worker does when no incident is open: steady, filling, step, watching,
// caching or insufficient (vocabulary.md, Not findings).
func (w *Worker) Verdict() string {
	points := w.quiet.comparables(w.warm())
	if len(points) < 4 {
		return "insufficient: too few comparable quiet points since warm-up"
	}
	for _, i := range []int{live, outside, anon} {
		if c := w.calls[i]; c.early || c.steady {
			return seriesNames[i] + " grows"
		}
	}
	x, y, sigma := columns(live, points)
	if len(x) < 4 {
		return "insufficient: no allocator"
	}
	if caps := w.declaredCaps(); caps > 0 && y[len(y)-1]-y[0] > 8*sigma && w.filling(y, sigma) {
		return "filling"
	}
	if c := w.calls[live]; c.growth.Low > 0 && !c.growth.Level.Level() {
		return "watching: live rises, too young to call"
	}
	_, reserve, _ := columns(cached, points)
	if len(reserve) > 0 && reserve[len(reserve)-1] > 0.2*y[len(y)-1] {
		return "steady, caching"
	}
	return "steady"
}
