package notifier

import (
	"fmt"
	"time"

	"lowtide/event"
)

// Step is what to do next about an incident on one medium.
type Step uint8

// The steps.
const (
	Nothing Step = iota
	Post
	Update
	Recover // ask the medium whether the message exists, then post or update
	Say     // answer in the thread: the state changed
	Remind  // answer in the thread: nobody has acknowledged it yet
	Listen  // ask the thread whether it has the reply that was begun
)

func (s Step) String() string {
	return [...]string{"nothing", "post", "update", "recover", "reply", "remind", "listen"}[s]
}

// scene is what is known of a record at one moment: the card it makes, and what stands beside the findings.
type scene struct {
	face    *event.Finding // the finding that the card tells; nil when nothing is known yet
	open    bool           // somebody was, or has to be, told of more than an end
	loud    bool           // it is more than information
	hushed  bool           // it was silenced before anybody was told
	told    bool           // somebody was told
	version string         // the same for the same findings, members and people's words
	card    Card
	now     Situation
}

// terms are what one medium allows, and what its routes ask of it.
type terms struct {
	wanted bool          // a route leads here
	thread bool          // it has threads
	fixed  bool          // what was sent cannot be edited: only another state or severity is worth another message
	remind time.Duration // after which an unacknowledged page is told again; zero for never
	forget time.Duration // after which the medium forgets an open incident that it is not told again; zero for never
	at     time.Time
}

// decide compares what was last told with what is known now. It does no I/O; the reason is for logs and tests.
func decide(d Delivery, s scene, t terms) (Step, string) {
	switch {
	case s.face == nil:
		return Nothing, "nothing is known yet"
	case d.Status == posting:
		// The last run stopped between sending and noting it. Posting again could tell people twice.
		return Recover, "it is unknown whether the message was sent"
	case d.Status == untold && !t.wanted:
		return Nothing, "no route leads there"
	case d.Status == untold && !s.open:
		// Only the end was seen: telling people that something ended which they never heard of helps nobody.
		return Nothing, "resolved and never told"
	case d.Status == untold && !s.loud:
		return Nothing, "severity info is not announced"
	case d.Status == untold && s.now.Silenced != "":
		return Nothing, "it is silenced"
	case d.Status == untold && s.hushed && s.face.State == event.Resolved:
		return Nothing, "it began and ended in silence"
	case d.Status == untold && s.told && s.face.State == event.Resolved:
		return Nothing, "it is over, and others were told"
	case d.Status == untold:
		// Also when it has been resolved meanwhile: while the medium was away, something happened that people should know.
		return Post, "first news of the incident"
	case d.Saying != nil:
		return Listen, "it is unknown whether the thread has the reply"
	}
	if why := outdated(d, s, t); why != "" {
		return Update, why
	}
	if at, ok := refresh(d, s, t.forget); ok && !t.at.Before(at) {
		return Update, "the medium forgets what it is not told again"
	}
	if !t.thread || d.Said.State == "" { // of a notifier that had no threads: what it has told is no news
		return Nothing, "the card reads the same"
	}
	if len(tidings(d.Said, s.now)) > 0 {
		return Say, "the state changed"
	}
	if at, ok := reminder(d, s, t.remind); ok && !t.at.Before(at) {
		return Remind, "nobody has acknowledged it"
	}
	return Nothing, "the card reads the same"
}

// outdated says why the message no longer says what is known; empty when it does.
func outdated(d Delivery, s scene, t terms) string {
	switch {
	case d.Finding == s.version:
		return ""
	case d.State == "":
		return "the message was found again and what it says is unknown"
	case d.State != s.card.State:
		return "state changed from " + d.State + " to " + s.card.State
	case d.Level != s.card.Severity:
		return "severity changed from " + d.Level + " to " + s.card.Severity
	case t.fixed, d.Digest == s.card.Digest():
		// A judgement repeated with the same words. An edit mark on the message would only make people read it again.
		return ""
	}
	return "the evidence changed"
}

// look makes the scene of a record as it is now.
func (d *desk) look(r *record) scene {
	face := r.face()
	if face == nil {
		return scene{}
	}
	s := scene{face: face, open: r.history.Case != nil, hushed: r.hushed}
	s.loud = face.Severity != event.Info
	if c := r.history.Case; c != nil && face.State == event.Resolved {
		s.loud = c.Severity != event.Info
	}
	for _, delivery := range r.deliveries {
		s.told = s.told || delivery.Status == told
	}
	lines, n := r.workers()
	if r.digest() {
		s.card = stormCard(r)
	} else {
		h := r.history
		h.Latest = face
		s.card = Build(h).of(lines, n).ready(d.o.Hints)
	}
	stance := Standing(d.o.actions.Of(face.Incident))
	covering := d.o.silences.Covering(face, d.o.Now())
	s.now = situation(face, n, stance, covering)
	s.card = s.card.standing(face, stance, covering)
	if s.version = face.ID; len(lines)+len(s.card.People) > 0 {
		s.version += "+" + keyFor(fmt.Sprint(lines, s.card.People, face.State, face.Severity))
	}
	return s
}

// scene is that of an entry, which is looked at again only when something changed.
func (d *desk) scene(e *entry) scene {
	if e.seen == nil || e.asked != d.asked {
		s := d.look(e.record)
		e.seen, e.asked = &s, d.asked
	}
	return *e.seen
}

// decide says what is to be done about the record on one medium.
func (d *desk) decide(r *record, s scene, out *outlet) (Step, string) {
	if r.storm != "" {
		return Nothing, "the message of " + r.storm + " tells about it"
	}
	t, _ := d.terms(r, out)
	return decide(r.deliveries[out.Name()], s, t)
}
