package ownership

import (
	"maps"
	"slices"
	"time"

	"lowtide/processor/broker"
)

// roster knows who lives, from what one observer saw and when. Times are the observer's own.
type roster struct {
	self   string
	alone  bool
	expiry time.Duration
	seen   map[string]*sighting
	absent map[lease]time.Duration // holders of leases of whom no heartbeat was ever seen, and since when they are missed
}

type sighting struct {
	member
	revision uint64
	at       time.Duration // when its revision last changed
	dead     bool
	trials   int // heartbeats until one that had been dead is given seats again: a bad line must not move them back and forth
}

const trialsOfReturned = 3

func newRoster(self string, alone bool, expiry time.Duration) *roster {
	return &roster{self: self, alone: alone, expiry: expiry, seen: make(map[string]*sighting), absent: make(map[lease]time.Duration)}
}

// see takes a heartbeat, or the same one again, and tells whether it changes who may be given a seat.
func (r *roster) see(name string, revision uint64, m member, now time.Duration) bool {
	delete(r.absent, lease{Member: name, Session: m.Session})
	s := r.seen[name]
	if s == nil {
		r.seen[name] = &sighting{member: m, revision: revision, at: now}
		return true
	}
	if revision <= s.revision {
		return false
	}
	changed := s.dead || s.trials > 0 || m.Session != s.Session || m.Leaving != s.Leaving || !maps.Equal(m.Roles, s.Roles)
	switch {
	case m.Session != s.Session:
		s.trials = 0
	case s.dead:
		s.trials = trialsOfReturned
	case s.trials > 0:
		s.trials--
	}
	s.member, s.revision, s.at, s.dead = m, revision, now, false
	return changed
}

// left takes the goodbye of a member: it has let go of everything before it said so.
func (r *roster) left(name string, revision uint64) bool {
	s := r.seen[name]
	if s == nil || revision <= s.revision {
		return false
	}
	s.revision, s.dead = revision, true
	return true
}

// pass calls those dead who were silent for too long, and forgets the dead in the end: names are drawn anew at every start.
func (r *roster) pass(now time.Duration) (died []string) {
	for name, s := range r.seen {
		switch {
		case name == r.self:
		case !s.dead && now-s.at >= r.expiry:
			s.dead = true
			died = append(died, name)
		case s.dead && now-s.at >= broker.MemberTTL:
			delete(r.seen, name)
		}
	}
	maps.DeleteFunc(r.absent, func(_ lease, since time.Duration) bool { return now-since >= broker.MemberTTL })
	slices.Sort(died)
	return died
}

// blink says that nobody could be seen until now: whoever was silent meanwhile may have spoken.
func (r *roster) blink(now time.Duration) {
	for _, s := range r.seen {
		s.at = now
	}
	for l := range r.absent {
		r.absent[l] = now
	}
}

// holds tells whether the holder of a lease may still be at work. One that was never seen has the benefit of the doubt: its heartbeat may
// be on its way, and another session's under its name is not its own.
func (r *roster) holds(l lease, now time.Duration) bool {
	if r.alone || l.Member == r.self {
		return false // nobody else is there; or it is an earlier session of ours, which had died before we joined
	}
	if s := r.seen[l.Member]; s != nil && s.Session == l.Session {
		return !s.dead
	}
	l = lease{Member: l.Member, Session: l.Session}
	since, missed := r.absent[l]
	if !missed {
		since, r.absent[l] = now, now
	}
	return now-since < r.expiry
}

// candidates returns who may be given a seat, sorted.
func (r *roster) candidates(role string, seat int) []string {
	var names []string
	for name, s := range r.seen {
		if s.Roles[role] <= seat || s.Leaving || r.alone && name != r.self {
			continue
		}
		if name == r.self || !s.dead && s.trials == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// living returns how many members live.
func (r *roster) living() int {
	n := 0
	for name, s := range r.seen {
		if name == r.self || !s.dead && !r.alone {
			n++
		}
	}
	return n
}
