package processor

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/rules"
)

const (
	slotKept = 7 * 24 * time.Hour // how long a slot in which nothing lives is remembered
	hostKept = 24 * time.Hour     // how long a host that says nothing is
	endKept  = time.Hour          // how long a process that has ended is
	atOnce   = 32                 // one in so many goes when there is no room
)

// sweep forgets processes that have been silent for hours, by the time that their host was heard, or the others where that is
// silent too: a clock that is wrong costs nobody anything. Their incidents stay with the slot.
func (j *Judge) sweep() {
	passed := make([]time.Duration, 0, len(j.hosts))
	for _, h := range j.hosts {
		if h.heard {
			passed = append(passed, h.elapsed-h.swept)
		}
	}
	slices.Sort(passed)
	usual := passed[(len(passed)-1)/2] // there is one: whose event this is
	for _, h := range j.ordered() {
		h.elapsed = max(h.elapsed, h.swept+usual) // one that fell silent meanwhile goes on with the others
		h.swept = h.elapsed
		h.heard = false
		for _, w := range h.sorted() {
			if silence := h.elapsed - w.spoke; silence > forget || silence > endKept && !w.end.at.IsZero() {
				j.forget(w)
			}
		}
		j.sweepSlots(h)
		j.sweepCards(h)
		silence := h.elapsed - h.spoke
		if h != j.last && (silence > slotKept || silence > hostKept && len(h.processes)+h.blind == 0 && !j.troubled(h)) {
			j.forgetHost(h)
		}
	}
}

// troubled says that an incident is open at a slot of the host.
func (j *Judge) troubled(h *host) bool {
	for key := range h.slots {
		if len(j.incidents.Open(key)) > 0 {
			return true
		}
	}
	return false
}

// sweepSlots looks at what nobody lives in any more. A trouble that needs no proof ends there too, after a day in which it was not
// seen; growth stays open, masked by the restart that has not come.
func (j *Judge) sweepSlots(h *host) {
	standing := make(map[string]bool) // an instance is judged there, whoever lives there
	for _, w := range h.processes {
		if w.in != nil && w.end.at.IsZero() {
			standing[w.in.slot] = true
		}
	}
	for _, s := range h.sortedSlots() {
		if s.life != nil && s.life.end.at.IsZero() || standing[s.key] {
			s.emptied = h.elapsed
			continue
		}
		open := j.incidents.Open(s.key)
		if len(open) == 0 && s.life == nil && h.elapsed-s.emptied >= s.kept() {
			delete(h.slots, s.key)
			continue
		}
		for _, in := range slices.Concat(open, j.shadows.Open(s.key)) {
			rule := j.rules[in.Rule]
			if rule != nil && len(growthSeries[in.Class]) == 0 {
				j.idle(h, in, rule)
			}
		}
	}
}

// sweepCards forgets cards of which nothing was heard for hours, and on which nothing runs. What was wrong with one that was taken
// out ends there after a day.
func (j *Judge) sweepCards(h *host) {
	for _, c := range h.sortedCards() {
		silence := h.elapsed - c.heard
		if silence <= sweepEvery {
			continue
		}
		open := j.incidents.Open(c.key)
		if silence > forget && len(c.users)+len(open) == 0 {
			delete(h.cards, c.uuid)
			h.near = nearest{}
			h.layout++
			j.epoch++
			continue
		}
		if h.blind > 0 {
			continue // it may be there, and nobody can see it
		}
		for _, in := range slices.Concat(open, j.shadows.Open(c.key)) {
			if rule := j.rules[in.Rule]; rule != nil {
				j.idle(h, in, rule)
			}
		}
	}
}

// idle observes, for a trouble of a slot that is empty or of a card that is silent, that it is not there.
func (j *Judge) idle(h *host, in *incident.Incident, rule *rules.Rule) {
	j.conclude(h.newest, in, rule, "")
}

// conclude observes that a trouble is not there, with a sentence where that is certain.
func (j *Judge) conclude(at time.Time, in *incident.Incident, rule *rules.Rule, proof string) {
	o := incident.Observation{Time: at, Key: in.Key, Rule: rule, Release: in.Release, Group: in.Group}
	o.Growth, o.Proven, o.Proof = proof != "", proof != "", proof
	o.Fill = func(f *event.Finding) {
		if last := in.Last; last != nil {
			f.Subject, f.Slot, f.Worker, f.Labels, f.Confidence = last.Subject, last.Slot, last.Worker, last.Labels, last.Confidence
			f.Summary, f.Evidence, f.CounterEvidence, f.Advice = last.Summary, last.Evidence, last.CounterEvidence, last.Advice
		}
	}
	incidents := j.incidents
	if rule.Shadow {
		incidents = j.shadows
	}
	for _, f := range incidents.Observe(o) {
		j.emit(f)
	}
}

// forgetHost forgets a host with all that is there. That its sensors cannot see ends with it; growth stays open at its slots.
func (j *Judge) forgetHost(h *host) {
	silence := h.elapsed - h.spoke
	for _, s := range h.sortedSensors() {
		for _, in := range slices.Concat(j.incidents.Open(s.key), j.shadows.Open(s.key)) {
			if rule := j.rules[in.Rule]; rule != nil {
				j.conclude(h.newest.Add(silence), in, rule, "nothing was heard of the host for "+counted(int(silence/time.Hour), "hour")+", and it is not watched any more")
			}
		}
	}
	for _, w := range h.sorted() {
		j.forget(w)
	}
	delete(j.hosts, h.name)
	if j.last == h {
		j.last = nil
	}
}

// forgetHosts makes room: for several at once, so that a flood of names costs little each. Those where nothing runs go first, then
// those that were heard least recently.
func (j *Judge) forgetHosts() {
	all := slices.Collect(maps.Values(j.hosts))
	runs := func(h *host) int { return min(1, len(h.processes)) }
	slices.SortFunc(all, func(a, b *host) int { return cmp.Or(cmp.Compare(runs(a), runs(b)), cmp.Compare(a.turn, b.turn)) })
	for _, h := range all[:1+len(all)/atOnce] {
		j.forgetHost(h)
	}
}

// forgetOldest makes room for workers: those that have ended go first, then those that were heard least recently.
func (j *Judge) forgetOldest() {
	all := slices.Collect(maps.Values(j.workers))
	lives := func(w *watched) int {
		if w.end.at.IsZero() {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b *watched) int { return cmp.Or(cmp.Compare(lives(a), lives(b)), cmp.Compare(a.turn, b.turn)) })
	for _, w := range all[:1+len(all)/atOnce] {
		j.forget(w)
	}
}

func (j *Judge) forget(w *watched) {
	if s := w.place; s != nil {
		j.remember(s, w)
		j.leave(w)
	}
	j.awaiting = slices.DeleteFunc(j.awaiting, func(a awaited) bool { return a.w == w })
	delete(j.workers, w.Key)
	delete(w.home.processes, w.life)
	w.home.recent = recently{}
	j.unindex(w)
}
