package processor

import (
	"errors"
	"fmt"
	"slices"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/processor/layout"
	"lowtide/rules"
)

// RestoreJudge makes a judge of what Save returned: it goes on as the saved one would have, finding by finding. An error is an ErrState or an
// ErrStateVersion, and nothing was emitted or put on the board.
//
// Where the rules are others by now, only what belongs to those that changed begins anew:
//   - A rule that is the same keeps its incidents, and what it asked for. So does one that changed keep its open incidents, since the trouble
//     that was announced has not ended because somebody edited a threshold: the next observation judges them by the new text, and they
//     resolve as all do, by proof or by a day of silence.
//   - An incident whose rule is not asked any more (removed, disabled, in shadow by now, of another class or scope) goes to another rule of its class
//     and scope. Where there is none, nobody would ever say again whether it goes on: it is resolved at once, with that reason, as an alert is
//     whose rule was taken away.
//   - A snapshot that a changed rule had asked for may be asked for again.
//   - New rules are asked about everything at the next tick.
//   - What a rule in shadow has seen goes on with that rule alone: it ends when the rule is removed, or is in shadow no more.
func RestoreJudge(pack *rules.Pack, board *Board, emit func(*event.Finding), state []byte) (*Judge, error) {
	parts, err := ownLayout().Open(state)
	var j *Judge
	if err == nil {
		j, err = readJudge(pack, board, emit, parts)
	}
	if err != nil {
		return nil, fmt.Errorf("restore judge: %w", err)
	}
	return j, nil
}

// readJudge is RestoreJudge of what write returned.
func readJudge(pack *rules.Pack, board *Board, emit func(*event.Finding), parts []byte) (*Judge, error) {
	s := saved{judge: NewJudgeWith(pack, board, emit)}
	graph, err := ownLayout().Read(parts, s.roots()...)
	if err != nil {
		return nil, err
	}
	j := s.judge
	if err := errors.Join(s.incidents.Check(), s.shadows.Check()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	s.peers = slices.DeleteFunc(s.peers, func(one posted) bool { return one.broken() != "" }) // they are no reason to begin anew
	j.incidents.Restore(s.incidents)
	j.shadows.Restore(s.shadows)
	if err := s.anew(graph); err != nil {
		return nil, err
	}
	if err := s.settle(graph); err != nil {
		return nil, err
	}
	board.restore(j.seat, s.peers)
	for _, f := range s.reassign() {
		emit(f)
	}
	return j, nil
}

// anew works out what is no part of a state.
func (s *saved) anew(graph *layout.Graph) error {
	for _, w := range layout.All[watched](graph) {
		w.relatedAt = -1
		if w.Worker == nil {
			return fmt.Errorf("%w: a process that is nobody", ErrState)
		}
		if !slices.Contains(s.unsound, w) {
			if err := w.Resume(); err != nil {
				return err
			}
			continue
		}
		if w.Host == nil || w.Who == nil || w.First.IsZero() {
			return fmt.Errorf("%w: a process that is nobody", ErrState)
		}
		w.Worker, w.answers, w.shared, w.told = w.Anew(), answers{}, answers{}, false
	}
	for _, c := range layout.All[card](graph) {
		c.relatedAt, c.wholeAt = -1, -1
	}
	for _, in := range layout.All[instance](graph) {
		in.relatedAt = -1
	}
	return nil
}

// settle gives the answers the questions that they belong to, and refuses what the judge would stumble over.
func (s *saved) settle(graph *layout.Graph) error {
	j := s.judge
	kept := func(q *questions, scope string) func(a *answers) bool {
		before, same := s.of(scope), q.same(s.of(scope))
		return func(a *answers) bool {
			if len(a.results) > 0 && len(a.results) != len(before) || a.firm && len(a.results) != len(before) {
				return false
			}
			if !same {
				*a = answers{} // all are asked again, which gives the same where the rule is the same
				return true
			}
			for i := range a.results {
				a.results[i].decided, a.results[i].late = q.all[i].condition, true
				if r := &a.results[i].Result; max(r.When, r.Confirm, r.With, r.Refute) > rules.Unknown {
					return false
				}
			}
			return true
		}
	}
	worker, instanceOf, gpu, hostOf := kept(j.perWorker, "worker"), kept(j.perInstance, "instance"), kept(j.perCard, "gpu"), kept(j.perHost, "host")
	for _, w := range layout.All[watched](graph) {
		if !worker(&w.answers) || !instanceOf(&w.shared) {
			return fmt.Errorf("%w: answers to other rules", ErrState)
		}
		w.wishes = slices.DeleteFunc(w.wishes, func(one wish) bool { return !s.unchanged(j.rules[one.rule]) })
		if what := w.broken(); what != "" {
			return fmt.Errorf("%w: %s of a process", ErrState, what)
		}
	}
	for _, c := range layout.All[card](graph) {
		if !gpu(&c.answers) {
			return fmt.Errorf("%w: answers to other rules", ErrState)
		}
		if what := c.broken(); what != "" {
			return fmt.Errorf("%w: %s of a card", ErrState, what)
		}
	}
	for _, h := range layout.All[host](graph) {
		for _, one := range h.sensors {
			if !hostOf(&one.answers) {
				return fmt.Errorf("%w: answers to other rules", ErrState)
			}
		}
		if what := h.broken(); what != "" {
			return fmt.Errorf("%w: %s of a host", ErrState, what)
		}
	}
	for _, one := range layout.All[slot](graph) {
		if len(one.restarts) > maxRestarts || !one.end.victim.whole() || !one.end.culprit.whole() {
			return fmt.Errorf("%w: restarts of a slot", ErrState)
		}
	}
	return j.broken()
}

func (j *Judge) broken() error {
	for key, w := range j.workers {
		if w.Key != key {
			return fmt.Errorf("%w: a process under another key", ErrState)
		}
	}
	for name, h := range j.hosts {
		if h.name != name {
			return fmt.Errorf("%w: a host under another name", ErrState)
		}
	}
	for key, in := range j.instances {
		if in.key != key || len(in.faulty) > maxCardsOfWorker {
			return fmt.Errorf("%w: an instance under another key", ErrState)
		}
	}
	for _, a := range j.awaiting {
		if a.w == nil {
			return fmt.Errorf("%w: nobody is awaited", ErrState)
		}
	}
	return nil
}

// broken names what the judge would stumble over, which no state should hold; "" when there is nothing.
func (w *watched) broken() string {
	switch {
	case w.home == nil:
		return "host"
	case w.in == nil:
		return "instance"
	case w.called>>len(growers) != 0 || w.regrown>>len(growers) != 0:
		return "growth"
	case !w.anon.whole() || !w.end.victim.whole() || !w.end.culprit.whole():
		return "memory"
	}
	return ""
}

func (c *card) broken() string {
	switch f := &c.faults; {
	case c.home == nil:
		return "host"
	case c.sample == nil:
		return "sample"
	case f.first != 0 && len(f.times) == 0 || len(f.times) > maxRestarts:
		return "errors"
	case len(c.orphan.points) > orphanPoints:
		return "orphan memory"
	}
	return ""
}

func (h *host) broken() string {
	if max(len(h.deploys), len(h.drains), len(h.deaths)) > maxNotes {
		return "notes"
	}
	for life, w := range h.processes {
		if w.life != life {
			return "process"
		}
	}
	for uuid, c := range h.cards {
		if c.uuid != uuid {
			return "card"
		}
	}
	for key, s := range h.slots {
		if s.key != key {
			return "slot"
		}
	}
	for name, s := range h.sensors {
		if s.name != name {
			return "sensor"
		}
	}
	return ""
}

func (m *memory) whole() bool { return m.count >= 0 && m.count <= stretches }

// of returns the rules of one scope, as they were when the state was written.
func (s *saved) of(scope string) (marks []ruleMark) {
	for _, m := range s.rules {
		if m.Scope == scope {
			marks = append(marks, m)
		}
	}
	return marks
}

// same says that the questions are those that were asked then.
func (q *questions) same(marks []ruleMark) bool {
	return slices.EqualFunc(q.all, marks, func(one question, m ruleMark) bool { return one.rule.ID == m.ID && one.rule.Fingerprint() == m.Print })
}

// unchanged says that a rule is what it was.
func (s *saved) unchanged(r *rules.Rule) bool {
	return r != nil && slices.ContainsFunc(s.rules, func(m ruleMark) bool { return m.ID == r.ID && m.Print == r.Fingerprint() })
}

// reassign gives open incidents the rules that judge them from now on, and returns what follows for those that have none.
func (s *saved) reassign() []*event.Finding {
	var shadows []*event.Finding
	if !slices.Equal(s.tried, s.judge.tried) {
		shadows = s.judge.shadows.Reassign(func(in *incident.Incident) string {
			if slices.ContainsFunc(s.judge.tried, func(m ruleMark) bool { return m.ID == in.Rule && m.Class == in.Class }) {
				return in.Rule
			}
			return ""
		}, s.judge.rules)
	}
	if slices.Equal(s.rules, s.judge.asked) {
		return shadows
	}
	scopes := make(map[string]string)
	for _, m := range s.rules {
		scopes[m.ID] = m.Scope
	}
	told := s.judge.incidents.Reassign(func(in *incident.Incident) string {
		heir := ""
		for _, m := range s.judge.asked {
			if m.Class != in.Class || m.Scope != scopes[in.Rule] {
				continue
			}
			if m.ID == in.Rule {
				return m.ID
			}
			if heir == "" {
				heir = m.ID
			}
		}
		return heir
	}, s.judge.rules)
	return append(told, shadows...)
}
