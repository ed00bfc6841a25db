package worker

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

// An allocator that names no device means the worker's only one, which is known once NVML has seen it, and may be forgotten where
// NVML is away for a while. The memory of one device is not counted twice for that.
func TestMemoryOfADeviceThatIsNamedLaterCountsOnce(t *testing.T) {
	origin := time.Unix(1_790_000_000, 0).UTC()
	host := &event.Host{Cluster: "c", Name: "h"}
	who := func(gpus ...string) *event.Worker {
		return &event.Worker{Pid: 7, StartTime: timestamppb.New(origin), GpuUuids: gpus}
	}
	w := New("w", host, who(), origin)
	for i, names := range [][]string{nil, {"GPU-a"}, {"GPU-a"}, nil, {"GPU-a"}} {
		at := timestamppb.New(origin.Add(time.Duration(i) * 5 * time.Second))
		w.Learn(who(names...))
		w.Apply(&event.Event{Time: at, Host: host, Worker: who(names...), Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(1000)), OomsTotal: event.Ptr(uint64(2))}})
		if len(names) > 0 {
			w.Apply(&event.Event{Time: at, Host: host, Worker: who(names...), GpuProcess: &event.GpuProcess{GpuUuid: "GPU-a", UsedBytes: event.Ptr(uint64(1500))}})
		}
		w.Close()
		if v, _ := w.Sample().Number(variable.Must("live.now")); v != 1000 {
			t.Errorf("tick %d: %v bytes live, want 1000", i, v)
		}
	}
	if n, _ := w.Sample().Number(variable.Must("oom.count")); n != 0 {
		t.Errorf("%v failed allocations out of nothing", n)
	}
}
