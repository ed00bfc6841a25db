package bench

import (
	"math"
	"slices"
	"time"
)

// The numbers that were promised: design.md, Numbers.
const (
	MustPerSecond = 30_000
	GoalPerSecond = 100_000
	MustSlack     = 2 * time.Second // from the failed allocation to Slack, p99
)

// Result is one run. Rates are worker-samples a second: a worker-sample is one tick of one worker, which is a reading of each of its
// four sensors. CPU is in seconds for a million of them.
type Result struct {
	Hosts          int     `json:"hosts"`
	Workers        int     `json:"workers"`
	AskedPerSecond float64 `json:"asked_per_second,omitzero"` // absent: as fast as everything goes
	Stored         bool    `json:"stored"`                    // false: ClickHouse was down
	Seconds        float64 `json:"seconds"`                   // measured, after the warm-up
	WarmSeconds    float64 `json:"warm_seconds"`
	CPUs           int     `json:"cpus"`
	EventPace      float64 `json:"event_seconds_per_second"` // how much faster than the clock the fleet lived

	PerSecond          float64 `json:"worker_samples_per_second"` // judged and stored: the smaller of the two
	PublishedPerSecond float64 `json:"published_per_second"`
	JudgedPerSecond    float64 `json:"judged_per_second"`
	StoredPerSecond    float64 `json:"stored_per_second,omitzero"`
	MessagesPerSecond  float64 `json:"messages_per_second"`
	SamplesPerMessage  float64 `json:"worker_samples_per_message"`

	CPU       CPU     `json:"cpu_seconds_per_million"`
	Others    float64 `json:"others_cores"`                    // processor seconds a second that other programs of this machine took
	Carries   float64 `json:"carries_per_second"`              // worker-samples a second for all CPUs at this cost: what it would be, had nobody else taken any
	Busy      CPU     `json:"cores"`                           // processor seconds a second
	Kernel    float64 `json:"own_kernel_seconds_per_million"`  // of CPU.Own
	Garbage   float64 `json:"own_garbage_seconds_per_million"` // of CPU.Own, by Go's own estimate
	Bytes     Bytes   `json:"bytes_per_worker_sample"`
	Memory    Memory  `json:"memory"`
	Backlog   Growth  `json:"backlog"`
	Slack     Latency `json:"event_to_slack"`
	Stages    []Stage `json:"stages,omitzero"` // each alone, after the run
	Ceilings  []Stage `json:"ceilings,omitzero"`
	Incidents int     `json:"incidents"`
	Checks    []Check `json:"checks"`
}

// CPU tells the processes apart: own is broker, judge, store client and notifier, engine the ClickHouse child, fleet the simulated hosts
// with their publishers.
type CPU struct {
	Own    float64 `json:"own"`
	Engine float64 `json:"engine"`
	Fleet  float64 `json:"fleet"`
}

// Bytes are for one worker-sample.
type Bytes struct {
	Payload    float64 `json:"payload"`
	Wire       float64 `json:"wire"`        // with subject and headers
	Stream     float64 `json:"stream"`      // as JetStream counts
	StreamDisk float64 `json:"stream_disk"` // files of the broker
	Samples    float64 `json:"clickhouse"`  // active parts of worker_samples, merged as far as they are
	AllTables  float64 `json:"clickhouse_all"`
}

// Memory is in bytes.
type Memory struct {
	OwnPeakRSS     uint64  `json:"own_peak_rss"`
	OwnRSS         uint64  `json:"own_rss"`
	EnginePeakRSS  uint64  `json:"engine_peak_rss,omitzero"`
	FleetPeakRSS   uint64  `json:"fleet_peak_rss"`
	IdleHeap       uint64  `json:"idle_heap"`             // live, before the first event
	Heap           uint64  `json:"heap"`                  // live, at the end
	HeapPer1000    float64 `json:"heap_per_1000_workers"` // of what the workers added; the broker's list of ids for 2 minutes included
	PeakRSSPer1000 float64 `json:"peak_rss_per_1000_workers"`
}

// Growth is how what waits changed, in messages.
type Growth struct {
	Start, End, Most float64 // of messages that are not judged, or not stored, whichever are more
	PerSecond        float64 `json:"per_second"`
}

// Latency is of events that were planted, from being handed to the publisher to the card at Slack's door.
type Latency struct {
	Planted int     `json:"planted"`
	Arrived int     `json:"arrived"`
	P50     float64 `json:"p50_seconds"`
	P90     float64 `json:"p90_seconds"`
	P99     float64 `json:"p99_seconds"`
	Most    float64 `json:"most_seconds"`
}

// Stage is one stage alone.
type Stage struct {
	Name      string  `json:"name"`
	PerSecond float64 `json:"per_second"`
	Unit      string  `json:"unit"`
	Million   float64 `json:"cpu_seconds_per_million"`
	Engine    float64 `json:"engine_cpu_seconds_per_million,omitzero"`
	Note      string  `json:"note,omitzero"`
}

// Check is something that must hold at the end.
type Check struct {
	Name string `json:"name"`
	Got  string `json:"got"`
	Want string `json:"want"`
	OK   bool   `json:"ok"`
}

// OK says whether every check holds.
func (r *Result) OK() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return !c.OK })
}

// LatencyOf summarises times; planted is how many were asked for.
func LatencyOf(planted int, took []time.Duration) Latency {
	slices.Sort(took)
	return Latency{Planted: planted, Arrived: len(took), P50: quantile(took, 0.5), P90: quantile(took, 0.9), P99: quantile(took, 0.99), Most: quantile(took, 1)}
}

// quantile is the nearest rank of sorted times, in seconds: with less than a hundred of them p99 is the longest.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)].Seconds()
}

// GrowthOf compares the first third of readings, taken at an even pace over a time, with the last.
func GrowthOf(readings []float64, over time.Duration) Growth {
	if len(readings) < 3 {
		return Growth{}
	}
	third := len(readings) / 3
	g := Growth{Start: mean(readings[:third]), End: mean(readings[len(readings)-third:]), Most: slices.Max(readings)}
	g.PerSecond = (g.End - g.Start) / (over.Seconds() * 2 / 3) // their middles are two thirds of the time apart
	return g
}

func mean(of []float64) float64 {
	sum := 0.0
	for _, v := range of {
		sum += v
	}
	return sum / float64(len(of))
}
