package event

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// stamp is RFC 3339 in UTC with as many digits as there are.
const stamp = "2006-01-02T15:04:05.999999999Z07:00"

// options make a protobuf timestamp an RFC 3339 string in UTC; every other field keeps its own JSON form.
var options = json.JoinOptions(
	json.Deterministic(true),
	json.WithMarshalers(json.MarshalToFunc(func(enc *jsontext.Encoder, t *timestamppb.Timestamp) error {
		if t == nil {
			return enc.WriteToken(jsontext.Null)
		}
		return enc.WriteToken(jsontext.String(t.AsTime().Format(stamp)))
	})),
	json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, t *timestamppb.Timestamp) error {
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if token.Kind() != '"' {
			return fmt.Errorf("time is not a string")
		}
		at, err := time.Parse(time.RFC3339Nano, token.String())
		if err != nil {
			return fmt.Errorf("time %q is not RFC 3339", token.String())
		}
		t.Seconds, t.Nanos = at.Unix(), int32(at.Nanosecond())
		return nil
	})),
)

// line is an event as it stands in a recording: the fields side by side, bodies of other versions kept as they came.
type line struct {
	*Event  `json:",embed"`
	Shadow  jsontext.Value `json:"other_body,omitzero"` // hides the wire's carrier of unknown bodies
	Unknown jsontext.Value `json:",embed"`
}

// MarshalEvent returns the JSON form of an event, one line without its end.
func MarshalEvent(e *Event) ([]byte, error) {
	l, err := lineOf(e)
	if err != nil {
		return nil, err
	}
	return json.Marshal(l, options)
}

func lineOf(e *Event) (*line, error) {
	l := &line{Event: e}
	if e.OtherBody != nil {
		body := jsontext.Value(e.OtherBody.Json)
		if !body.IsValid() {
			return nil, fmt.Errorf("write body %q: its JSON is not valid", e.OtherBody.Name)
		}
		name, err := jsontext.AppendQuote(nil, e.OtherBody.Name)
		if err != nil {
			return nil, fmt.Errorf("write body name: %w", err)
		}
		l.Unknown = jsontext.Value("{" + string(name) + ":" + string(body) + "}")
	}
	return l, nil
}

// UnmarshalEvent reads the JSON form of an event and validates it, except for the host, which a Batch may fill in. Fields that
// the vocabulary does not have are kept out and named in warnings; a body that it does not have becomes OtherBody.
func UnmarshalEvent(text []byte) (e *Event, warnings []string, err error) {
	return new(decoder).event(text)
}

// unmarshalStrictly is what defines an event in JSON; a decoder's scan only anticipates it.
func unmarshalStrictly(text []byte) (e *Event, warnings []string, err error) {
	if len(text) > MaxLine {
		return nil, nil, fmt.Errorf("event is %d bytes long, the limit is %d", len(text), MaxLine)
	}
	if e, err = decodeLine(text, json.RejectUnknownMembers(true)); err == nil {
		return e, nil, nil
	}
	// The slowest path, taken only by what the strict reader refuses: unknown bodies and fields, and 5.0 where 5 is meant.
	clean, warnings := normalise(text, (*Event)(nil).ProtoReflect().Descriptor())
	if e, err = decodeLine(clean); err != nil {
		return nil, nil, err
	}
	return e, warnings, nil
}

func decodeLine(text []byte, more ...json.Options) (*Event, error) {
	l := line{Event: new(Event)}
	if err := json.Unmarshal(text, &l, append(more, options)...); err != nil {
		return nil, place(err)
	}
	if l.Event == nil {
		return nil, errors.New("cannot take a JSON null")
	}
	if len(l.Shadow) > 0 {
		return nil, errors.New("field other_body: is the wire's own; write the body under its own name")
	}
	if err := l.keepUnknown(); err != nil {
		return nil, err
	}
	return l.Event, Validate(l.Event)
}

// keepUnknown turns a top-level object that is no body of this version into OtherBody.
func (l *line) keepUnknown() error {
	if len(l.Unknown) == 0 {
		return nil
	}
	var bodies map[string]jsontext.Value
	if err := json.Unmarshal(l.Unknown, &bodies); err != nil {
		return place(err)
	}
	for name, body := range bodies {
		if len(bodies) > 1 {
			return fmt.Errorf("fields %v: an event has exactly one body", slices.Sorted(maps.Keys(bodies)))
		}
		if name == "" {
			return errors.New(`field "": a body needs a name`)
		}
		l.OtherBody = &OtherBody{Name: name, Json: body}
	}
	return nil
}

// place puts the field before the reason, in the words of the vocabulary rather than of Go.
func place(err error) error {
	var semantic *json.SemanticError
	if !errors.As(err, &semantic) {
		return err
	}
	field := strings.ReplaceAll(strings.TrimPrefix(string(semantic.JSONPointer), "/"), "/", ".")
	reason := semantic.Err
	if reason == nil {
		reason = fmt.Errorf("cannot take a JSON %v", semantic.JSONKind)
	}
	if field == "" {
		return reason
	}
	return fmt.Errorf("field %s: %w", field, reason)
}
