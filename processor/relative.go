package processor

import "slices"

const maxRelatives = 64 // as many as an incident keeps

// relatives are keys of incidents, each once.
type relatives []string

func (r *relatives) full() bool { return len(*r) >= maxRelatives }

func (r *relatives) add(key string) {
	if !r.full() && !slices.Contains(*r, key) {
		*r = append(*r, key)
	}
}

func (r *relatives) addCard(c *card) {
	r.add(c.key)
	if whole := c.whole(); whole != nil {
		r.add(whole.key)
	}
}

// relatives are the other keys whose incidents may explain one of this worker: the cards of its instance, its own first, and the
// other slots. A rank that waits for another suffers from that one's card as much as from its own.
func (w *watched) relatives(j *Judge) []string {
	if w.relatedAt == j.epoch {
		return w.related
	}
	var all relatives
	for _, c := range w.cards {
		all.addCard(c)
	}
	if w.in != nil {
		for _, key := range w.in.relatives(j) {
			if key != w.Slot {
				all.add(key)
			}
		}
	}
	w.related, w.relatedAt = all, j.epoch
	return w.related
}

// keep remembers cards of a member that goes, while something is wrong there: what it began goes on in the next life.
func (in *instance) keep(j *Judge, cards []*card) {
	in.faulty = slices.DeleteFunc(in.faulty, func(key string) bool { return len(j.incidents.Open(key)) == 0 })
	var all relatives
	for _, c := range cards {
		all.addCard(c)
	}
	for _, key := range all {
		if len(in.faulty) < maxCardsOfWorker && len(j.incidents.Open(key)) > 0 && !slices.Contains(in.faulty, key) {
			in.faulty = append(in.faulty, key)
		}
	}
}

// relatives are the keys whose incidents may explain one of the instance: its cards, those that it had, and its slots.
func (in *instance) relatives(j *Judge) []string {
	if in.relatedAt == j.epoch {
		return in.related
	}
	var all relatives
	for _, key := range in.faulty {
		all.add(key)
	}
	for _, w := range in.members {
		for _, c := range w.cards {
			all.addCard(c)
		}
		if all.full() {
			break
		}
	}
	for _, w := range in.members {
		if all.full() {
			break
		}
		all.add(w.Slot)
	}
	in.related, in.relatedAt = all, j.epoch
	return in.related
}

// relatives are the slots of the instances that use the card: what the device did explains what all their ranks suffer.
func (c *card) relatives(j *Judge) []string {
	if c.relatedAt == j.epoch {
		return c.related
	}
	var all relatives
	var last *instance
	for _, w := range c.everyone() {
		all.add(w.Slot)
		if in := w.in; in != nil && in != last {
			last = in
			for _, other := range in.members {
				if all.full() {
					break
				}
				all.add(other.Slot)
			}
		}
	}
	c.related, c.relatedAt = all, j.epoch
	return c.related
}
