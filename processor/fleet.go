package processor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

// ordered returns the rules that are judged here, in the order in which classes explain each other.
func (j *Judge) ordered() []*rules.Rule {
	if j.rules == nil {
		j.rules = slices.DeleteFunc(slices.Clone(j.pack.Rules), func(r *rules.Rule) bool {
			return !r.Enabled || r.Shadow || r.Scope != "worker"
		})
		precedence := rules.Classes()
		slices.SortStableFunc(j.rules, func(a, b *rules.Rule) int {
			return cmp.Compare(slices.Index(precedence, a.Class), slices.Index(precedence, b.Class))
		})
	}
	return j.rules
}

// sorted returns the workers in the order of their keys, so that the same events give the same findings in the same order.
func (j *Judge) sorted() []*watched {
	all := make([]*watched, 0, len(j.workers))
	for _, w := range j.workers {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b *watched) int { return strings.Compare(a.Key, b.Key) })
	return all
}

type hostName struct{ cluster, name string }

// clock is what a host's events say the time is.
type clock struct {
	newest time.Time
	swept  time.Time // newest at the last sweep
	heard  bool      // since then
}

func (j *Judge) clock(h *event.Host, at time.Time) *clock {
	name := hostName{h.GetCluster(), h.GetName()}
	c := j.clocks[name]
	if c == nil {
		c = &clock{newest: at, swept: at}
		j.clocks[name] = c
	}
	if at.After(c.newest) {
		c.newest = at
	}
	c.heard = true
	return c
}

// sweep forgets processes that have been silent for hours, by the clock of their host, or of the others where that is silent too: a
// clock that is wrong costs nobody else. Their incidents stay with the slot.
func (j *Judge) sweep() {
	times := make([]time.Time, 0, len(j.clocks))
	for _, c := range j.clocks {
		times = append(times, c.newest)
	}
	slices.SortFunc(times, time.Time.Compare)
	usual := times[(len(times)-1)/2]
	now := func(c *clock) time.Time {
		if c.heard {
			return c.newest
		}
		return usual
	}
	for _, w := range j.sorted() {
		c := j.clocks[hostName{w.Host.GetCluster(), w.Host.GetName()}]
		if c == nil || now(c).Sub(w.heard) > forget {
			j.forget(w)
		}
	}
	for name, c := range j.clocks {
		if now(c).Sub(c.newest) > forget {
			delete(j.clocks, name)
			continue
		}
		c.swept, c.heard = c.newest, false
	}
}

func (j *Judge) forgetOldest() {
	var oldest *watched
	for _, w := range j.sorted() {
		if oldest == nil || w.heard.Before(oldest.heard) {
			oldest = w
		}
	}
	if oldest != nil {
		j.forget(oldest)
	}
}

func (j *Judge) forget(w *watched) {
	delete(j.workers, w.Key)
	j.unindex(w)
}

// index makes the worker found by its instance and its GPUs.
func (j *Judge) index(w *watched) {
	j.instances[w.Instance] = append(j.instances[w.Instance], w)
	for _, uuid := range w.Who.GetGpuUuids() {
		device := event.HostKey(w.Host) + "/" + uuid
		j.devices[device] = append(j.devices[device], w)
		w.devices = append(w.devices, device)
	}
}

func (j *Judge) unindex(w *watched) {
	drop := func(in map[string][]*watched, key string) {
		if in[key] = slices.DeleteFunc(in[key], func(other *watched) bool { return other == w }); len(in[key]) == 0 {
			delete(in, key)
		}
	}
	drop(j.instances, w.Instance)
	for _, device := range w.devices {
		drop(j.devices, device)
	}
	w.devices = nil
}

// move follows a worker that is known better now. Its slot stays while an incident is open there: that is where it will resolve.
func (j *Judge) move(w *watched) {
	j.unindex(w)
	w.Instance = event.InstanceKey(w.Host, w.Who)
	j.settle(w)
	j.index(w)
}

// settle gives a worker the slot that it has by now, unless an incident is open at the one before.
func (j *Judge) settle(w *watched) {
	if len(j.incidents.Open(w.Slot)) == 0 {
		w.Slot = event.SlotKey(w.Host, w.Who)
	}
}

// siblings says that the open incident of a slot is of another process that lives there, as the API servers of one engine share a
// slot: what this one does not do proves nothing about that one.
func (j *Judge) siblings(w *watched, class string, at time.Time) bool {
	for _, in := range j.incidents.Open(w.Slot) {
		if in.Class == class && in.Worker != w.Key {
			other := j.workers[in.Worker]
			return other != nil && other.Slot == w.Slot && !other.Exited(at) && at.Sub(other.heard) < silent
		}
	}
	return false
}

// present leaves out those that had ended by then: what a device or an engine says afterwards is about their successors.
func present(all []*watched, at time.Time) []*watched {
	gone := func(w *watched) bool { return w.Exited(at) }
	if !slices.ContainsFunc(all, gone) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), gone)
}
