package worker

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// The accounts of failed allocations as they come, and how many failures they are.
func TestOneFailureOfManyAccounts(t *testing.T) {
	const mib = 1 << 20
	observer := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(256*mib + 512)), FreeBytes: event.Ptr(uint64(9 * mib))}
	text := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(256 * mib)), AllocatedBytes: event.Ptr(uint64(900 * mib)), Text: "CUDA out of memory. Tried …"}
	other := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(512 * mib)), AllocatedBytes: event.Ptr(uint64(900 * mib)), Text: "CUDA out of memory. Tried more"}
	kill := &event.Oom{Kind: "engine", Text: "KV cache pool is full"}
	type account struct {
		second  int
		event   *event.Oom
		counter uint64 // without an event: what ooms_total says
	}
	for name, test := range map[string]struct {
		accounts []account
		want     int
	}{
		"observer, exception, log":      {[]account{{0, nil, 0}, {1, observer, 0}, {1, text, 0}, {2, text, 0}, {5, nil, 1}}, 1},
		"counter first":                 {[]account{{0, nil, 0}, {5, nil, 1}, {6, observer, 0}, {6, text, 0}, {10, nil, 1}}, 1},
		"log first":                     {[]account{{1, text, 0}, {1, observer, 0}}, 1},
		"two, of which one has no text": {[]account{{1, observer, 0}, {1, text, 0}, {3, observer, 0}}, 2},
		"two, of different sizes":       {[]account{{1, observer, 0}, {2, other, 0}}, 2},
		"two observed":                  {[]account{{1, observer, 0}, {2, observer, 0}}, 2},
		"two texts":                     {[]account{{1, text, 0}, {2, other, 0}}, 2},
		"the same again, a minute on":   {[]account{{1, text, 0}, {61, text, 0}}, 2},
		"the counter alone, twice":      {[]account{{0, nil, 3}, {5, nil, 4}, {10, nil, 5}}, 2},
		"a kill that no counter shows":  {[]account{{0, nil, 0}, {1, kill, 0}, {60, nil, 0}, {120, nil, 1}}, 2},
		"seen before the first reading": {[]account{{1, observer, 0}, {5, nil, 1}, {60, nil, 2}}, 2},
		"seen and not seen":             {[]account{{0, nil, 0}, {1, observer, 0}, {5, nil, 2}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var o ooms
			origin := time.Unix(1_790_000_000, 0)
			for _, a := range test.accounts {
				at := origin.Add(time.Duration(a.second) * time.Second)
				if a.event != nil {
					o.event(at, a.event)
				} else {
					o.counter(at, &a.counter)
				}
			}
			if len(o.times) != test.want {
				t.Errorf("%d failures, want %d", len(o.times), test.want)
			}
		})
	}
	var o ooms
	o.event(time.Unix(1, 0), observer)
	o.event(time.Unix(2, 0), text)
	if got := o.last; got.GetRequestedBytes() != 256*mib || got.GetFreeBytes() != 9*mib || got.GetAllocatedBytes() != 900*mib || got.Text == "" || observer.Text != "" {
		t.Errorf("joined account %v", got)
	}
}

// The kernel names its victim. The end of another process on the host is no failure of this worker.
func TestTheKernelsOOMIsItsVictims(t *testing.T) {
	for name, test := range map[string]struct {
		kind   string
		victim *int64
		count  float64
	}{
		"this worker":     {"kernel", event.Ptr(int64(7)), 1},
		"another":         {"cgroup", event.Ptr(int64(8)), nan},
		"nobody is named": {"cgroup", nil, 1},
		"the engine's":    {"engine", event.Ptr(int64(8)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.minutes(1, func(i int, e *event.Engine) {})
			s.Close()
			s.give(&event.Event{Oom: &event.Oom{Kind: test.kind, VictimPid: test.victim}})
			s.want("oom.count", test.count)
		})
	}
}

func TestBeforeReady(t *testing.T) {
	fail := func(s *stage) { s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(gib)}}) }
	for name, test := range map[string]struct {
		play func(s *stage)
		want string
	}{
		"before it said ready": {func(s *stage) {
			fail(s)
			s.at = s.at.Add(time.Minute)
			s.give(&event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})
		}, "true"},
		"after it said ready": {func(s *stage) {
			s.give(&event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})
			s.at = s.at.Add(time.Minute)
			fail(s)
		}, "false"},
		"an engine that loads": {func(s *stage) { s.minutes(9, func(i int, e *event.Engine) {}); fail(s) }, "true"},
		"in its first request": {func(s *stage) { s.minutes(9, func(i int, e *event.Engine) { e.Running = u(1) }); fail(s) }, "false"},
		"no engine, early":     {func(s *stage) { s.at = start.Add(5 * time.Minute); fail(s) }, "true"},
		"no engine, later":     {func(s *stage) { s.at = start.Add(15 * time.Minute); fail(s) }, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stage{Worker: New("w", host, who, start), t: t, at: start.Add(time.Minute)}
			test.play(s)
			s.at = s.at.Add(time.Minute)
			s.give(&event.Event{Process: &event.Process{Fds: u(9)}})
			s.Close()
			s.wantFlag("oom.before_ready", test.want)
		})
	}
}

func TestFitsWithoutOthers(t *testing.T) {
	bytes := func(v float64) *uint64 { return event.Ptr(uint64(v * gib)) }
	oom := func(requested, free, own, loose, others, limit float64) *event.Oom {
		o := &event.Oom{Kind: "cuda", RequestedBytes: bytes(requested), FreeBytes: bytes(free), AllocatedBytes: bytes(own), ReservedUnallocatedBytes: bytes(loose)}
		if others >= 0 {
			o.OtherProcessesBytes = bytes(others)
		}
		if limit > 0 {
			o.LimitBytes = bytes(limit)
		}
		return o
	}
	untold := func(requested, free, own, limit float64, others ...float64) *event.Oom {
		o := oom(requested, free, own, 0, 0, limit)
		o.ReservedUnallocatedBytes, o.OtherProcessesBytes = nil, nil
		if len(others) > 0 {
			o.OtherProcessesBytes = bytes(others[0])
		}
		return o
	}
	for name, test := range map[string]struct {
		oom  *event.Oom
		want string
	}{
		// RLinf#255: 86 MiB on 23.64 GiB; own 7.63 + 40 MiB, others 0.41 + 14.85.
		"RLinf#255": {oom(0.084, 0.258, 7.63, 0.039, 15.26, 0), "true"},
		// The recordings' neighbours held 108 GiB, but the cap of 14 GiB is what ended it.
		"a cap of its own": {oom(0.25, 19.21, 13.51, 0.27, 108.1, 14), "false"},
		// vllm PR#37428: nobody else is on the card.
		// An observer does not say what was loose: 896 MiB of a cap of 6.99 GiB, with 96.9 GiB free on the card.
		"a cap of its own, and what was loose is not told": {untold(0.875, 96.9, 0.993, 6.99), "false"},
		// The card's own size is no cap: 0.084 would fit under 23.64, and others have the rest.
		"the card's size for a cap":        {untold(0.084, 0.258, 7.63, 23.64, 15.26), "true"},
		"nobody else":                      {oom(0.375, 0.322, 18.4, 0.393, 0, 0), "false"},
		"too large for the whole card":     {oom(90, 10, 5, 1, 20, 0), "false"},
		"a small neighbour of a large one": {oom(2, 1, 64, 1, 14, 0), "false"},
		"nothing about others":             {oom(2, 1, 64, 1, -1, 0), "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.give(&event.Event{Oom: test.oom})
			s.wantFlag("oom.fits_without_others", test.want)
		})
	}
}

// The process before died and left 57 GiB behind: no living process is named, the card says it all the same.
func TestMemoryOfNobodyIsTheReason(t *testing.T) {
	s := newStage(t)
	s.give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u(80 * gib), FreeBytes: u(0)}})
	s.give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(23 * gib)}})
	s.Close()
	s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(2 * mib), FreeBytes: u(0), AllocatedBytes: u(22 * gib), ReservedUnallocatedBytes: u(0), OtherProcessesBytes: u(0), GpuUuid: "GPU-1"}})
	s.wantFlag("oom.fits_without_others", "true")
}

// The neighbour came later and took 30 GiB, while this worker holds what it held when it was ready.
func TestANeighbourThatGrewIsTheReason(t *testing.T) {
	s := newStage(t)
	card := func(own, others int) {
		s.give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u((own + others) * gib), FreeBytes: u((80 - own - others) * gib)}})
		s.give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(own * gib)}})
		s.Close()
		s.at = s.at.Add(time.Minute)
	}
	card(46, 2)
	card(47, 32)
	s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(2 * gib), FreeBytes: u(gib), AllocatedBytes: u(44 * gib), ReservedUnallocatedBytes: u(gib)}})
	s.wantFlag("oom.fits_without_others", "true")
}

// The numbers were worked out by hand, to four digits. A number that the text does not give is 0 here and nil in the event.
func TestWhatRulesReadOfAnOOM(t *testing.T) {
	type given struct{ requested, free, allocated, loose, limit, pools float64 }
	for name, test := range map[string]struct {
		kind       string
		given      given
		live       int // as the allocator was read a minute before
		ofDevice   string
		room       string
		part, size float64
	}{
		// 384 <= 402.27 + 329.87; 384 of 18841.6 + 402.27 + 329.87; 384 of 18841.6.
		"vllm PR#37428": {"cuda", given{384 * mib, 329.87 * mib, 18.4 * gib, 402.27 * mib, 0, 0}, 0, "true", "true", 0.019618, 0.020380},
		// The observer gives the card's 19.53 GiB as the limit: 18841.6 + 384 <= 19998.72.
		"vllm PR#37428, by the card": {"cuda", given{384 * mib, 329.87 * mib, 18.4 * gib, 402.27 * mib, 19.53 * gib, 0}, 0, "true", "true", 0.019201, 0.020380},
		// 35.6 <= 40.69 + 26.16, which is room in total; of 78.82 GiB and of 11.97 it is no ordinary request.
		"Mask2DiT#4": {"cuda", given{35.6 * gib, 26.16 * gib, 11.97 * gib, 40.69 * gib, 0, 0}, 0, "true", "true", 0.45166, 2.97410},
		// 86 <= 264 − 20: it was free in one piece. 86 of 7813.12 + 40 + 264.
		"RLinf#255": {"cuda", given{86 * mib, 264 * mib, 7.63 * gib, 40 * mib, 0, 0}, 0, "true", "false", 0.010595, 0.011007},
		// 60 <= 1054.72 + 8.38 of 31037.44 + 1054.72 + 8.38.
		"TGI#801": {"cuda", given{60 * mib, 8.38 * mib, 30.31 * gib, 1.03 * gib, 0, 0}, 0, "true", "true", 0.0018691, 0.0019331},
		// 12.42 + 1.29 + 0.7988 is over the 14 GiB allowed, whatever the card has free; without what is loose it is not.
		"a cap of 14 GiB": {"cuda", given{818 * mib, 35.8 * gib, 12.42 * gib, 1.29 * gib, 14 * gib, 0}, 0, "true", "true", 0.057059, 0.064318},
		// 11.27 + 3 is over it already.
		"3 GiB above the cap": {"cuda", given{3 * gib, 44.91 * gib, 11.27 * gib, 1.65 * gib, 14 * gib, 0}, 0, "true", "false", 0.21429, 0.26619},
		// 12.42 + 0.7988 + 1 is over it, the private pools keep 1.
		"private pools under the cap": {"cuda", given{818 * mib, 35.8 * gib, 12.42 * gib, 1.29 * gib, 14 * gib, gib}, 0, "true", "false", 0.057059, 0.064318},
		// 512 > 400 + 100.
		"not even together": {"cuda", given{512 * mib, 100 * mib, 8 * gib, 400 * mib, 0, 0}, 0, "true", "false", 0.058905, 0.0625},
		// 100 > 119 − 20, and 100 <= 120 − 20.
		"a MiB short of a segment": {"cuda", given{100 * mib, 119 * mib, 905 * mib, 0.5 * mib, 0, 0}, 0, "true", "true", 0.097609, 0.110497},
		"a segment to spare":       {"cuda", given{100 * mib, 120 * mib, 904 * mib, 0.5 * mib, 0, 0}, 0, "true", "false", 0.097609, 0.110619},
		// Not told how much was loose: the card had 96.9 GiB for 896 MiB, so that the cap of 6.99 GiB forbade it, and 7158 − 1017 − 896 MiB
		// are loose at least. 896 of 7157.76; of 1017.
		"a cap, and nothing of what was loose": {"cuda", given{896 * mib, 96.9 * gib, 1017 * mib, 0, 6.99 * gib, 0}, 0, "true", "true", 0.12518, 0.88102},
		// 6.5 + 0.875 is over it by what was live alone.
		"live memory fills the cap": {"cuda", given{896 * mib, 96.9 * gib, 6.5 * gib, 0, 6.99 * gib, 0}, 0, "true", "unknown", 0.12518, 0.13462},
		// Nothing is known to be free: 300 <= 400, of 8192 + 400.
		"free is not told":        {"cuda", given{300 * mib, 0, 8 * gib, 400 * mib, 0, 0}, 0, "true", "true", 0.034916, 0.036621},
		"live as it was read":     {"cuda", given{32 * gib, gib, 0, 0, 0, 0}, gib, "true", "unknown", nan, 32},
		"live at the failure":     {"cuda", given{32 * gib, gib, 16 * gib, 0, 0, 0}, gib, "true", "unknown", nan, 2},
		"no more than the limit":  {"cuda", given{2 * gib, 0, 0, 0, 80 * gib, 0}, 0, "true", "unknown", 0.025, nan},
		"a step of the counter":   {"cuda", given{}, gib, "true", "unknown", nan, nan},
		"a kind that is not told": {"", given{384 * mib, 329.87 * mib, 18.4 * gib, 402.27 * mib, 0, 0}, 0, "true", "true", 0.019618, 0.020380},
		"the engine's own pool":   {"engine", given{4 * gib, 2 * gib, 0, 0, 0, 0}, 8 * gib, "true", "unknown", nan, 0.5},
		"the kernel":              {"kernel", given{}, gib, "false", "unknown", nan, nan},
		"the cgroup":              {"cgroup", given{}, gib, "false", "unknown", nan, nan},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if test.live > 0 {
				s.give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: u(test.live)}})
				s.Close()
				s.at = s.at.Add(time.Minute)
			}
			bytes := func(v float64) *uint64 {
				if v == 0 {
					return nil
				}
				return event.Ptr(uint64(v))
			}
			g := test.given
			s.give(&event.Event{Oom: &event.Oom{Kind: test.kind, RequestedBytes: bytes(g.requested), FreeBytes: bytes(g.free), AllocatedBytes: bytes(g.allocated),
				ReservedUnallocatedBytes: bytes(g.loose), LimitBytes: bytes(g.limit), PrivatePoolFreeBytes: bytes(g.pools)}})
			s.wantFlag("oom.of_device", test.ofDevice)
			s.wantFlag("oom.room_in_total", test.room)
			s.wantDigits("oom.part", test.part)
			s.wantDigits("oom.size", test.size)
		})
	}
}

// wantDigits compares with a number that was written down to four digits or more.
func (s *stage) wantDigits(name string, want float64) {
	s.t.Helper()
	if got := s.number(name); !(math.Abs(got-want) <= 1e-4*want) && !(math.IsNaN(got) && math.IsNaN(want)) {
		s.t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// What an older OOM told is not told of a newer one; and what was live is read at the next tick when it was not read before.
func TestANewerOOMTakesTheNumbersOfTheOlder(t *testing.T) {
	s := newStage(t)
	for _, name := range []string{"oom.of_device", "oom.room_in_total"} {
		s.wantFlag(name, "unknown")
	}
	s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(384 * mib), AllocatedBytes: u(18 * gib), ReservedUnallocatedBytes: u(402 * mib)}})
	s.wantFlag("oom.room_in_total", "true")
	s.at = s.at.Add(time.Minute)
	s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(2 * gib)}})
	s.wantFlag("oom.room_in_total", "unknown")
	s.want("oom.part", nan)
	s.want("oom.size", nan)
	s.at = s.at.Add(time.Minute)
	s.give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: u(8 * gib)}})
	s.Close()
	s.want("oom.size", 0.25)
	s.at = s.at.Add(time.Minute)
	s.give(&event.Event{Oom: &event.Oom{Kind: "cgroup"}})
	s.wantFlag("oom.of_device", "false")
	s.want("oom.size", nan)
}

// Growth of what is live explains an OOM only where that is most of the limit.
func TestGrowthExplainsAnOOMWhereItFillsTheLimit(t *testing.T) {
	for name, test := range map[string]struct {
		allocated, loose, free, limit float64 // GiB; negative: not told
		want                          string
	}{
		"a seventh of the cap":               {1, 5.9, 96.9, 7, "false"},
		"nearly all of the cap":              {6, 0.5, 96.9, 7, "true"},
		"nearly all of what the card gave":   {40, 1, 2, -1, "true"},
		"a third of it, the rest is loose":   {20, 40, 1, -1, "false"},
		"the card gave less than the cap":    {40, 1, 2, 70, "true"},
		"nobody says what was free":          {1, 5.9, -1, -1, "true"},
		"nobody says what was live":          {-1, 5.9, 96.9, 7, "true"},
		"a step of the allocator's counter":  {-1, -1, -1, -1, "true"},
		"two thirds of the cap, to the byte": {4, 2, 90, 6, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			bytes := func(v float64) *uint64 {
				if v < 0 {
					return nil
				}
				return event.Ptr(uint64(v * gib))
			}
			s := newStage(t)
			s.give(&event.Event{Oom: &event.Oom{Kind: "cuda", AllocatedBytes: bytes(test.allocated), ReservedUnallocatedBytes: bytes(test.loose),
				FreeBytes: bytes(test.free), LimitBytes: bytes(test.limit)}})
			s.ooms.grew = true
			s.features(s.at)
			s.wantFlag("grew.before_oom", test.want)
		})
	}
}

// One step between two levels is no growth, whatever it measures.
func TestAStepIsNoGrowth(t *testing.T) {
	for name, test := range map[string]struct {
		level []float64 // of noise 1
		want  bool
	}{
		"one step of two points":  {[]float64{100, 200}, false},
		"one step of three":       {[]float64{100, 100, 200}, false},
		"a step and its echo":     {[]float64{100, 200, 203}, false},
		"three that rise":         {[]float64{100, 110, 120}, true},
		"four, unevenly":          {[]float64{100, 130, 134, 140}, true},
		"it stopped half-way":     {[]float64{100, 110, 120, 120, 120}, false},
		"less than the noise":     {[]float64{100, 103, 107}, false},
		"it falls":                {[]float64{140, 130, 120}, false},
		"there and back":          {[]float64{100, 200, 100}, false},
		"nothing to compare with": {nil, false},
	} {
		if got := rising(test.level, 1); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whatever the numbers of an OOM are, exactly one class takes it when memory is known not to have grown, and none of these when it had
// or when the host ran out.
func TestOneClassTakesAnOOM(t *testing.T) {
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	takers := []string{"cotenant", "fragmentation", "oversize_request", "capacity"}
	random := rand.New(rand.NewPCG(7, 11))
	one := func(of int) bool { return random.IntN(of) == 0 }
	maybe := func() *uint64 {
		if one(6) {
			return nil
		}
		return event.Ptr(uint64(1) << (20 + random.IntN(17)))
	}
	seen := map[string]int{}
	for range 4000 {
		s := newStage(t)
		if one(2) { // one in its first minutes
			s = &stage{Worker: New("w", host, who, start), t: t, at: start.Add(time.Minute)}
		}
		if live := maybe(); live != nil {
			s.give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: live}})
			s.Close()
			s.at = s.at.Add(time.Minute)
		}
		oom := &event.Oom{Kind: []string{"", "cuda", "cuda", "cuda", "engine", "cgroup"}[random.IntN(6)], RequestedBytes: maybe(), FreeBytes: maybe(), AllocatedBytes: maybe(),
			ReservedUnallocatedBytes: maybe(), PrivatePoolFreeBytes: maybe()}
		if one(3) {
			oom.OtherProcessesBytes = maybe()
		}
		if one(3) {
			oom.LimitBytes = event.Ptr(uint64(1) << (33 + random.IntN(4)))
		}
		s.give(&event.Event{Oom: oom})
		grew := one(8)
		s.ooms.grew = grew // what hours of quiet points would say
		s.features(s.at)
		s.Sample().SetNumber(variable.Must("split.ratio"), 0.01) // counters have no say here
		s.Sample().SetNumber(variable.Must("quiet.count"), 8)
		var took []string
		for _, id := range takers {
			if pack.Rule(id).Evaluate(s.Sample()).When == rules.True {
				took = append(took, id)
			}
		}
		// Growth explains it where live memory was two thirds of what there was, as far as that is known.
		all, value := math.Inf(1), func(v *uint64) float64 { return float64(*v) }
		if oom.FreeBytes != nil && oom.AllocatedBytes != nil {
			all = value(oom.AllocatedBytes) + value(oom.FreeBytes)
			if oom.ReservedUnallocatedBytes != nil {
				all += value(oom.ReservedUnallocatedBytes)
			}
		}
		if oom.LimitBytes != nil {
			all = min(all, value(oom.LimitBytes))
		}
		small := oom.AllocatedBytes != nil && !math.IsInf(all, 1) && value(oom.AllocatedBytes) < 2*all/3
		want := 1
		if grew && !small || oom.Kind == "cgroup" {
			want = 0
		}
		if len(took) != want {
			t.Fatalf("grew %v: %v take %v", grew, took, oom)
		}
		seen[strings.Join(took, "")]++
	}
	for _, id := range append(takers, "") {
		if seen[id] < 20 {
			t.Errorf("%q was the answer %d times of 4000", id, seen[id])
		}
	}
}
