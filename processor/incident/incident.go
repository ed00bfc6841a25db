// Package incident turns what rules say into the life of incidents: pairing with symptoms, severity, precedence, restarts that
// mask, and an end that is proven. Every decision is a function of the observations in their order. It refuses to send, to ask a
// clock, and to know which causes explain which troubles: that is written in the rules.
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

// Observation is what one rule said about one key at one moment.
type Observation struct {
	Time    time.Time
	Key     string   // what the incident belongs to: a slot, a GPU (cluster/host/uuid), a source
	Related []string // other keys whose open incidents may explain this one: for a worker its GPUs and the other slots of its instance
	Rule    *rules.Rule
	Result  rules.Result
	Onset   time.Time // of the growth, where there is one; else zero: the trouble began when it was first seen
	Growth  bool      // the class resolves on proof, not on silence
	Proven  bool      // growth is proven to have ended
	Refuted string    // what shows that a suspicion is something else, as a sentence; empty: nothing does
	Proof   string    // with Proven: a sentence, "5 quiet points over 3.2 h, growth at most 1.1 MiB/h"
	// Evidence is when what the finding shows was taken, beside numbers that are read all the time: a snapshot. It is told once.
	Evidence time.Time
	Worker   string // the process life; a change means restart. Empty where no process is meant
	Exited   bool   // the process life ended with this observation
	Release  string // what runs there
	Group    string // cluster/model/release: alike incidents of one class roll up in it. Empty: alone
	Fill     func(*event.Finding)
}

// Incident is one trouble of one key. It outlives the process. The fields are its whole state.
type Incident struct {
	ID       string
	Key      string
	Class    string
	Rule     string
	State    string // suspected or confirmed
	Severity string // it never falls
	Group    string
	Release  string // in which it began
	Explains []string
	Related  []string

	Onset    time.Time
	LastTrue time.Time
	Seen     time.Time     // the newest observation
	Unheard  time.Time     // since when, by the clock of Abandon, no observation came
	Quiet    time.Duration // for how long the condition was seen to be false since LastTrue

	Worker string    // the process life that it is judged in
	Told   time.Time // when the newest evidence that was told was taken
	Heard  time.Time // the newest observation of that life
	Ended  bool      // that life has ended, and is counted in Masked
	Past   []string  // the lives before it, the newest last
	Masked int       // lives that ended while it was open, and hid it

	Absorbed    []event.Symptom // the classes that it explained while it was open, each at its first onset
	Transitions int
	Last        *event.Finding // the newest transition
}

// severityOf is what an observation asks for by itself.
func severityOf(o *Observation) string {
	if o.Result.With == rules.True && rank(o.Rule.With) > rank(o.Rule.Alone) {
		return o.Rule.With
	}
	return o.Rule.Alone
}

// raise lifts the severity; it never lowers it.
func (in *Incident) raise(severity string) bool {
	if rank(severity) <= rank(in.Severity) {
		return false
	}
	in.Severity = severity
	return true
}

func rank(severity string) int {
	return slices.Index([]string{event.Info, event.Ticket, event.Page}, severity)
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

// finding tells one transition as the observation saw it.
func (t *Tracker) finding(in *Incident, o *Observation) *event.Finding {
	if o.Evidence.After(in.Told) {
		in.Told = o.Evidence
	}
	f := &event.Finding{Rule: o.Rule.ID, Class: in.Class, Onset: in.Onset.UTC(), Advice: o.Rule.Advice, Release: o.Release,
		State: in.State, Severity: in.Severity, Time: o.Time.UTC(), Incident: in.ID}
	if o.Worker != "" {
		f.Slot = o.Key
	}
	if o.Fill != nil {
		o.Fill(f)
	}
	if in.Last != nil {
		f.Confidence = max(f.Confidence, in.Last.Confidence) // a new process has no points yet; what was known is still known
		if f.Snapshot == "" && len(f.Holders) == 0 {
			f.Snapshot, f.Holders = in.Last.Snapshot, in.Last.Holders // and so is what was seen in the one before
		}
	}
	return t.tell(in, f, o.Time)
}

// again tells one transition of an incident that the observation is not about: what was last said of it still holds.
func (t *Tracker) again(in *Incident, at time.Time) *event.Finding {
	f := *in.Last
	return t.tell(in, &f, at)
}

// tell sets what belongs to the incident, whatever the rest of the finding was made from.
func (t *Tracker) tell(in *Incident, f *event.Finding, at time.Time) *event.Finding {
	if in.Last != nil && at.Before(in.Last.Time) {
		at = in.Last.Time // a clock went back: what follows is still later, and whoever reads it must not take it for old news
	}
	in.Transitions++
	f.ID, f.Incident, f.Time = id(in.ID, strconv.Itoa(in.Transitions)), in.ID, at.UTC()
	f.Class, f.State, f.Severity, f.Onset = in.Class, in.State, in.Severity, in.Onset.UTC()
	f.MaskedRestarts, f.Group, f.Shadow = in.Masked, in.Group, t.apart
	f.Alike, f.AlikeSlots = 0, nil
	if in.State != event.Resolved {
		f.Alike, f.AlikeSlots = t.alike(in)
	}
	f.Symptoms = slices.Clone(f.Symptoms) // what was told before stays as it was told
	for _, one := range in.Absorbed {
		if !slices.Contains(f.Symptoms, one) {
			f.Symptoms = append(f.Symptoms, one)
		}
	}
	in.Last = f
	return f
}
