package incident

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

// maxState bounds what UnmarshalState reads, in bytes: the incidents of a full tracker, each with a finding of 8 KiB.
const maxState = maxOpen * 8 << 10

// State is all that a tracker holds: what it does next depends on nothing else.
type State struct {
	Incidents []Incident // sorted by key; those of one key in the order in which they opened
	Refused   int
}

// State returns a copy of what the tracker holds. The findings in it are shared, and never written again.
func (t *Tracker) State() State {
	s := State{Refused: t.refused}
	for _, key := range slices.Sorted(maps.Keys(t.open)) {
		for _, in := range t.open[key] {
			s.Incidents = append(s.Incidents, in.clone())
		}
	}
	return s
}

// Restore replaces what the tracker holds. A second incident of the same key and class is left out.
func (t *Tracker) Restore(s State) {
	fresh := NewTracker()
	fresh.limit, fresh.refused = t.limit, s.Refused
	for _, one := range s.Incidents {
		if fresh.find(one.Key, one.Class) != nil {
			continue
		}
		in := one.clone()
		related := in.Related
		in.Related = nil
		fresh.add(&in, related)
	}
	*t = *fresh
}

func (in *Incident) clone() Incident {
	out := *in
	out.Explains, out.Related, out.Past, out.Absorbed = slices.Clone(in.Explains), slices.Clone(in.Related), slices.Clone(in.Past), slices.Clone(in.Absorbed)
	return out
}

// saved is a state as JSON. A finding has a form of its own.
type saved struct {
	Incidents []savedIncident `json:"incidents"`
	Refused   int             `json:"refused,omitzero"`
}

type savedIncident struct {
	Incident
	QuietNanoseconds int64          `json:"quiet_nanoseconds,omitzero"`
	Last             jsontext.Value `json:"last"`
}

// MarshalState returns the JSON form of a state.
func MarshalState(s State) ([]byte, error) {
	out := saved{Refused: s.Refused, Incidents: make([]savedIncident, 0, len(s.Incidents))}
	for _, in := range s.Incidents {
		last, err := event.MarshalFinding(in.Last)
		if err != nil {
			return nil, fmt.Errorf("write incident %s: %w", in.ID, err)
		}
		out.Incidents = append(out.Incidents, savedIncident{Incident: in, QuietNanoseconds: int64(in.Quiet), Last: last})
	}
	return json.Marshal(out)
}

// UnmarshalState reads the JSON form of a state, and refuses one that a tracker cannot have written.
func UnmarshalState(text []byte) (State, error) {
	if len(text) > maxState {
		return State{}, fmt.Errorf("read incidents: %d bytes, the limit is %d", len(text), maxState)
	}
	var in saved
	if err := json.Unmarshal(text, &in); err != nil {
		return State{}, fmt.Errorf("read incidents: %w", err)
	}
	out := State{Refused: in.Refused}
	for i, one := range in.Incidents {
		last, err := event.UnmarshalFinding(one.Last)
		if err == nil {
			err = one.Incident.check()
		}
		if err != nil {
			return State{}, fmt.Errorf("read incident %d of %d: %w", i+1, len(in.Incidents), err)
		}
		one.Incident.Last, one.Incident.Quiet = last, time.Duration(one.QuietNanoseconds)
		out.Incidents = append(out.Incidents, one.Incident)
	}
	return out, nil
}

func (in *Incident) check() error {
	switch {
	case in.ID == "" || in.Key == "" || in.Class == "":
		return errors.New("it has no id, key or class")
	case in.State != event.Suspected && in.State != event.Confirmed:
		return fmt.Errorf("state %q is not that of an open incident", in.State)
	case rank(in.Severity) < 0:
		return fmt.Errorf("severity %q is none", in.Severity)
	case in.Transitions < 1:
		return errors.New("it was never told")
	}
	return nil
}
