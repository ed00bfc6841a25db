package event

import (
	"errors"
	"fmt"
	"strings"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
)

// MaxBatch is the largest message taken from the wire, in bytes; NATS refuses more than 1 MiB by default.
const MaxBatch = 8 << 20

// ErrEnvelope marks a message that is no Batch of this schema.
var ErrEnvelope = errors.New("not a lowtide batch")

// EncodeBatch returns the protobuf form. The host stands once, in the batch.
func EncodeBatch(b *Batch) ([]byte, error) {
	if err := validateBatch(b); err != nil {
		return nil, err
	}
	if out := appendBatch(b); out != nil {
		return out, nil
	}
	lean := &Batch{Schema: Schema, Host: b.Host, Source: b.Source, Producer: b.Producer, Lane: b.Lane, Sequence: b.Sequence, Events: make([]*Event, len(b.Events))}
	for i, e := range b.Events {
		if e.Host != nil {
			e = withoutHost(e)
		}
		lean.Events[i] = e
	}
	return proto.Marshal(lean)
}

// withoutHost shares the bodies: only the outer message is new.
func withoutHost(e *Event) *Event {
	return &Event{Time: e.Time, Worker: e.Worker, Gpu: e.Gpu, GpuProcess: e.GpuProcess, Allocator: e.Allocator, Engine: e.Engine, Process: e.Process,
		Machine: e.Machine, Xid: e.Xid, Oom: e.Oom, Lifecycle: e.Lifecycle, Snapshot: e.Snapshot, Config: e.Config, Mark: e.Mark, Log: e.Log,
		Source: e.Source, OtherBody: e.OtherBody}
}

// DecodeBatch reads a message. A content type of application/json selects the JSON form, in which 64-bit integers are numbers
// and the events stand as in a recording. Every event has its host afterwards; events may share it, as those of a Reader do. Warnings
// name fields that were left out.
//
// A BatchReader reads many for much less.
func DecodeBatch(contentType string, data []byte) (*Batch, []string, error) {
	return decodeBatch(nil, contentType, data)
}

func decodeBatch(lines *decoder, contentType string, data []byte) (*Batch, []string, error) {
	if len(data) > MaxBatch {
		return nil, nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrEnvelope, len(data), MaxBatch)
	}
	if mime, _, _ := strings.Cut(contentType, ";"); strings.EqualFold(strings.TrimSpace(mime), "application/json") {
		if lines == nil {
			lines = newDecoder()
		}
		b, warnings, err := decodeJSONBatch(lines, data)
		if err != nil {
			return nil, nil, err
		}
		return b, warnings, finish(b)
	}
	b := new(Batch)
	if err := proto.Unmarshal(data, b); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	return b, nil, finish(b)
}

type jsonBatch struct {
	Schema   uint32           `json:"schema"`
	Host     *Host            `json:"host"`
	Source   string           `json:"source"`
	Producer string           `json:"producer"`
	Lane     string           `json:"lane"`
	Sequence uint64           `json:"sequence"`
	Events   []jsontext.Value `json:"events"`
}

func decodeJSONBatch(events *decoder, data []byte) (*Batch, []string, error) {
	var in jsonBatch
	if err := json.Unmarshal(data, &in, options); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrEnvelope, place(err))
	}
	if in.Schema == 0 {
		in.Schema = Schema // somebody who publishes by hand need not know
	}
	b := &Batch{Schema: in.Schema, Host: in.Host, Source: in.Source, Producer: in.Producer, Lane: in.Lane, Sequence: in.Sequence}
	var warnings []string
	for i, text := range in.Events {
		e, found, err := events.event(text)
		if err != nil {
			return nil, nil, fmt.Errorf("event %d: %w", i, err)
		}
		b.Events = append(b.Events, e)
		warnings = append(warnings, found...)
	}
	return b, warnings, nil
}

func finish(b *Batch) error {
	if err := validateBatch(b); err != nil {
		return err
	}
	if b.Schema != Schema {
		return fmt.Errorf("%w: schema %d, this version reads %d", ErrEnvelope, b.Schema, Schema)
	}
	for i, e := range b.Events {
		if e == nil {
			return fmt.Errorf("%w: event %d is empty", ErrEnvelope, i)
		}
		if e.Host == nil {
			e.Host = b.Host
		} else if e.Host.Cluster != b.Host.Cluster || e.Host.Name != b.Host.Name {
			return fmt.Errorf("event %d: host %s is not the batch's %s", i, HostKey(e.Host), HostKey(b.Host))
		}
		if err := Validate(e); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return nil
}

func validateBatch(b *Batch) error {
	if err := ValidateHost(b.Host); err != nil {
		return fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	if b.Lane != LaneSamples && b.Lane != LaneUrgent {
		return fmt.Errorf("%w: lane %q is neither %s nor %s", ErrEnvelope, b.Lane, LaneSamples, LaneUrgent)
	}
	if !isToken(b.Source) {
		return fmt.Errorf("%w: source %q is not made of letters, digits, - and _", ErrEnvelope, b.Source)
	}
	return nil
}
