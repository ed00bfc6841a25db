package engine

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"lowtide/collector/status"
)

const (
	maxLines   = 20_000 // of families that a table names
	maxIndices = 256    // engines behind one endpoint

	// maxLabels bounds the squares of the lines' numbers of labels, added up: the parser compares each label of a line with all before
	// it, so that one line of 80 KB takes it twelve seconds. With ten labels a line there is room for four times maxLines.
	maxLabels  = 8_000_000
	keepBuffer = 512 << 10
)

// wanted are the families that some table reads, by exact name, and whether they are histograms.
type wanted map[string]bool

// scratch is what one request needs and the next can use again.
type scratch struct {
	body   bytes.Buffer
	kept   bytes.Buffer
	parser expfmt.TextParser
	typed  map[string]bool // histograms whose TYPE line is written
}

func newScratch() *scratch {
	return &scratch{parser: expfmt.NewTextParser(model.UTF8Validation), typed: make(map[string]bool)}
}

// rest gives back the memory of an unusually long answer.
func (s *scratch) rest() {
	if s.body.Cap() > keepBuffer {
		s.body = bytes.Buffer{}
	}
	if s.kept.Cap() > keepBuffer {
		s.kept = bytes.Buffer{}
	}
}

// filter keeps the lines of the families that are wanted, since parsing costs ten times what this does, and since a line that
// nobody reads should not be able to spoil the rest. Comments go too: a family's type is the table's to say, so that a missing,
// repeated or contradicting TYPE line changes nothing. `_created` series and neighbours in name fall out here.
func (s *scratch) filter(text []byte, wanted wanted) error {
	s.kept.Reset()
	clear(s.typed)
	lines, labels := 0, 0
	for len(text) > 0 {
		line := text
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			line, text = text[:end], text[end+1:]
		} else {
			text = nil
		}
		line = bytes.Trim(line, " \t\r")
		end := bytes.IndexAny(line, "{ \t")
		if end <= 0 || line[0] == '#' {
			continue
		}
		name := line[:end]
		histogram, known := wanted[string(name)]
		if histogram {
			continue // no sample of a histogram has its bare name
		}
		if !known {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if len(name) > len(suffix) && string(name[len(name)-len(suffix):]) == suffix {
					base = name[:len(name)-len(suffix)]
				}
			}
			if len(base) == len(name) || !wanted[string(base)] {
				continue
			}
			if !s.typed[string(base)] {
				s.typed[string(base)] = true
				s.kept.WriteString("# TYPE ")
				s.kept.Write(base)
				s.kept.WriteString(" histogram\n")
			}
		}
		if lines++; lines > maxLines {
			return fmt.Errorf("%w: more than %d series of the engine's families", status.ErrUnsupported, maxLines)
		}
		of := bytes.Count(line, []byte{'"'}) / 2
		if labels += of * of; labels > maxLabels {
			return fmt.Errorf("%w: too many labels in the engine's families", status.ErrUnsupported)
		}
		s.kept.Write(line)
		s.kept.WriteByte('\n')
	}
	return nil
}

// decode parses the exposition in s.body. A parser of outside bytes may have a hole; that must cost one target, not the agent.
func (s *scratch) decode(wanted wanted) (families map[string]*dto.MetricFamily, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.parser = expfmt.NewTextParser(model.UTF8Validation)
			families, err = nil, fmt.Errorf("%w: not an exposition: parser panic: %v", status.ErrLost, r)
		}
	}()
	if err := s.filter(s.body.Bytes(), wanted); err != nil {
		return nil, err
	}
	families, err = s.parser.TextToMetricFamilies(&s.kept)
	if err != nil {
		return nil, fmt.Errorf("%w: not an exposition: %v", status.ErrLost, err)
	}
	return families, nil
}

// series is one line, or one histogram, of a family.
type series struct {
	labels    []*dto.LabelPair
	index     int64 // of the engine behind the endpoint; noIndex where no label tells
	value     float64
	histogram *dto.Histogram
}

const noIndex int64 = -1

func (s *series) label(name string) string {
	for _, l := range s.labels {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return "" // absent and empty are the same to Prometheus
}

// unknown are the texts that label values have in place of a value: Python's None, and what engines write before they know.
func unknown(text string) bool {
	switch text {
	case "", "None", "none", "null", "undefined", "unknown", "N/A":
		return true
	}
	return false
}

// reading is the part of an exposition that one table reads.
type reading struct {
	series  map[string][]series
	indices []int64 // in order; only noIndex where no series has an index
}

// read puts the series of the table's families in place.
func (m *mapping) read(families map[string]*dto.MetricFamily) (*reading, error) {
	r := &reading{series: make(map[string][]series, len(m.families))}
	seen := make(map[int64]bool)
	for _, name := range m.families {
		family := families[name]
		if family == nil {
			continue
		}
		list := make([]series, 0, len(family.Metric))
		for _, metric := range family.Metric {
			s := series{labels: metric.Label, index: noIndex, histogram: metric.Histogram, value: math.NaN()}
			if metric.Untyped != nil {
				s.value = metric.Untyped.GetValue()
			}
			for _, label := range m.table.Index {
				if n, err := strconv.ParseUint(s.label(label), 10, 31); err == nil {
					s.index = int64(n)
					break
				}
			}
			if s.index != noIndex && !seen[s.index] {
				seen[s.index] = true
				r.indices = append(r.indices, s.index)
			}
			list = append(list, s)
		}
		r.series[name] = list
	}
	if len(r.indices) > maxIndices {
		return nil, fmt.Errorf("%w: %d engine indices, more than %d", status.ErrUnsupported, len(r.indices), maxIndices)
	}
	if len(r.indices) == 0 {
		r.indices = []int64{noIndex}
	}
	slices.Sort(r.indices)
	return r, nil
}

// of returns the series of a family that belong to an index. A series without one belongs to the only index there is; of several
// it would say of each what is true of all.
func (r *reading) of(name string, index int64) []series {
	all := r.series[name]
	if len(r.indices) == 1 {
		return all
	}
	var own []series
	for _, s := range all {
		if s.index == index {
			own = append(own, s)
		}
	}
	return own
}
