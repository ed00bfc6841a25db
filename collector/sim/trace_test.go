package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"lowtide/event"
)

// row is one tick of one process; NaN is not told.
type row struct {
	hour                                                    float64 // since the recording's start
	live, active, reserved, graphs, split, used, limit      float64
	running, waiting, kv, finished, preempted, tokens, ttft float64
	anon, pinned, fds, sockets, threads, cgroup, group      float64
	retries, ooms                                           float64
	utilization                                             float64
}

func (r row) quiet() bool { return r.running == 0 && r.waiting == 0 }

// trace is what a recording has, read from its events only.
type trace struct {
	recording Recording
	events    int
	rows      map[int64][]row
	lives     []int64
	ooms      []*event.Event
	xids      []*event.Event
	ends      []*event.Event
	marks     int
	sources   map[string]int // status → how often told
	config    []*event.Event
}

func number(v *uint64) float64 {
	if v == nil {
		return math.NaN()
	}
	return float64(*v)
}

func ratio(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func play(t testing.TB, name string, seed uint64) *trace {
	t.Helper()
	tr := &trace{rows: make(map[int64][]row), sources: make(map[string]int)}
	cards := make(map[string]*event.Gpu)
	engines := make(map[string]*event.Engine) // by instance
	current := make(map[int64]*row)
	nan := math.NaN()
	var start time.Time
	rec, err := Play(Scenario{Name: name}, seed, 0, 0, func(e *event.Event) error {
		tr.events++
		if start.IsZero() {
			start = e.At().Truncate(time.Hour)
			if e.At().Sub(start) > 58*time.Minute {
				start = start.Add(time.Hour) // what happened within the first tick
			}
		}
		pid := e.GetWorker().GetPid()
		now := current[pid]
		if now == nil && pid != 0 {
			now = &row{live: nan, active: nan, reserved: nan, graphs: nan, split: nan, used: nan, limit: nan, running: nan, waiting: nan, kv: nan, tokens: nan, ttft: nan, finished: nan}
			current[pid] = now
		}
		switch {
		case e.Gpu != nil:
			cards[e.Gpu.Uuid] = e.Gpu
		case e.GpuProcess != nil:
			now.used = number(e.GpuProcess.UsedBytes)
		case e.Allocator != nil:
			a := e.Allocator
			now.live, now.active, now.reserved, now.graphs, now.split, now.limit = number(a.AllocatedBytes), number(a.ActiveBytes), number(a.ReservedBytes), number(a.PrivatePoolBytes), number(a.InactiveSplitBytes), number(a.LimitBytes)
			now.retries, now.ooms, now.pinned = number(a.AllocRetriesTotal), number(a.OomsTotal), number(a.PinnedAllocatedBytes)
		case e.Engine != nil:
			engines[event.InstanceKey(e.Host, e.Worker)] = e.Engine
		case e.Process != nil:
			p := e.Process
			if g := engines[event.InstanceKey(e.Host, e.Worker)]; g != nil {
				now.running, now.waiting, now.kv, now.finished, now.preempted, now.tokens, now.ttft = number(g.Running), number(g.Waiting), ratio(g.KvUsage)-g.GetKvEvictable(), number(g.FinishedTotal), number(g.PreemptionsTotal), number(g.GenerationTokensTotal), ratio(g.TtftP95Seconds)
			}
			now.anon, now.fds, now.sockets, now.threads = number(p.AnonBytes)-now.pinned, number(p.Fds), number(p.SocketsCloseWait), number(p.Threads)
			now.cgroup, now.group = number(p.CgroupLimitBytes), number(p.CgroupBytes)
			if g := cards[e.Worker.GpuUuids[0]]; g != nil {
				now.utilization = ratio(g.Utilization)
			}
			now.hour = e.At().Sub(start).Hours()
			if tr.rows[pid] == nil {
				tr.lives = append(tr.lives, pid)
			}
			tr.rows[pid] = append(tr.rows[pid], *now)
		case e.Oom != nil:
			tr.ooms = append(tr.ooms, e)
		case e.Xid != nil:
			tr.xids = append(tr.xids, e)
		case e.Lifecycle.GetState() == "exited":
			tr.ends = append(tr.ends, e)
			delete(engines, event.InstanceKey(e.Host, e.Worker))
		case e.Mark != nil:
			tr.marks++
		case e.Source != nil:
			tr.sources[e.Source.Status]++
		case e.Config != nil:
			tr.config = append(tr.config, e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.recording = rec
	return tr
}

// planted returns the rows of the longest life that something is planted in, from the onset and the end of its first 40 minutes on.
func (tr *trace) planted(t testing.TB) []row {
	t.Helper()
	var longest []row
	for _, pid := range tr.recording.Pids {
		if rows := tr.rows[pid]; len(rows) > len(longest) {
			longest = rows
		}
	}
	if len(longest) == 0 {
		t.Fatal("no process of the planted ones has said anything")
	}
	from := math.Max(longest[0].hour+0.67, tr.onset())
	for n, r := range longest {
		if r.hour >= from {
			return longest[n:]
		}
	}
	return nil
}

func (tr *trace) onset() float64 { return tr.recording.Onset.Sub(tr.recording.Start).Hours() }

// slope is the least-squares slope per hour of the lowest values at rest; of a worker that never rests, of the lowest of each half
// hour.
func slope(rows []row, of func(row) float64) float64 {
	var x, y []float64
	for _, r := range rows {
		if r.quiet() {
			x, y = append(x, r.hour), append(y, of(r))
		}
	}
	if len(x) < 8 {
		x, y = nil, nil
		for part := range slices.Chunk(rows, 30) {
			low := part[0]
			for _, r := range part {
				if of(r) < of(low) {
					low = r
				}
			}
			x, y = append(x, low.hour), append(y, of(low))
		}
	}
	var sx, sy, sxx, sxy float64
	for n := range x {
		sx, sy = sx+x[n], sy+y[n]
	}
	sx, sy = sx/float64(len(x)), sy/float64(len(x))
	for n := range x {
		sxx, sxy = sxx+(x[n]-sx)*(x[n]-sx), sxy+(x[n]-sx)*(y[n]-sy)
	}
	return sxy / sxx
}
