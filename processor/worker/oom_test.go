package worker

import (
	"testing"
	"time"

	"lowtide/event"
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
	for name, test := range map[string]struct {
		oom  *event.Oom
		want string
	}{
		// RLinf#255: 86 MiB on 23.64 GiB; own 7.63 + 40 MiB, others 0.41 + 14.85.
		"RLinf#255": {oom(0.084, 0.258, 7.63, 0.039, 15.26, 0), "true"},
		// The recordings' neighbours held 108 GiB, but the cap of 14 GiB is what ended it.
		"a cap of its own": {oom(0.25, 19.21, 13.51, 0.27, 108.1, 14), "false"},
		// vllm PR#37428: nobody else is on the card.
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
