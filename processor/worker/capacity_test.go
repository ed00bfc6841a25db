package worker

import (
	"testing"

	"lowtide/event"
)

func cache(name string, gibs int) *event.DeclaredCache {
	return &event.DeclaredCache{Name: name, CapBytes: u(gibs * gib)}
}

// rwlove/home-ops#13936: three runners with a cache of 8192 MiB each in a container of 6 GiB.
func TestCachesOfTheHostAgainstTheContainer(t *testing.T) {
	s := newStage(t)
	s.give(&event.Event{Config: &event.Config{DeclaredCaches: []*event.DeclaredCache{cache("prompt_cache_0", 8), cache("prompt_cache_1", 8), cache("prompt_cache_2", 8)}}})
	s.give(&event.Event{Process: &event.Process{CgroupBytes: u(3 * gib), CgroupLimitBytes: u(6 * gib)}})
	s.Close()
	s.want("capacity.host_asked_bytes", 24*gib)
	s.want("capacity.host_limit_bytes", 6*gib)
	s.want("cgroup.ratio", 0.5)
	s.want("capacity.asked_bytes", nan)
}

func TestWhatTheCardIsAskedFor(t *testing.T) {
	s := newStage(t)
	s.give(&event.Event{Config: &event.Config{GpuMemoryUtilization: event.Ptr(0.9), WeightsBytes: u(35 * gib), KvPoolBytes: u(30 * gib), GraphPoolBytes: u(3 * gib),
		DeclaredCaches: []*event.DeclaredCache{cache("adapters", 4), cache("mm_processor", 4), cache("cpu_offload", 16)}}})
	s.memory(memory{live: 42, active: 42, reserved: 60, used: 66, free: 14, total: 80})
	s.want("capacity.asked_bytes", 72*gib)
	s.want("capacity.limit_bytes", 72*gib)
	s.want("capacity.host_asked_bytes", 20*gib)
	s.want("capacity.host_limit_bytes", nan)
	s.memory(memory{live: 42, active: 42, reserved: 60, used: 66, free: 14, total: 80, cap: 64})
	s.want("capacity.limit_bytes", 64*gib)
}

func TestNothingConfiguredIsNothingAsked(t *testing.T) {
	s := newStage(t)
	s.memory(memory{live: 42, active: 42, reserved: 60, used: 66, free: 14, total: 80})
	s.want("capacity.asked_bytes", nan)
	s.want("capacity.limit_bytes", nan)
}
