package notifier

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// The limits of a silence: what is longer is refused, so that the bucket stays small and readable.
const (
	maxMatchers = 16
	maxMatch    = 512  // bytes of a matcher's value
	maxBy       = 128  // bytes of a person's name
	maxComment  = 1024 // bytes
	maxSilences = 1000 // that stand at once
)

// ErrNoSilence says that no silence has the ID.
var ErrNoSilence = errors.New("no such silence")

// MatchKeys are what a silence can match, sorted.
func MatchKeys() []string {
	return []string{"class", "cluster", "host", "incident", "model", "release", "rule", "severity", "slot", "team"}
}

// Silence keeps incidents from being announced for a while. They are judged and stored all the same.
type Silence struct {
	ID         string            `json:"id"`
	Match      map[string]string `json:"match"`                // MatchKeys → value, all of them must hold; one that ends in * matches what begins so
	Until      time.Time         `json:"until"`                // it covers nothing from then on
	NotRelease string            `json:"not_release,omitzero"` // "until the next release": it covers no incident that is known to be of another release
	By         string            `json:"by"`
	Comment    string            `json:"comment,omitzero"`
	Created    time.Time         `json:"created"`
	Ended      bool              `json:"ended,omitzero"` // by a person, before its time
	EndedBy    string            `json:"ended_by,omitzero"`
	EndedAt    time.Time         `json:"ended_at,omitzero"`
	Noticed    bool              `json:"noticed,omitzero"` // people were told that it is over
}

// Over says that the silence covers nothing any more, whatever the incident.
func (s Silence) Over(now time.Time) bool { return s.Ended || !now.Before(s.Until) }

// Covers says whether the incident of a finding is silenced now. What is absent in the finding is matched by nothing, not even by *.
func (s Silence) Covers(f *event.Finding, now time.Time) bool {
	if f == nil || s.Over(now) || len(s.Match) == 0 {
		return false
	}
	if release := matched(f, "release"); s.NotRelease != "" && release != "" && release != s.NotRelease {
		return false
	}
	return matches(s.Match, f)
}

// Everything says that the silence makes no difference between incidents.
func (s Silence) Everything() bool {
	for key, pattern := range s.Match {
		if optional := key == "team" || key == "model" || key == "release" || key == "slot"; pattern != "*" || optional {
			return false
		}
	}
	return true
}

// Matchers is the text form of what it matches: key=value, sorted, with a comma between.
func (s Silence) Matchers() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(s.Match)) {
		parts = append(parts, key+"="+s.Match[key])
	}
	return strings.Join(parts, ",")
}

// matched is what a finding has for a key of MatchKeys; empty when it has none.
func matched(f *event.Finding, key string) string {
	switch key {
	case "class":
		return f.Class
	case "severity":
		return f.Severity
	case "rule":
		return f.Rule
	case "cluster":
		return clusterOf(f)
	case "host":
		return hostOf(f)
	case "model":
		return f.Worker.GetModel()
	case "release":
		return cmp.Or(f.Release, f.Worker.GetRelease())
	case "team":
		return f.Labels["team"]
	case "slot":
		return f.Slot
	case "incident":
		return f.Incident
	}
	return ""
}

// clusterOf reads the cluster from the labels, or from a key, all of which begin with cluster/host.
func clusterOf(f *event.Finding) string {
	if cluster := f.Labels["cluster"]; cluster != "" {
		return cluster
	}
	for _, key := range []string{f.Slot, f.Subject.Key} {
		if cluster, rest, found := strings.Cut(key, "/"); found && rest != "" {
			return cluster
		}
	}
	return ""
}

// check says what is wrong with a silence.
func (s Silence) check() error {
	switch {
	case len(s.ID) > 64 || !legalKey.MatchString(s.ID):
		return fmt.Errorf("id %q is none", event.Shorten(s.ID, 64))
	case len(s.Match) == 0:
		return errors.New("it matches nothing")
	case len(s.Match) > maxMatchers:
		return fmt.Errorf("%d matchers, the limit is %d", len(s.Match), maxMatchers)
	case s.Until.IsZero():
		return errors.New("it has no end")
	case len(s.By) > maxBy:
		return fmt.Errorf("by: %d bytes, the limit is %d", len(s.By), maxBy)
	case len(s.Comment) > maxComment:
		return fmt.Errorf("comment: %d bytes, the limit is %d", len(s.Comment), maxComment)
	case len(s.NotRelease) > maxMatch:
		return fmt.Errorf("release: %d bytes, the limit is %d", len(s.NotRelease), maxMatch)
	}
	for key, pattern := range s.Match {
		switch {
		case !slices.Contains(MatchKeys(), key):
			return fmt.Errorf("matcher %q is unknown", event.Shorten(key, 64))
		case pattern == "" || len(pattern) > maxMatch || !utf8.ValidString(pattern):
			return fmt.Errorf("matcher %s: the value must be text of 1 to %d bytes", key, maxMatch)
		case strings.Contains(strings.TrimSuffix(pattern, "*"), "*"):
			return fmt.Errorf("matcher %s: a * may stand only at the end", key)
		}
	}
	return nil
}

func decodeSilence(key string, text []byte) (Silence, error) {
	if len(text) > broker.MaxSilence {
		return Silence{}, fmt.Errorf("decode silence %q: %d bytes, the limit is %d", key, len(text), broker.MaxSilence)
	}
	var s Silence
	if err := json.Unmarshal(text, &s); err != nil {
		return Silence{}, fmt.Errorf("decode silence %q: %w", key, err)
	}
	if err := s.check(); err != nil {
		return Silence{}, fmt.Errorf("decode silence %q: %w", key, err)
	}
	if s.ID != key {
		return Silence{}, fmt.Errorf("decode silence %q: it calls itself %q", key, s.ID)
	}
	return s, nil
}

// Silences is the bucket of silences, in memory. Its methods are safe for several goroutines; a nil *Silences has none.
type Silences struct{ book *book[Silence] }

// OpenSilences reads the bucket. The log, which may be nil, hears of entries that cannot be read: those silence nothing.
func OpenSilences(ctx context.Context, js jetstream.JetStream, log *slog.Logger) (*Silences, error) {
	b, err := openBook(ctx, js, broker.BucketSilences, log, decodeSilence)
	if err != nil {
		return nil, fmt.Errorf("open silences: %w", err)
	}
	return &Silences{b}, nil
}

// Watch keeps the silences current until ctx ends, and then returns nil.
func (s *Silences) Watch(ctx context.Context) error { return s.book.read(ctx, false) }

// Changed gets a value after silences were added or ended; several changes may be one value.
func (s *Silences) Changed() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.book.changed
}

// List returns all silences, those that are over included, the newest first.
func (s *Silences) List() []Silence {
	if s == nil {
		return nil
	}
	all := s.book.all()
	slices.SortStableFunc(all, func(a, b Silence) int { return b.Created.Compare(a.Created) })
	return all
}

// Covering returns the silences that keep the finding's incident from being announced now, the one that lasts longest first.
func (s *Silences) Covering(f *event.Finding, now time.Time) []Silence {
	covering := slices.DeleteFunc(s.List(), func(one Silence) bool { return !one.Covers(f, now) })
	slices.SortStableFunc(covering, func(a, b Silence) int { return b.Until.Compare(a.Until) })
	return covering
}

// Next returns when the next silence ends by itself; not ok when none stands.
func (s *Silences) Next(now time.Time) (at time.Time, ok bool) {
	for _, one := range s.List() {
		if !one.Over(now) && (!ok || one.Until.Before(at)) {
			at, ok = one.Until, true
		}
	}
	return at, ok
}

// Unnoticed returns the silences that are over, ended or expired, and of which people were not told so, the earliest end first.
func (s *Silences) Unnoticed(now time.Time) []Silence {
	over := slices.DeleteFunc(s.List(), func(one Silence) bool { return one.Noticed || !one.Over(now) })
	slices.SortStableFunc(over, func(a, b Silence) int { return a.end().Compare(b.end()) })
	return over
}

// end is when it was over, or will be.
func (s Silence) end() time.Time {
	if s.Ended {
		return s.EndedAt
	}
	return s.Until
}

// Notice notes that people were told that a silence is over.
func (s *Silences) Notice(ctx context.Context, id string) error {
	_, err := s.edit(ctx, id, func(one *Silence) bool {
		was := one.Noticed
		one.Noticed = true
		return !was
	})
	return err
}

// Add writes a new silence and returns it with its ID. It sweeps away those that were over 30 days ago.
func (s *Silences) Add(ctx context.Context, one Silence) (Silence, error) {
	standing := 0
	for _, old := range s.List() {
		switch {
		case !old.Over(one.Created):
			standing++
		case one.Created.Sub(old.end()) > keepFor:
			if err := s.book.remove(ctx, old.ID); err != nil {
				return Silence{}, fmt.Errorf("add silence: %w", err)
			}
		}
	}
	if standing >= maxSilences {
		return Silence{}, &broker.Failure{What: fmt.Sprintf("add silence: %d stand already", standing), Remedy: "end some with `lowtide silence end ID`, or match more with one"}
	}
	var id [5]byte
	_, _ = rand.Read(id[:]) // never fails
	one.ID = "s-" + hex.EncodeToString(id[:])
	one.By, one.Comment = tidy(one.By), tidy(one.Comment)
	if err := one.check(); err != nil {
		return Silence{}, fmt.Errorf("add silence: %w", err)
	}
	added, err := s.book.change(ctx, one.ID, func(_ Silence, found bool) ([]byte, error) {
		if found {
			return nil, fmt.Errorf("id %s is taken", one.ID)
		}
		return json.Marshal(one)
	})
	if err != nil {
		return Silence{}, fmt.Errorf("add silence: %w", err)
	}
	return added, nil
}

// End ends a silence before its time. One that is over already stays as it is.
func (s *Silences) End(ctx context.Context, id, by string, at time.Time) (Silence, error) {
	return s.edit(ctx, id, func(one *Silence) bool {
		if one.Over(at) {
			return false
		}
		one.Ended, one.EndedBy, one.EndedAt = true, tidy(by), at.UTC()
		return true
	})
}

func (s *Silences) edit(ctx context.Context, id string, change func(*Silence) bool) (Silence, error) {
	if len(id) > 64 || !legalKey.MatchString(id) {
		return Silence{}, fmt.Errorf("silence %q: %w", event.Shorten(id, 64), ErrNoSilence)
	}
	edited, err := s.book.change(ctx, id, func(old Silence, found bool) ([]byte, error) {
		if !found {
			return nil, ErrNoSilence
		}
		if !change(&old) {
			return nil, nil
		}
		return json.Marshal(old)
	})
	if err != nil {
		return Silence{}, fmt.Errorf("silence %s: %w", id, err)
	}
	return edited, nil
}
