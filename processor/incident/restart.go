package incident

import (
	"slices"

	"lowtide/event"
)

// live follows the process lives of a slot. A life that ends while the incident is open hides the trouble and ends nothing: the
// incident is then masked by restart, once per life. beside says that the observation is of another process than the one that the
// incident is judged in, and that this one still lives: the API servers of an engine share a slot.
func (t *Tracker) live(in *Incident, o *Observation) (told []*event.Finding, beside bool) {
	switch {
	case o.Worker == "":
		return nil, false
	case o.Worker == in.Worker:
		in.Heard = o.Time
		return nil, false
	case in.Worker == "":
		in.Worker, in.Heard = o.Worker, o.Time
		return nil, false
	case slices.Contains(in.Past, o.Worker):
		return nil, true // late news of a life that was followed by another
	case !in.Ended && o.Time.Sub(in.Heard).Abs() < overlap:
		return nil, true
	}
	if !in.Ended && hidden(o) {
		in.Masked++ // nobody saw the end; the new life shows that there was one
		told = append(told, t.succeeded(in, o))
	}
	in.Past = append(in.Past, in.Worker)
	in.Past = in.Past[max(0, len(in.Past)-maxPast):]
	in.Worker, in.Heard, in.Ended = o.Worker, o.Time, false
	t.relate(in, o.Related) // the next life may have other GPUs
	return told, false
}

// succeeded tells of a new life what was last said of the one before: it has no points of its own yet.
func (t *Tracker) succeeded(in *Incident, o *Observation) *event.Finding {
	if in.Last == nil || o.Fill == nil {
		return t.finding(in, o)
	}
	var next event.Finding
	o.Fill(&next)
	f := *in.Last
	f.Worker, f.Subject, f.Slot, f.Release = next.Worker, next.Subject, o.Key, o.Release
	return t.tell(in, &f, o.Time)
}

// exit counts the end of the life that the incident is judged in. State and severity stay.
func (t *Tracker) exit(told []*event.Finding, in *Incident, o *Observation) []*event.Finding {
	if in.Ended || o.Worker == "" || o.Worker != in.Worker {
		return told
	}
	in.Ended = true
	if !hidden(o) {
		return told
	}
	in.Masked++
	return append(told, t.finding(in, o))
}
