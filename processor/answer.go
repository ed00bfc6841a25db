package processor

import (
	"cmp"
	"slices"

	"lowtide/processor/incident"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// question is a rule with what it reads.
type question struct {
	rule      *rules.Rule
	condition *variable.Reading   // what its condition reads
	deciding  []*variable.Reading // parts of it that decided some answer
	series    []int               // of growers: whose growth the class is; none for other classes
}

// maxDeciding bounds the parts that are kept for one rule, which all subjects share.
const maxDeciding = 32

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
	readers variable.Readers // which of all read a variable
}

func newQuestions(pack *rules.Pack, scope string) *questions {
	q := &questions{readers: variable.NewReaders(), all: make([]question, 0, len(pack.Rules))}
	for _, rule := range pack.Rules {
		if rule.Enabled && !rule.Shadow && rule.Scope == scope {
			q.all = append(q.all, question{rule: rule, condition: rule.ConditionReads(), series: growthSeries[rule.Class]})
		}
	}
	precedence := rules.Classes()
	slices.SortStableFunc(q.all, func(a, b question) int {
		return cmp.Compare(slices.Index(precedence, a.rule.Class), slices.Index(precedence, b.rule.Class))
	})
	q.index()
	return q
}

func (q *questions) index() {
	for i, one := range q.all {
		for _, id := range one.rule.Reads() {
			q.readers.Add(id, i)
		}
	}
}

// of returns those about one class.
func (q *questions) of(class string) *questions {
	some := &questions{readers: q.readers} // who asks them once asks them all
	for _, one := range q.all {
		if one.rule.Class == class {
			some.all = append(some.all, one)
		}
	}
	return some
}

func (q *questions) has(class string) bool {
	return slices.ContainsFunc(q.all, func(one question) bool { return one.rule.Class == class })
}

// answers are what each rule of a scope last said about one sample.
type answers struct {
	results []answer
	firm    bool // all were asked since the sample was last settled, so that only what was touched has to be asked again
	holds   bool // one of them said true
}

type answer struct {
	rules.Result
	decided *variable.Reading // what When was decided by
	late    bool              // Confirm and With are not those of the sample; they are asked for once somebody wants to know
}

// ask evaluates the rules that read something that has changed, and observes those that hold or whose class is open at the view's
// key. Of a healthy subject, of which nothing changed that a rule reads, it costs a look at what has changed. The caller settles the
// sample once all scopes have asked.
func (j *Judge) ask(q *questions, a *answers, v *view) {
	s := v.sample
	open := j.incidents.Open(v.key)
	concerned := s.Concerned(q.readers)
	if a.firm && !a.holds && concerned == 0 && len(open) == 0 {
		return
	}
	if a.results == nil {
		a.results = make([]answer, len(q.all))
	}
	proving := v.w != nil && v.w.called != 0
	holds := false
	quiet := a.firm && !a.holds && !proving && len(open) == 0
	for i := range q.all {
		if quiet && concerned>>(i%32)&1 == 0 {
			continue // and it does not begin to hold
		}
		one, said := &q.all[i], &a.results[i]
		if proving && v.w.prove(one.series) {
			concerned |= s.Concerned(q.readers)
		}
		if !a.firm || concerned>>(i%32)&1 == 1 {
			if !a.firm || s.Moved(said.decided) {
				said.When, said.Missing = one.rule.Condition(s)
				said.decided = one.decides(s, said.When, &j.work)
			}
			said.late = true
		}
		observed := said.When == rules.True || isOpen(open, one.rule.Class)
		if said.late && (observed || proving) { // what the next rule proves is not for this one
			said.Confirm, said.With = one.rule.Beside(s)
			said.Refute = one.rule.Refutes(s)
			said.late = false
		}
		holds = holds || said.When == rules.True
		if observed {
			j.observe(v, one, said.Result)
			open = j.incidents.Open(v.key)
			quiet = false
		}
	}
	a.firm, a.holds = true, holds
}

// isOpen says whether an incident of the class is among those.
func isOpen(all []*incident.Incident, class string) bool {
	for _, in := range all {
		if in.Class == class {
			return true
		}
	}
	return false
}
