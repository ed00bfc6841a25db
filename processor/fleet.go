package processor

import (
	"cmp"
	"slices"
	"strings"

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

// sweep forgets processes that have been silent for hours. Their incidents stay with the slot.
func (j *Judge) sweep() {
	j.swept = j.newest
	for _, w := range j.sorted() {
		if j.newest.Sub(w.Last) > forget {
			j.forget(w)
		}
	}
}

func (j *Judge) forgetOldest() {
	var oldest *watched
	for _, w := range j.sorted() {
		if oldest == nil || w.Last.Before(oldest.Last) {
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
	if len(j.incidents.Open(w.Slot)) == 0 {
		w.Slot = event.SlotKey(w.Host, w.Who)
	}
	j.index(w)
}
