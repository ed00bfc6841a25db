package event

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	maxNumber = 1e18    // a double's absolute value: what is larger was not measured, and cannot be computed with
	maxString = 4 << 10 // bytes
	maxText   = 64 << 10
)

// texts are the fields that people or programs write freely, and that nobody computes with.
var texts = map[protoreflect.Name]bool{"text": true, "error": true}

// suspect says whether an event whose body has at most so many bytes could be out of bounds. Each event is asked, so that only few are
// looked at field by field.
func suspect(e *Event, size int) bool {
	return size > maxString || e.Snapshot != nil || e.Config != nil || !plainNumbers(e) || len(e.Host.GetBootId()) > maxString || e.Worker.length() > maxString
}

// bounds refuses numbers that are not finite or larger than anything that is measured, and strings that are longer than a name or a
// text may be.
func bounds(e *Event) error { return inside("", e.ProtoReflect()) }

// plainNumbers says whether the doubles of the bodies that come often are in bounds; the others have none.
func plainNumbers(e *Event) bool {
	switch {
	case e.Gpu != nil:
		g := e.Gpu
		return plain(g.PowerWatts) && plain(g.TemperatureCelsius) && plain(g.Utilization)
	case e.Engine != nil:
		n := e.Engine
		return plain(n.KvUsage) && plain(n.KvEvictable) && plain(n.TtftP50Seconds) && plain(n.TtftP95Seconds) && plain(n.TtftP99Seconds) &&
			plain(n.ItlP50Seconds) && plain(n.ItlP95Seconds) && plain(n.ItlP99Seconds) && plain(n.E2EP95Seconds) &&
			plain(n.PromptTokensP95) && plain(n.OutputTokensP95) && plain(n.PrefixCacheHitRatio)
	case e.Process != nil:
		return plain(e.Process.CpuSecondsTotal)
	case e.Source != nil:
		return plain(e.Source.TookSeconds)
	}
	return true
}

func plain(v *float64) bool { return v == nil || math.Abs(*v) <= maxNumber } // false for NaN

// length is that of all its strings together.
func (w *Worker) length() int {
	if w == nil {
		return 0
	}
	n := len(w.Role) + len(w.Engine) + len(w.Unit) + len(w.Model) + len(w.Release) + len(w.Pod) + len(w.ContainerId)
	for _, uuid := range w.GpuUuids {
		n += len(uuid)
	}
	return n
}

// inside looks at every field of a message, and names the first that is out of bounds.
func inside(path string, m protoreflect.Message) (err error) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		at := string(field.Name())
		if path != "" {
			at = path + "." + at
		}
		switch {
		case field.IsMap():
			first := ""
			value.Map().Range(func(key protoreflect.MapKey, one protoreflect.Value) bool {
				found := single(at, field.MapKey(), key.Value())
				if found == nil {
					found = single(at+"."+Shorten(key.String(), 64), field.MapValue(), one)
				}
				if found != nil && (err == nil || key.String() < first) { // a map has no order
					first, err = key.String(), found
				}
				return true
			})
		case field.IsList():
			for i := 0; i < value.List().Len() && err == nil; i++ {
				err = single(at, field, value.List().Get(i))
			}
		default:
			err = single(at, field, value)
		}
		return err == nil
	})
	return err
}

func single(at string, field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return inside(at, value.Message())
	case protoreflect.DoubleKind:
		if v := value.Float(); !plain(&v) {
			return fmt.Errorf("field %s: %g is no measurement; leave out what was not read", at, v)
		}
	case protoreflect.StringKind:
		most := maxString
		if texts[field.Name()] {
			most = maxText
		}
		if n := len(value.String()); n > most {
			return fmt.Errorf("field %s: %d bytes, at most %d", at, n, most)
		}
	}
	return nil
}
