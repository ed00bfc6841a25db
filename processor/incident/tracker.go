package incident

import (
	"cmp"
	"slices"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

const (
	silence       = 24 * time.Hour     // ends an incident that needs no proof: so long was its condition seen to be false (design.md, Incidents)
	sight         = 6 * time.Hour      // a gap in what is seen counts at most as long: a clock that jumps, or a slot that is empty, is no silence
	absence       = 7 * 24 * time.Hour // an incident of which nobody has said anything for as long ends, proven or not
	evidenceEvery = time.Hour          // that evidence is told which changes neither state nor severity
	overlap       = 5 * time.Minute    // a process that was heard within this time still lives: another of its slot stands beside it
)

// The bounds of what is held. A key has at most one open incident a class, and the classes are a closed list.
const (
	maxOpen    = 20_000
	maxRelated = 64
	maxPast    = 8
)

// hidden says whether a restart hides the class: the memory goes back, the cause stays. Of kv_block_leak that holds too, although
// it is a level. A sensor that is blind is proven to see again, but is no process.
func hidden(o *Observation) bool {
	return o.Growth && o.Rule.Class != "blind" || o.Rule.Class == "kv_block_leak"
}

// Tracker keeps the open incidents. It is not safe for concurrent use.
type Tracker struct {
	open    map[string][]*Incident // by key, in the order in which they opened
	related map[string][]*Incident // by a key that may explain them
	groups  map[alikeness][]string // the keys of open incidents, sorted
	count   int
	turn    uint64 // grows whenever an incident opens or ends
	refused int
	limit   int
	apart   bool // of rules that are tried out
}

// NewTracker returns a tracker without incidents.
func NewTracker() *Tracker {
	return &Tracker{open: make(map[string][]*Incident), related: make(map[string][]*Incident), groups: make(map[alikeness][]string), turn: 1, limit: maxOpen}
}

// NewShadowTracker returns a tracker for rules that are tried out: each is by itself, whatever its class, since several of one class may be
// compared. Nothing explains what they see, and they explain nothing; all that they tell is marked as shadow.
func NewShadowTracker() *Tracker {
	t := NewTracker()
	t.apart = true
	return t
}

// Open returns the open incidents of a key, in the order in which they opened. They belong to the tracker: read only.
func (t *Tracker) Open(key string) []*Incident { return t.open[key] }

// Turn changes when what Open returns may: as long as it is the same, so is that.
func (t *Tracker) Turn() uint64 { return t.turn }

// Refused returns how many observations opened nothing because as many incidents as there is room for were open, all of them pages.
func (t *Tracker) Refused() int { return t.refused }

// Observe takes one observation and returns the transitions it causes, in their order; most cause none.
func (t *Tracker) Observe(o Observation) []*event.Finding {
	in := t.find(o.Key, o.Rule.Class, o.Rule.ID)
	if in == nil {
		return t.begin(&o)
	}
	told, beside := t.live(in, &o)
	if beside && o.Result.When != rules.True {
		return told // what one process does not do proves nothing about another
	}
	if f := t.judge(in, &o); f != nil {
		told = append(told, f)
	}
	if o.Exited && !beside && in.State != event.Resolved {
		told = t.exit(told, in, &o)
	}
	return told
}

func (t *Tracker) find(key, class, rule string) *Incident {
	for _, in := range t.open[key] {
		if in.Class == class && (!t.apart || in.Rule == rule) {
			return in
		}
	}
	return nil
}

// judge takes an open incident one step further.
func (t *Tracker) judge(in *Incident, o *Observation) *event.Finding {
	gap := o.Time.Sub(in.Seen)
	in.Seen, in.Unheard = o.Time, time.Time{}
	switch o.Result.When {
	case rules.Unknown:
		return nil // freezes it: nothing is concluded from what cannot be seen
	case rules.True:
		in.Quiet, in.LastTrue = 0, o.Time
		t.regroup(in, o.Group)
	case rules.False:
		in.Quiet += min(max(gap, 0), sight)
	}
	if why, over := ended(in, o); over {
		t.resolve(in)
		f := t.finding(in, o)
		f.Resolution = why
		return f
	}
	held := o.Result.When == rules.True || in.Quiet < o.Rule.Keep
	paired := o.Result.With == rules.True && (held || o.Time.Sub(in.LastTrue).Abs() <= o.Rule.Pair)
	changed := paired && in.raise(o.Rule.With)
	if held && in.State == event.Suspected && o.Result.Confirm == rules.True {
		in.State, changed = event.Confirmed, true
	}
	news := held && !o.Evidence.IsZero() && (in.Told.IsZero() || o.Evidence.Sub(in.Told) >= evidenceEvery)
	if !changed && !news {
		return nil
	}
	return t.finding(in, o)
}

// ended wants proof from growth, in this process or a later one; a day of silence from everything else. Another rule of the class
// than the one that began it may end it only after that day.
func ended(in *Incident, o *Observation) (why string, over bool) {
	if o.Result.When != rules.False || o.Rule.ID != in.Rule && in.Quiet < silence {
		return "", false
	}
	switch {
	case o.Refuted != "" && in.State == event.Suspected:
		return o.Refuted, true
	case o.Growth && o.Proven:
		return proof(in, o), true
	case !o.Growth && in.Quiet >= silence:
		return "24 h without it", true
	}
	return "", false
}

// proof names the release in which growth is proven to have ended, and the one in which it began where that is another.
func proof(in *Incident, o *Observation) string {
	text := o.Proof
	if text == "" {
		text = "growth is proven to have ended"
	}
	switch {
	case o.Release == "":
		return text
	case o.Release == in.Release:
		return text + ", in the same release " + o.Release
	case in.Release == "":
		return text + ", in release " + o.Release
	}
	return text + ", in release " + o.Release + " (it began in " + in.Release + ")"
}

// begin opens an incident unless an open one explains the trouble already.
func (t *Tracker) begin(o *Observation) []*event.Finding {
	if o.Result.When != rules.True {
		return nil
	}
	trouble := Incident{Key: o.Key, Class: o.Rule.Class, Severity: severityOf(o), Onset: o.Onset, Explains: o.Rule.Explains}
	if trouble.Onset.IsZero() {
		trouble.Onset = o.Time
	}
	if by := t.explainer(&trouble, o.Related); by != nil {
		return t.absorb(by, &trouble, o.Time)
	}
	in := &trouble
	name := []string{o.Key, o.Rule.Class, o.Time.UTC().Format(time.RFC3339Nano)}
	if t.apart {
		name = append(name, "shadow", o.Rule.ID)
	}
	in.ID, in.Rule, in.State = id(name...), o.Rule.ID, event.Suspected
	in.Group, in.Release, in.LastTrue, in.Seen, in.Worker, in.Heard = o.Group, o.Release, o.Time, o.Time, o.Worker, o.Time
	told, room := t.room(in, o.Time)
	if !room {
		t.refused++
		return nil
	}
	if o.Result.Confirm == rules.True {
		in.State = event.Confirmed
	}
	explained := t.explained(in)
	for _, other := range explained {
		in.note(other)
		in.raise(other.Severity) // what was a page stays one under its right name
	}
	t.add(in, o.Related)
	told = append(told, t.finding(in, o))
	for _, other := range explained {
		told = append(told, t.end(other, o.Time, "explained by "+in.Class))
	}
	if o.Exited {
		told = t.exit(told, in, o)
	}
	return told
}

// room makes place for one more. It ends what was not seen for the longest time and is no page; pages are never given up.
func (t *Tracker) room(in *Incident, at time.Time) (told []*event.Finding, ok bool) {
	if t.count < t.limit {
		return nil, true
	}
	var oldest *Incident
	for _, all := range t.open {
		for _, other := range all {
			if other.Severity != event.Page && (oldest == nil || before(other, oldest)) {
				oldest = other
			}
		}
	}
	if oldest == nil {
		return nil, in.Severity == event.Page
	}
	why := "given up unresolved: too many incidents are open, and this one was not seen since " + oldest.Seen.UTC().Format(time.RFC3339)
	return []*event.Finding{t.end(oldest, at, why)}, true
}

// Abandon ends the incidents that no observation came for in seven days: the process is gone, perhaps with its host, and nobody will prove
// anything about it. It is told the time by one clock, that of the broker, since those of hosts may be wrong or stand still; call it at
// least once an hour.
func (t *Tracker) Abandon(now time.Time) (told []*event.Finding) {
	var left []*Incident
	for _, all := range t.open {
		for _, in := range all {
			switch {
			case in.Unheard.IsZero() || now.Before(in.Unheard):
				in.Unheard = now
			case now.Sub(in.Unheard) >= absence:
				left = append(left, in)
			}
		}
	}
	slices.SortFunc(left, func(a, b *Incident) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.ID, b.ID)) })
	for _, in := range left {
		why := "nothing was heard of it in seven days"
		if in.Last.Slot != "" {
			why = "nobody came back to this slot in seven days"
		}
		told = append(told, t.end(in, now, why))
	}
	return told
}

// before orders by the last sight, and in a way that does not depend on the order of a map.
func before(a, b *Incident) bool {
	if !a.Seen.Equal(b.Seen) {
		return a.Seen.Before(b.Seen)
	}
	return a.ID < b.ID
}

// end resolves an incident that the observation is not about.
func (t *Tracker) end(in *Incident, at time.Time, why string) *event.Finding {
	t.resolve(in)
	f := t.again(in, at)
	f.Resolution = why
	return f
}

func (t *Tracker) resolve(in *Incident) {
	in.State = event.Resolved
	t.relate(in, nil)
	t.leave(in)
	drop(t.open, in.Key, in)
	t.count--
	t.turn++
}

func (t *Tracker) add(in *Incident, related []string) {
	t.open[in.Key] = append(t.open[in.Key], in)
	t.relate(in, related)
	t.join(in)
	t.count++
	t.turn++
}

// relate makes an incident found by the keys that may explain it.
func (t *Tracker) relate(in *Incident, keys []string) {
	keys = keys[:min(len(keys), maxRelated)]
	if slices.Equal(in.Related, keys) {
		return
	}
	for _, key := range in.Related {
		drop(t.related, key, in)
	}
	in.Related = slices.Clone(keys)
	for _, key := range in.Related {
		t.related[key] = append(t.related[key], in)
	}
}

func drop(from map[string][]*Incident, key string, in *Incident) {
	if from[key] = slices.DeleteFunc(from[key], func(other *Incident) bool { return other == in }); len(from[key]) == 0 {
		delete(from, key)
	}
}
