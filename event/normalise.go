package event

import (
	"math"
	"slices"
	"strconv"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// normalise drops the fields that the vocabulary does not have inside the bodies it does have, and rewrites whole numbers that
// were written as floats (5.0, 1e9), as Python's JSON does. What needs nothing, or is no JSON object, comes back as it was.
func normalise(text []byte, of protoreflect.MessageDescriptor) (clean []byte, warnings []string) {
	var object map[string]jsontext.Value
	if json.Unmarshal(text, &object) != nil {
		return text, nil
	}
	n := normaliser{}
	for name, value := range object {
		field := of.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			continue // an unknown body is kept
		}
		object[name] = n.value(name, value, field)
	}
	if !n.changed {
		return text, nil
	}
	slices.Sort(n.warnings) // the order of a map is another one each time
	return reencode(object, text), n.warnings
}

type normaliser struct {
	warnings []string
	changed  bool
}

func (n *normaliser) value(path string, value jsontext.Value, field protoreflect.FieldDescriptor) jsontext.Value {
	switch {
	case field.IsMap():
		return value
	case field.IsList():
		return n.list(path, value, field)
	case field.Kind() == protoreflect.MessageKind:
		if field.Message().FullName() == "google.protobuf.Timestamp" {
			return value
		}
		return n.message(path, value, field.Message())
	case field.Kind() == protoreflect.Uint64Kind || field.Kind() == protoreflect.Int64Kind:
		return n.integer(value)
	}
	return value
}

func (n *normaliser) message(path string, value jsontext.Value, of protoreflect.MessageDescriptor) jsontext.Value {
	var object map[string]jsontext.Value
	if json.Unmarshal(value, &object) != nil || object == nil {
		return value
	}
	for name, inner := range object {
		field := of.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			n.changed = true
			n.warnings = append(n.warnings, "unknown field "+path+"."+name+" left out")
			delete(object, name)
			continue
		}
		object[name] = n.value(path+"."+name, inner, field)
	}
	return reencode(object, value)
}

func (n *normaliser) list(path string, value jsontext.Value, field protoreflect.FieldDescriptor) jsontext.Value {
	if field.Kind() != protoreflect.MessageKind {
		return value
	}
	var items []jsontext.Value
	if json.Unmarshal(value, &items) != nil {
		return value
	}
	for i := range items {
		items[i] = n.message(path+"."+strconv.Itoa(i), items[i], field.Message())
	}
	return reencode(items, value)
}

func (n *normaliser) integer(value jsontext.Value) jsontext.Value {
	if value.Kind() != '0' {
		return value
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return value // not whole, or no longer exact: the strict reader says so
	}
	whole := strconv.FormatInt(int64(f), 10)
	if whole != string(value) {
		n.changed = true
	}
	return jsontext.Value(whole)
}

func reencode(v any, otherwise jsontext.Value) jsontext.Value {
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return otherwise
	}
	return text
}
