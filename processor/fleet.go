package processor

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/processor/worker"
	"lowtide/rules"
)

const (
	setBack  = 30 * time.Minute   // a host's clock that falls by more was set back; by less, the event is late
	leap     = time.Hour          // a host's clock that rises by more was set, or the host was away: it counts as an hour
	slotKept = 7 * 24 * time.Hour // how long a slot in which nothing lives is remembered
	hostKept = 24 * time.Hour     // how long a host that says nothing is
	endKept  = time.Hour          // how long a process that has ended is
)

type hostName struct{ cluster, name string }

// host is one machine: what is known there, and what its events say the time is.
type host struct {
	name      hostName
	key       string
	processes map[process]*watched
	cards     map[string]*card
	slots     map[string]*slot
	sensors   map[string]*sensor
	blind     int // sensors that are not well

	deploys, drains, deaths notes
	ends                    bool // somebody tells how processes end

	newest  time.Time     // the newest event, by a clock that may be set
	elapsed time.Duration // how long the host was heard: a clock that leaps ends nothing
	spoke   time.Duration // elapsed at its newest event
	swept   time.Duration // elapsed at the last sweep
	heard   bool          // since then
	told    bool          // since the last Tick
	toldAt  time.Time     // broker time of the Tick before which it was last heard
}

func (j *Judge) host(of *event.Host, at time.Time) *host {
	name := hostName{of.GetCluster(), of.GetName()}
	h := j.last
	if h == nil || h.name != name {
		h = j.hosts[name]
		if h == nil {
			h = &host{name: name, key: event.HostKey(of), processes: make(map[process]*watched), cards: make(map[string]*card),
				slots: make(map[string]*slot), sensors: make(map[string]*sensor), newest: at}
			j.hosts[name] = h
		}
		j.last = h
	}
	switch passed := at.Sub(h.newest); {
	case passed > 0:
		h.elapsed += min(passed, leap)
		h.newest = at
	case passed < -setBack:
		h.newest = at
	}
	h.heard, h.told, h.spoke = true, true, h.elapsed
	return h
}

// process is what tells one process life of a host from another: the parts of event.WorkerKey.
type process struct {
	boot  string
	pid   int64
	ticks uint64
	start int64 // nanoseconds since 1970, where there are no boot id and ticks
	form  uint8
}

func lifeOf(h *event.Host, w *event.Worker) process {
	switch {
	case h.GetBootId() != "" && w.StartTicks != nil:
		return process{boot: h.BootId, pid: w.GetPid(), ticks: *w.StartTicks, form: 2}
	case w.StartTime != nil:
		return process{pid: w.GetPid(), start: w.StartTime.AsTime().UnixNano(), form: 1}
	}
	return process{pid: w.GetPid()}
}

// watched is a worker with what the judge remembers about it.
type watched struct {
	*worker.Worker
	home  *host
	place *slot
	in    *instance
	life  process
	cards []*card

	answers, shared answers // of the worker's own rules, and of those of its instance while it speaks for that
	said            *event.Worker
	speech          speech
	own             bool          // an engine of its own index is heard of
	other           *int64        // else the only other one
	heard           time.Time     // the newest event of its own, rather than of its instance or its device
	spoke           time.Duration // of the host's time, then
	entered         time.Time     // its slot
	judged          time.Time     // the newest moment that it was judged at
	ticks           int           // since then
	told            bool          // it has what its slot knows

	called, regrown uint16 // a bit for each of growers
	slopes          [len(growers)]float64
	peers           [len(growers)]comparison
	compared        time.Time
	group           string // cluster/model/release
	related         []string
	relatedAt       int

	orphan        *card // whose orphan memory it was told
	orphanAt      int
	anon          memory
	draining, bye bool
	faultAt       time.Time // of its newest error on the GPU
	doomed        string    // kernel or cgroup, once that said that it killed it
	doomedAt      time.Time
	end           ending
}

func (w *watched) hear(at time.Time) {
	if at.After(w.heard) || w.heard.Sub(at) > setBack {
		w.heard = at
	}
	w.spoke = w.home.elapsed
}

// kin are those it can be compared with.
func (w *watched) kin() peerGroup {
	return peerGroup{w.home.name.cluster, w.Who.GetModel(), w.Who.GetRole()}
}

// worker finds the process that an event is about, or begins to watch it.
func (j *Judge) worker(h *host, e *event.Event, at time.Time) *watched {
	life := lifeOf(e.Host, e.Worker)
	if w := h.processes[life]; w != nil {
		w.hear(at)
		if w.said != e.Worker {
			w.said = e.Worker
			if e.Engine == nil && e.Config == nil && w.Learn(e.Worker) {
				j.move(w, at)
			}
		}
		return w
	}
	if len(j.workers) >= maxWorkers {
		j.forgetOldest()
	}
	who := e.Worker
	if e.Worker.EngineIndex != nil && (e.Engine != nil || e.Config != nil) && e.Worker.GetRole() == "frontend" {
		who = proto.CloneOf(who) // the index is that of the engine it speaks for
		who.EngineIndex = nil
	}
	key := event.WorkerKey(e.Host, e.Worker)
	w := &watched{Worker: worker.New(key, e.Host, who, at), home: h, life: life, heard: at, spoke: h.elapsed, relatedAt: -1}
	j.workers[key], h.processes[life] = w, w
	j.index(w)
	j.enter(w, at)
	return w
}

// find returns the process that had a pid at a time: the newest that had not ended long before.
func (h *host) find(pid int64, at time.Time) (found *watched) {
	for _, w := range h.processes {
		if w.life.pid != pid || !w.end.at.IsZero() && !within(at, w.end.at, aftermath) {
			continue
		}
		if found == nil || w.First.After(found.First) || w.First.Equal(found.First) && w.Key > found.Key {
			found = w
		}
	}
	return found
}

// named finds the process of an event that tells no more than a pid.
func (h *host) named(who *event.Worker, at time.Time) *watched {
	if who.StartTicks != nil || who.StartTime != nil {
		return nil
	}
	return h.find(who.GetPid(), at)
}

// sorted returns the workers in the order of their keys, so that the same events give the same findings in the same order.
func (j *Judge) sorted() []*watched { return byKey(j.workers) }

func (h *host) sorted() []*watched { return byKey(h.processes) }

func byKey[K comparable](of map[K]*watched) []*watched {
	all := make([]*watched, 0, len(of))
	for _, w := range of {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b *watched) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (j *Judge) ordered() []*host {
	all := make([]*host, 0, len(j.hosts))
	for _, h := range j.hosts {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *host) int { return strings.Compare(a.key, b.key) })
	return all
}

// sweep forgets processes that have been silent for hours, by the time that their host was heard, or the others where that is
// silent too: a clock that is wrong costs nobody anything. Their incidents stay with the slot.
func (j *Judge) sweep() {
	passed := make([]time.Duration, 0, len(j.hosts))
	for _, h := range j.hosts {
		if h.heard {
			passed = append(passed, h.elapsed-h.swept)
		}
	}
	slices.Sort(passed)
	usual := passed[(len(passed)-1)/2] // there is one: whose event this is
	for _, h := range j.ordered() {
		h.elapsed = max(h.elapsed, h.swept+usual) // one that fell silent meanwhile goes on with the others
		h.swept = h.elapsed
		h.heard = false
		for _, w := range h.sorted() {
			if silence := h.elapsed - w.spoke; silence > forget || silence > endKept && !w.end.at.IsZero() {
				j.forget(w)
			}
		}
		j.sweepSlots(h)
		j.sweepCards(h)
		if silence := h.elapsed - h.spoke; len(h.processes)+h.blind == 0 && h != j.last && (silence > hostKept && !j.troubled(h) || silence > slotKept) {
			delete(j.hosts, h.name)
		}
	}
}

// troubled says that an incident is open at a slot of the host.
func (j *Judge) troubled(h *host) bool {
	for key := range h.slots {
		if len(j.incidents.Open(key)) > 0 {
			return true
		}
	}
	return false
}

// sweepSlots looks at what nobody lives in any more. A trouble that needs no proof ends there too, after a day in which it was not
// seen; growth stays open, masked by the restart that has not come.
func (j *Judge) sweepSlots(h *host) {
	standing := make(map[string]bool) // an instance is judged there, whoever lives there
	for _, w := range h.processes {
		if w.in != nil && w.end.at.IsZero() {
			standing[w.in.slot] = true
		}
	}
	for _, s := range h.sortedSlots() {
		if s.life != nil && s.life.end.at.IsZero() || standing[s.key] {
			s.emptied = h.elapsed
			continue
		}
		open := j.incidents.Open(s.key)
		if len(open) == 0 && s.life == nil && h.elapsed-s.emptied >= s.kept() {
			delete(h.slots, s.key)
			continue
		}
		for _, in := range slices.Clone(open) {
			rule := j.rules[in.Rule]
			if rule != nil && len(growthSeries[in.Class]) == 0 {
				j.idle(h, in, rule)
			}
		}
	}
}

// idle observes, for a trouble of a slot that is empty, that it is not there.
func (j *Judge) idle(h *host, in *incident.Incident, rule *rules.Rule) {
	o := incident.Observation{Time: h.newest, Key: in.Key, Rule: rule, Release: in.Release, Group: in.Group}
	o.Fill = func(f *event.Finding) {
		if last := in.Last; last != nil {
			f.Subject, f.Slot, f.Worker, f.Labels, f.Confidence = last.Subject, last.Slot, last.Worker, last.Labels, last.Confidence
			f.Summary, f.Evidence, f.CounterEvidence, f.Advice = last.Summary, last.Evidence, last.CounterEvidence, last.Advice
		}
	}
	for _, f := range j.incidents.Observe(o) {
		j.emit(f)
	}
}

func (j *Judge) forgetOldest() {
	var oldest *watched
	for _, w := range j.sorted() {
		if oldest == nil || w.heard.Before(oldest.heard) {
			oldest = w
		}
	}
	if oldest != nil {
		j.forget(oldest)
	}
}

func (j *Judge) forget(w *watched) {
	if s := w.place; s != nil {
		j.remember(s, w)
		j.leave(w)
	}
	j.awaiting = slices.DeleteFunc(j.awaiting, func(a awaited) bool { return a.w == w })
	delete(j.workers, w.Key)
	delete(w.home.processes, w.life)
	j.unindex(w)
}

// index makes the worker found by its instance and its GPUs.
func (j *Judge) index(w *watched) {
	j.epoch++
	in := j.instances[w.Instance]
	if in == nil {
		in = &instance{key: w.Instance}
		j.instances[w.Instance] = in
	}
	in.members = append(in.members, w)
	in.speaker, w.in = nil, in
	for _, uuid := range w.Who.GetGpuUuids() {
		c := w.home.card(uuid)
		c.users = append(c.users, w)
		w.cards = append(w.cards, c)
	}
	w.group = w.home.name.cluster + "/" + w.Who.GetModel() + "/" + w.Who.GetRelease()
	if w.Who.GetModel() == "" {
		w.group = ""
	}
}

func (j *Judge) unindex(w *watched) {
	j.epoch++
	is := func(other *watched) bool { return other == w }
	if in := w.in; in != nil {
		in.speaker = nil
		if in.members = slices.DeleteFunc(in.members, is); len(in.members) == 0 {
			delete(j.instances, in.key)
		}
	}
	for _, c := range w.cards {
		c.users = slices.DeleteFunc(c.users, is)
	}
	w.in, w.cards = nil, nil
}

// relatives are the other keys whose incidents may explain one of this worker: its cards, and the other slots of its instance.
func (w *watched) relatives(j *Judge) []string {
	if w.relatedAt == j.epoch {
		return w.related
	}
	w.related, w.relatedAt = nil, j.epoch
	for _, c := range w.cards {
		w.related = append(w.related, c.key)
	}
	if w.in != nil {
		for _, other := range w.in.members {
			if other.Slot != w.Slot && !slices.Contains(w.related, other.Slot) {
				w.related = append(w.related, other.Slot)
			}
		}
	}
	return w.related
}

// move follows a worker that is known better now. Its slot stays while an incident is open there: that is where it will resolve.
func (j *Judge) move(w *watched, at time.Time) {
	j.unindex(w)
	w.Instance = event.InstanceKey(w.Host, w.Who)
	j.settle(w)
	j.index(w)
	j.enter(w, at)
	if w.place != nil {
		w.place.renewed(w)
	}
}

// settle gives a worker the slot that it has by now, unless an incident is open at the one before.
func (j *Judge) settle(w *watched) {
	if slot := event.SlotKey(w.Host, w.Who); slot != w.Slot && len(j.incidents.Open(w.Slot)) == 0 {
		w.Slot = slot
		j.epoch++
	}
}

// siblings says that the open incident of a slot is of another process that lives there, as the API servers of one engine share a
// slot: what this one does not do proves nothing about that one.
func (j *Judge) siblings(w *watched, class string, at time.Time) bool {
	for _, in := range j.incidents.Open(w.Slot) {
		if in.Class == class && in.Worker != w.Key {
			other := j.workers[in.Worker]
			return other != nil && other.Slot == w.Slot && !other.Exited(at) && within(at, other.heard, silent)
		}
	}
	return false
}

// present leaves out those that had ended by then: what a device or an engine says afterwards is about their successors.
func present(all []*watched, at time.Time) []*watched {
	for i, w := range all {
		if w.Exited(at) {
			rest := slices.Clone(all[:i])
			for _, other := range all[i+1:] {
				if !other.Exited(at) {
					rest = append(rest, other)
				}
			}
			return rest
		}
	}
	return all
}
