package processor

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/rules/variable"
)

const (
	pairing     = time.Hour // the default `pair` of a rule: how long a restart or a kill is a symptom
	sameSlope   = 0.3       // a slope that came back is within this share of the one before
	silentTicks = 3         // a successor speaks as often before its predecessor is believed to be gone
	maxRestarts = 64
)

// slotIDs are the variables that a slot fills, found once.
var slotIDs = struct {
	restart, kill, restarts, signal, by, proven, victim, culprit, growth, proofRestart, proofPeer variable.ID
	same, sameGrowing, other, otherGrowing                                                        variable.ID
	work, cap, oom, oomBytes, oomKind, running                                                    variable.ID
}{
	variable.Must("symptom.restart"), variable.Must("symptom.kill"), variable.Must("restarts.hour"), variable.Must("kill.signal"),
	variable.Must("kill.by"), variable.Must("kill.proven"), variable.Must("kill.victim_bytes"), variable.Must("kill.culprit_bytes"),
	variable.Must("kill.by_growth"), variable.Must("proof.restart"), variable.Must("proof.peer"),
	variable.Must("peers.same"), variable.Must("peers.same_growing"), variable.Must("peers.other"), variable.Must("peers.other_growing"),
	variable.Must("proof.work"), variable.Must("proof.cap"), variable.Must("symptom.oom"), variable.Must("oom.requested_bytes"), variable.Must("oom.kind"),
	variable.Must("running.now"),
}

// slot is what a restart comes back to, and what it remembers over process lives.
type slot struct {
	key      string
	life     *watched // that lives there, or lived last; nil once it is forgotten
	before   *watched // that lived there when life came, and may have gone without a word
	restarts moments  // unclean ones
	end      ending   // of the life before this one, or of the last
	regrowth [len(growers)]slope
	ooms     bool          // somebody tells here, in words, when an allocation fails
	quiet    bool          // its present life has been told all there is to tell
	heard    time.Time     // by the host's clock
	emptied  time.Duration // of the host's time: when somebody was last seen to live here
}

// kept is how long the slot is remembered once nobody lives there: long where it knows a slope, which a next life may show again.
func (s *slot) kept() time.Duration {
	switch {
	case s.regrowth != [len(growers)]slope{}:
		return slotKept
	case len(s.restarts) > 0 || !s.end.at.IsZero():
		return hostKept
	}
	return 0
}

func (h *host) slot(key string) *slot {
	s := h.slots[key]
	if s == nil {
		s = &slot{key: key, emptied: h.elapsed}
		h.slots[key] = s
	}
	return s
}

func (h *host) sortedSlots() []*slot { return inOrder(h.slots, func(s *slot) string { return s.key }) }

// inOrder returns what a map holds in the order of a name, so that the same events give the same findings in the same order.
func inOrder[K comparable, V any](of map[K]V, name func(V) string) []V {
	all := make([]V, 0, len(of))
	for _, one := range of {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b V) int { return strings.Compare(name(a), name(b)) })
	return all
}

// slope is the last one that was called of a series, in a life that has ended.
type slope struct {
	release string
	value   float64 // per hour; zero when none was called
}

// moments are the newest of some times, in order.
type moments []time.Time

func (m *moments) add(at time.Time) {
	if len(*m) == maxRestarts {
		*m = append((*m)[:0], (*m)[1:]...)
	}
	*m = append(*m, at)
}

func (m moments) within(at time.Time, window time.Duration) (n int) {
	for _, t := range m {
		if within(at, t, window) {
			n++
		}
	}
	return n
}

func (m moments) newest() time.Time { return m[len(m)-1] }

// within says whether something was less than a window before a moment. What is later by the clock was, too, unless the clock has
// been set back far.
func within(at, then time.Time, window time.Duration) bool {
	if then.IsZero() {
		return false
	}
	d := event.Ago(at, then)
	return d < window && d > -window
}

// enter makes the worker the slot's life. A predecessor that has ended is followed at once; one that was heard just now may stand
// beside it, as the API servers of one engine do, until it has been silent for a while.
func (j *Judge) enter(w *watched, at time.Time) {
	s := w.home.slot(w.Slot)
	if w.place == s {
		return
	}
	j.leave(w)
	w.place, w.entered, w.ticks = s, at, 0
	s.heard, s.quiet = at, false
	old := s.life
	switch {
	case old == w:
		return
	case old != nil && old.end.at.IsZero():
		if !within(at, old.heard, forget) {
			break
		}
		if s.before == nil || s.before == w {
			s.before = old
		}
	case !s.end.at.IsZero() && s.end.life != w.Key:
		s.life = w
		j.follow(s, w, at)
		return
	}
	s.life = w
}

// leave takes the worker out of the slot that it has moved from, with what it would have remembered there.
func (j *Judge) leave(w *watched) {
	s := w.place
	if s == nil {
		return
	}
	if s.life == w {
		s.life = nil
	}
	if s.before == w {
		s.before = nil
	}
	w.place = nil
}

// heir is the process that lives in the slot of a finding by now, where the one that the finding names has ended; nil where that one
// lives, or nobody does.
func (j *Judge) heir(f *event.Finding) (next *watched, ended bool) {
	h := j.hosts[hostName{f.Labels["cluster"], f.Labels["host"]}]
	if h == nil || f.Worker == nil || f.Subject.Kind != "worker" && f.Subject.Kind != "instance" {
		return nil, false
	}
	s := h.slots[f.Slot]
	for life, w := range h.processes {
		if life.pid == f.Worker.Pid && w.Who.GetStartTicks() == f.Worker.GetStartTicks() && proto.Equal(w.Who.GetStartTime(), f.Worker.StartTime) {
			ended = !w.end.at.IsZero()
			if !ended {
				return nil, false
			}
		}
	}
	if s == nil || s.life == nil || !s.life.end.at.IsZero() {
		return nil, ended
	}
	return s.life, true
}

// inherited returns what to advise because of a finding: the finding itself, or where its process has ended that nothing is to be said
// of that one any more, and the same of its successor.
func (j *Judge) inherited(f *event.Finding) []*event.Finding {
	next, ended := j.heir(f)
	if !ended {
		return []*event.Finding{f}
	}
	old := *f
	old.State = event.Resolved
	if next == nil {
		return []*event.Finding{&old}
	}
	to := *f
	to.Worker = next.Who
	if to.Subject.Kind == "worker" {
		to.Subject.Key = next.Key
	}
	return []*event.Finding{&old, &to}
}

// follow counts a restart, unless the end before it was planned.
func (j *Judge) follow(s *slot, w *watched, at time.Time) {
	s.quiet = false
	s.before = nil
	e := &s.end
	if e.release != "" && w.Who.GetRelease() != "" && e.release != w.Who.GetRelease() {
		e.planned = true
	}
	e.planned = e.planned || w.home.deployed(w.Who.GetUnit(), at)
	if e.counted || !e.unclean() {
		return
	}
	e.counted = true
	s.restarts.add(at)
}

// renewed looks again at a restart once the new life's release is known: that of another one was a rollout.
func (s *slot) renewed(w *watched) {
	e := &s.end
	if release := w.Who.GetRelease(); s.life != w || e.life == w.Key || e.release == "" || release == "" || e.release == release || e.planned {
		return
	}
	e.planned, s.quiet = true, false
	if e.counted && !e.unclean() {
		e.counted = false
		s.restarts = s.restarts[:max(0, len(s.restarts)-1)]
	}
}

// vanished believes that the life before is gone: it says nothing, while this one speaks.
func (j *Judge) vanished(s *slot, w *watched, at time.Time) {
	old := s.before
	switch {
	case old == nil || s.life != w:
	case old.heard.After(w.entered) && old.end.at.IsZero():
		if s.before = nil; within(at, old.heard, silent) {
			s.life = w // they stand beside each other
		}
	case w.ticks >= silentTicks && event.Ago(at, old.heard) >= silent && old.end.at.IsZero():
		j.remember(s, old)
		old.end = ending{at: old.heard, life: old.Key, release: old.Who.GetRelease(), unknown: true, planned: old.planned(old.heard)}
		s.end = old.end
		j.follow(s, w, w.entered)
	}
}

// remember keeps the slopes that were called in a life, and whether an OOM was told of in words. Where only the allocator's counter shows
// it, a next life without that counter hides what happens.
func (j *Judge) remember(s *slot, w *watched) {
	kind, _ := w.Sample().Text(slotIDs.oomKind)
	s.ooms = s.ooms || w.Sample().Known(slotIDs.oomBytes) || kind != "" && kind != "cuda"
	for i, v := range w.slopes {
		if v != 0 {
			s.regrowth[i] = slope{w.Who.GetRelease(), v}
		}
	}
}

// tell sets what the slot knows on the sample of its life. Where nothing happened lately that is done once.
func (s *slot) tell(w *watched, at time.Time) {
	s.heard = at
	if s.quiet && s.life == w && w.told {
		return
	}
	sample := w.Sheet()
	n := s.restarts.within(at, pairing)
	sample.SetNumber(slotIDs.restarts, float64(n))
	sample.SetBool(slotIDs.restart, n > 0)
	recent := false
	if e := &s.end; e.life != w.Key && !e.at.IsZero() {
		recent = within(at, e.at, pairing)
		switch {
		case e.unknown:
			sample.Unset(slotIDs.kill)
		case recent && e.killed():
			e.tell(w)
		default:
			sample.SetBool(slotIDs.kill, false)
		}
	} else if w.home.ends {
		sample.SetBool(slotIDs.kill, false)
	}
	if s.ooms && !sample.Known(slotIDs.oom) {
		sample.SetBool(slotIDs.oom, false) // it would be told: an incident of the life before is not frozen by this one
	}
	w.told = true
	if s.life == w {
		s.quiet = n == 0 && !recent
	}
}

// proofIDs are those that prove sets.
var proofIDs = []variable.ID{slotIDs.work, slotIDs.cap, slotIDs.proofRestart, slotIDs.proofPeer, slotIDs.same, slotIDs.sameGrowing, slotIDs.other, slotIDs.otherGrowing}

// prove sets the second axes on the sample as they are for the first of the series that was called; a rule about another series
// reads its own. It says whether there was one.
func (w *watched) prove(series []int) bool {
	for _, i := range series {
		if w.called>>i&1 == 0 {
			continue
		}
		s, c := w.Sheet(), &w.peers[i]
		work, exceeded, known := w.Axes(growers[i])
		s.SetBool(slotIDs.work, work)
		if known {
			s.SetBool(slotIDs.cap, exceeded)
		} else {
			s.Unset(slotIDs.cap)
		}
		s.SetBool(slotIDs.proofRestart, w.regrown>>i&1 == 1)
		if c.comparable {
			s.SetBool(slotIDs.proofPeer, c.proof)
		} else {
			s.Unset(slotIDs.proofPeer)
		}
		tell := func(peers, growing variable.ID, n, grow int) {
			if n == 0 { // nobody to compare with says nothing
				s.Unset(peers)
				s.Unset(growing)
				return
			}
			s.SetNumber(peers, float64(n))
			s.SetNumber(growing, float64(grow))
		}
		tell(slotIDs.same, slotIDs.sameGrowing, c.same, c.sameGrowing)
		tell(slotIDs.other, slotIDs.otherGrowing, c.other, c.otherGrowing)
		return true
	}
	return false
}

// compare looks at the calls of the worker anew: tells its peers, asks them about what grows here, and asks the slot whether it
// grew like that before.
func (j *Judge) compare(w *watched, at time.Time) {
	w.compared = at
	self := peer{release: w.Who.GetRelease(), points: w.Points(), at: at, from: j.seat}
	self.rate, self.rated = w.RequestRate()
	w.called, w.regrown = 0, 0
	for i, name := range growers {
		if _, called := w.Called(name); called {
			w.called |= 1 << i
			g, ok := w.Slope(name)
			if !ok || !(g.Slope > 0) {
				continue
			}
			w.slopes[i] = g.Slope
			if s := w.place; s != nil {
				past := s.regrowth[i]
				if past.value > 0 && past.release == self.release && math.Abs(g.Slope/past.value-1) <= sameSlope {
					w.regrown |= 1 << i
				}
			}
		} else if w.IsProven(name) {
			self.level |= 1 << i
		}
	}
	self.called = w.called
	j.board.report(w.kin(), w.Key, self)
	if w.called != 0 {
		w.peers = j.board.compare(w.kin(), w.Key, self)
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
