package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is one sort of trouble. Its words, split at "-", are what --only takes.
type Kind string

// The kinds of faults.
const (
	KillProcessor     Kind = "kill-processor"
	KillCollector     Kind = "kill-collector"
	KillEngine        Kind = "kill-engine"
	KillBroker        Kind = "kill-broker"
	StopProcessor     Kind = "stop-processor" // SIGSTOP for longer than a lease, then SIGCONT: two believe that they own a partition
	CutCollector      Kind = "cut-collector"
	CutProcessor      Kind = "cut-processor"
	SlowCollector     Kind = "slow-collector"
	SlowProcessor     Kind = "slow-processor"
	HalfOpenCollector Kind = "half-open-collector" // the connection is swallowed and never closed; new ones work
	HalfOpenProcessor Kind = "half-open-processor"
	StoreSlow         Kind = "store-slow"
	StoreError        Kind = "store-error" // 500 before anything was stored
	StoreLost         Kind = "store-lost"  // stored, and the answer is cut off
	StoreParts        Kind = "store-parts" // refused as having too many parts
	SlackLimit        Kind = "slack-limit" // 429 with Retry-After
	SlackError        Kind = "slack-error" // 500, not posted
	SlackLost         Kind = "slack-lost"  // 500, although posted
	SlackHang         Kind = "slack-hang"  // no answer, whether or not it was posted
	DiskBroker        Kind = "disk-broker"
	DiskSpool         Kind = "disk-spool" // full while the broker is away
	ClockJump         Kind = "clock-jump" // of a host, in what its collector plays
	Repeat            Kind = "repeat"     // what the broker holds is published again, as after its window for duplicates
)

// share is how often a kind is drawn beside the others, and for how long it lasts.
type share struct {
	kind        Kind
	weight      int
	least, most time.Duration
}

var shares = []share{
	{KillProcessor, 6, 0, 3 * time.Second},
	{KillCollector, 4, 0, 2 * time.Second},
	{KillEngine, 3, 0, 4 * time.Second},
	{KillBroker, 4, 0, 4 * time.Second},
	{StopProcessor, 3, 11 * time.Second, 15 * time.Second},
	{CutCollector, 3, 0, 5 * time.Second},
	{CutProcessor, 3, 0, 8 * time.Second},
	{SlowCollector, 2, 2 * time.Second, 8 * time.Second},
	{SlowProcessor, 2, 2 * time.Second, 8 * time.Second},
	{HalfOpenCollector, 2, 0, 0},
	{HalfOpenProcessor, 2, 0, 0},
	{StoreSlow, 2, 3 * time.Second, 8 * time.Second},
	{StoreError, 2, 2 * time.Second, 6 * time.Second},
	{StoreLost, 4, 3 * time.Second, 8 * time.Second},
	{StoreParts, 2, 2 * time.Second, 6 * time.Second},
	{SlackLimit, 2, 3 * time.Second, 8 * time.Second},
	{SlackError, 2, 3 * time.Second, 8 * time.Second},
	{SlackLost, 4, 4 * time.Second, 10 * time.Second},
	{SlackHang, 2, 4 * time.Second, 12 * time.Second},
	{DiskBroker, 1, 2 * time.Second, 5 * time.Second},
	{DiskSpool, 2, 2 * time.Second, 6 * time.Second},
	{ClockJump, 2, 0, 0},
	{Repeat, 3, 0, 0},
}

// Fault is one trouble of a run: it begins at At after the collectors began to play, and heals after For.
type Fault struct {
	Kind   Kind
	At     time.Duration
	For    time.Duration
	Target int           // which processor or collector, modulo their number
	Jump   time.Duration // of a clock
}

// String is the line of the schedule.
func (f Fault) String() string {
	text := fmt.Sprintf("%6.2fs %-19s", f.At.Seconds(), f.Kind)
	if f.For > 0 {
		text += fmt.Sprintf(" for %.2fs", f.For.Seconds())
	}
	if f.Jump != 0 {
		text += fmt.Sprintf(" by %v", f.Jump)
	}
	return strings.TrimRight(fmt.Sprintf("%s target %d", text, f.Target), " ")
}

// Plan is everything about a run that is drawn from its seed.
type Plan struct {
	Seed       uint64
	Nodes      int // servers of the broker
	Processors int
	Collectors int
	Hosts      int  // of each collector
	Troubled   int  // hosts of the whole run whose recording ends in an incident
	Cold       bool // after the end a processor is started once more, and must change nothing
	Play       time.Duration
	Faults     []Fault
}

// Shape bounds what NewPlan draws.
type Shape struct {
	Nodes      int // 0 is one
	Processors int // 0 draws two or three
	Collectors int
	Hosts      int
	Play       time.Duration // how long the recordings take when nothing goes wrong
	Only       []string      // words of kinds; none means all kinds
	None       bool          // no faults: what fails then is the pipeline or the harness itself
	Mounts     bool          // small file systems may be mounted
}

// Kinds returns the kinds that the shape allows, in the order of their declaration.
func (s Shape) Kinds() []Kind {
	var out []Kind
	for _, one := range shares {
		if s.allows(one.kind) {
			out = append(out, one.kind)
		}
	}
	return out
}

func (s Shape) allows(k Kind) bool {
	if s.None || !s.Mounts && (k == DiskBroker || k == DiskSpool) {
		return false
	}
	return len(s.Only) == 0 || slices.ContainsFunc(s.Only, func(word string) bool {
		return string(k) == word || strings.HasPrefix(string(k), word+"-") || strings.HasSuffix(string(k), "-"+word)
	})
}

// NewPlan draws a run. The same seed and shape give the same plan.
func NewPlan(seed uint64, s Shape) Plan {
	draw := rand.New(rand.NewPCG(seed, 0x10171de))
	p := Plan{Seed: seed, Nodes: max(1, s.Nodes), Processors: s.Processors, Collectors: s.Collectors, Hosts: s.Hosts, Play: s.Play, Troubled: 6 + draw.IntN(3), Cold: draw.IntN(3) == 0}
	if several := 2 + draw.IntN(2); p.Processors == 0 {
		p.Processors = several
	}
	if draw.IntN(8) == 0 {
		p.Troubled = 16 // enough for a digest
	}
	total := 0
	for _, one := range shares {
		if s.allows(one.kind) {
			total += one.weight
		}
	}
	if total == 0 {
		return p
	}
	for range 4 + draw.IntN(5) {
		at := draw.IntN(total)
		for _, one := range shares {
			if !s.allows(one.kind) {
				continue
			}
			if at -= one.weight; at >= 0 {
				continue
			}
			f := Fault{Kind: one.kind, At: between(draw, time.Second, s.Play), For: between(draw, one.least, one.most), Target: draw.IntN(12)}
			if f.Kind == ClockJump {
				f.Jump = []time.Duration{-2 * time.Hour, -25 * time.Minute, -90 * time.Second, 40 * time.Minute, 3 * time.Hour}[draw.IntN(5)]
			}
			p.Faults = append(p.Faults, f)
			break
		}
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	return p
}

// has says whether a kind is in the plan.
func (p Plan) has(k Kind) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == k })
}

func between(draw *rand.Rand, least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return (least + time.Duration(draw.Int64N(int64(most-least)))).Round(10 * time.Millisecond)
}

// String is the whole plan, for people.
func (p Plan) String() string {
	text := fmt.Sprintf("seed %d: %d broker, %d processors, %d collectors of %d hosts, %d with troubles, cold %v", p.Seed, p.Nodes, p.Processors, p.Collectors, p.Hosts, p.Troubled, p.Cold)
	for _, f := range p.Faults {
		text += "\n" + f.String()
	}
	return text
}
