package processor

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// chaos is a world in which everything happens that a judge has to make sense of, far more often than anywhere: processes with and without a
// start time, pids that come again, ranks and front ends, engines side by side, divided cards, errors, kills, rollouts, sensors that go away,
// clocks that leap. Nothing in it is likely; it is to reach every field of what a judge keeps.
type chaos struct {
	random *rand.Rand
	at     time.Time
	events []*event.Event
}

func newChaos(seed uint64, n int) []*event.Event {
	c := &chaos{random: rand.New(rand.NewPCG(seed, 99)), at: time.Unix(1_790_000_000, 0).UTC()}
	for len(c.events) < n {
		c.step()
	}
	return c.events
}

func (c *chaos) happens(p float64) bool { return c.random.Float64() < p }

func (c *chaos) number(most int) *uint64 { return event.Ptr(uint64(c.random.IntN(most))) }

func (c *chaos) step() {
	switch n := c.random.IntN(1000); {
	case n < 2:
		c.at = c.at.Add(9 * time.Hour)
	case n < 5:
		c.at = c.at.Add(time.Hour)
	case n < 8:
		c.at = c.at.Add(-40 * time.Minute)
	case n < 30:
		c.at = c.at.Add(7 * time.Minute)
	case n < 700:
		c.at = c.at.Add(time.Duration(c.random.IntN(20)) * time.Second)
	}
	host := &event.Host{Cluster: "c", Name: fmt.Sprint("h", c.random.IntN(3))}
	if host.Name != "h2" {
		host.BootId = fmt.Sprint("b", c.at.Unix()/200_000)
	}
	e := &event.Event{Time: timestamppb.New(c.at), Host: host}
	if c.happens(0.03) {
		e.Time = timestamppb.New(c.at.Add(-time.Duration(c.random.IntN(200)) * time.Second))
	}
	c.body(e)
	c.events = append(c.events, e)
}

func (c *chaos) worker() *event.Worker {
	place := c.random.IntN(6)
	w := &event.Worker{Pid: int64(10 + place + 6*c.random.IntN(2)), Engine: "vllm"}
	w.GpuUuids = []string{[]string{"GPU-a", "GPU-b", "MIG-GPU-a/1/0", "MIG-x", "GPU-c", "GPU-a"}[place]}
	life := c.at.Unix() / 9000
	switch place {
	case 0, 1:
		w.StartTicks, w.Unit, w.Model, w.Release = event.Ptr(uint64(100+life)), "u", "m", fmt.Sprint("r", life/4%3)
		w.Role, w.Rank, w.EngineIndex = "worker", event.Ptr(int64(place)), event.Ptr(int64(0))
	case 2:
		w.StartTime = timestamppb.New(time.Unix(life*9000, 0))
	case 3:
		w.StartTicks = event.Ptr(uint64(life))
		if c.happens(0.3) {
			w.GpuUuids = []string{"GPU-a", "GPU-b"}
		}
	case 4:
		w.StartTicks, w.Unit, w.Role = event.Ptr(uint64(7)), "u", "frontend"
		if c.happens(0.5) {
			w.EngineIndex = event.Ptr(int64(c.random.IntN(2)))
		}
	}
	if c.happens(0.2) {
		w.GpuUuids = nil
	}
	return w
}

func (c *chaos) body(e *event.Event) {
	const gib = 1 << 30
	uuids := []string{"GPU-a", "GPU-b", "GPU-c", "MIG-GPU-a/1/0", "MIG-x", "GPU-new"}
	uuid := uuids[c.random.IntN(5)]
	n := c.random.IntN(100)
	if n >= 20 && n < 95 {
		e.Worker = c.worker()
	}
	switch {
	case n < 12:
		e.Gpu = &event.Gpu{Uuid: uuid, TotalBytes: event.Ptr(uint64(80 * gib)), UsedBytes: event.Ptr(uint64(30*gib + c.random.IntN(50*gib))), ProcessesComplete: event.Ptr(c.happens(0.8))}
		if c.happens(0.7) {
			e.Gpu.EccUncorrectedTotal, e.Gpu.RemappedRows, e.Gpu.Index = c.number(2), c.number(2), event.Ptr(int64(c.random.IntN(2)))
		}
	case n < 16:
		e.Source = &event.SourceStatus{Name: []string{"nvml", "probe", "kernel"}[c.random.IntN(3)], Status: []string{"ok", "ok", "lost", "timeout", "absent"}[c.random.IntN(5)]}
	case n < 18:
		e.Mark = &event.Mark{Kind: "deploy", Name: []string{"deploy", "u"}[c.random.IntN(2)]}
	case n < 20:
		e.Xid = &event.Xid{Code: event.Ptr([]uint64{13, 31, 79, 48, 63}[c.random.IntN(5)]), GpuUuid: uuids[c.random.IntN(len(uuids))]}
	case n < 32:
		e.GpuProcess = &event.GpuProcess{GpuUuid: uuid, UsedBytes: event.Ptr(uint64(c.random.IntN(40 * gib)))}
	case n < 44:
		e.Allocator = &event.Allocator{AllocatedBytes: event.Ptr(uint64(c.random.IntN(30 * gib))), ReservedBytes: event.Ptr(uint64(31 * gib)), ActiveBytes: event.Ptr(uint64(30 * gib)), OomsTotal: c.number(3)}
	case n < 64:
		e.Engine = &event.Engine{Running: c.number(12), Waiting: c.number(12), FinishedTotal: event.Ptr(uint64(c.at.Unix())), KvUsage: event.Ptr(c.random.Float64()), GenerationTokensTotal: event.Ptr(uint64(c.at.Unix() * 9))}
		if c.happens(0.3) {
			e.Engine.Running, e.Engine.Waiting = event.Ptr(uint64(0)), event.Ptr(uint64(0))
		}
	case n < 80:
		e.Process = &event.Process{AnonBytes: event.Ptr(uint64(c.random.IntN(30 * gib))), Fds: c.number(4000)}
	case n < 90:
		e.Lifecycle = &event.Lifecycle{State: []string{"started", "ready", "draining", "exited", "exited"}[c.random.IntN(5)]}
		if e.Lifecycle.State == "exited" && c.happens(0.8) {
			e.Lifecycle.Signal = event.Ptr([]int64{9, 15, 11}[c.random.IntN(3)])
		}
	case n < 92:
		e.Config = &event.Config{ConfigHash: fmt.Sprint(c.random.IntN(3)), GpuMemoryUtilization: event.Ptr(0.9)}
	case n < 94:
		e.Oom = &event.Oom{Kind: []string{"cuda", "kernel", "cgroup"}[c.random.IntN(3)], RequestedBytes: event.Ptr(uint64(gib)), Text: "out of memory"}
	case n < 95:
		e.Snapshot = &event.Snapshot{GpuUuid: uuid, ReservedBytes: event.Ptr(uint64(30 * gib)), LiveBytes: event.Ptr(uint64(20 * gib)), FreeBytes: event.Ptr(uint64(10 * gib)), LargestFreeBytes: event.Ptr(uint64(gib))}
	case n < 97:
		e.Xid = &event.Xid{Code: event.Ptr(uint64(31)), GpuUuid: uuid}
	default:
		e.Oom = &event.Oom{Kind: "kernel", VictimPid: event.Ptr(int64(10 + c.random.IntN(12))), Text: "Killed process"}
	}
}
