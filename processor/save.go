package processor

import (
	"fmt"
	"slices"
	"sync"

	"lowtide/processor/incident"
	"lowtide/processor/layout"
	"lowtide/rules"
)

const (
	maxJudgeState = 1 << 30 // bytes, not packed: ten thousand workers have a third of it
	maxNodes      = 1 << 20 // of one kind
)

// The errors of RestoreJudge and Board.Take. What is damaged is of no use; what another build wrote, which keeps other things, is not guessed
// at. In both cases a partition is rebuilt from the stream.
var (
	ErrState        = layout.ErrState
	ErrStateVersion = layout.ErrVersion
)

// saved is what the state of a judge consists of.
type saved struct {
	rules     []ruleMark // that were asked
	tried     []ruleMark // in shadow
	judge     *Judge
	incidents incident.State
	shadows   incident.State
	peers     []posted   // what this judge told the board
	unsound   []*watched // whose clock says 1970: their workers begin anew
}

func (s *saved) roots() []any {
	return []any{&s.rules, &s.tried, s.judge, &s.incidents, &s.shadows, &s.peers, &s.unsound}
}

// ruleMark tells a rule from what it was when the state was written.
type ruleMark struct {
	ID, Class, Scope string
	Print            uint64
}

func marksOf(all []*rules.Rule) (marks []ruleMark) {
	for _, r := range all {
		marks = append(marks, ruleMark{r.ID, r.Class, r.Scope, r.Fingerprint()})
	}
	return marks
}

// ownLayout is that of this build: a field that comes, goes or moves makes another version by itself. Version is raised when one begins to
// mean something else.
var ownLayout = sync.OnceValue(func() *layout.Layout {
	o := layout.Options{Magic: "LTJ", Version: 1, Most: maxJudgeState, Nodes: []layout.Node{
		{Of: new(host), Most: maxNodes}, {Of: new(watched), Most: maxNodes}, {Of: new(slot), Most: maxNodes}, {Of: new(card), Most: maxNodes}, {Of: new(instance), Most: maxNodes},
	}}
	return layout.New(o, (&saved{judge: new(Judge)}).roots()...)
})

// The parts of what does not keep all of its fields. The others are worked out anew, or belong to the moment; TestEveryFieldIsDecidedAbout names
// them, and what speaks for it. Of all other structs every field is kept.

// Parts implements layout.Parted.
func (j *Judge) Parts() []any { return []any{&j.hosts, &j.workers, &j.instances, &j.turn, &j.awaiting} }

// Parts implements layout.Parted.
func (h *host) Parts() []any {
	return []any{&h.name, &h.key, &h.processes, &h.cards, &h.slots, &h.sensors, &h.blind, &h.deploys, &h.drains, &h.deaths, &h.ends,
		&h.newest, &h.elapsed, &h.spoke, &h.swept, &h.heard, &h.turn, &h.told, &h.toldAt}
}

// Parts implements layout.Parted.
func (w *watched) Parts() []any {
	return []any{&w.Worker, &w.home, &w.place, &w.in, &w.life, &w.cards, &w.answers, &w.shared, &w.own, &w.voiced, &w.ordinal, &w.other, &w.heard,
		&w.spoke, &w.turn, &w.entered, &w.arrived, &w.agreed, &w.judged, &w.ticks, &w.told, &w.called, &w.regrown, &w.slopes, &w.peers, &w.compared,
		&w.wishes, &w.group, &w.orphan, &w.orphanAt, &w.anon, &w.draining, &w.bye, &w.faultAt, &w.doomed, &w.doomedAt, &w.end}
}

// Parts implements layout.Parted.
func (c *card) Parts() []any {
	return []any{&c.key, &c.uuid, &c.index, &c.home, &c.kept, &c.users, &c.sample, &c.answers, &c.heard, &c.tick, &c.open, &c.gpu, &c.before, &c.sum,
		&c.hidden, &c.faults, &c.corrected, &c.uncorrect, &c.rows, &c.orphan, &c.version}
}

// Parts implements layout.Parted.
func (in *instance) Parts() []any {
	return []any{&in.key, &in.members, &in.speaker, &in.slot, &in.life, &in.faulty}
}

// Parts implements layout.Parted.
func (a *answers) Parts() []any { return []any{&a.results, &a.firm, &a.holds, &a.mixed} }

// Parts implements layout.Parted.
func (a *answer) Parts() []any { return []any{&a.Result} }

// Save returns everything that what the judge does next depends on, for RestoreJudge; call it between two events. The same state gives the same
// bytes. The judge is not changed, and stands still meanwhile. It fails only for text that is not UTF-8, and for more than a GiB.
func (j *Judge) Save() ([]byte, error) {
	parts, err := j.write()
	if err != nil {
		return nil, err
	}
	return ownLayout().Seal(parts), nil
}

func (j *Judge) write() ([]byte, error) {
	s := saved{rules: j.asked, tried: j.tried, judge: j, incidents: j.incidents.State(), shadows: j.shadows.State(), peers: j.board.own(j.seat)}
	for _, w := range j.everyone() {
		if !w.Prepare() {
			s.unsound = append(s.unsound, w)
		}
	}
	parts, err := ownLayout().Write(s.roots()...)
	if err != nil {
		return nil, fmt.Errorf("save judge: %w", err)
	}
	return parts, nil
}

// everyone returns all workers, in the order of their keys: those too that only their host knows by now.
func (j *Judge) everyone() []*watched {
	all := j.sorted()
	for _, h := range j.ordered() {
		for _, w := range h.sorted() {
			if j.workers[w.Key] != w && !slices.Contains(all[len(j.workers):], w) {
				all = append(all, w)
			}
		}
	}
	return all
}
