package notifier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
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

	Told     time.Time `json:"told,omitzero"`     // wall clock of the newest post or update
	Said     Situation `json:"said,omitzero"`     // what the thread knows
	Saying   *saying   `json:"saying,omitempty"`  // a reply that was begun: found after a restart, the thread is asked whether it has it
	Paged    time.Time `json:"paged,omitzero"`    // wall clock since when the message is that of a page
	Reminded time.Time `json:"reminded,omitzero"` // wall clock of the newest reminder
}

// saying is a reply on its way.
type saying struct {
	Key    string    `json:"key"`
	Since  time.Time `json:"since"`
	Says   Situation `json:"says"`
	Remind bool      `json:"remind,omitempty"`
}

// record is the outbox's entry of one incident. It is the notifier's whole memory: a finding is acknowledged once it is in here.
type record struct {
	history    History
	deliveries map[string]Delivery
	storm      string            // the incident, or the digest, whose message tells about it instead of one of its own
	members    map[string]member // of a digest, or of the first of alike incidents: what its message tells about, by incident
	joined     time.Time         // wall clock at which the newest member came
	outputs    []string          // of a digest: where its incidents were to be told
	hushed     bool              // it was silenced when it was first heard of
	revision   uint64
	size       int // bytes in the bucket
}

// digest says that the record is no incident but tells about a storm of them.
func (r *record) digest() bool {
	return r.history.Latest != nil && r.history.Latest.Class == stormClass && r.members != nil
}

// routed is where the incidents of a digest were to be told.
func (r *record) routed() string { return strings.Join(r.outputs, ",") }

// stored is the form of a record in the bucket; findings keep their own JSON form.
type stored struct {
	Incident   string              `json:"incident"`
	First      jsontext.Value      `json:"first,omitzero"`
	Case       jsontext.Value      `json:"case,omitzero"`
	Latest     jsontext.Value      `json:"latest,omitzero"`
	Deliveries map[string]Delivery `json:"deliveries,omitempty"`
	Storm      string              `json:"storm,omitempty"`
	Members    map[string]member   `json:"members,omitzero"` // a digest that all have left has none, and is one
	Joined     time.Time           `json:"joined,omitzero"`
	Outputs    []string            `json:"outputs,omitempty"`
	Hushed     bool                `json:"hushed,omitzero"`
}

// maxRecord bounds what is read from the bucket, in bytes.
const maxRecord = 1 << 20

func (r *record) encode() ([]byte, error) {
	s := stored{Incident: r.history.Latest.Incident, Deliveries: r.deliveries, Storm: r.storm, Members: r.members, Joined: r.joined, Outputs: r.outputs, Hushed: r.hushed}
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
	r := &record{deliveries: s.Deliveries, storm: s.Storm, members: s.Members, joined: s.Joined, outputs: s.Outputs, hushed: s.Hushed, size: len(text)}
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
	r, err := o.at(ctx, keyOf(incident))
	if r == nil && err == nil {
		r = &record{deliveries: map[string]Delivery{}}
	}
	return r, err
}

// at returns the record of a key; nil when there is none.
func (o outbox) at(ctx context.Context, key string) (*record, error) {
	entry, err := o.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read outbox record %q: %w", key, err)
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
	r.revision, r.size = revision, len(text)
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
