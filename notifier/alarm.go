package notifier

import (
	"context"
	"fmt"
	"time"

	"lowtide/event"
)

// alarm looks at what time alone has changed: a silence that ended, a reminder that is due. It returns how long until the next.
func (d *desk) alarm(ctx context.Context) time.Duration {
	now, wait := d.o.Now(), idle
	for key, at := range d.clocks {
		if left := at.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		delete(d.clocks, key)
		if err := d.reviewOne(ctx, key); err != nil {
			d.o.Log.Warn("look whether a page is acknowledged", "error", err)
			d.clocks[key] = now.Add(d.o.Backoff)
			wait = min(wait, d.o.Backoff)
		}
	}
	if over := d.o.silences.Unnoticed(now); len(over) > 0 {
		if err := d.afterSilence(ctx, over); err != nil {
			d.o.Log.Warn("look what a silence covered that is over", "error", err)
			wait = min(wait, d.o.Backoff)
		}
	}
	if at, ok := d.o.silences.Next(now); ok {
		wait = min(wait, max(at.Sub(now), time.Millisecond))
	}
	return wait
}

// afterSilence puts on the desk what silences covered that are over, and notes that they were looked at.
func (d *desk) afterSilence(ctx context.Context, over []Silence) error {
	if err := d.review(ctx); err != nil {
		return err
	}
	call, cancel := d.call(ctx)
	defer cancel()
	for _, one := range over {
		if err := d.o.silences.Notice(call, one.ID); err != nil {
			return err
		}
	}
	return nil
}

// wind sets the clock of a page that nobody has acknowledged.
func (d *desk) wind(r *record) {
	if r.history.Latest == nil {
		return
	}
	key := keyOf(r.history.Latest.Incident)
	delete(d.clocks, key)
	if r.storm != "" || len(r.deliveries) == 0 {
		return
	}
	var s *scene
	for _, out := range d.outlets {
		t, _ := d.terms(r, out)
		if (t.remind <= 0 || !out.thread) && t.forget <= 0 {
			continue
		}
		if s == nil {
			one := d.look(r)
			s = &one
		}
		set := func(at time.Time, ok bool) {
			if ok && (d.clocks[key].IsZero() || at.Before(d.clocks[key])) {
				d.clocks[key] = at
			}
		}
		if out.thread {
			set(reminder(r.deliveries[out.Name()], *s, t.remind))
		}
		set(refresh(r.deliveries[out.Name()], *s, t.forget))
	}
}

// heed looks at the incidents about which people did something.
func (d *desk) heed(ctx context.Context) {
	d.asked++
	for _, key := range d.o.actions.News() {
		if err := d.reviewOne(ctx, key); err != nil {
			d.o.Log.Warn("look at what people did", "error", err)
			d.clocks[key] = d.o.Now().Add(d.o.Backoff)
		}
	}
}

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
