package notifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// ActionKind is what a person did about an incident.
type ActionKind string

// The actions of people. None of them changes what the judge says.
const (
	Acknowledge ActionKind = "acknowledge" // somebody works on it
	Resolve     ActionKind = "resolve"     // somebody says it is over
	NotALeak    ActionKind = "not_a_leak"  // feedback: the verdict was wrong
	WasRight    ActionKind = "was_right"   // feedback: the verdict was right
	Remark      ActionKind = "note"
)

// The limits of what is kept of people's actions. Feedback is kept long, since rules are judged by it.
const (
	maxActions   = 64   // of one incident; the oldest go first
	maxNote      = 1024 // bytes
	maxIncident  = 512  // bytes of an incident's ID
	keepActions  = 180 * 24 * time.Hour
	actionsSwept = broker.ActionBytes * 3 / 4 // from this size on the bucket is swept
)

// Action is one thing that a person did about an incident.
type Action struct {
	Incident string     `json:"incident"`
	Kind     ActionKind `json:"kind"`
	By       string     `json:"by"`
	Via      string     `json:"via,omitzero"` // slack, cli or webhook
	At       time.Time  `json:"at"`
	Note     string     `json:"note,omitzero"`

	// What was said of the incident when the person acted: what is worse later was not meant. Empty when unknown.
	Class    string `json:"class,omitzero"`
	State    string `json:"state,omitzero"`
	Severity string `json:"severity,omitzero"`
}

// On returns the action with the finding that the person saw.
func (a Action) On(f *event.Finding) Action {
	if f != nil {
		a.Incident, a.Class, a.State, a.Severity = f.Incident, f.Class, f.State, f.Severity
	}
	return a
}

// Meant says that a finding tells nothing worse than what the person saw: neither a higher severity, nor a confirmation of a suspicion,
// nor that what was over has come back.
func (a Action) Meant(f *event.Finding) bool {
	severities, states := []string{event.Info, event.Ticket, event.Page}, []string{event.Resolved, event.Suspected, event.Confirmed}
	if f.State == event.Resolved {
		return true
	}
	return rank(severities, f.Severity) <= rank(severities, a.Severity) && rank(states, f.State) <= rank(states, a.State)
}

// rank is the place in a rising order. What is unknown stands above all: nothing is worse than what nobody knows.
func rank(order []string, word string) int {
	if at := slices.Index(order, word); at >= 0 {
		return at
	}
	return len(order)
}

// check says what is wrong with an action. A kind that a newer program wrote is no error.
func (a Action) check() error {
	switch {
	case a.Incident == "" || len(a.Incident) > maxIncident:
		return fmt.Errorf("an action needs an incident of 1 to %d bytes", maxIncident)
	case a.Kind == "" || len(a.Kind) > 64:
		return errors.New("an action needs a kind")
	case len(a.By) > maxBy:
		return fmt.Errorf("by: %d bytes, the limit is %d", len(a.By), maxBy)
	case len(a.Via) > maxBy:
		return fmt.Errorf("via: %d bytes, the limit is %d", len(a.Via), maxBy)
	case len(a.Note) > maxNote:
		return fmt.Errorf("note: %d bytes, the limit is %d", len(a.Note), maxNote)
	case len(a.Class)+len(a.State)+len(a.Severity) > maxBy:
		return errors.New("class, state and severity are too long")
	case a.At.IsZero():
		return errors.New("an action needs a time")
	}
	return nil
}

// Stance is where people stand on an incident, folded from their actions. A nil pointer means that nobody did.
type Stance struct {
	Acknowledged *Action  // the latest
	Resolved     *Action  // the latest
	Feedback     []Action // the latest of every person, in the order they spoke
	Notes        []Action
}

// Standing folds actions, which come in the order they were done.
func Standing(actions []Action) Stance {
	var s Stance
	for i, a := range actions {
		switch a.Kind {
		case Acknowledge:
			s.Acknowledged = &actions[i]
		case Resolve:
			s.Resolved = &actions[i]
		case NotALeak, WasRight:
			s.Feedback = append(slices.DeleteFunc(s.Feedback, func(old Action) bool { return old.By == a.By }), a)
		case Remark:
			s.Notes = append(s.Notes, a)
		}
	}
	return s
}

// AcknowledgedFor returns who works on what the finding says: nil when nobody does, or when it has become worse since.
func (s Stance) AcknowledgedFor(f *event.Finding) *Action { return meant(s.Acknowledged, f) }

// ResolvedFor returns who said that the incident is over: nil when nobody did, or when it has become worse since.
func (s Stance) ResolvedFor(f *event.Finding) *Action { return meant(s.Resolved, f) }

func meant(a *Action, f *event.Finding) *Action {
	if a == nil || f == nil || !a.Meant(f) {
		return nil
	}
	return a
}

// Actions is the bucket of people's actions, in memory. Its methods are safe for several goroutines; a nil *Actions has none.
type Actions struct{ book *book[[]Action] }

// OpenActions reads the bucket. The log, which may be nil, hears of entries that cannot be read.
func OpenActions(ctx context.Context, js jetstream.JetStream, log *slog.Logger) (*Actions, error) {
	b, err := openBook(ctx, js, broker.BucketActions, log, decodeActions)
	if err != nil {
		return nil, fmt.Errorf("open actions: %w", err)
	}
	return &Actions{b}, nil
}

// Watch keeps the actions current until ctx ends, and then returns nil.
func (a *Actions) Watch(ctx context.Context) error { return a.book.read(ctx, false) }

// Changed gets a value after people did something; several actions may be one value. News says about what.
func (a *Actions) Changed() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.book.changed
}

// News returns the incidents about which people did something since it was called last, in the form of the outbox's keys.
func (a *Actions) News() []string {
	if a == nil {
		return nil
	}
	return a.book.take()
}

// Of returns what people did about an incident, in the order they did it. The caller must not change it.
func (a *Actions) Of(incident string) []Action {
	if a == nil {
		return nil
	}
	list, _ := a.book.get(keyOf(incident))
	return list
}

// All returns what people did about every incident.
func (a *Actions) All() map[string][]Action {
	all := map[string][]Action{}
	if a == nil {
		return all
	}
	for _, list := range a.book.all() {
		all[list[0].Incident] = list
	}
	return all
}

// Add writes an action behind those that there are, and returns all. The same action again changes nothing: a button may be delivered
// twice.
func (a *Actions) Add(ctx context.Context, one Action) ([]Action, error) {
	one.By, one.Via, one.Note, one.At = tidy(one.By), tidy(one.Via), tidy(one.Note), one.At.UTC()
	if err := one.check(); err != nil {
		return nil, fmt.Errorf("add action: %w", err)
	}
	if !slices.Contains([]ActionKind{Acknowledge, Resolve, NotALeak, WasRight, Remark}, one.Kind) {
		return nil, fmt.Errorf("add action: kind %q is unknown", one.Kind)
	}
	if err := a.sweep(ctx, one.At); err != nil {
		return nil, fmt.Errorf("add action: %w", err)
	}
	list, err := a.book.change(ctx, keyOf(one.Incident), func(old []Action, _ bool) ([]byte, error) {
		if slices.Contains(old, one) {
			return nil, nil
		}
		list := append(slices.Clone(old), one)
		return json.Marshal(list[max(0, len(list)-maxActions):])
	})
	if err != nil {
		return nil, fmt.Errorf("add action: %w", err)
	}
	return list, nil
}

// sweep makes room in a bucket that fills, which would refuse the next acknowledgement: it forgets incidents that nobody touched for long.
func (a *Actions) sweep(ctx context.Context, now time.Time) error {
	status, err := a.book.kv.Status(ctx)
	if err != nil {
		return fmt.Errorf("ask for the size of bucket %s: %w", a.book.kv.Bucket(), err)
	}
	if status.Bytes() < actionsSwept {
		return nil
	}
	for _, list := range a.book.all() {
		if now.Sub(list[len(list)-1].At) > keepActions {
			if err := a.book.remove(ctx, keyOf(list[0].Incident)); err != nil {
				return err
			}
		}
	}
	return nil
}

func decodeActions(key string, text []byte) ([]Action, error) {
	if len(text) > broker.MaxActions {
		return nil, fmt.Errorf("decode actions %q: %d bytes, the limit is %d", key, len(text), broker.MaxActions)
	}
	var list []Action
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("decode actions %q: %w", key, err)
	}
	if len(list) == 0 || len(list) > maxActions {
		return nil, fmt.Errorf("decode actions %q: %d actions, want 1 to %d", key, len(list), maxActions)
	}
	for _, one := range list {
		if err := one.check(); err != nil {
			return nil, fmt.Errorf("decode actions %q: %w", key, err)
		}
		if keyOf(one.Incident) != key {
			return nil, fmt.Errorf("decode actions %q: one is about incident %q", key, event.Shorten(one.Incident, 64))
		}
	}
	return list, nil
}
