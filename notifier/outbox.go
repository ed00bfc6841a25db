package notifier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// Bucket is the KV bucket of the outbox.
const Bucket = "LOWTIDE_OUTBOX"

// The states of a delivery. Posting is written before the send: found after a restart, it means that nobody knows whether the
// message exists, and the medium is asked.
const (
	untold  = ""
	posting = "posting"
	told    = "told"
)

// Delivery is what one Sender last told about an incident.
type Delivery struct {
	Status  string    `json:"status,omitempty"`
	Since   time.Time `json:"since,omitzero"` // wall clock at which posting began
	Finding string    `json:"finding,omitempty"`
	State   string    `json:"state,omitempty"`
	Level   string    `json:"severity,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	Receipt Receipt   `json:"receipt,omitzero"`
}

// Action is what to do about an incident on one medium.
type Action uint8

// The actions.
const (
	Nothing Action = iota
	Post
	Update
	Recover // ask the medium whether the message exists, then post or update
)

// Decide compares what was last told with what is known now. It does no I/O; the reason is for logs and tests.
func Decide(d Delivery, h History, card Card) (Action, string) {
	switch {
	case h.Latest == nil:
		return Nothing, "nothing is known yet"
	case d.Status == posting:
		// The last run stopped between sending and noting it. Posting again could tell people twice.
		return Recover, "it is unknown whether the message was sent"
	case d.Status == untold && h.Case == nil:
		// Only the end was seen: telling people that something ended which they never heard of helps nobody.
		return Nothing, "resolved and never told"
	case d.Status == untold && h.Case.Severity == event.Info:
		return Nothing, "severity info is not announced"
	case d.Status == untold:
		// Also when it has been resolved meanwhile: while the medium was away, something happened that people should know.
		return Post, "first news of the incident"
	case d.Finding == h.Latest.ID:
		return Nothing, "this finding was told"
	case d.State == "":
		return Update, "the message was found again and what it says is unknown"
	case d.State != h.Latest.State:
		return Update, "state changed from " + d.State + " to " + h.Latest.State
	case d.Level != h.Latest.Severity:
		return Update, "severity changed from " + d.Level + " to " + h.Latest.Severity
	case d.Digest == card.Digest():
		// A judgement repeated with the same words. An edit mark on the message would only make people read it again.
		return Nothing, "the card reads the same"
	}
	return Update, "the evidence changed"
}

// record is the outbox's entry of one incident. It is the notifier's whole memory: a finding is acknowledged once it is in here.
type record struct {
	history    History
	deliveries map[string]Delivery
	storm      string            // the digest that tells about it instead of a message of its own
	members    map[string]member // of a digest, by incident
	joined     time.Time         // of a digest: wall clock at which the newest member came
	revision   uint64
}

// card is what the record has to tell.
func (r *record) card() Card {
	if r.members != nil {
		return stormCard(r)
	}
	return Build(r.history)
}

// decide says what is to be done about the record on one medium.
func (r *record) decide(sender string, card Card) (Action, string) {
	if r.storm != "" {
		return Nothing, "the digest " + r.storm + " tells about it"
	}
	return Decide(r.deliveries[sender], r.history, card)
}

// stored is the form of a record in the bucket; findings keep their own JSON form.
type stored struct {
	Incident   string              `json:"incident"`
	First      jsontext.Value      `json:"first,omitzero"`
	Case       jsontext.Value      `json:"case,omitzero"`
	Latest     jsontext.Value      `json:"latest,omitzero"`
	Deliveries map[string]Delivery `json:"deliveries,omitempty"`
	Storm      string              `json:"storm,omitempty"`
	Members    map[string]member   `json:"members,omitempty"`
	Joined     time.Time           `json:"joined,omitzero"`
}

// maxRecord bounds what is read from the bucket, in bytes.
const maxRecord = 1 << 20

func (r *record) encode() ([]byte, error) {
	s := stored{Incident: r.history.Latest.Incident, Deliveries: r.deliveries, Storm: r.storm, Members: r.members, Joined: r.joined}
	for _, one := range []struct {
		finding *event.Finding
		into    *jsontext.Value
	}{{r.history.First, &s.First}, {r.history.Case, &s.Case}, {r.history.Latest, &s.Latest}} {
		if one.finding == nil {
			continue
		}
		text, err := event.MarshalFinding(one.finding)
		if err != nil {
			return nil, fmt.Errorf("encode outbox record %q: %w", s.Incident, err)
		}
		*one.into = text
	}
	return json.Marshal(s)
}

func decodeRecord(text []byte) (*record, error) {
	if len(text) > maxRecord {
		return nil, fmt.Errorf("decode outbox record: %d bytes, the limit is %d", len(text), maxRecord)
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("decode outbox record: %w", err)
	}
	r := &record{deliveries: s.Deliveries, storm: s.Storm, members: s.Members, joined: s.Joined}
	if r.deliveries == nil {
		r.deliveries = map[string]Delivery{}
	}
	for _, one := range []struct {
		text jsontext.Value
		into **event.Finding
	}{{s.First, &r.history.First}, {s.Case, &r.history.Case}, {s.Latest, &r.history.Latest}} {
		if len(one.text) == 0 {
			continue
		}
		f, err := event.UnmarshalFinding(one.text)
		if err != nil {
			return nil, fmt.Errorf("decode outbox record %q: %w", s.Incident, err)
		}
		*one.into = f
	}
	if r.history.First == nil || r.history.Latest == nil {
		return nil, fmt.Errorf("decode outbox record %q: it has no finding", s.Incident)
	}
	return r, nil
}

// outbox is the bucket. One notifier writes it; revisions are checked, so that a stale copy is noticed and read again.
type outbox struct {
	kv     jetstream.KeyValue
	saving func() error // of a test: fails instead of the bucket
}

var legalKey = regexp.MustCompile(`^[A-Za-z0-9_=-]+$`)

// keyOf is the incident itself where the bucket allows it, else a hash of it.
func keyOf(incident string) string {
	if len(incident) <= 128 && legalKey.MatchString(incident) {
		return incident
	}
	sum := sha256.Sum256([]byte(incident))
	return "=" + hex.EncodeToString(sum[:16])
}

// load returns the record of an incident; an empty one when there is none.
func (o outbox) load(ctx context.Context, incident string) (*record, error) {
	entry, err := o.kv.Get(ctx, keyOf(incident))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return &record{deliveries: map[string]Delivery{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read outbox record %q: %w", incident, err)
	}
	r, err := decodeRecord(entry.Value())
	if err != nil {
		return nil, err
	}
	r.revision = entry.Revision()
	return r, nil
}

// save writes the record over the revision that it was read at.
func (o outbox) save(ctx context.Context, r *record) error {
	if o.saving != nil {
		if err := o.saving(); err != nil {
			return err
		}
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	key := keyOf(r.history.Latest.Incident)
	var revision uint64
	if r.revision == 0 {
		revision, err = o.kv.Create(ctx, key, text)
	} else {
		revision, err = o.kv.Update(ctx, key, text, r.revision)
	}
	if err != nil {
		return fmt.Errorf("write outbox record %q: %w", r.history.Latest.Incident, err)
	}
	r.revision = revision
	return nil
}

// all calls visit for every record. One that cannot be read is passed on as an error and does not hide the others.
func (o outbox) all(ctx context.Context, visit func(*record, error)) error {
	watcher, err := o.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return fmt.Errorf("list outbox: %w", err)
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("list outbox: %w", ctx.Err())
		case entry, open := <-watcher.Updates():
			if !open || entry == nil { // nil ends the records that were there
				return nil
			}
			r, err := decodeRecord(entry.Value())
			if err == nil {
				r.revision = entry.Revision()
			}
			visit(r, err)
		}
	}
}

// remove forgets an incident.
func (o outbox) remove(ctx context.Context, r *record) error {
	if err := o.kv.Delete(ctx, keyOf(r.history.Latest.Incident), jetstream.LastRevision(r.revision)); err != nil {
		return fmt.Errorf("remove outbox record %q: %w", r.history.Latest.Incident, err)
	}
	return nil
}
