package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"lowtide/event"
)

const maxModels = 256 // of one engine

// mapping is a table made ready for reading.
type mapping struct {
	table    Table
	marks    []mark
	families []string // all that the table reads
	fields   []field
	config   []field
	measures [measures][]bucketRow
}

type mark struct{ family, label string }

// field is a field of a body with the rows that it may come from.
type field struct {
	of   protoreflect.FieldDescriptor
	rows []*row
}

// row is a Row whose families have their whole names.
type row struct {
	Row
	families        []string // alternatives; the first that is there counts
	of, times, over []*row
	matchers        []matcher
}

// bucketRow is a Histogram whose family has its whole names.
type bucketRow struct {
	Histogram
	families []string
	matchers []matcher
}

// matcher is a condition on a label.
type matcher struct {
	label  string
	values []string
	except bool
}

func (m *mapping) listens(port string) bool {
	n, err := strconv.Atoi(port)
	return err == nil && slices.Contains(m.table.Ports, n)
}

// The bodies that tables fill. Descriptors are constants of the generated code.
func engineBody() protoreflect.FieldDescriptors {
	return (&event.Engine{}).ProtoReflect().Descriptor().Fields()
}

func configBody() protoreflect.FieldDescriptors {
	return (&event.Config{}).ProtoReflect().Descriptor().Fields()
}

func isField(body func() protoreflect.FieldDescriptors, name string) bool {
	f := body().ByName(protoreflect.Name(name))
	return f != nil && !f.IsList()
}

// compile makes the tables ready and collects the families that any of them reads. means says whether an SLO asks for the
// requests' mean time per token; nothing else does, and an unread histogram is a seventh of the work.
func compile(tables []Table, means bool) ([]*mapping, wanted, error) {
	all := make(wanted)
	var mappings []*mapping
	for _, t := range tables {
		m := &mapping{table: t}
		c := compiler{m: m, all: all, own: make(map[string]bool)}
		for _, mk := range t.Recognise {
			for _, name := range c.names(mk.Family) {
				// A family that is read as a histogram elsewhere in the table marks the engine as well.
				m.marks = append(m.marks, mark{name, mk.Label})
			}
		}
		for _, name := range sortedKeys(t.Histograms) {
			which := slices.Index(measureNames(), name)
			if which < 0 {
				return nil, nil, fmt.Errorf("engine %s: no histogram is called %q", t.Name, name)
			}
			if which == tpot && !means {
				continue
			}
			for _, h := range t.Histograms[name] {
				m.measures[which] = append(m.measures[which], c.histogram(h))
			}
		}
		for _, name := range sortedKeys(t.Fields) {
			m.fields = append(m.fields, c.field(engineBody(), name, t.Fields[name]))
		}
		for _, name := range sortedKeys(t.Config) {
			m.config = append(m.config, c.field(configBody(), name, t.Config[name]))
		}
		for _, mk := range m.marks {
			if _, known := c.own[mk.family]; !known {
				c.want(mk.family, false)
			}
		}
		if c.err != nil {
			return nil, nil, fmt.Errorf("engine %s: %w", t.Name, c.err)
		}
		mappings = append(mappings, m)
	}
	return mappings, all, nil
}

type compiler struct {
	m   *mapping
	all wanted
	own map[string]bool
	err error
}

// names returns a family's name under every prefix.
func (c *compiler) names(family string) []string {
	if len(c.m.table.Prefixes) == 0 {
		return []string{family}
	}
	var names []string
	for _, prefix := range c.m.table.Prefixes {
		names = append(names, prefix+family)
	}
	return names
}

func (c *compiler) want(family string, histogram bool) {
	if was, known := c.all[family]; known && was != histogram && c.err == nil {
		c.err = fmt.Errorf("family %s is a histogram in one place and none in another", family)
	}
	c.all[family] = histogram
	if !c.own[family] {
		c.own[family] = true
		c.m.families = append(c.m.families, family)
	}
}

func (c *compiler) field(body protoreflect.FieldDescriptors, name string, rows []Row) field {
	f := field{of: body.ByName(protoreflect.Name(name))}
	if (f.of == nil || f.of.IsList()) && c.err == nil {
		c.err = fmt.Errorf("no field is called %q", name)
	}
	f.rows = c.rows(rows)
	return f
}

func (c *compiler) rows(rows []Row) []*row {
	var out []*row
	for _, r := range rows {
		out = append(out, c.row(r))
	}
	return out
}

func (c *compiler) row(r Row) *row {
	out := &row{Row: r, of: c.rows(r.Of), times: c.rows(r.Times), over: c.rows(r.Over), matchers: matchers(r.Match, r.Except)}
	if out.Scale == 0 {
		out.Scale = 1
	}
	switch {
	case r.Counter != "":
		base := strings.TrimSuffix(r.Counter, "_total")
		for _, name := range c.names(base) {
			out.families = append(out.families, name+"_total", name)
		}
	default:
		if name := r.Gauge + r.Info + r.Histogram; name != "" {
			out.families = c.names(name)
		}
	}
	for _, family := range out.families {
		c.want(family, r.Histogram != "")
	}
	return out
}

func (c *compiler) histogram(h Histogram) bucketRow {
	out := bucketRow{Histogram: h, families: c.names(h.Family), matchers: matchers(h.Match, h.Except)}
	if out.Scale == 0 {
		out.Scale = 1
	}
	for _, family := range out.families {
		c.want(family, true)
	}
	return out
}

func matchers(match, except map[string][]string) []matcher {
	var out []matcher
	for _, label := range sortedKeys(match) {
		out = append(out, matcher{label: label, values: match[label]})
	}
	for _, label := range sortedKeys(except) {
		out = append(out, matcher{label: label, values: except[label], except: true})
	}
	return out
}

// recognises says whether the exposition is the engine's. Every mark is a family that is there with at least one series.
func (m *mapping) recognises(r *reading) bool {
	return slices.ContainsFunc(m.marks, func(mk mark) bool {
		return slices.ContainsFunc(r.series[mk.family], func(s series) bool { return mk.label == "" || s.label(mk.label) != "" })
	})
}

// models returns the names of the models that the marks' series carry, of one index; at most maxModels, since each series is
// compared with all of them.
func (m *mapping) models(r *reading, index int64) []string {
	var models []string
	for _, mk := range m.marks {
		for _, s := range r.of(mk.family, index) {
			for _, label := range m.table.Model {
				if name := s.label(label); !unknown(name) {
					if len(models) == maxModels {
						return models
					}
					models = appendNew(models, name)
					break
				}
			}
		}
	}
	return models
}
