package ownership

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what a Run owns. They are a prometheus.Collector, of one Run.
type Metrics struct {
	mu      sync.Mutex
	held    map[string]int
	taken   map[string]int
	lost    map[string]int
	members int
	sent    time.Duration
	clock   func() time.Duration // nil before the first heartbeat
}

var (
	heldDesc    = prometheus.NewDesc("lowtide_seats_held", "Seats that this processor has.", []string{"role"}, nil)
	membersDesc = prometheus.NewDesc("lowtide_processors", "Processors that this one sees alive, itself among them.", nil, nil)
	takenDesc   = prometheus.NewDesc("lowtide_seats_taken_over_total", "Seats taken from processors that died.", []string{"role"}, nil)
	lostDesc    = prometheus.NewDesc("lowtide_seats_lost_total", "Seats that others took, or whose work found a newer owner.", []string{"role"}, nil)
	beatDesc    = prometheus.NewDesc("lowtide_heartbeat_age_seconds", "Since this processor sent the last heartbeat that the broker took.", nil, nil)
)

// NewMetrics returns metrics for Options.
func NewMetrics() *Metrics {
	return &Metrics{held: make(map[string]int), taken: make(map[string]int), lost: make(map[string]int)}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{heldDesc, membersDesc, takenDesc, lostDesc, beatDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, role := range []struct {
		desc   *prometheus.Desc
		kind   prometheus.ValueType
		counts map[string]int
	}{{heldDesc, prometheus.GaugeValue, m.held}, {takenDesc, prometheus.CounterValue, m.taken}, {lostDesc, prometheus.CounterValue, m.lost}} {
		for name, count := range maps.All(role.counts) {
			out <- prometheus.MustNewConstMetric(role.desc, role.kind, float64(count), name)
		}
	}
	out <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(m.members))
	if m.clock != nil {
		out <- prometheus.MustNewConstMetric(beatDesc, prometheus.GaugeValue, (m.clock() - m.sent).Seconds())
	}
}

// begin shows a role before anything happens to it.
func (m *Metrics) begin(role string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[role] += 0
	m.taken[role] += 0
	m.lost[role] += 0
}

func (m *Metrics) hold(role string, more int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[role] += more
}

func (m *Metrics) takenOver(role string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken[role]++
}

func (m *Metrics) lose(role string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost[role]++
}

func (m *Metrics) meet(members int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members = members
}

func (m *Metrics) beaten(sent time.Duration, clock func() time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent, m.clock = sent, clock
}
