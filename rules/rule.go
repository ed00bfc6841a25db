// Package rules owns what a rule is: the CEL environment, the file format, evaluation and the tests of rules.
// It keeps no state between samples, never decides about incidents, and reads no clock.
package rules

import (
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

// Outcome is the answer of a condition in three-valued logic.
type Outcome uint8

// The outcomes of a condition. Unknown means that the answer depends on a sensor that is missing.
const (
	False Outcome = iota
	True
	Unknown
)

// String returns false, true or unknown.
func (o Outcome) String() string {
	switch o {
	case False:
		return "false"
	case True:
		return "true"
	}
	return "unknown"
}

// Rule is one compiled rule. It is read-only and safe for use by several goroutines, each with its own sample.
type Rule struct {
	ID    string
	Class string
	Scope string        // worker, instance, gpu or host
	Pair  time.Duration // how long a symptom stays beside the condition; one hour unless the file says otherwise
	Keep  time.Duration // how long the condition holds after `when` ends

	Alone, With string // severities: of the condition alone, and with a symptom

	Explains []string // classes that this one explains
	Advice   []string // the lines of the advice file as written; AdviceFor fills them
	Shadow   bool     // judged and recorded, never announced
	Enabled  bool
	Own      bool // a user wrote what decides it, or changed a part of that: nobody has measured how often it is right

	Thresholds map[string]float64
	File       string // where the rule, or the last part of it, was written
	Line       int

	when, confirm, with, refute, ask program
	against                          []counter
	summary, refuted                 template
	advice                           []template
	evidence                         []variable.ID
	reads                            []variable.ID
	condition                        variable.Reading
	print                            uint64 // Fingerprint
}

// counter is one named explanation that would speak against the rule.
type counter struct {
	name string
	program
}

// Result is what a rule says about one sample.
type Result struct {
	When, Confirm, With Outcome
	Refute              Outcome // True: it is something else, whatever When says
	Missing             string  // when When is Unknown: the sensor that is missing, or `evaluation: …` for an error
}

// Evaluate judges one sample. Confirm and With are answered whatever When is, because a held condition can still be confirmed or paired.
func (r *Rule) Evaluate(s *variable.Sample) Result {
	var out Result
	out.When, out.Missing = r.Condition(s)
	out.Confirm, out.With = r.Beside(s)
	out.Refute = r.Refutes(s)
	return out
}

// Condition answers only `when`, as Evaluate does: while it is not true and no incident is open, nobody asks for the rest.
func (r *Rule) Condition(s *variable.Sample) (when Outcome, missing string) {
	return r.when.evaluate(s)
}

// Decides fills in what decides `when` of a sample for which it is false: as long as none of that changes, it stays false. It returns
// false where that is not known, and so all that the condition reads.
func (r *Rule) Decides(s *variable.Sample, by *variable.Reading) bool {
	by.Clear()
	return r.when.tree != nil && r.when.tree.decides(s, by)
}

// Beside answers what Condition leaves out.
func (r *Rule) Beside(s *variable.Sample) (confirm, with Outcome) {
	confirm, _ = r.confirm.evaluate(s)
	with, _ = r.with.evaluate(s)
	return confirm, with
}

// Refutes answers `refute`: what proves that a condition that was met is something else. A rule without it is never refuted.
func (r *Rule) Refutes(s *variable.Sample) Outcome {
	out, _ := r.refute.evaluate(s)
	return out
}

// Asks answers `ask`: a snapshot of the allocator is worth its cost now, although `when` is not met. It is no suspicion: nothing follows
// from it but that one is asked for. A rule without it never asks.
func (r *Rule) Asks(s *variable.Sample) Outcome {
	out, _ := r.ask.evaluate(s)
	return out
}

// AsksFor returns the variables on which Asks depends, none for a rule without it; they are shared and must not be changed.
func (r *Rule) AsksFor() []variable.ID { return r.ask.reads }

// Refuted is the reason in a sentence; a value that is missing reads "unknown".
func (r *Rule) Refuted(s *variable.Sample) string { return r.refuted.fill(s, inSummary) }

// Reads returns the variables on which Evaluate and Asks depend, sorted: nothing else can change their result.
func (r *Rule) Reads() []variable.ID { return r.reads }

// ConditionReads returns what Condition depends on; it is shared and must not be changed.
func (r *Rule) ConditionReads() *variable.Reading { return &r.condition }

// Against answers each legitimate explanation, in the order of the file.
func (r *Rule) Against(s *variable.Sample) []event.CounterEvidence {
	out := make([]event.CounterEvidence, 0, len(r.against))
	for _, c := range r.against {
		one := event.CounterEvidence{Name: c.name}
		switch outcome, missing := c.evaluate(s); outcome {
		case True:
			one.State = event.Present
		case False:
			one.State = event.RuledOut
		case Unknown:
			one.State, one.Text = event.NotAssessable, "no data from "+missing
		}
		out = append(out, one)
	}
	return out
}

// Summary fills the rule's sentence; a value that is missing reads "unknown".
func (r *Rule) Summary(s *variable.Sample) string { return r.summary.fill(s, inSummary) }

// AdviceFor fills the lines of the advice file with the sample's values; a value that is missing reads "not known (no data from …)",
// with the sensor's name, unless its part of the line is in [[ ]] and so left out. A rule without advice has no lines.
func (r *Rule) AdviceFor(s *variable.Sample) []string {
	if len(r.advice) == 0 {
		return nil
	}
	out := make([]string, len(r.advice))
	for i, line := range r.advice {
		out[i] = line.fill(s, inAdvice)
	}
	return out
}

// Evidence returns the rule's numbers that are known, in the order of the file.
func (r *Rule) Evidence(s *variable.Sample) event.Measures {
	var out event.Measures
	for _, id := range r.evidence {
		if v, known := s.Number(id); known {
			declared := variable.All()[id]
			out = append(out, event.Measure{Name: declared.Name, Value: v, Unit: declared.Unit})
		}
	}
	return out
}
