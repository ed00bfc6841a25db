package processor

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/worker"
)

const (
	setBack = 30 * time.Minute // a host's clock that falls by more was set back; by less, the event is late
	leap    = time.Hour        // a host's clock that rises by more was set, or the host was away: it counts as an hour
)

const maxCardsOfWorker = 64 // whoever names more makes them up

type hostName struct{ cluster, name string }

// host is one machine: what is known there, and what its events say the time is.
type host struct {
	name      hostName
	key       string
	said      *event.Host // of its newest event
	processes map[process]*watched
	recent    recently // whom the newest events were about
	cards     map[string]*card
	near      nearest // of the newest events of devices
	layout    int     // grows when it is known better which cards there are, and which is a part of which
	slots     map[string]*slot
	sensors   map[string]*sensor
	blind     int               // sensors that are not well
	labels    map[string]string // that the configuration adds to what is there, whatever the model

	deploys, drains, deaths notes
	ends                    bool // somebody tells how processes end

	newest  time.Time     // the newest event, by a clock that may be set
	elapsed time.Duration // how long the host was heard: a clock that leaps ends nothing
	spoke   time.Duration // elapsed at its newest event
	swept   time.Duration // elapsed at the last sweep
	heard   bool          // since then
	turn    uint64        // of the judge, at its newest event
	told    bool          // since the last Tick
	toldAt  time.Time     // broker time of the Tick before which it was last heard
}

func (j *Judge) host(of *event.Host, at time.Time) *host {
	h := j.last
	if h == nil || h.said != of {
		h = j.find(hostName{of.GetCluster(), of.GetName()}, of, at)
		h.said, j.last = of, h
	}
	switch passed := event.Ago(at, h.newest); {
	case passed > 0:
		h.elapsed += min(passed, leap)
		h.newest = at
	case passed < -setBack:
		h.newest = at
	}
	j.turn++
	h.heard, h.told, h.spoke, h.turn = true, true, h.elapsed, j.turn
	return h
}

// moment is the host's time of an event: of one that came late, when it was.
func (h *host) moment(at time.Time) time.Duration {
	return h.elapsed - min(h.elapsed, max(0, event.Ago(h.newest, at)))
}

func (j *Judge) find(name hostName, of *event.Host, at time.Time) *host {
	if h := j.last; h != nil && h.name == name {
		return h
	}
	h := j.hosts[name]
	if h == nil {
		if len(j.hosts) >= maxHosts {
			j.forgetHosts()
		}
		h = &host{name: name, key: event.HostKey(of), processes: make(map[process]*watched), cards: make(map[string]*card),
			slots: make(map[string]*slot), sensors: make(map[string]*sensor), newest: at}
		j.labelHost(h)
		j.hosts[name] = h
	}
	return h
}

// process is what tells one process life of a host from another: the parts of event.WorkerKey.
type process struct {
	boot  string
	pid   int64
	ticks uint64
	start int64 // nanoseconds since 1970, where there are no boot id and ticks
	form  uint8 // 3: of a bare pid that has come again since; start is its end
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

	answers, shared answers       // of the worker's own rules, and of those of its instance while it speaks for that
	said            *event.Worker // as its newest event named it, and its host
	saidHost        *event.Host
	speech          speech
	own             bool          // an engine of its own index is heard of
	voiced          bool          // and told so by itself
	ordinal         int           // among processes that nothing but their pid tells apart; 0 where there is no other
	other           *int64        // else the only other one
	heard           time.Time     // the newest event of its own, rather than of its instance or its device
	spoke           time.Duration // of the host's time, then
	turn            uint64        // of the judge, then
	entered         time.Time     // its slot
	arrived         time.Duration // of the host's time, then
	agreed          time.Duration // of the host's time: when its GPUs were last told as they are held
	judged          time.Time     // the newest moment that it was judged at
	ticks           int           // since then
	told            bool          // it has what its slot knows

	called, regrown uint16 // a bit for each of growers
	slopes          [len(growers)]float64
	peers           [len(growers)]comparison
	compared        time.Time
	wishes          []wish
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
	if w.heard == at && w.home.newest == at { // as it was by the event before
		w.spoke, w.turn = w.home.elapsed, w.home.turn
		return
	}
	if ahead := event.Ago(w.heard, at); ahead < 0 || ahead > setBack {
		w.heard = at
	}
	w.spoke, w.turn = max(w.spoke, w.home.moment(at)), w.home.turn
}

// kin are those it can be compared with.
func (w *watched) kin() peerGroup {
	return peerGroup{w.home.name.cluster, w.Who.GetModel(), w.Who.GetRole()}
}

// process finds the process that an event is about. One that nothing but a pid names, and that has ended, is another life once it
// works again; what is said about an end may come late.
func (h *host) process(e *event.Event, at time.Time) *watched {
	w := h.again(e)
	if w == nil {
		w = h.processes[lifeOf(e.Host, e.Worker)]
	}
	if w == nil || w.life.form != 0 || w.end.at.IsZero() || !w.Exited(at) || e.Oom != nil || e.Xid != nil || e.Mark != nil || e.Log != nil || e.Snapshot != nil {
		return w
	}
	if e.Lifecycle.GetState() == "exited" || e.Lifecycle.GetState() != "started" && at.Sub(w.end.at) <= endLag {
		return w
	}
	delete(h.processes, w.life)
	w.life.form, w.life.start = 3, w.end.at.UnixNano()
	h.processes[w.life], h.recent = w, recently{}
	return nil
}

// again returns the process of one of the newest events if this one names it by the same object, as those of one recording do.
func (h *host) again(e *event.Event) *watched {
	for i := range h.recent.all {
		if one := &h.recent.all[i]; one.who == e.Worker {
			if w := one.is; w != nil && w.said == e.Worker && w.saidHost == e.Host {
				return w
			}
			return nil
		}
	}
	return nil
}

// recently are the processes of the newest events, by how these named them: a host tells of all of its processes in turn.
type recently struct {
	all [8]struct {
		who *event.Worker
		is  *watched
	}
	next uint8
}

func (r *recently) add(who *event.Worker, w *watched) {
	for i := range r.all {
		if r.all[i].who == who || r.all[i].is == w {
			r.all[i].who, r.all[i].is = who, w
			return
		}
	}
	r.all[r.next%uint8(len(r.all))].who, r.all[r.next%uint8(len(r.all))].is = who, w
	r.next++
}

// worker finds the process that an event is about, or begins to watch it.
func (j *Judge) worker(h *host, e *event.Event, at time.Time) *watched {
	if w := h.again(e); w != nil && w.life.form != 0 {
		w.hear(at)
		return w
	}
	if w := h.process(e, at); w != nil {
		h.recent.add(e.Worker, w)
		w.saidHost = e.Host
		w.hear(at)
		if w.said != e.Worker {
			w.said = e.Worker
			if e.Engine == nil && e.Config == nil && w.Learn(w.believe(e.Worker)) {
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
	if j.workers[key] != nil {
		key += "@" + at.UTC().Format(time.RFC3339Nano) // the pid has come again, and nobody knows when it started
	}
	life := lifeOf(e.Host, e.Worker)
	w := &watched{Worker: worker.New(key, e.Host, who, at), home: h, life: life, heard: at, spoke: h.moment(at), turn: h.turn, agreed: h.elapsed, relatedAt: -1}
	j.label(w)
	j.workers[key], h.processes[life] = w, w
	j.index(w)
	j.comes(w, at)
	return w
}

// believe leaves out GPUs that contradict those that are held, while others still tell of these: two sources that disagree would
// move the worker to and fro. More of them are better knowledge.
func (w *watched) believe(who *event.Worker) *event.Worker {
	held, told := w.Who.GetGpuUuids(), who.GpuUuids
	if len(told) == 0 {
		return who
	}
	missing := slices.ContainsFunc(held, func(uuid string) bool { return !slices.Contains(told, uuid) })
	if !missing || w.home.elapsed-w.agreed >= silent {
		if w.agreed = w.home.elapsed; missing || len(told) > len(held) || slices.Equal(held, told) {
			return who
		}
	}
	who = proto.CloneOf(who)
	who.GpuUuids = nil
	return who
}

// comes lets the worker enter the slot that is its own by now.
func (j *Judge) comes(w *watched, at time.Time) {
	before := w.place
	if j.enter(w, at); w.place != before {
		w.arrived = w.home.moment(at)
	}
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

// index makes the worker found by its instance and its GPUs.
func (j *Judge) index(w *watched) {
	j.epoch++
	in := j.instances[w.Instance]
	if in == nil {
		in = &instance{key: w.Instance, relatedAt: -1}
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
		in.keep(j, w.cards)
		if in.members = slices.DeleteFunc(in.members, is); len(in.members) == 0 {
			delete(j.instances, in.key)
		}
	}
	for _, c := range w.cards {
		c.users = slices.DeleteFunc(c.users, is)
	}
	w.in, w.cards = nil, nil
}

// move follows a worker that is known better now. Its slot stays while an incident is open there: that is where it will resolve.
func (j *Judge) move(w *watched, at time.Time) {
	j.unindex(w)
	w.Instance = w.instanceKey()
	j.label(w)
	j.settle(w)
	j.index(w)
	j.comes(w, at)
	if w.place != nil {
		w.place.renewed(w)
	}
}

// settle gives a worker the slot that it has by now, unless an incident is open at the one before.
func (j *Judge) settle(w *watched) {
	if slot := w.slotKey(); slot != w.Slot && len(j.incidents.Open(w.Slot)) == 0 {
		w.Slot = slot
		j.epoch++
	}
}

// siblings says that the open incident of a slot is of another process that lives there, as the API servers of one engine share a
// slot: what this one does not do proves nothing about that one.
func (j *Judge) siblings(w *watched, q *question, at time.Time) bool {
	for _, in := range q.incidents.Open(w.Slot) {
		if in.Class == q.rule.Class && (!q.rule.Shadow || in.Rule == q.rule.ID) && in.Worker != w.Key {
			other := j.workers[in.Worker]
			return other != nil && other.Slot == w.Slot && !other.Exited(at) && within(at, other.heard, silent)
		}
	}
	return false
}

// present leaves out those that had ended by then, or are gone without a word: what a device or an engine says afterwards is about
// their successors.
func present(all []*watched, at time.Time) []*watched {
	for i, w := range all {
		if w.absent(at) {
			rest := slices.Clone(all[:i])
			for _, other := range all[i+1:] {
				if !other.absent(at) {
					rest = append(rest, other)
				}
			}
			return rest
		}
	}
	return all
}

// absent says that it had ended by then, or that another came to its slot of which it has said nothing since.
func (w *watched) absent(at time.Time) bool {
	if w.Exited(at) || w.end.unknown && w.end.at.Before(at) && !w.heard.After(w.end.at) {
		return true
	}
	s := w.place
	return s != nil && s.life != nil && s.life != w && w.spoke < s.life.arrived && !at.Before(s.life.entered)
}
