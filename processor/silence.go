package processor

import (
	"strings"
	"time"

	"lowtide/event"
)

// hear says at which broker's time a host was heard. Without it the next Tick stands for that.
func (j *Judge) hear(of *event.Host, at time.Time) {
	name := hostName{of.GetCluster(), of.GetName()}
	h := j.last
	if h == nil || h.name != name {
		h = j.hosts[name]
	}
	if h != nil && (h.told || h.toldAt.IsZero()) {
		h.told, h.toldAt = false, at
	}
}

// excuse keeps a time in which nobody was listened to from counting as a host's silence.
func (j *Judge) excuse(now time.Time, passed time.Duration) {
	for _, h := range j.hosts {
		if h.toldAt.IsZero() || h.toldAt.After(now) {
			continue
		}
		if h.toldAt = h.toldAt.Add(passed); h.toldAt.After(now) {
			h.toldAt = now
		}
	}
}

// unanswered counts the answers of rules that stand and are none, because an expression failed.
func (j *Judge) unanswered() (n int) {
	count := func(a *answers) {
		for ; a != nil; a = a.shadow {
			for i := range a.results {
				if strings.HasPrefix(a.results[i].Missing, "evaluation") {
					n++
				}
			}
		}
	}
	for _, w := range j.workers {
		count(&w.answers)
		count(&w.shared)
	}
	for _, h := range j.hosts {
		for _, s := range h.sensors {
			count(&s.answers)
		}
		for _, c := range h.cards {
			count(&c.answers)
		}
	}
	return n
}
