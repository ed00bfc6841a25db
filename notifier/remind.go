package notifier

import (
	"fmt"
	"time"

	"lowtide/event"
)

// reminder returns when people are told again of a page that nobody has acknowledged; not ok when they are not.
func reminder(d Delivery, s scene, every time.Duration) (at time.Time, ok bool) {
	switch {
	case every <= 0 || d.Status != told || d.Paged.IsZero() || s.face == nil:
		return at, false
	case s.card.State == event.Resolved || s.card.Severity != event.Page:
		return at, false
	case s.now.Acknowledged != "" || s.now.Closed != "" || s.now.Silenced != "":
		return at, false
	}
	at = d.Paged
	if d.Reminded.After(at) {
		at = d.Reminded
	}
	return at.Add(every), true
}

// reminding is the reply that tells people again.
func reminding(d Delivery, s scene, mention string, now time.Time) Reply {
	last := d.Paged
	if d.Reminded.After(last) {
		last = d.Reminded
	}
	return Reply{Key: keyFor(s.face.Incident, "remind", last.UTC().Format(time.RFC3339Nano)), Mention: mention,
		Text: fmt.Sprintf("Still open, and nobody has acknowledged it for %s: %s.", duration(now.Sub(d.Paged).Truncate(time.Minute)), s.card.Title)}
}

// refresh returns when a medium that forgets is told again of an incident that is open; not ok when it is not.
func refresh(d Delivery, s scene, every time.Duration) (at time.Time, ok bool) {
	if every <= 0 || d.Status != told || s.face == nil || s.card.State == event.Resolved {
		return at, false
	}
	return d.Told.Add(every), true
}
