package process

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// instance is the tree of processes behind one endpoint.
type instance struct {
	root    *life
	engine  string
	said    string // model, of command lines
	learned string // model, of the engine's own metrics, which knows better
	spoken  string // engine, by its metrics: all that tells it in a program of one's own. It shapes no tree
	at      time.Time
	port    string // of a command line, or the engine's own
	base    string // unit before a number, see unit.go
	strong  bool   // the base is of a pod and its container
	seat    int    // 1 for the first of its base on this host
	tpSize  int64
	serving bool // runs an engine or holds a GPU
}

func (i *instance) model() string { return first(i.learned, i.said) }

// learn notes the model that an engine reports. Of several the first stays, as long as it is reported.
func (i *instance) learn(model string, now time.Time) {
	if i.learned == "" || i.learned == model || now.Sub(i.at) > time.Minute {
		i.learned, i.at = model, now
	}
}

// young is the age until which a process may still become another program or take its engine's title.
const young = 2 * 60 * ticksPerSecond

// resolve tells which instance every process belongs to and who it is in it. Whoever changes what it reads calls it.
func (r *Roster) resolve() {
	lives := make([]*life, 0, len(r.living))
	for _, l := range r.living {
		lives = append(lives, l)
	}
	slices.SortFunc(lives, func(a, b *life) int { return cmp.Or(cmp.Compare(a.ticks, b.ticks), cmp.Compare(a.pid, b.pid)) })
	for _, l := range lives {
		// An orphan stays what it was: it still holds that instance's memory.
		if l.inst == nil || !l.settled && l.inst.root.alive() {
			l.inst = r.rootOf(l).instance()
		}
		l.settled = l.settled || l.read && r.uptime >= l.ticks+young
	}
	members := make(map[*instance][]*life)
	var order []*instance
	for _, l := range lives {
		if members[l.inst] == nil {
			order = append(order, l.inst)
		}
		members[l.inst] = append(members[l.inst], l)
	}
	for _, i := range order {
		r.describe(i, members[i])
	}
	r.seat(order)
	for _, l := range lives {
		l.worker = l.identify(&r.names)
	}
}

func (l *life) instance() *instance {
	if l.own == nil {
		l.own = &instance{root: l}
	}
	return l.own
}

// rootOf finds the top of a process's instance: the topmost process that runs its engine; or above a core or rank whose program has
// no engine's name, and for a program of one's own, the topmost that listens, else the topmost at all. Ranks that a launcher such
// as mpirun started are one instance below it, if their engine has them share one endpoint.
func (r *Roster) rootOf(l *life) *life {
	chain := []*life{l}
	for _, pid := range l.seen.ancestors {
		if up := r.living[pid]; up != nil && up.ticks <= l.ticks {
			chain = append(chain, up)
		}
	}
	if l.seen.words.ray {
		return r.rayRoot(l, chain)
	}
	top, engine := -1, ""
	for i, up := range chain {
		if e := up.seen.words.engine; e != "" && (engine == "" || e == engine) {
			top, engine = i, e
		}
	}
	if engine == "" || engine == "trtllm" || engine == "triton" {
		for i := len(chain) - 1; i > max(top, 0); i-- {
			if chain[i].seen.words.launcher {
				return chain[i]
			}
		}
	}
	if top >= 0 {
		w := chain[top].seen.words
		if w.serves || w.role == "frontend" || engine == "tgi" {
			return chain[top]
		}
	}
	best := chain[max(top, 0)]
	for _, up := range chain[max(top, 0):] {
		if !up.seen.matches || up.seen.words.engine != "" && up.seen.words.engine != engine {
			continue
		}
		if !listens(best) || listens(up) {
			best = up
		}
	}
	return best
}

func listens(l *life) bool { return len(l.listens) > 0 }

// rayRoot joins a process that Ray's node daemon started to the one front end in its container, else to the daemon's other ones.
func (r *Roster) rayRoot(l *life, chain []*life) *life {
	var front *life
	for _, other := range r.living {
		w := other.seen.words
		if !w.serves || w.role != "frontend" || other.seen.place.container != l.seen.place.container || other.seen.place.unit != l.seen.place.unit {
			continue
		}
		root := r.rootOf(other)
		if front != nil && front != root {
			front = nil
			break
		}
		front = root
	}
	if front != nil {
		return front
	}
	oldest := l
	for _, other := range r.living {
		if other.seen.words.ray && other.seen.stat.parent == l.seen.stat.parent && cmp.Or(cmp.Compare(other.ticks, oldest.ticks), other.pid-oldest.pid) < 0 {
			oldest = other
		}
	}
	return oldest
}

// describe tells what the instance runs, and who its members are.
func (r *Roster) describe(i *instance, members []*life) {
	w := i.root.seen.words
	i.engine = first(w.engine, i.engine)
	i.said = first(w.model, i.said)
	i.port = first(w.port, i.port)
	i.tpSize = max(w.tpSize, i.tpSize)
	usual := false
	for _, l := range members {
		w := l.seen.words
		i.engine = first(i.engine, w.engine)
		i.said = first(i.said, w.model)
		i.tpSize = max(i.tpSize, w.tpSize)
		if w.serves || w.role == "frontend" {
			i.port = first(i.port, w.port)
			usual = usual || w.serves && !w.configured
		}
		i.serving = i.serving || l.busy
	}
	i.serving = i.serving || i.engine != ""
	if i.port == "" && usual {
		i.port = defaultPorts[i.engine]
	}
	most := int64(0)
	for _, l := range members {
		if tp := l.seen.words.tp; tp != nil {
			most = max(most, *tp)
		}
	}
	r.cores(members)
	for _, l := range members {
		r.place(i, l, most)
	}
	r.base(i, members)
}

// cores numbers the engine cores of an instance, those without a number in their title by their age.
func (r *Roster) cores(members []*life) {
	used, without := make(map[int64]bool), []*life(nil)
	for _, l := range members {
		if l.seen.words.role != "core" {
			continue
		}
		if dp := l.seen.words.dp; dp != nil {
			l.index = dp
		}
		if l.index != nil {
			used[*l.index] = true
		} else {
			without = append(without, l)
		}
	}
	if len(used)+len(without) < 2 {
		return // the only one of an engine needs no number
	}
	for _, l := range without {
		index := int64(0)
		for used[index] {
			index++
		}
		used[index] = true
		l.index = &index
	}
}

// place tells role, rank and index of a member. Most is the highest tensor-parallel rank among all.
func (r *Roster) place(i *instance, l *life, most int64) {
	w := l.seen.words
	switch {
	case l.role == "worker" && l.busy: // what has worked stays a worker, also when it leaves its GPU
	case w.combined && (l.busy || l.seen.rank != nil && *l.seen.rank > 0):
		l.role = "worker"
	case w.role != "":
		l.role = w.role
	case l.busy:
		l.role = "worker"
	case l == i.root && i.engine != "" && l.seen.matches && !w.launcher && !w.ray:
		l.role = "frontend" // a program of one's own that embeds an engine
	default:
		l.role = "other"
	}
	if l.rank == nil {
		size := i.tpSize
		if size == 0 && r.uptime >= l.ticks+young {
			size = most + 1 // all siblings have their titles by now
		}
		switch {
		case w.tp != nil && w.pp != nil && *w.pp > 0:
			if size > 0 {
				rank := *w.pp*size + *w.tp
				l.rank = &rank
			}
		case w.tp != nil:
			l.rank = w.tp
		case w.pp != nil:
			l.rank = w.pp
		case l.role == "worker" || w.combined:
			l.rank = l.seen.rank
		}
	}
	if w.dp != nil {
		l.index = w.dp
	}
	if l.index == nil {
		for _, pid := range l.seen.ancestors {
			if up := r.living[pid]; up != nil && up.inst == i && up.index != nil {
				l.index = up.index
				break
			}
		}
	}
}

// ports returns what a member's sockets tell about the endpoint: the ports that a restart finds again, lowest first.
func (r *Roster) ports(l *life) []listener {
	var ports []listener
	for _, s := range l.listens {
		if s.at.Port() < r.ephemeral && !slices.ContainsFunc(ports, func(p listener) bool { return p.inode == s.inode }) {
			ports = append(ports, s)
		}
	}
	slices.SortStableFunc(ports, func(a, b listener) int { return cmp.Compare(a.at.Port(), b.at.Port()) })
	return ports
}

func portName(port uint16) string { return strconv.Itoa(int(port)) }
