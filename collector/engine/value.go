package engine

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const maxNames = 4096 // that are counted in one label

// counterKey is one counter of one engine.
type counterKey struct {
	row   *row
	index int64
}

// group is the part of a reading that one event is made of.
type group struct {
	m        *mapping
	r        *reading
	index    int64
	models   []string
	counters map[counterKey]float64 // as they were read last; rows with `delta` keep theirs here
}

// outcome says how a row went.
type outcome int

const (
	missing outcome = iota // not there: the next row may know
	pending                // there, but without a value yet: nobody else is asked
	found
)

// value returns the first row's value that is there.
func (g *group) value(rows []*row) (float64, bool) {
	for _, r := range rows {
		switch v, how := g.row(r); how {
		case found:
			return v, true
		case pending:
			return 0, false
		}
	}
	return 0, false
}

// text returns the first row's text that is there; numbers come as Go writes them.
func (g *group) text(rows []*row) (string, bool) {
	for _, r := range rows {
		if r.Label == "" {
			if v, how := g.row(r); how == found {
				return strconv.FormatFloat(v, 'f', -1, 64), true
			}
			continue
		}
		for _, s := range g.pick(r.families, r.matchers, r.OfModel) {
			if text := s.label(r.Label); !unknown(text) {
				return text, true
			}
		}
	}
	return "", false
}

func (g *group) row(r *row) (float64, outcome) {
	if len(r.of) > 0 {
		return g.derived(r)
	}
	all := g.pick(r.families, r.matchers, r.OfModel)
	if len(all) == 0 {
		return 0, missing
	}
	if r.Names != "" {
		return count(all, r.Names), found
	}
	numbers := all[:0:0]
	for _, s := range all {
		switch {
		case r.Label != "":
			v, err := strconv.ParseFloat(s.label(r.Label), 64)
			if err != nil {
				continue // "None" is no zero
			}
			s.value = v
		case r.Part == "sum" && s.histogram != nil && s.histogram.SampleSum != nil:
			s.value = s.histogram.GetSampleSum()
		case r.Part == "count" && s.histogram != nil && (s.histogram.SampleCount != nil || s.histogram.SampleCountFloat != nil):
			s.value = sampleCount(s.histogram)
		}
		if math.IsNaN(s.value) || math.IsInf(s.value, 0) {
			continue
		}
		numbers = append(numbers, s)
	}
	if len(numbers) == 0 {
		return 0, missing
	}
	return aggregate(g.highest(numbers, func(s *series) float64 { return s.value }), r.Aggregate) * r.Scale, found
}

func (g *group) derived(r *row) (float64, outcome) {
	above, how := g.sum(r.of, r.Delta)
	below, howBelow := 1.0, found
	if len(r.over) > 0 {
		below, howBelow = g.sum(r.over, r.Delta)
	}
	for _, t := range r.times {
		v, howFactor := g.row(t)
		above, how = above*v, min(how, howFactor)
	}
	switch how = min(how, howBelow); {
	case how != found:
		return 0, how
	case below == 0:
		return 0, pending // nothing divided by nothing is unknown, and what is there is there
	}
	return above / below * r.Scale, found
}

// sum adds rows up, or what they grew by. All are read even when one is missing, since each is the next reading's yesterday.
func (g *group) sum(rows []*row, delta bool) (total float64, how outcome) {
	how = found
	for _, r := range rows {
		v, one := g.row(r)
		if delta && one == found {
			key := counterKey{r, g.index}
			before, known := g.counters[key]
			g.counters[key] = v
			switch {
			case !known:
				one = pending
			case v >= before:
				v -= before
			} // a counter that fell began again at zero: all it shows is new
		}
		total += v
		how = min(how, one)
	}
	return total, how
}

// pick returns the series of the first family that has any which fit.
func (g *group) pick(families []string, matchers []matcher, ofModel bool) []series {
	for _, name := range families {
		own := g.r.of(name, g.index)
		if len(own) == 0 {
			continue
		}
		if len(matchers) == 0 && !ofModel {
			return own
		}
		var fit []series
		for _, s := range own {
			if s.fits(matchers) && (!ofModel || g.ofModel(&s)) {
				fit = append(fit, s)
			}
		}
		if len(fit) > 0 {
			return fit
		}
	}
	return nil
}

func (g *group) ofModel(s *series) bool {
	for _, label := range g.m.table.Model {
		if slices.Contains(g.models, s.label(label)) {
			return true
		}
	}
	return false
}

func (s *series) fits(matchers []matcher) bool {
	for _, m := range matchers {
		if slices.Contains(m.values, s.label(m.label)) == m.except {
			return false
		}
	}
	return true
}

// highest folds the views of one number into the highest of them: an API server of several that has heard nothing shows 0, and
// ranks that all report show the same.
func (g *group) highest(all []series, of func(*series) float64) []series {
	views := g.m.table.Views
	if len(all) < 2 || !slices.ContainsFunc(views, func(v string) bool {
		return slices.ContainsFunc(all, func(s series) bool { return s.label(v) != "" })
	}) {
		return all
	}
	place := make(map[string]int, len(all))
	var folded []series
	var parts []string
	for _, s := range all {
		parts = parts[:0]
		for _, l := range s.labels {
			if !slices.Contains(views, l.GetName()) {
				parts = append(parts, l.GetName()+"\xff"+l.GetValue())
			}
		}
		slices.Sort(parts)
		key := strings.Join(parts, "\xff")
		if i, known := place[key]; !known {
			place[key] = len(folded)
			folded = append(folded, s)
		} else if of(&s) > of(&folded[i]) {
			folded[i] = s
		}
	}
	return folded
}

func aggregate(all []series, how string) float64 {
	v := all[0].value
	for _, s := range all[1:] {
		switch how {
		case "first":
		case "max":
			v = max(v, s.value)
		case "min":
			v = min(v, s.value)
		default:
			v += s.value
		}
	}
	return v
}

// count counts the names in a label of the newest series: an info metric leaves a series behind for every state it was in, and
// its value is the time of that state.
func count(all []series, label string) float64 {
	newest := all[0]
	for _, s := range all[1:] {
		if s.value > newest.value {
			newest = s
		}
	}
	names := make(map[string]bool)
	for name := range strings.SplitSeq(newest.label(label), ",") {
		if name = strings.TrimSpace(name); !unknown(name) {
			names[name] = true
		}
		if len(names) == maxNames {
			break
		}
	}
	return float64(len(names))
}

// put sets a field from a number. What the field cannot hold, such as a rate of -1 for "not yet", is left out.
func put(body protoreflect.Message, of protoreflect.FieldDescriptor, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return
	}
	switch of.Kind() {
	case protoreflect.DoubleKind:
		body.Set(of, protoreflect.ValueOfFloat64(v))
	case protoreflect.Uint64Kind:
		if v = math.Round(v); v < 1<<63 {
			body.Set(of, protoreflect.ValueOfUint64(uint64(v)))
		}
	case protoreflect.BoolKind:
		body.Set(of, protoreflect.ValueOfBool(v != 0))
	case protoreflect.StringKind:
		body.Set(of, protoreflect.ValueOfString(strconv.FormatFloat(v, 'f', -1, 64)))
	}
}
