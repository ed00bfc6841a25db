package worker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

// horizon is what the shipped rule asks for: the upper bound of the time under an hour.
const horizon = 1.0

// noise is first-order autoregressive with a correlation of 0.5 and this standard deviation, in bytes, as in trend-detection.md.
type noise struct {
	random *rand.Rand
	sigma  float64
	last   float64
}

func (n *noise) next() float64 {
	n.last = 0.5*n.last + math.Sqrt(1-0.25)*n.sigma*n.random.NormFloat64()
	return n.last
}

// play gives minutes of a card on which `given` cannot be given back, beside 6 GiB outside and a reserve that follows, up to 80 GiB; and
// of an engine with so many running. It returns the first minute in which memory is said to end within the hour, -1 for never.
func (s *stage) play(minutes int, given func(i int) float64, running func(i int) int) (first int) {
	first = -1
	const outside, total = 6.0 * gib, 80.0 * gib
	reserved := 0.0
	for i := range minutes {
		live := max(0, given(i)-outside)
		reserved = max(reserved, live)
		used := reserved + outside
		s.give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: event.Ptr(uint64(total)), FreeBytes: event.Ptr(uint64(max(0, total-used)))}})
		s.give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: event.Ptr(uint64(used))}})
		s.give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(live)), ActiveBytes: event.Ptr(uint64(live)), ReservedBytes: event.Ptr(uint64(reserved))}})
		s.minutes(1, func(_ int, e *event.Engine) {
			e.Running, e.FinishedTotal = u(running(i)), u(int(s.at.Unix()/60))
		})
		if high, known := s.Sample().Number(variable.Must("imminent.hours_high")); known && high < horizon && first < 0 {
			first = i
		}
	}
	return first
}

func eight(int) int { return 8 }

// A leak of 400 MB a minute at 20 GiB below the end is found within a quarter of an hour, and one that is ten times slower is not paged
// while the end is hours away.
func TestAFastLeakIsImminent(t *testing.T) {
	for seed := range uint64(50) {
		n := noise{random: rand.New(rand.NewPCG(seed, 1)), sigma: 128 * mib}
		s := newStage(t)
		const onset = 60
		found := s.play(onset+20, func(i int) float64 { return 60*gib + n.next() + 400e6*float64(max(0, i-onset)) }, eight)
		if found < onset+11 || found > onset+16 {
			t.Errorf("seed %d: found %d minutes after its onset", seed, found-onset)
		}
	}
	s := newStage(t)
	if found := s.play(120, func(i int) float64 { return 40*gib + 40e6*float64(i) }, eight); found >= 0 {
		t.Errorf("16 hours before the end it is called imminent, at minute %d", found)
	}
}

// The bounds hold the truth: 20 GiB at 400 MB a minute.
func TestTheBoundsOfAnImminentEnd(t *testing.T) {
	s := newStage(t)
	s.play(66, func(i int) float64 { return 40*gib + 400e6*float64(max(0, i-50)) }, eight)
	low, high := s.number("imminent.hours_low"), s.number("imminent.hours_high")
	truth := (40*gib - 15*400e6) / 400e6 / 60
	if !(low <= truth*1.01 && truth*0.99 <= high) || math.Abs(s.number("imminent.growth")-24e9) > 0.2*24e9 {
		t.Errorf("between %v and %v hours, growth %v; want %v and 24e9", low, high, s.number("imminent.growth"), truth)
	}
}

func TestWhatIsNotImminent(t *testing.T) {
	type world struct {
		given   func(n *noise, i int) float64
		running func(i int) int
		ready   int // minute in which the engine is ready, when not long ago
		config  *event.Config
	}
	level := func(at float64) func(n *noise, i int) float64 {
		return func(n *noise, i int) float64 { return at*gib + n.next() }
	}
	fill := func(n *noise, i int) float64 { return 60*gib + n.next() + min(8*gib, float64(max(0, i-5))*gib) }
	for name, w := range map[string]world{
		"noise, half a GiB below the end":     {given: level(79.5)},
		"noise, far away":                     {given: level(50)},
		"1 GiB/min to a cap of 8, in warm-up": {given: fill, ready: 2},
		"the same, declared, after warm-up": {config: &event.Config{DeclaredCaches: []*event.DeclaredCache{cache("adapters", 8)}},
			given: func(n *noise, i int) float64 { return 70*gib + n.next() + min(8*gib, float64(max(0, i-60))*gib/3) }},
		"a cap of 8 GiB reached in eight minutes, undeclared": {given: func(n *noise, i int) float64 { return 70*gib + n.next() + min(8*gib, float64(max(0, i-60))*gib) }},
		"bursts of 20 GiB": {given: func(n *noise, i int) float64 {
			burst := 0.0
			if i%40 < 9 {
				burst = 20 * gib * math.Sin(float64(i%40)/9*math.Pi)
			}
			return 58*gib + n.next() + max(0, burst)
		}},
		"a load that rises": {running: func(i int) int { return 8 + max(0, min(40, i-60)) },
			given: func(n *noise, i int) float64 { return 60*gib + n.next() + 0.45*gib*float64(max(0, min(40, i-60))) }},
		"one step of 10 GiB":           {given: func(n *noise, i int) float64 { return 66*gib + n.next() + 10*gib*float64(min(1, i/60)) }},
		"two steps, six minutes apart": {given: func(n *noise, i int) float64 { return 66*gib + n.next() + 5*gib*float64(min(1, i/60)+min(1, i/66)) }},
		"a saw of the collector":       {given: func(n *noise, i int) float64 { return 70*gib + n.next() + 8*gib*float64(i%30)/30 }, config: nil},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				s := newStage(t)
				if w.ready > 0 {
					s.at, s.ready = start.Add(3*time.Hour), start.Add(3*time.Hour+time.Duration(w.ready)*time.Minute)
				}
				if w.config != nil {
					s.give(&event.Event{Config: w.config})
				}
				running := w.running
				if running == nil {
					running = eight
				}
				n := noise{random: rand.New(rand.NewPCG(seed, 2)), sigma: 128 * mib}
				if found := s.play(300, func(i int) float64 { return w.given(&n, i) }, running); found >= 0 {
					t.Fatalf("seed %d: called imminent at minute %d", seed, found)
				}
			}
		})
	}
}

// A reserve that fills is a caching allocator at work: live does not move.
func TestAReserveThatFillsIsNotImminent(t *testing.T) {
	s := newStage(t)
	for i := range 60 {
		s.minutes(1, func(_ int, e *event.Engine) { e.Running, e.FinishedTotal = u(8), u(i) })
		reserved := 42 + 0.6*float64(i)
		s.memory(memory{live: 42, active: 42, reserved: reserved, used: reserved + 1, free: 79 - reserved, total: 80})
		if known := s.Sample().Known(variable.Must("imminent.hours_high")); known {
			t.Fatalf("minute %d: called imminent", i)
		}
	}
}

// vllm#24264: 400 MB a minute of anonymous memory.
func TestHostMemoryThatEndsWithinTheHour(t *testing.T) {
	s := newStage(t)
	found := -1
	for i := range 90 {
		s.give(&event.Event{Process: &event.Process{AnonBytes: event.Ptr(uint64(30*gib + 400e6*float64(max(0, i-45)))), CgroupLimitBytes: u(50 * gib)}})
		s.minutes(1, func(_ int, e *event.Engine) { e.Running, e.FinishedTotal = u(8), u(i) })
		if high, known := s.Sample().Number(variable.Must("imminent.host_hours_high")); known && high < horizon && found < 0 {
			found = i - 45
		}
	}
	if found < 10 || found > 16 {
		t.Errorf("found %d minutes after its onset", found)
	}
}

// Nothing is said without an engine that says what runs: a batch that loads looks the same.
func TestWithoutSightOfTheLoadNothingIsImminent(t *testing.T) {
	s := newStage(t)
	for i := range 60 {
		live := 42 + 0.4*float64(i)
		s.memory(memory{live: live, active: live, reserved: live, used: live + 6, free: 74 - live, total: 80})
	}
	if s.Sample().Known(variable.Must("imminent.hours_high")) {
		t.Error("called imminent")
	}
}

// Noise whose memory is long (a correlation of 0.9 from minute to minute) wanders in lines for a while, four standard deviations below
// the end. Of a hundred days none may be called.
func TestNoiseThatWandersIsNotImminent(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 9))
	for day := range 100 {
		var k track
		x := 0.0
		for i := range 24 * 60 {
			x = 0.9*x + math.Sqrt(1-0.81)*128*mib*random.NormFloat64()
			k.add(start.Add(time.Duration(i)*time.Minute), 60*gib+x, start)
			if k.judge(0); k.Repeats >= trackRepeats {
				t.Fatalf("day %d, minute %d: a line", day, i)
			}
		}
	}
}
