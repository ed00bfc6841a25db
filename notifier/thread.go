package notifier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"lowtide/event"
)

// Reply is one message in the thread of a card. Key is the same when it is sent again.
type Reply struct {
	Key     string
	Text    string
	Mention string // a user (U…) or a user group (S…) that is to be woken; empty for nobody
}

// replier is a Sender whose messages have threads. Reply answers below the message of a receipt; Replied asks whether the thread has a
// reply already, which heals a crash between sending and noting it.
type replier interface {
	Reply(ctx context.Context, receipt Receipt, reply Reply) error
	Replied(ctx context.Context, receipt Receipt, key string, since time.Time) (bool, error)
}

// Situation is what is worth a reply when it changes. Numbers are not: they stand on the card.
type Situation struct {
	State        string `json:"state,omitempty"`
	Severity     string `json:"severity,omitempty"`
	Masked       int    `json:"masked,omitzero"`
	Workers      int    `json:"workers,omitzero"` // that the card tells about
	Proof        string `json:"proof,omitempty"`  // of the end
	Acknowledged string `json:"acknowledged,omitempty"`
	Closed       string `json:"closed,omitempty"` // by a person
	Silenced     string `json:"silenced,omitempty"`
}

// tidings are the changes from what the thread knows to what is so, each a sentence. A silence is told when it begins and when it ends;
// between the two the thread is quiet.
func tidings(was, now Situation) []string {
	if was == now || was.Silenced != "" && now.Silenced != "" {
		return nil
	}
	if was.Silenced != "" && now.State == event.Resolved {
		return nil // it ended in silence, and the card says so
	}
	var lines []string
	add := func(format string, values ...any) { lines = append(lines, fmt.Sprintf(format, values...)) }
	if was.Silenced != "" {
		add("The silence is over and this is still open: %s, %s.", now.State, now.Severity)
	}
	if was.State != now.State {
		switch {
		case now.State == event.Resolved && now.Proof != "":
			add("Resolved: %s.", strings.TrimSuffix(now.Proof, "."))
		case now.State == event.Resolved:
			add("Resolved.")
		case was.State == event.Resolved:
			add("Open again: %s.", now.State)
		case was.Silenced == "":
			add("From %s to %s.", was.State, now.State)
		}
	}
	if was.Severity != now.Severity && was.Silenced == "" && now.State != event.Resolved {
		add("From %s to %s.", was.Severity, now.Severity)
	}
	if now.Masked > was.Masked && now.State != event.Resolved {
		add("Masked by restart (%d): the worker looks well because its process is new; nothing is mended.", now.Masked)
	}
	if now.Workers > was.Workers && now.State != event.Resolved {
		add("Now on %d workers of the release.", now.Workers)
	}
	if now.Acknowledged != "" && now.Acknowledged != was.Acknowledged {
		add("Acknowledged by %s.", now.Acknowledged)
	}
	if was.Acknowledged != "" && now.Acknowledged == "" && now.State != event.Resolved {
		add("It is worse than what was acknowledged.")
	}
	if now.Closed != "" && now.Closed != was.Closed {
		add("Said to be over by %s. It stays open until that is proven.", now.Closed)
	}
	if now.Silenced != "" {
		add("Silenced %s.", now.Silenced)
	}
	return lines
}

// replyTo makes the reply that takes the thread from one situation to another. Its key depends on both.
func replyTo(incident string, was, now Situation) Reply {
	return Reply{Key: keyFor(incident, fmt.Sprintf("%+v|%+v", was, now)), Text: strings.Join(tidings(was, now), "\n")}
}

func keyFor(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// situation is what is so now.
func situation(f *event.Finding, workers int, stance Stance, covering []Silence) Situation {
	s := Situation{State: f.State, Severity: f.Severity, Masked: f.MaskedRestarts, Workers: workers, Proof: f.Resolution}
	if a := stance.AcknowledgedFor(f); a != nil {
		s.Acknowledged = a.By
	}
	if a := stance.ResolvedFor(f); a != nil {
		s.Closed = a.By
	}
	if len(covering) > 0 {
		s.Silenced = until(covering[0])
	}
	return s
}

// until says how long a silence holds, and who asked for it.
func until(s Silence) string {
	text := "until " + clock(s.Until)
	if s.NotRelease != "" {
		text += ", or until another release than " + s.NotRelease
	}
	if s.By != "" {
		text += ", by " + s.By
	}
	if s.Comment != "" {
		text += ": " + s.Comment
	}
	return text
}

// say answers in the thread. What is about to be said is noted first, so that after a crash the thread is asked for it.
func (d *desk) say(ctx, call context.Context, out *outlet, e *entry, step Step) {
	medium, ok := out.Sender.(replier)
	if !ok {
		return
	}
	s, delivery := d.scene(e), e.record.deliveries[out.Name()]
	reply, why := replyTo(s.face.Incident, delivery.Said, s.now), "the state changed"
	if step == Remind {
		_, mention := d.terms(e.record, out)
		reply, why = reminding(delivery, s, mention, d.o.Now()), "nobody has acknowledged it"
	}
	next := delivery
	next.Saying = &saying{Key: reply.Key, Since: d.o.Now(), Says: s.now, Remind: step == Remind}
	if !d.begin(call, out, e, next) {
		return
	}
	d.beside(ctx, out, e, func(call context.Context) func() {
		err := medium.Reply(call, delivery.Receipt, reply)
		return func() { d.replied(ctx, out, e, step, why, err) }
	})
}

// replied notes what became of a reply.
func (d *desk) replied(ctx context.Context, out *outlet, e *entry, step Step, why string, err error) {
	delivery := e.record.deliveries[out.Name()]
	var failure *Failure
	switch {
	case err == nil, errors.Is(err, ErrGone): // who took the message away wants no replies either; the card is posted anew when it changes
		e.record.deliveries[out.Name()] = delivery.said(d.o.Now())
		d.done(ctx, out, e, step, why)
		return
	case errors.As(err, &failure):
		delivery.Saying = nil // provably not sent
		e.record.deliveries[out.Name()] = delivery
	}
	d.failed(out, e, err)
}

// said is the delivery once its reply stands in the thread.
func (d Delivery) said(now time.Time) Delivery {
	if d.Saying != nil {
		d.Said, d.Saying = d.Saying.Says, nil
	}
	if !d.Paged.IsZero() {
		d.Reminded = now // whoever was told of a change now needs no reminder at once
	}
	return d
}

// listen asks the thread whether it has the reply that was begun.
func (d *desk) listen(ctx context.Context, out *outlet, e *entry) {
	delivery := e.record.deliveries[out.Name()]
	medium, ok := out.Sender.(replier)
	if !ok || delivery.Saying == nil {
		return
	}
	key, since := delivery.Saying.Key, delivery.Saying.Since
	d.beside(ctx, out, e, func(call context.Context) func() {
		found, err := medium.Replied(call, delivery.Receipt, key, since)
		return func() { d.listened(ctx, out, e, found, err) }
	})
}

// listened notes what the thread has.
func (d *desk) listened(ctx context.Context, out *outlet, e *entry, found bool, err error) {
	name, delivery := out.Name(), e.record.deliveries[out.Name()]
	switch {
	case errors.Is(err, ErrCannotLook):
		// The card says it in any case. A reply twice would wake people twice.
		d.o.Log.Warn("a reply was perhaps not sent", "incident", e.record.history.Latest.Incident, "error", err)
		found = true
	case errors.Is(err, ErrGone):
		found = true
	case err != nil:
		d.failed(out, e, err)
		return
	}
	if err == nil {
		d.o.Gauge.answered(name)
	}
	if found {
		delivery = delivery.said(d.o.Now())
	}
	delivery.Saying = nil
	e.record.deliveries[name] = delivery
	out.notBefore = d.o.Now().Add(d.o.Interval)
	d.keep(ctx, e)
}
