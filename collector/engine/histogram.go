package engine

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// The histograms that a table may name.
const (
	ttft         = iota // time to first token, per request
	itl                 // time between tokens
	tpot                // mean time per output token, per request: what an SLO on itl prefers, since it counts requests
	e2e                 // whole request
	promptTokens        // per request
	outputTokens
	measures
)

func measureNames() []string {
	return []string{"ttft", "itl", "tpot", "e2e", "prompt_tokens", "output_tokens"}
}

// distribution is a histogram as cumulative counts up to each edge, in the order of the edges; the last edge is +Inf.
type distribution struct {
	edges  []float64
	counts []float64
}

func (d distribution) known() bool { return len(d.edges) > 0 }

func (d distribution) total() float64 {
	if !d.known() {
		return 0
	}
	return d.counts[len(d.counts)-1]
}

func sampleCount(h *dto.Histogram) float64 {
	if h.SampleCountFloat != nil {
		return h.GetSampleCountFloat()
	}
	return float64(h.GetSampleCount())
}

// measure reads a histogram of the group: the first of its rows that is there.
func (g *group) measure(which int) distribution {
	for _, row := range g.m.measures[which] {
		all := g.pick(row.families, row.matchers, row.OfModel)
		all = slices.DeleteFunc(slices.Clone(all), func(s series) bool { return s.histogram == nil || len(s.histogram.Bucket) == 0 })
		if len(all) == 0 {
			continue
		}
		all = g.highest(all, func(s *series) float64 { return sampleCount(s.histogram) })
		return add(all, row.Scale)
	}
	return distribution{}
}

// add adds up series that have the same edges; with others, or with counts that are none, nothing is known.
func add(all []series, scale float64) distribution {
	var sum distribution
	for i := range all {
		d, ok := buckets(all[i].histogram, scale)
		if !ok {
			return distribution{}
		}
		if i == 0 {
			sum = d
			continue
		}
		if !slices.Equal(sum.edges, d.edges) {
			return distribution{}
		}
		for j, n := range d.counts {
			sum.counts[j] += n
		}
	}
	return sum
}

func buckets(h *dto.Histogram, scale float64) (distribution, bool) {
	list := h.Bucket
	byEdge := func(a, b *dto.Bucket) int {
		switch x, y := a.GetUpperBound(), b.GetUpperBound(); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(list, byEdge) {
		list = slices.SortedFunc(slices.Values(list), byEdge)
	}
	d := distribution{edges: make([]float64, 0, len(list)+1), counts: make([]float64, 0, len(list)+1)}
	for _, b := range list {
		edge, n := b.GetUpperBound()*scale, float64(b.GetCumulativeCount())
		if b.CumulativeCountFloat != nil {
			n = b.GetCumulativeCountFloat()
		}
		if math.IsNaN(edge) || math.IsInf(edge, -1) || !isCount(n) {
			return distribution{}, false
		}
		if last := len(d.edges) - 1; last >= 0 && edge == d.edges[last] {
			d.counts[last] = max(d.counts[last], n) // the edge twice
			continue
		}
		d.edges, d.counts = append(d.edges, edge), append(d.counts, n)
	}
	if !math.IsInf(d.edges[len(d.edges)-1], 1) {
		n := sampleCount(h)
		if h.SampleCount == nil && h.SampleCountFloat == nil || !isCount(n) {
			return distribution{}, false // how many lie above the last edge is not known
		}
		d.edges, d.counts = append(d.edges, math.Inf(1)), append(d.counts, n)
	}
	d.level()
	return d, true
}

// isCount says whether a number of observations can be one. From 2^53 on it is not exact, and sums of such have no end.
func isCount(n float64) bool { return n >= 0 && n < 1<<53 }

// level makes the counts rise from edge to edge: they are read one after the other while requests go on, so a bucket can show
// fewer than the one before.
func (d distribution) level() {
	for i := 1; i < len(d.counts); i++ {
		d.counts[i] = max(d.counts[i], d.counts[i-1])
	}
}

// since returns what was observed after an earlier reading. A total that fell is a counter that began again: all it shows is
// new. Without an earlier reading of the same edges nothing is known.
func (d distribution) since(before distribution) distribution {
	if !d.known() || !slices.Equal(d.edges, before.edges) {
		return distribution{}
	}
	if d.total() < before.total() {
		return d
	}
	delta := distribution{edges: d.edges, counts: make([]float64, len(d.counts))}
	for i := range d.counts {
		delta.counts[i] = min(max(0, d.counts[i]-before.counts[i]), d.total()-before.total())
	}
	delta.level()
	return delta
}

// quantile estimates as Prometheus' histogram_quantile does: linear within the bucket, the lowest bucket beginning at 0; in the
// bucket up to +Inf it is the highest finite edge. False when nothing was observed.
func (d distribution) quantile(q float64) (float64, bool) {
	total := d.total()
	if total <= 0 || len(d.edges) < 2 {
		return 0, false
	}
	rank := q * total
	i := slices.IndexFunc(d.counts, func(n float64) bool { return n >= rank })
	if i == len(d.edges)-1 {
		return d.edges[i-1], true
	}
	if i == 0 {
		if d.edges[0] <= 0 {
			return d.edges[0], true
		}
		return d.edges[0] * rank / d.counts[0], true
	}
	low, below := d.edges[i-1], d.counts[i-1]
	return low + (d.edges[i]-low)*(rank-below)/(d.counts[i]-below), true
}

// within returns how many observations certainly lie at or below the limit, and the edge that says so: the largest one that is
// not above it.
func (d distribution) within(limit float64) (n, edge float64) {
	for i, e := range d.edges {
		if e > limit*(1+1e-9) { // 0.1 s as a duration and 0.1 as an edge are the same
			break
		}
		n, edge = d.counts[i], e
	}
	return n, edge
}

// fill sets the quantiles of what was observed since the last reading.
func fill(e *event.Engine, deltas *[measures]distribution) {
	set := func(to **float64, which int, q float64) {
		if v, ok := deltas[which].quantile(q); ok && v >= 0 && !math.IsInf(v, 0) { // edges are the target's to say
			*to = proto.Float64(v)
		}
	}
	set(&e.TtftP50Seconds, ttft, 0.50)
	set(&e.TtftP95Seconds, ttft, 0.95)
	set(&e.TtftP99Seconds, ttft, 0.99)
	set(&e.ItlP50Seconds, itl, 0.50)
	set(&e.ItlP95Seconds, itl, 0.95)
	set(&e.ItlP99Seconds, itl, 0.99)
	set(&e.E2EP95Seconds, e2e, 0.95)
	set(&e.PromptTokensP95, promptTokens, 0.95)
	set(&e.OutputTokensP95, outputTokens, 0.95)
}
