package notifier

import (
	"slices"
	"strings"
	"time"

	"lowtide/event"
)

// route leads the incidents that match to outputs.
type route struct {
	match   map[string]string // MatchKeys → value; all must hold, one that ends in * matches what begins so; empty matches everything
	to      []string
	proceed bool // the routes after it are tried too
	term
}

// term is what a route asks of the outputs it leads to.
type term struct {
	remind  time.Duration // after which an unacknowledged page is told again; zero for never
	mention string        // who is woken by that
}

// routing is the order in which routes are tried. The first that matches wins, unless it proceeds; what nothing matches goes otherwise.
type routing struct {
	routes    []route
	otherwise []string
}

// of returns the outputs of a finding's incident. An output that two routes lead to keeps the terms of the first.
func (r *routing) of(f *event.Finding) map[string]term {
	places := map[string]term{}
	matched := false
	for _, one := range r.routes {
		if !matches(one.match, f) {
			continue
		}
		matched = true
		for _, name := range one.to {
			if _, already := places[name]; !already {
				places[name] = one.term
			}
		}
		if !one.proceed {
			break
		}
	}
	if !matched {
		for _, name := range r.otherwise {
			places[name] = term{}
		}
	}
	return places
}

// matches says whether a finding has all the values. What is absent in it is matched by nothing, not even by *.
func matches(match map[string]string, f *event.Finding) bool {
	for key, pattern := range match {
		value := matched(f, key)
		prefix, open := strings.CutSuffix(pattern, "*")
		if value == "" || value != pattern && !(open && strings.HasPrefix(value, prefix)) {
			return false
		}
	}
	return true
}

// wanted names the outlets to which a record's routes lead, sorted, with a comma between.
func (d *desk) wanted(r *record) string {
	if r.digest() {
		return r.routed()
	}
	var names []string
	for name := range d.routes.of(r.face()) {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// terms are those of one outlet for a record.
func (d *desk) terms(r *record, out *outlet) (t terms, mention string) {
	t = terms{thread: out.thread, fixed: out.fixed, forget: out.forget, at: d.o.Now()}
	if r.digest() {
		t.wanted = len(r.outputs) == 0 || slices.Contains(r.outputs, out.Name())
		return t, ""
	}
	if face := r.face(); face != nil {
		var one term
		one, t.wanted = d.routes.of(face)[out.Name()]
		t.remind, mention = one.remind, one.mention
	}
	return t, mention
}
