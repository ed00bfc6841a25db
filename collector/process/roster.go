package process

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// Bounds of the roster.
const (
	mostLives = 1024             // watched at a time
	endedFor  = 15 * time.Minute // for how long an ended process is known
	mostEnded = 1024
)

// slack is how far the time of an event may be from that of a process's start or end: a kernel message's clock drifts, a start time
// is computed, an end is seen late.
const slack = 2 * time.Second

// Roster knows the watched processes of a host, and those that ended within 15 minutes. The process source keeps it up to date,
// and every event of the host teaches it. It is safe for concurrent use.
type Roster struct {
	o    *Options
	boot time.Time

	mu        sync.Mutex
	living    map[int]*life
	ended     map[int][]*life // by pid, newest last
	queue     []*life         // the same, oldest first
	names     names
	gpus      map[int64]string // uuid by index
	seats     map[string][]seat
	endpoints []Endpoint
	ephemeral uint16
	uptime    uint64    // ticks, of the last tick
	now       time.Time // of the last tick
}

func newRoster(o *Options, boot time.Time) *Roster {
	return &Roster{
		o: o, boot: boot, living: make(map[int]*life), ended: make(map[int][]*life), gpus: make(map[int64]string),
		seats: make(map[string][]seat), ephemeral: ephemeral(o.ProcRoot), names: newNames(),
	}
}

// Complete fills in the worker of an event that names no more than a pid, or a unit, and learns what the event tells about
// processes: who holds which GPU, what the kernel killed, who said bye, which model an engine serves. A pid that is not known is
// looked up in /proc, and watched from then on if it matches, holds a GPU or has an allocator. Without such a process an `oom`
// or `xid` keeps no worker; another event stays as it is. What it fills in is the event's own.
func (r *Roster) Complete(e *event.Event) {
	if e.Gpu != nil {
		r.learnGPU(e.Gpu)
		return
	}
	kill := e.Oom != nil && e.Oom.VictimPid != nil && (e.Oom.Kind == "kernel" || e.Oom.Kind == "cgroup")
	if e.Worker == nil && !kill {
		return
	}
	r.mu.Lock()
	if kill {
		if l := r.find(int(*e.Oom.VictimPid), nil, e.At()); l != nil {
			l.killed = e.Oom.Kind
		}
	}
	w := e.Worker
	if w == nil {
		r.mu.Unlock()
		return
	}
	named := w.StartTicks != nil || w.StartTime != nil // its source knows who it is
	var l *life
	if w.Pid > 0 && (w.StartTicks != nil || !named) {
		l = r.find(int(w.Pid), w.StartTicks, e.At())
	} else if w.Pid == 0 && w.Unit != "" {
		l = r.member(e)
	}
	// Long after its end an event about the pid is about another process, if there is one.
	over := l != nil && !l.alive() && e.At().After(l.ended.Add(slack))
	r.mu.Unlock()
	model, engine := w.Model, w.Engine // as its source says them
	if w.Pid > 0 && !named && (l == nil || over) {
		if now := r.meet(e); now != nil {
			l = now
		}
	}
	if l == nil {
		if !named && (e.Oom != nil || e.Xid != nil) || w.Pid <= 0 && !bound(e) {
			e.Worker = nil
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learn(l, e, model, engine)
	if !named {
		fill(w, l.worker)
	}
}

// bound says whether the event means nothing without its worker.
func bound(e *event.Event) bool {
	return e.GpuProcess != nil || e.Allocator != nil || e.Engine != nil || e.Process != nil || e.Lifecycle != nil
}

func (r *Roster) learnGPU(g *event.Gpu) {
	if g.Index == nil || g.Uuid == "" || g.Mig != "" {
		return
	}
	r.mu.Lock()
	r.gpus[*g.Index] = g.Uuid
	r.mu.Unlock()
}

// learn takes in what the event tells about a known process.
func (r *Roster) learn(l *life, e *event.Event, model, engine string) {
	news := false
	switch {
	case e.GpuProcess != nil && e.GpuProcess.GpuUuid != "":
		news = l.hold(e.GpuProcess.GpuUuid, e.At())
	case e.Allocator != nil && e.Allocator.GpuUuid != "":
		news = l.hold(e.Allocator.GpuUuid, e.At())
	case e.Allocator != nil:
		news = !l.busy // it holds its only GPU, whichever that is
		l.busy = true
	case e.Lifecycle != nil && e.Lifecycle.State == "draining" && e.Lifecycle.GetSaidBye():
		l.bye = &event.Lifecycle{ExitCode: e.Lifecycle.ExitCode}
	case e.Engine != nil && l.inst != nil:
		before, spoken := l.inst.model(), l.inst.spoken
		if model != "" {
			l.inst.learn(model, e.At())
		}
		l.inst.spoken = first(engine, spoken)
		news = l.inst.model() != before || l.inst.spoken != spoken
	}
	if news && l.alive() {
		r.resolve()
	}
}

// find returns the process that had the pid at a time: the living one, unless it started only afterwards.
func (r *Roster) find(pid int, ticks *uint64, at time.Time) *life {
	l := r.living[pid]
	if ticks != nil {
		if l != nil && l.ticks == *ticks {
			return l
		}
		for _, old := range r.ended[pid] {
			if old.ticks == *ticks {
				return old
			}
		}
		return nil
	}
	old := r.ended[pid]
	if l == nil && len(old) == 0 {
		return nil
	}
	if l == nil || len(old) > 0 && l.start.After(at.Add(slack)) {
		return old[len(old)-1]
	}
	return l
}

// member finds the process that an event about a unit is about, if it can be only one: where memory was asked for, the one that
// holds a GPU; else the front end, which stands for its instance.
func (r *Roster) member(e *event.Event) *life {
	w := e.Worker
	var found []*life
	for _, l := range r.living {
		i := l.inst
		if i == nil || i.unit() != w.Unit && !(i.base == w.Unit && r.only(i)) ||
			w.Role != "" && w.Role != l.role || w.Rank != nil && (l.rank == nil || *l.rank != *w.Rank) ||
			w.EngineIndex != nil && l.index != nil && *l.index != *w.EngineIndex {
			continue
		}
		if len(found) > 0 && found[0].inst != i {
			return nil
		}
		found = append(found, l)
	}
	if len(found) == 1 {
		return found[0]
	}
	if e.Oom != nil || e.Xid != nil || e.Allocator != nil || e.GpuProcess != nil {
		if busy := slices.DeleteFunc(slices.Clone(found), func(l *life) bool { return !l.busy }); len(busy) == 1 {
			return busy[0]
		}
	}
	var best *life
	for _, l := range found {
		if best == nil || standing(l) < standing(best) || standing(l) == standing(best) && l.pid < best.pid {
			best = l
		}
	}
	return best
}

// only says whether no other living instance shares the base: then a service's own name means this one.
func (r *Roster) only(i *instance) bool {
	for _, l := range r.living {
		if l.inst != i && l.inst != nil && l.inst.base == i.base {
			return false
		}
	}
	return true
}

func standing(l *life) int {
	switch {
	case l == l.inst.root && l.seen.words.serves:
		return 0
	case l.role == "frontend":
		return 1
	case l == l.inst.root:
		return 2
	case l.role == "core":
		return 3
	case l.role == "worker":
		return 4
	default:
		return 5
	}
}

// meet looks an unknown pid up in /proc. It returns nil when there is no such process, or none that the event is about.
func (r *Roster) meet(e *event.Event) *life {
	reader := r.o.reader()
	o, err := reader.glance(int(e.Worker.Pid))
	if err != nil || o.stat.dead() || o.stat.kernel {
		return nil
	}
	reader.detail(o)
	ancestors, own := reader.climb(o)
	own = own || o.pid == reader.self
	uses := e.GpuProcess != nil || e.Allocator != nil || e.Xid != nil || e.Oom != nil && e.Oom.Kind == "cuda"
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.living[o.pid]; l != nil {
		return l // the source was faster
	}
	if chosen := len(r.o.PIDs) > 0; !own && (o.matches && !chosen || uses) && len(r.living) < mostLives {
		if chosen {
			ancestors = nil
		}
		l := r.watch(o, ancestors)
		r.resolve()
		return l
	}
	if e.Oom != nil || e.Xid != nil {
		return nil // somebody else's misfortune
	}
	// Known for this once. It is in no map, so that nothing else comes to know it.
	l := &life{pid: o.pid, ticks: o.stat.ticks, start: r.startOf(o.stat.ticks), seen: *o, role: first(o.words.role, "other")}
	l.worker = l.identify(&r.names)
	return l
}

func (r *Roster) startOf(ticks uint64) time.Time {
	return r.boot.Add(time.Duration(ticks) * (time.Second / ticksPerSecond))
}

// watch takes processes in: one that matters, and those above it up to the topmost that matters too. Resolve must follow.
func (r *Roster) watch(o *observation, ancestors []*observation) *life {
	l := r.add(o)
	top := -1
	for i, up := range ancestors {
		if up.matches || up.words.launcher {
			top = i
		}
	}
	for _, up := range ancestors[:top+1] {
		if r.living[up.pid] == nil && len(r.living) < mostLives {
			r.add(up)
		}
	}
	return l
}

func (r *Roster) add(o *observation) *life {
	l := &life{pid: o.pid, ticks: o.stat.ticks, start: r.startOf(o.stat.ticks), seen: *o}
	r.living[o.pid] = l
	return l
}

// end moves a process to those that ended.
func (r *Roster) end(l *life, at time.Time) {
	if !l.alive() {
		return
	}
	l.ended = at
	if r.living[l.pid] == l {
		delete(r.living, l.pid)
	}
	r.ended[l.pid] = append(r.ended[l.pid], l)
	r.queue = append(r.queue, l)
	r.expire(at)
}

// expire forgets those that ended long ago.
func (r *Roster) expire(now time.Time) {
	for len(r.queue) > 0 && (len(r.queue) > mostEnded || now.Sub(r.queue[0].ended) > endedFor) {
		l := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		rest := slices.DeleteFunc(r.ended[l.pid], func(o *life) bool { return o == l })
		if len(rest) == 0 {
			delete(r.ended, l.pid)
		} else {
			r.ended[l.pid] = rest
		}
	}
}

// lives returns the living processes by pid.
func (r *Roster) lives() map[int]*life {
	r.mu.Lock()
	defer r.mu.Unlock()
	lives := make(map[int]*life, len(r.living))
	for pid, l := range r.living {
		lives[pid] = l
	}
	return lives
}

// stamp is an event of a process at a tick.
func stamp(l *life, tick time.Time) *event.Event {
	return &event.Event{Time: timestamppb.New(tick), Worker: l.copy()}
}
