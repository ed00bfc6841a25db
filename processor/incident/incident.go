// Package incident turns what rules say into the life of incidents: pairing with symptoms, severity, precedence, and an end
// that is proven. Every decision is a function of the observations in their order; it sends nothing and asks no clock.
package incident

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

// silence ends an incident that needs no proof: this long after its condition was last true (design.md, Incidents).
const silence = 24 * time.Hour

// Observation is what one rule said about one slot at one moment.
type Observation struct {
	Time   time.Time
	Slot   string
	Rule   *rules.Rule
	Result rules.Result
	Onset  time.Time // of the growth, where there is one; else zero
	Growth bool      // the class resolves on proof, not on silence
	Proven bool      // growth is proven to have ended
	Worker string    // the process life
	Fill   func(*event.Finding)
}

// Incident is one trouble of one slot. It outlives the process.
type Incident struct {
	ID, Class, Rule, Severity, State string
	Onset, LastTrue                  time.Time
	Worker                           string
	Masked                           int // restarts of the process while it was open
	transitions                      int
	explains                         []string
}

// Tracker keeps the open incidents. It is not safe for concurrent use.
type Tracker struct {
	open map[string][]*Incident // by slot
}

// NewTracker returns a tracker without incidents.
func NewTracker() *Tracker { return &Tracker{open: make(map[string][]*Incident)} }

// Open returns the open incidents of a slot.
func (t *Tracker) Open(slot string) []*Incident { return t.open[slot] }

// Observe takes one observation and returns the transition it causes, nil when it causes none.
func (t *Tracker) Observe(o Observation) *event.Finding {
	in := t.find(o)
	if in == nil {
		return t.begin(o)
	}
	if in.Worker != o.Worker {
		in.Worker = o.Worker
		in.Masked++ // the new process has to prove that the trouble is gone
	}
	if o.Result.When == rules.True {
		in.LastTrue = o.Time
	}
	if o.Result.When == rules.Unknown {
		return nil // freezes the incident: nothing is concluded from what cannot be seen
	}
	held := o.Time.Sub(in.LastTrue) < o.Rule.Keep || o.Result.When == rules.True
	switch {
	case ended(in, o):
		return t.end(in, o)
	case held && in.State == event.Suspected && o.Result.Confirm == rules.True:
		in.State = event.Confirmed
		in.raise(o)
		return in.finding(o)
	case held && in.raise(o):
		return in.finding(o)
	}
	return nil
}

func (t *Tracker) find(o Observation) *Incident {
	for _, in := range t.open[o.Slot] {
		if in.Class == o.Rule.Class {
			return in
		}
	}
	return nil
}

// begin opens an incident unless one of the slot that came first, or ranks first, explains it already.
func (t *Tracker) begin(o Observation) *event.Finding {
	if o.Result.When != rules.True || t.explained(o) {
		return nil
	}
	in := &Incident{Class: o.Rule.Class, Rule: o.Rule.ID, State: event.Suspected, Severity: o.Rule.Alone, Onset: o.Onset, LastTrue: o.Time,
		Worker: o.Worker, explains: o.Rule.Explains}
	if in.Onset.IsZero() {
		in.Onset = o.Time
	}
	in.ID = id(o.Slot, o.Rule.Class, o.Time.UTC().Format(time.RFC3339Nano))
	if o.Result.Confirm == rules.True {
		in.State = event.Confirmed
	}
	in.raise(o)
	t.open[o.Slot] = append(t.open[o.Slot], in)
	return in.finding(o)
}

func (t *Tracker) explained(o Observation) bool {
	return slices.ContainsFunc(t.open[o.Slot], func(in *Incident) bool {
		switch {
		case slices.Contains(in.explains, o.Rule.Class):
			return true
		case in.Class == "kv_block_leak":
			return o.Rule.Class == "kv_pressure"
		case o.Rule.Class == "oversize_request":
			return in.Class == "retention" || in.Class == "native_growth" // the allocation failed because of what was there already
		}
		return false
	})
}

// raise lifts the severity when a symptom stands beside the condition; it never lowers it.
func (in *Incident) raise(o Observation) bool {
	if o.Result.With == rules.True && rank(o.Rule.With) > rank(in.Severity) {
		in.Severity = o.Rule.With
		return true
	}
	return false
}

func rank(severity string) int {
	return slices.Index([]string{event.Info, event.Ticket, event.Page}, severity)
}

// ended wants proof from growth, in this process or a later one; a day of silence from everything else.
func ended(in *Incident, o Observation) bool {
	if o.Result.When == rules.True {
		return false
	}
	if o.Growth {
		return o.Proven
	}
	return o.Time.Sub(in.LastTrue) >= silence
}

func (t *Tracker) end(in *Incident, o Observation) *event.Finding {
	in.State = event.Resolved
	t.open[o.Slot] = slices.DeleteFunc(t.open[o.Slot], func(other *Incident) bool { return other == in })
	if len(t.open[o.Slot]) == 0 {
		delete(t.open, o.Slot)
	}
	return in.finding(o)
}

func (in *Incident) finding(o Observation) *event.Finding {
	in.transitions++
	f := &event.Finding{
		ID: id(in.ID, strconv.Itoa(in.transitions)), Incident: in.ID, Time: o.Time.UTC(), Slot: o.Slot, Rule: o.Rule.ID, Class: in.Class,
		State: in.State, Severity: in.Severity, Onset: in.Onset.UTC(), Advice: o.Rule.Advice,
	}
	o.Fill(f)
	return f
}

// id is short, stable, and the same when the same events are judged again.
func id(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
