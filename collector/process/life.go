package process

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// life is one process that is watched, from when it is first seen until 15 minutes after its end. The roster's lock guards it; the
// source alone changes what was seen of a living one, and so may read that without.
type life struct {
	pid     int
	ticks   uint64
	start   time.Time // computed once: a later clock step must not make it another process
	seen    observation
	listens []listener
	read    bool // its sockets were looked at
	told    bool // its start was told, or is none of ours
	shown   bool // events of it were made

	inst    *instance
	settled bool      // its instance does not change any more
	own     *instance // that it is the root of
	role    string
	rank    *int64
	index   *int64
	busy    bool // has held a GPU
	gpus    map[string]time.Time
	worker  *event.Worker // as events have it: replaced, never changed

	killed string // "kernel" or "cgroup", once the kernel said so
	bye    *event.Lifecycle
	ended  time.Time // zero while it lives
}

// gpuMemory is for how long a process holds a GPU without being seen on it.
const gpuMemory = time.Minute

// hold notes that the process was seen on a GPU. True when that is news.
func (l *life) hold(uuid string, at time.Time) bool {
	if l.gpus == nil {
		l.gpus = make(map[string]time.Time)
	}
	last, known := l.gpus[uuid]
	if at.After(last) {
		l.gpus[uuid] = at
	}
	news := !known || !l.busy
	l.busy = true
	return news
}

// forget drops the GPUs on which a living process was not seen for a minute. True when there were some.
func (l *life) forget(now time.Time) bool {
	before := len(l.gpus)
	for uuid, last := range l.gpus {
		if now.Sub(last) > gpuMemory {
			delete(l.gpus, uuid)
		}
	}
	return len(l.gpus) != before
}

func (l *life) alive() bool { return l.ended.IsZero() }

// identify makes the worker of the life's events. Nothing in it is shared with the life.
func (l *life) identify(names *names) *event.Worker {
	w := &event.Worker{
		Pid: int64(l.pid), StartTicks: event.Ptr(l.ticks), StartTime: timestamppb.New(l.start), Role: l.role,
		Pod: l.seen.place.pod, ContainerId: l.seen.place.container,
	}
	if pod, ok := names.of(l.seen.place); ok {
		w.Pod = pod.namespace + "/" + pod.name
	}
	if l.rank != nil {
		w.Rank = event.Ptr(*l.rank)
	}
	if l.index != nil {
		w.EngineIndex = event.Ptr(*l.index)
	}
	for uuid := range l.gpus {
		w.GpuUuids = append(w.GpuUuids, uuid)
	}
	slices.Sort(w.GpuUuids)
	if i := l.inst; i != nil {
		w.Engine, w.Model, w.Unit = first(i.engine, i.spoken), i.model(), i.unit()
	}
	return w
}

// fill completes a worker from what is known, as a copy. What its source said itself, such as the index of an engine's series,
// stays.
func fill(w, known *event.Worker) {
	w.Pid = known.Pid
	if w.StartTicks == nil && known.StartTicks != nil {
		w.StartTicks = event.Ptr(*known.StartTicks)
	}
	if w.StartTime == nil && known.StartTime != nil {
		w.StartTime = &timestamppb.Timestamp{Seconds: known.StartTime.Seconds, Nanos: known.StartTime.Nanos}
	}
	if w.Rank == nil && known.Rank != nil {
		w.Rank = event.Ptr(*known.Rank)
	}
	if w.EngineIndex == nil && known.EngineIndex != nil {
		w.EngineIndex = event.Ptr(*known.EngineIndex)
	}
	if len(w.GpuUuids) == 0 && len(known.GpuUuids) > 0 {
		w.GpuUuids = slices.Clone(known.GpuUuids)
	}
	w.Role = first(w.Role, known.Role)
	w.Engine = first(w.Engine, known.Engine)
	w.Unit = first(w.Unit, known.Unit)
	w.Model = first(w.Model, known.Model)
	w.Release = first(w.Release, known.Release)
	w.Pod = first(w.Pod, known.Pod)
	w.ContainerId = first(w.ContainerId, known.ContainerId)
}

// exit makes the event of the life's end. Status is nil where nobody told it. What is not known stays unsaid: a signal without the
// kernel's account of it can have come from anybody.
func (l *life) exit(status *exitStatus, at time.Time) *event.Event {
	end := &event.Lifecycle{State: "exited", By: "unknown"}
	if b := l.bye; b != nil {
		end.SaidBye, end.By = event.Ptr(true), "self"
		if b.ExitCode != nil {
			end.ExitCode = event.Ptr(*b.ExitCode)
		}
	}
	if status != nil {
		end.ExitCode, end.Signal = nil, nil
		if signal := status.signal(); signal != 0 {
			// It had said bye, and something ended it before it came to its end.
			end.Signal, end.By = event.Ptr(signal), "unknown"
		} else {
			end.ExitCode, end.By = event.Ptr(status.code()), "self"
		}
	}
	// A process may exit before the kernel's signal reaches it; then its own code holds.
	if l.killed != "" && (status == nil || status.signal() == 9) {
		end.Signal, end.ExitCode, end.By = event.Ptr(int64(9)), nil, l.killed
	}
	return &event.Event{Time: timestamppb.New(at), Worker: l.copy(), Lifecycle: end}
}

// copy returns a worker that the caller may change.
func (l *life) copy() *event.Worker {
	w := &event.Worker{}
	fill(w, l.worker)
	return w
}

// exitStatus is what wait returns for an ended process.
type exitStatus int

func (s exitStatus) signal() int64 { return int64(s & 0x7f) }
func (s exitStatus) code() int64   { return int64(s >> 8 & 0xff) }
