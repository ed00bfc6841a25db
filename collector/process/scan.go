package process

import (
	"context"
	"fmt"
	"hash/maphash"
	"os"
	"slices"
	"strconv"
)

// glimpse is what is kept of a process that is not ours, so that it need not be read again.
type glimpse struct {
	ticks  uint64
	parent int
	line   uint64 // hash of the command line
	round  uint32 // of the last scan that listed it
}

// sliceRounds says in how many rounds every process that is not ours is looked at again: its pid may be another's by now, which is rare.
const sliceRounds = 12

// sighting is a process that is to be watched, with those above it.
type sighting struct {
	seen      *observation
	ancestors []*observation
}

// view is what a scan of /proc found.
type view struct {
	found  []sighting
	again  map[*life]observation // of watched ones
	over   []ending              // watched ones that are gone
	reused map[*life]bool        // whose pid is another's by now
}

// scan lists /proc. A process is read when it is new, young or watched; of the others each twelfth, by turns.
func (s *Source) scan(ctx context.Context, lives map[int]*life, uptime uint64) (*view, error) {
	s.round++
	v := &view{again: make(map[*life]observation, len(lives)), reused: make(map[*life]bool)}
	pids, err := s.list(lives)
	if err != nil {
		return nil, err
	}
	listed := make(map[int]bool, len(lives))
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		if l := lives[pid]; l != nil {
			listed[pid] = true
			if s.again(v, l, uptime) {
				continue
			}
		}
		if o := s.meet(pid, uptime); o != nil {
			s.reader.detail(o)
			ancestors, own := s.reader.climb(o)
			switch {
			case len(s.o.PIDs) > 0:
				v.found = append(v.found, sighting{seen: o}) // and nobody above it
			case !own:
				v.found = append(v.found, sighting{o, ancestors})
			}
		}
	}
	for pid, l := range lives {
		if !listed[pid] {
			v.over = append(v.over, ending{life: l})
		}
	}
	for pid, g := range s.others {
		if g.round != s.round {
			delete(s.others, pid)
		}
	}
	return v, nil
}

// list returns the pids to look at.
func (s *Source) list(lives map[int]*life) ([]int, error) {
	if len(s.o.PIDs) > 0 {
		pids := append([]int(nil), s.o.PIDs...)
		for pid := range lives {
			pids = append(pids, pid)
		}
		slices.Sort(pids)
		return slices.Compact(pids), nil
	}
	dir, err := os.Open(s.o.ProcRoot)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 && pid != s.o.self {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// again looks at a watched process. False means that its pid is another's by now, who is to be met.
func (s *Source) again(v *view, l *life, uptime uint64) bool {
	now, err := s.reader.stat(l.pid)
	switch {
	case err != nil && !gone(err):
		return true // it cannot be read, which does not mean that it is gone
	case err != nil:
		v.over = append(v.over, ending{life: l})
		return true
	case now.ticks != l.ticks:
		v.over = append(v.over, ending{life: l})
		v.reused[l] = true
		return false
	case now.dead():
		e := ending{life: l}
		if now.status != 0 { // zero may also mean that it may not be seen
			status := exitStatus(now.status)
			e.status = &status
		}
		v.over = append(v.over, e)
		return true
	}
	o := l.seen
	o.stat = now
	raw, err := s.reader.line(l.pid)
	renamed := err == nil && raw != "" && raw != o.raw
	if renamed {
		s.reader.name(&o, raw)
	}
	if renamed || uptime < l.ticks+young || s.turn(l.pid) {
		s.reader.detail(&o)
	}
	v.again[l] = o
	return true
}

// turn says whether a pid is one of this round's.
func (s *Source) turn(pid int) bool { return uint32(pid)%sliceRounds == s.round%sliceRounds }

// meet looks at a process that is not watched. It returns nil when it does not matter.
func (s *Source) meet(pid int, uptime uint64) *observation {
	g, known := s.others[pid]
	if known && !s.turn(pid) && (uptime >= g.ticks+young || s.unchanged(pid, g)) {
		g.round = s.round
		s.others[pid] = g
		return nil
	}
	o, err := s.reader.glance(pid)
	if err != nil || o.stat.dead() {
		return nil
	}
	s.others[pid] = glimpse{ticks: o.stat.ticks, parent: o.stat.parent, line: maphash.String(s.seed, o.raw), round: s.round}
	if !o.stat.kernel && (o.matches || len(s.o.PIDs) > 0) {
		return o
	}
	return nil
}

// unchanged says whether a young process still has the command line that it had.
func (s *Source) unchanged(pid int, g glimpse) bool {
	line, err := s.reader.files.read(s.reader.path(pid, "cmdline"), mostLine)
	return err == nil && maphash.Bytes(s.seed, line) == g.line
}

// descendants finds the children of engines' processes that are not watched yet.
func (s *Source) descendants() []sighting {
	if len(s.o.PIDs) > 0 {
		return nil
	}
	r := s.roster
	r.mu.Lock()
	parents := make(map[int]uint64, len(r.living))
	for pid, l := range r.living {
		if l.inst != nil && l.inst.engine != "" {
			parents[pid] = l.ticks
		}
	}
	r.mu.Unlock()
	var found []sighting
	for pid, g := range s.others {
		if ticks, ok := parents[g.parent]; !ok || ticks > g.ticks {
			continue
		}
		o, err := s.reader.glance(pid)
		if err != nil || o.stat.dead() || o.stat.kernel {
			continue
		}
		s.reader.detail(o)
		if ancestors, own := s.reader.climb(o); !own {
			found = append(found, sighting{o, ancestors})
		}
	}
	return found
}

// unnamed returns the containers of watched processes whose pod's name is not known, with the GPUs held in each. Under the
// roster's lock.
func (r *Roster) unnamed() ([]unnamed, map[int64]string) {
	held := make(map[place]map[string]bool)
	for _, l := range r.living {
		p := l.seen.place
		if p.pod == "" {
			continue
		}
		if name, ok := r.names.byContainer[p.container]; ok && name.container != "" {
			continue
		}
		if held[p] == nil {
			held[p] = make(map[string]bool)
		}
		for uuid := range l.gpus {
			held[p][uuid] = true
		}
	}
	var missing []unnamed
	for p, gpus := range held {
		m := unnamed{place: p}
		for uuid := range gpus {
			m.gpus = append(m.gpus, uuid)
		}
		missing = append(missing, m)
	}
	gpus := make(map[int64]string, len(r.gpus))
	for index, uuid := range r.gpus {
		gpus[index] = uuid
	}
	return missing, gpus
}
