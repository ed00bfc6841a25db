package sim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

func TestScenariosCoverTheClasses(t *testing.T) {
	count := make(map[string]int)
	names := make(map[string]bool)
	for _, s := range Scenarios() {
		if names[s.Name] || s.Planted == "" || s.Hours <= 0 {
			t.Errorf("%+v: twice, or without a word or a length", s)
		}
		names[s.Name] = true
		count[s.Class]++
	}
	for _, class := range []string{
		"retention", "stream_backlog", "fragmentation", "graph_pools", "native_growth", "oversize_request", "kv_pressure", "kv_block_leak", "host_memory", "pinned_memory",
		"fd_leak", "thread_leak", "device_fault", "software_fault", "external_kill", "stall", "exhaustion", "crash_loop", "cotenant", "capacity", "blind",
	} {
		if count[class] < 2 {
			t.Errorf("%s: %d scenarios, want two", class, count[class])
		}
		delete(count, class)
	}
	if count[""] < 20 || len(count) != 1 {
		t.Errorf("%v: want twenty healthy ones and no unknown class", count)
	}
}

// digest stands for all events of a recording.
func digest(t *testing.T, name string, seed uint64) (sum uint64, events int) {
	t.Helper()
	h := fnv.New64a()
	_, err := Play(Scenario{Name: name}, seed, 2, 0, func(e *event.Event) error {
		events++
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		h.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h.Sum64(), events
}

func TestSameSeedSameRecording(t *testing.T) {
	for _, s := range Scenarios() {
		a, n := digest(t, s.Name, 5)
		b, m := digest(t, s.Name, 5)
		c, _ := digest(t, s.Name, 6)
		if a != b || n != m || n == 0 {
			t.Errorf("%s: %x of %d events, then %x of %d", s.Name, a, n, b, m)
		}
		if a == c {
			t.Errorf("%s: another seed gives the same", s.Name)
		}
	}
}

// Every event is valid; the series add up; counters only grow within a life; times stay in order on a host, unless that is planted.
func TestEventsHoldTogether(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			c := checker{t: t, name: s.Name, sums: make(map[string]uint64), last: make(map[string]*event.Event), now: make(map[string]time.Time)}
			rec, err := Play(s, 11, 0, 0, c.check)
			if err != nil {
				t.Fatal(err)
			}
			c.settle()
			if sick := s.Class != ""; sick != (len(rec.Pids) > 0) || sick == rec.Onset.IsZero() || rec.Onset.After(rec.Start.Add(time.Duration(s.Hours*float64(time.Hour)))) {
				t.Errorf("planted in %v, onset %v", rec.Pids, rec.Onset)
			}
			// Five samples a worker and minute, up to four of them, and what happens beside.
			if limit := int(s.Hours*60+1) * 26; c.events > limit {
				t.Errorf("%d events, want at most %d", c.events, limit)
			}
			for _, pid := range rec.Pids {
				if !slices.Contains(c.pids, pid) && s.Sensors == "" {
					t.Errorf("planted in %d, which says nothing", pid)
				}
			}
		})
	}
}

type checker struct {
	t      *testing.T
	name   string
	events int
	sums   map[string]uint64
	cards  []*event.Gpu
	last   map[string]*event.Event // by process and body
	now    map[string]time.Time
	pids   []int64
}

func (c *checker) check(e *event.Event) error {
	c.events++
	if err := event.Validate(e); err != nil {
		c.t.Errorf("%v: %v", e, err)
	}
	if err := event.ValidateHost(e.Host); err != nil {
		c.t.Errorf("%v: %v", e, err)
	}
	if c.name == "healthy-late" || c.name == "healthy-clock" {
		return nil
	}
	if at := c.now[e.Host.Name]; e.At().Before(at) {
		c.t.Fatalf("%v is earlier than %v", e, at)
	} else if e.At().After(at) {
		c.now[e.Host.Name] = e.At()
		if e.Gpu != nil || e.Source != nil {
			c.settle()
		}
	}
	if pid := e.Worker.GetPid(); pid != 0 && !slices.Contains(c.pids, pid) {
		c.pids = append(c.pids, pid)
	}
	switch {
	case e.Gpu != nil:
		c.cards = append(c.cards, e.Gpu)
	case e.GpuProcess != nil:
		c.sums[e.GpuProcess.GpuUuid] += *e.GpuProcess.UsedBytes
		if *e.GpuProcess.UsedBytes%(2*mib) != 0 {
			c.t.Errorf("%v: not in pieces of 2 MiB", e)
		}
	case e.Allocator != nil:
		c.allocator(e)
	case e.Engine != nil:
		c.engine(e)
	}
	return nil
}

// settle compares what the cards hold with their processes.
func (c *checker) settle() {
	for _, g := range c.cards {
		if sum := c.sums[g.Uuid]; *g.UsedBytes < sum || *g.UsedBytes > sum && c.name != "cotenant-orphan" {
			c.t.Fatalf("%s: %d used, its processes have %d", g.Uuid, *g.UsedBytes, sum)
		}
		if *g.UsedBytes+*g.FreeBytes+*g.DriverReservedBytes != *g.TotalBytes {
			c.t.Fatalf("%v does not add up", g)
		}
	}
	c.cards = c.cards[:0]
	clear(c.sums)
}

func (c *checker) allocator(e *event.Event) {
	a := e.Allocator
	if *a.AllocatedBytes > *a.ActiveBytes || *a.ActiveBytes > *a.ReservedBytes || *a.AllocatedPeakBytes < *a.AllocatedBytes || *a.ReservedPeakBytes < *a.ReservedBytes {
		c.t.Fatalf("%v does not add up", a)
	}
	if a.LimitBytes != nil && *a.ReservedBytes > *a.LimitBytes || a.InactiveSplitBytes != nil && *a.InactiveSplitBytes > *a.ReservedBytes-*a.ActiveBytes {
		c.t.Fatalf("%v does not add up", a)
	}
	key := fmt.Sprint("allocator", e.Worker.Pid)
	if before := c.last[key]; before != nil {
		b := before.Allocator
		if b.GetOomsTotal() > a.GetOomsTotal() || b.GetAllocRetriesTotal() > a.GetAllocRetriesTotal() || b.GetDeviceAllocsTotal() > a.GetDeviceAllocsTotal() || *b.AllocatedPeakBytes > *a.AllocatedPeakBytes {
			c.t.Fatalf("a counter falls: %v, then %v", b, a)
		}
	}
	c.last[key] = e
}

func (c *checker) engine(e *event.Event) {
	g := e.Engine
	if *g.KvUsage < 0 || *g.KvUsage > 1 || g.KvEvictable != nil && *g.KvEvictable > *g.KvUsage {
		c.t.Fatalf("%v: the pool is more than full", g)
	}
	if math.IsNaN(g.GetTtftP95Seconds()) || g.GetTtftP95Seconds() < 0 || g.GetTtftP95Seconds() > 4000 {
		c.t.Fatalf("%v: latency", g)
	}
	key := fmt.Sprint("engine", e.Worker.Pid)
	if before := c.last[key]; before != nil && c.name != "healthy-counter-reset" && c.name != "healthy-frozen" {
		b := before.Engine
		if *b.FinishedTotal > *g.FinishedTotal || *b.GenerationTokensTotal > *g.GenerationTokensTotal || *b.PreemptionsTotal > *g.PreemptionsTotal {
			c.t.Fatalf("a counter falls: %v, then %v", b, g)
		}
	}
	c.last[key] = e
}

// Requests are neither lost nor made.
func TestQueueKeepsItsRequests(t *testing.T) {
	c := newChance(3, 3)
	for n := range 40 {
		e := engine{maxSeqs: 32, tokens: 32 * 900, prompt: 500, output: 300, prefillRate: 20_000, itl: 0.02, itlPerSeq: 0.0002, maxBatch: 4096, abortShare: 0.1, errorShare: 0.01, preempt: 0.1}
		if n%2 == 0 {
			e.tokens /= 2
		}
		arrived := 0.0
		for range 600 {
			w := e.step(c, 0.4*float64(n%10), time.Minute)
			arrived += w.arrived
			if w.running < 0 || w.waiting < 0 || w.running > e.capacity() || w.running != math.Trunc(w.running) {
				t.Fatalf("%+v", w)
			}
		}
		if came := e.finished + e.aborted + e.errors + e.running + e.waiting; came != arrived {
			t.Fatalf("%v arrived, %v are accounted for", arrived, came)
		}
	}
}

func TestPlayEndsWithTheFirstError(t *testing.T) {
	full := errors.New("full")
	n := 0
	_, err := Play(Scenario{Name: "healthy-steady"}, 1, 0, 0, func(*event.Event) error {
		if n++; n == 100 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) || n != 100 {
		t.Errorf("%d events, %v", n, err)
	}
	for _, bad := range []func() (Recording, error){
		func() (Recording, error) { return Play(Scenario{Name: "none"}, 1, 0, 0, nil) },
		func() (Recording, error) { return Play(Scenario{Name: "healthy-steady"}, 1, -1, 0, nil) },
		func() (Recording, error) {
			return Play(Scenario{Name: "healthy-steady"}, 1, 1, time.Hour, nil)
		},
	} {
		if _, err := bad(); err == nil {
			t.Error("is played")
		}
	}
}

// A finer step shows the same kind of worker.
func TestStepIsFree(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Second, time.Minute, 2 * time.Minute} {
		var first, last float64
		ticks := 0
		if _, err := Play(Scenario{Name: "retention-2gib"}, 4, 6, step, func(e *event.Event) error {
			if a := e.Allocator; a != nil && e.Worker.Unit == "serve-0" && e.Host.Name == "sim-000" {
				if ticks++; time.Duration(ticks)*step > 40*time.Minute && first == 0 {
					first = float64(*a.AllocatedBytes)
				}
				last = float64(*a.AllocatedBytes)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if rate := (last - first) / gib / 5.3; rate < 1.1 || rate > 3 || ticks < int(5.8*float64(time.Hour)/float64(step)) {
			t.Errorf("step %v: %v GiB/h over %d ticks", step, rate, ticks)
		}
	}
}
