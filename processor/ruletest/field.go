package ruletest

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"lowtide/event"
	"lowtide/rules"
)

// sampled are the bodies that a series may be of, in the order in which they stand in a tick.
var sampled = []string{"gpu", "gpu_process", "allocator", "engine", "process", "machine"}

// happening are the bodies that come at a moment.
var happening = []string{"oom", "xid", "lifecycle", "mark", "config", "snapshot", "log", "source"}

// bodyOf returns the descriptor of a body of an event.
func bodyOf(name string) protoreflect.MessageDescriptor {
	f := (*event.Event)(nil).ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
	if f == nil || f.Message() == nil {
		return nil
	}
	return f.Message()
}

func namesOf(of protoreflect.MessageDescriptor) []string {
	out := make([]string, of.Fields().Len())
	for i := range out {
		out[i] = string(of.Fields().Get(i).Name())
	}
	return out
}

// unitsOf are the units that a field takes, by the ending of its name, and what one of them is.
func unitsOf(name string) map[string]float64 {
	switch {
	case strings.HasSuffix(name, "_bytes") || slices.Contains(budgetFields, name):
		return map[string]float64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
	case strings.HasSuffix(name, "_seconds"):
		return map[string]float64{"": 1, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
	case slices.Contains(ratioFields, name):
		return map[string]float64{"": 1, "%": 0.01}
	}
	return map[string]float64{"": 1}
}

// ratioFields are from 0 to 1, budgetFields bytes whose names do not say so.
var (
	ratioFields  = []string{"kv_usage", "kv_evictable", "utilization", "prefix_cache_hit_ratio", "fragmentation", "gpu_memory_utilization"}
	budgetFields = []string{"weights", "kv_pool", "activations", "runtime", "cached", "free", "graphs", "outside", "bytes"}
)

// set puts a number into a field of its kind; one that cannot be held is left out.
func set(m protoreflect.Message, field protoreflect.FieldDescriptor, v float64) {
	switch field.Kind() {
	case protoreflect.DoubleKind:
		m.Set(field, protoreflect.ValueOfFloat64(v))
	case protoreflect.Uint64Kind:
		m.Set(field, protoreflect.ValueOfUint64(uint64(math.Round(max(v, 0)))))
	case protoreflect.Int64Kind:
		m.Set(field, protoreflect.ValueOfInt64(int64(math.Round(v))))
	case protoreflect.BoolKind:
		m.Set(field, protoreflect.ValueOfBool(v != 0))
	}
}

// fill reads the fields of a message as they stand in a file. It reports what is wrong and returns whether nothing was.
func fill(m protoreflect.Message, e rules.Entry, what string) bool {
	good := true
	for _, one := range e.Entries() {
		field := m.Descriptor().Fields().ByName(protoreflect.Name(one.Name()))
		if field == nil {
			one.Unknown(what, namesOf(m.Descriptor()))
			good = false
			continue
		}
		good = fillField(m, field, one, what+"."+one.Name()) && good
	}
	return good
}

func fillField(m protoreflect.Message, field protoreflect.FieldDescriptor, e rules.Entry, what string) bool {
	if !field.IsList() {
		v, ok := valueOf(m.NewField, field, e, what)
		if ok {
			m.Set(field, v)
		}
		return ok
	}
	items := []rules.Entry{e}
	if e.IsList() {
		items = e.Items()
	}
	list, good := m.Mutable(field).List(), true
	for _, one := range items {
		v, ok := valueOf(func(protoreflect.FieldDescriptor) protoreflect.Value { return list.NewElement() }, field, one, what)
		if ok {
			list.Append(v)
		}
		good = good && ok
	}
	return good
}

// valueOf reads one value of a field's kind.
func valueOf(fresh func(protoreflect.FieldDescriptor) protoreflect.Value, field protoreflect.FieldDescriptor, e rules.Entry, what string) (v protoreflect.Value, ok bool) {
	if field.Kind() == protoreflect.MessageKind {
		if field.Message().FullName() == "google.protobuf.Timestamp" {
			e.Report("leave it out: times are counted from the beginning, with at:", "%s: a time of its own cannot be given", what)
			return v, false
		}
		v = fresh(field)
		return v, fill(v.Message(), e, what)
	}
	if field.Kind() == protoreflect.BoolKind {
		b, ok := e.Bool()
		return protoreflect.ValueOfBool(b), ok
	}
	word, ok := e.Word()
	if !ok {
		return v, false
	}
	if field.Kind() == protoreflect.StringKind {
		return protoreflect.ValueOfString(word.Text()), true
	}
	n := &notation{text: strings.ReplaceAll(word.Text(), " ", ""), units: unitsOf(string(field.Name()))}
	number, err := n.quantity()
	if err == nil && n.rest() != "" {
		err = n.fail("write one value", "%q is more than one value", word.Text())
	}
	if err != nil {
		var m *mistake
		if errors.As(err, &m) && strings.HasSuffix(m.what, "is no number") {
			m.hint = "write a number, such as 5, or one with its unit: 2GiB"
		}
		report(word, what, err)
		return v, false
	}
	switch field.Kind() {
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(number), true
	case protoreflect.Int64Kind, protoreflect.Uint64Kind:
		if number = math.Round(number); number < 0 && field.Kind() == protoreflect.Uint64Kind {
			word.Report(0, "counts and sizes are not below zero", "%s is %s", what, word.Text())
			return v, false
		}
		if field.Kind() == protoreflect.Int64Kind {
			return protoreflect.ValueOfInt64(int64(number)), true
		}
		return protoreflect.ValueOfUint64(uint64(number)), true
	}
	e.Report("", "%s cannot be written in a test (%s)", what, strconv.Quote(field.Kind().String()))
	return v, false
}
