package processor

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"lowtide/processor/incident"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// question is a rule with what it reads.
type question struct {
	rule      *rules.Rule
	condition *variable.Reading   // what its condition reads
	beside    variable.Set        // what Confirm, With and Refute read
	asks      *variable.Set       // what Asks reads; nil where the rule never asks
	proves    bool                // among that what prove sets
	deciding  []*variable.Reading // parts of it that decided some answer
	series    []int               // of growers: whose growth the class is; none for other classes
	grows     uint16              // a bit for each of series
	incidents *incident.Tracker   // what its answers become
}

// maxDeciding bounds the parts that are kept for one rule, which all subjects share; maxWatched those that are kept for all of a scope.
const (
	maxDeciding = 32
	maxWatched  = 64
)

// decides returns what was read of the sample for the answer that was given: as long as none of it changes, the answer is the same.
func (q *question) decides(s *variable.Sample, answer rules.Outcome, work *variable.Reading) *variable.Reading {
	if answer != rules.False || !q.rule.Decides(s, work) {
		return q.condition
	}
	for _, one := range q.deciding {
		if one.Equal(work) {
			return one
		}
	}
	if len(q.deciding) == maxDeciding {
		return q.condition
	}
	one := work.Clone()
	q.deciding = append(q.deciding, &one)
	return &one
}

// questions are the rules of one scope, in the order in which classes explain each other.
type questions struct {
	all     []question
	readers variable.Readers // which of all read a variable; like all sets of them as variable.Readers counts them, by i%32

	proofs  uint32 // those that read what prove sets
	growing uint32 // those about a series

	incidents *incident.Tracker
	shadow    *questions          // those that are tried out, of the same scope; nil where there are none
	watched   []*variable.Reading // what has decided all answers about some subject
}

// watch returns what all these answers were decided by, and what makes rules ask: while none of it moves, each rule that said no goes on to
// say it. Nil where too many such parts were seen to keep another.
func (q *questions) watch(results []answer, work *variable.Reading) *variable.Reading {
	work.Clear()
	for i := range q.all {
		work.Join(results[i].decided)
		if asks := q.all[i].asks; asks != nil {
			work.Values.Join(*asks)
		}
	}
	for _, one := range q.watched {
		if one.Equal(work) {
			return one
		}
	}
	if len(q.watched) == maxWatched {
		return nil
	}
	one := work.Clone()
	q.watched = append(q.watched, &one)
	return &one
}

// inPrecedence returns the rules that are asked, or those that are only tried out, in the order in which their classes explain each other.
func inPrecedence(pack *rules.Pack, shadow bool) []*rules.Rule {
	place := make(map[string]int)
	for i, class := range rules.Classes() {
		place[class] = i
	}
	all := make([]*rules.Rule, 0, len(pack.Rules))
	for _, rule := range pack.Rules {
		if rule.Enabled && rule.Shadow == shadow {
			all = append(all, rule)
		}
	}
	slices.SortStableFunc(all, func(a, b *rules.Rule) int { return cmp.Compare(place[a.Class], place[b.Class]) })
	return all
}

// newQuestions takes those of one scope out of all rules; their answers go to a tracker.
func newQuestions(all []*rules.Rule, scope string, incidents *incident.Tracker) *questions {
	q := &questions{readers: variable.NewReaders(), incidents: incidents}
	for _, rule := range all {
		if rule.Scope != scope {
			continue
		}
		i, beside := len(q.all), rule.BesideReads()
		for _, id := range rule.Reads() {
			q.readers.Add(id, i)
		}
		q.all = append(q.all, question{rule: rule, condition: rule.ConditionReads(), beside: variable.NewSet(beside...), asks: asksFor(rule), series: growthSeries[rule.Class], incidents: incidents,
			proves: slices.ContainsFunc(beside, func(id variable.ID) bool { return slices.Contains(proofIDs, id) })})
		for _, series := range q.all[i].series {
			q.all[i].grows |= 1 << series
		}
		if len(q.all[i].series) > 0 {
			q.growing |= 1 << (i % 32)
		}
	}
	for _, id := range proofIDs {
		q.proofs |= q.readers.Of(id)
	}
	return q
}

// of returns those about one class.
func (q *questions) of(class string) *questions {
	some := &questions{incidents: q.incidents}
	for _, one := range q.all {
		if one.rule.Class == class {
			some.all = append(some.all, one)
		}
	}
	if q.shadow != nil {
		some.shadow = q.shadow.of(class)
	}
	return some
}

func (q *questions) has(class string) bool {
	return slices.ContainsFunc(q.all, func(one question) bool { return one.rule.Class == class })
}

// answers are what each rule of a scope last said about one sample.
type answers struct {
	results []answer
	firm    bool   // all were asked since the sample was last settled, so that only what was touched has to be asked again
	holds   uint32 // those that said true
	mixed   bool   // the proofs of several series stood in the sample, one after the other
	rested  bool   // what no answer was decided by has changed since, and so Confirm and With of some
	open    opened
	watch   *variable.Reading // as questions.watch; nil while that is not known
	shadow  *answers          // of the rules that are tried out
}

// rests says that no rule would say anything else than it did, that none holds, and that nothing is open at the key.
func (a *answers) rests(q *questions, s *variable.Sample) bool {
	switch {
	case !a.firm || a.holds != 0 || len(a.open.all) > 0:
		return false
	case a.watch == nil || a.mixed:
		return s.Concerned(&q.readers) == 0
	case s.Moved(a.watch):
		return false
	}
	a.rested = true
	return true
}

// loosen has all rules asked again.
func (a *answers) loosen() {
	if a.firm = false; a.shadow != nil {
		a.shadow.firm = false
	}
}

// opened is what is open at the key that was asked about last. It is looked up anew once anything has opened or ended.
type opened struct {
	key   string
	turn  uint64 // of the tracker
	all   []*incident.Incident
	about uint32 // the questions whose class is that of one of them
}

// look brings what is open at a key up to date.
func (j *Judge) look(o *opened, q *questions, key string) {
	if turn := q.incidents.Turn(); o.turn != turn || o.key != key {
		all := q.incidents.Open(key)
		*o = opened{key, turn, all, q.about(all)}
	}
}

type answer struct {
	rules.Result
	decided *variable.Reading // what When was decided by
	late    bool              // Confirm and With are not those of the sample; they are asked for once somebody wants to know
}

// unmoved says that nothing is to be asked: nothing has changed that a rule reads, none holds, and nothing is open at the key.
func (j *Judge) unmoved(q *questions, a *answers, s *variable.Sample, key string) bool {
	if q.shadow != nil && (a.shadow == nil || !j.unmoved(q.shadow, a.shadow, s, key)) {
		return false
	}
	j.look(&a.open, q, key)
	return a.rests(q, s)
}

// ask is askThem, of the rules that count and then of those that are tried out.
func (j *Judge) ask(q *questions, a *answers, v *view) {
	j.askThem(q, a, v)
	if q.shadow != nil {
		j.askInShadow(q.shadow, a, v)
	}
}

// askThem evaluates the rules that read something that has changed, and observes those that hold or whose class is open at the view's
// key. Of a healthy subject, of which nothing changed that a rule reads, it costs a look at what has changed. The caller settles the
// sample once all scopes have asked.
func (j *Judge) askThem(q *questions, a *answers, v *view) {
	s, open := v.sample, &a.open
	j.look(open, q, v.key)
	called := v.w != nil && v.w.called != 0
	if !called && a.rests(q, s) {
		return
	}
	concerned := ^uint32(0) // whose answers may be others now
	if a.firm {
		if concerned = s.Concerned(&q.readers); concerned|a.holds == 0 && len(open.all) == 0 {
			return
		}
	}
	if a.results == nil {
		a.results = make([]answer, len(q.all))
	}
	asked := concerned | a.holds // the others have said no, and go on to say it
	if a.firm {
		asked |= open.about
	}
	if a.rested {
		for i := range a.results {
			a.results[i].late = true
		}
		a.rested = false
	}
	proving, several, moved := false, false, a.watch == nil
	if called {
		proving, several = true, v.w.called&(v.w.called-1) != 0
		asked |= q.growing
	}
	holds := uint32(0)
	for i := next(asked, 0); i < len(q.all); i = next(asked, i+1) {
		bit := uint32(1) << (i % 32)
		one, said := &q.all[i], &a.results[i]
		if proving && one.grows&v.w.called != 0 && v.w.prove(one.series) && s.Touched(j.proofs) {
			concerned, asked = concerned|q.proofs, asked|q.proofs
		}
		if concerned&bit != 0 {
			if !a.firm || s.Moved(said.decided) {
				said.When, said.Missing = one.rule.Condition(s)
				if by := one.decides(s, said.When, &j.work); by != said.decided {
					said.decided, moved = by, true
				}
			}
			// Where several series were proven, what one said can have come back to what another had said, and nothing was touched.
			said.late = said.late || !a.firm || several || a.mixed || s.Touched(one.beside)
		}
		observed := said.When == rules.True || open.about&bit != 0 && one.isOpen(open.all)
		if one.asks != nil && !observed && (!a.firm || s.Touched(*one.asks)) {
			j.wishes(v, one.rule)
		}
		if said.late && (observed || proving && one.proves) { // what the next rule proves is not for this one
			said.Confirm, said.With = one.rule.Beside(s)
			said.Refute = one.rule.Refutes(s)
			said.late = false
		}
		if said.When == rules.True {
			holds |= bit
		}
		if observed && j.observe(v, one, said.Result) {
			j.look(open, q, v.key)
			asked |= open.about
		}
	}
	a.firm, a.holds, a.mixed = true, holds, several
	if moved && holds == 0 {
		a.watch = q.watch(a.results, &j.work)
	} else if moved {
		a.watch = nil
	}
}

// next is the first reader from one on whose bit is set, which all that share the bit have; past the last one when there is none.
func next(set uint32, from int) int {
	first := from % 32
	if rest := set >> first; rest != 0 {
		return from + bits.TrailingZeros32(rest)
	}
	if set == 0 {
		return math.MaxInt
	}
	return from - first + 32 + bits.TrailingZeros32(set)
}

// about returns those whose class is that of one of some incidents.
func (q *questions) about(open []*incident.Incident) (who uint32) {
	if len(open) == 0 {
		return 0
	}
	for i := range q.all {
		if q.all[i].isOpen(open) {
			who |= 1 << (i % 32)
		}
	}
	return who
}

// isOpen says whether an incident of its class is among those; of a rule that is tried out, one of its own.
func (q *question) isOpen(all []*incident.Incident) bool {
	for _, in := range all {
		if in.Class == q.rule.Class && (!q.rule.Shadow || in.Rule == q.rule.ID) {
			return true
		}
	}
	return false
}
