package processor

import (
	"cmp"
	"slices"

	"lowtide/rules"
	"lowtide/rules/variable"
)

// question is a rule with what it reads.
type question struct {
	rule   *rules.Rule
	reads  variable.Set
	series []int // of growers: whose growth the class is; none for other classes
}

// questions are the rules of one scope, in the order in which classes explain each other.
type questions struct {
	all   []question
	reads variable.Set // by any of them
}

func newQuestions(pack *rules.Pack, scope string) *questions {
	q := &questions{reads: variable.NewSet()}
	for _, rule := range pack.Rules {
		if rule.Enabled && !rule.Shadow && rule.Scope == scope {
			one := question{rule: rule, reads: variable.NewSet(rule.Reads()...), series: growthSeries[rule.Class]}
			q.all = append(q.all, one)
			q.reads.Join(one.reads)
		}
	}
	precedence := rules.Classes()
	slices.SortStableFunc(q.all, func(a, b question) int {
		return cmp.Compare(slices.Index(precedence, a.rule.Class), slices.Index(precedence, b.rule.Class))
	})
	return q
}

// of returns those about one class.
func (q *questions) of(class string) *questions {
	some := &questions{reads: q.reads}
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
	results []rules.Result
	firm    bool // all were asked since the sample was last settled, so that only what was touched has to be asked again
	holds   bool // one of them said true
}

// ask evaluates the rules that read something that has changed, and observes those that hold or whose class is open at the view's
// key. Of a healthy subject, of which nothing changed that a rule reads, it costs a comparison of two sets. The caller settles the
// sample once all scopes have asked.
func (j *Judge) ask(q *questions, a *answers, v view) {
	s := v.sample
	if a.firm && !a.holds && !s.Touched(q.reads) && len(j.incidents.Open(v.key)) == 0 {
		return
	}
	if a.results == nil {
		a.results = make([]rules.Result, len(q.all))
	}
	holds := false
	for i := range q.all {
		one := &q.all[i]
		if v.w != nil && len(one.series) > 0 {
			v.w.prove(one.series)
		}
		if !a.firm || s.Touched(one.reads) {
			a.results[i] = one.rule.Evaluate(s)
		}
		result := a.results[i]
		if result.When == rules.True {
			holds = true
		} else if !j.open(v.key, one.rule.Class) {
			continue
		}
		j.observe(v, one, result)
	}
	a.firm, a.holds = true, holds
}

// open says whether an incident of the class is open at a key.
func (j *Judge) open(key, class string) bool {
	for _, in := range j.incidents.Open(key) {
		if in.Class == class {
			return true
		}
	}
	return false
}
