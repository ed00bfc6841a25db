package worker

import (
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

// memory gives one tick of a card and an allocator, in GiB.
type memory struct {
	uuid                                                 string
	live, active, reserved, peak, used, free, total, cap float64
	allocatedPeak                                        float64
}

func (s *stage) memory(cards ...memory) {
	bytes := func(v float64) *uint64 {
		if v == 0 {
			return nil
		}
		return event.Ptr(uint64(v * gib))
	}
	for _, m := range cards {
		if m.uuid == "" {
			m.uuid = "GPU-1"
		}
		s.give(&event.Event{Gpu: &event.Gpu{Uuid: m.uuid, TotalBytes: bytes(m.total), FreeBytes: bytes(m.free)}})
		s.give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: m.uuid, UsedBytes: bytes(m.used)}})
		s.give(&event.Event{Allocator: &event.Allocator{GpuUuid: m.uuid, AllocatedBytes: bytes(m.live), ActiveBytes: bytes(m.active), ReservedBytes: bytes(m.reserved),
			ReservedPeakBytes: bytes(m.peak), LimitBytes: bytes(m.cap), AllocatedPeakBytes: bytes(m.allocatedPeak)}})
	}
	s.Close()
	s.at = s.at.Add(time.Minute)
}

func TestHeadroom(t *testing.T) {
	lesson := memory{live: 42, active: 42, reserved: 60, used: 66, free: 14, total: 80}
	with := func(change func(*memory)) []memory {
		m := lesson
		change(&m)
		return []memory{m}
	}
	for name, test := range map[string]struct {
		cards               []memory
		oom                 *event.Oom
		bytes, limit, spare float64
	}{
		"the lesson's tick":             {[]memory{lesson}, nil, 14, 80, 6},
		"a peak above":                  {with(func(m *memory) { m.peak = 65 }), nil, 9, 80, 1},
		"a cap of the allocator":        {with(func(m *memory) { m.cap = 64 }), nil, 4, 64, 0},
		"a cap that is far away":        {with(func(m *memory) { m.cap = 76 }), nil, 14, 80, 6},
		"what the OOM said":             {[]memory{lesson}, &event.Oom{Kind: "cuda", RequestedBytes: u(gib), LimitBytes: u(62 * gib)}, 2, 62, 0},
		"an OOM of unknown size":        {[]memory{lesson}, &event.Oom{Kind: "cuda"}, nan, nan, nan},
		"a kill by the host's kernel":   {[]memory{lesson}, &event.Oom{Kind: "kernel"}, 14, 80, 6},
		"the OOM of another card":       {[]memory{lesson}, &event.Oom{Kind: "cuda", GpuUuid: "GPU-9"}, 14, 80, 6},
		"the tightest of two":           {[]memory{lesson, {uuid: "GPU-2", live: 42, active: 42, reserved: 70, used: 76, free: 4, total: 80}}, nil, 4, 80, 0},
		"no sight of the device":        {with(func(m *memory) { m.used, m.free = 0, 0 }), nil, nan, nan, nan},
		"a cap, no sight of the device": {with(func(m *memory) { m.used, m.free, m.cap = 0, 0, 64 }), nil, 4, 64, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if test.oom != nil {
				s.give(&event.Event{Oom: test.oom})
			}
			s.memory(test.cards...)
			s.want("headroom.bytes", test.bytes*gib)
			s.want("headroom.limit_bytes", test.limit*gib)
			s.want("headroom.spare_bytes", test.spare*gib)
			s.want("headroom.ratio", test.bytes/test.limit)
		})
	}
}

// Two GiB an hour from 48 to 64 are eight hours: what is cached is used up before anything fails.
func TestTheForecastIsAnInterval(t *testing.T) {
	s := newStage(t)
	hours := func(cap float64) {
		for hour := range 4 {
			for range 60 {
				s.give(&event.Event{Engine: &event.Engine{Running: u(0), Waiting: u(0), FinishedTotal: u(int(s.at.Unix() / 60))}})
				live := 42 + 2*float64(hour)
				s.memory(memory{live: live, active: live, reserved: 60, used: 66, free: 14, total: 80, cap: cap, allocatedPeak: 56})
			}
		}
	}
	hours(64)
	low, _ := s.Sample().Number(variable.Must("live.hours_to_limit_low"))
	high, _ := s.Sample().Number(variable.Must("live.hours_to_limit_high"))
	middle := s.number("live.hours_to_limit")
	if middle < 7 || middle > 9 || !(low < middle && middle < high) {
		t.Errorf("%v hours, between %v and %v; want 8 inside", middle, low, high)
	}
	if low > 4.1 { // 64 − 56, the peak, at 2 GiB an hour and more
		t.Errorf("at least %v hours, want at most 4", low)
	}
}

func TestRetriesAndSplits(t *testing.T) {
	s := newStage(t)
	give := func(retries int) {
		s.give(&event.Event{Allocator: &event.Allocator{AllocatedBytes: u(40 * gib), ActiveBytes: u(40 * gib), ReservedBytes: u(60 * gib), InactiveSplitBytes: u(15 * gib), AllocRetriesTotal: &[]uint64{uint64(retries)}[0]}})
		s.Close()
		s.at = s.at.Add(10 * time.Minute)
	}
	give(50)
	s.want("retries.hour", 0)
	give(53)
	s.want("retries.hour", 3)
	s.want("split.ratio", 0.25)
	for range 7 {
		give(53)
	}
	s.want("retries.hour", 0)
}

// Peaks rise only where a tick needed more than any before; the largest rise by kind of tick counts.
func TestPrefillAndDecodePeaks(t *testing.T) {
	s := newStage(t)
	var prompt, output int
	tick := func(peak float64, prompts, tokens int) {
		prompt, output = prompt+prompts, output+tokens
		s.give(&event.Event{Engine: &event.Engine{Running: u(1), Waiting: u(0), PromptTokensTotal: u(prompt), GenerationTokensTotal: u(output)}})
		s.memory(memory{live: 40, active: 40, reserved: 60, used: 66, free: 14, total: 80, allocatedPeak: peak})
	}
	tick(50, 0, 0)
	s.want("prefill.peak_bytes", nan)
	tick(50.5, 0, 100)
	s.want("decode.peak_bytes", 0.5*gib)
	s.want("prefill.peak_bytes", nan)
	tick(53.5, 8000, 100)
	tick(53.5, 8000, 100)
	tick(53.75, 0, 100)
	s.want("prefill.peak_bytes", 3*gib)
	s.want("decode.peak_bytes", 0.5*gib)
}
