package processor

import (
	"slices"
	"time"

	"lowtide/event"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// Wish is a snapshot that a rule asks for of a worker that it does not suspect: what is read all the time cannot tell. Nothing is
// announced because of it.
type Wish struct {
	Rule, Class   string
	Cluster, Host string
	Key           string // of the process life
	Worker        *event.Worker
	At            time.Time
}

// wish is what is remembered of it, for as long as the process lives: a rule asks once.
type wish struct {
	rule, class string
	at          time.Time
}

// wishes asks for a snapshot where the rule's `ask` says so, once in the life of a process, and not while it has an incident of the class.
func (j *Judge) wishes(v *view, rule *rules.Rule) {
	w := v.w
	if w == nil || v.exited || !w.end.at.IsZero() || w.wished(rule.ID) || rule.Asks(v.sample) != rules.True {
		return
	}
	w.wishes = append(w.wishes, wish{rule.ID, rule.Class, v.at})
	if j.wish != nil {
		j.wish(&Wish{Rule: rule.ID, Class: rule.Class, Cluster: w.home.name.cluster, Host: w.home.name.name, Key: w.Key, Worker: w.Who, At: v.at})
	}
}

func (w *watched) wished(rule string) bool {
	return slices.ContainsFunc(w.wishes, func(one wish) bool { return one.rule == rule })
}

// asked tells what was asked for, a sentence each.
func (w *watched) asked() (out []string) {
	for _, one := range w.wishes {
		text := "a snapshot was asked for at " + one.at.UTC().Format("2006-01-02 15:04 UTC") + ", to see whether it is " + one.class
		if came := w.EvidenceAt(); !came.Before(one.at) {
			text += "; the newest is of " + came.UTC().Format("15:04 UTC")
		}
		out = append(out, text)
	}
	return out
}

// asksFor is what `ask` of a rule reads; nil where it has none, is of a scope without a process, or only tried out: a snapshot costs the worker something.
func asksFor(rule *rules.Rule) *variable.Set {
	if reads := rule.AsksFor(); len(reads) > 0 && rule.Scope == "worker" && !rule.Shadow {
		set := variable.NewSet(reads...)
		return &set
	}
	return nil
}
