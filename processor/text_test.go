package processor

import (
	"testing"
	"time"

	"lowtide/event"
)

// A publisher that sends the text of PyTorch's exception and nothing else is understood like one that sends its numbers.
func TestTheTextOfAnOOMIsEnough(t *testing.T) {
	s := newStage(t)
	w := &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(1)), Role: "worker", Unit: "u", GpuUuids: []string{"GPU-a"}}
	for range 60 {
		s.at = s.at.Add(time.Minute)
		s.apply(w, &event.Event{Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(8 << 30)), ReservedBytes: event.Ptr(uint64(9 << 30)), OomsTotal: event.Ptr(uint64(0))}})
	}
	// RLinf#255, in the form of torch 2: another process has 14.85 GiB of a card of 23.64.
	s.apply(w, &event.Event{Oom: &event.Oom{Text: "CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 64.00 MiB is free. " +
		"Process 7 has 14.85 GiB memory in use. Including non-PyTorch memory, this process has 8.04 GiB memory in use. Of the allocated memory 7.63 GiB is allocated by PyTorch, " +
		"and 40.00 MiB is reserved by PyTorch but unallocated."}})
	s.judge.Flush()
	if len(s.findings) != 1 || s.findings[0].Class != "cotenant" {
		t.Fatalf("%d findings, %v", len(s.findings), s.findings)
	}
}
