package processor

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
)

const maxBeside = 64 // processes that nothing but their pid tells apart, on the same GPUs

// audience is the instance that a process spoke of, without others that have an engine of their own to hear.
func (j *Judge) audience(in *instance, w *watched, e *event.Event, at time.Time) []*watched {
	w.voiced = w.voiced || e.Engine != nil && w.own && w.in == in
	if len(in.members) == 1 || w.in != in || w.Who.GetUnit() != "" {
		return in.members
	}
	j.part(w, at)
	all := w.in.members
	if slices.ContainsFunc(all, w.rival) {
		all = slices.DeleteFunc(slices.Clone(all), w.rival)
	}
	return all
}

// rival says that another process has the same place as this one in an instance that nothing but the GPU names, and speaks for an
// engine too. Engines that share a card are not one.
func (w *watched) rival(other *watched) bool {
	return other != w && other.voiced && other.Who.GetUnit() == "" && seat(other.Who) == seat(w.Who)
}

type seatOf struct {
	role string
	rank int64
}

func seat(who *event.Worker) seatOf { return seatOf{who.GetRole(), who.GetRank()} }

// hasVoice says that a process with the place of this one has spoken for the instance: this one is another.
func (in *instance) hasVoice(who *event.Worker) bool {
	return slices.ContainsFunc(in.members, func(w *watched) bool { return w.voiced && seat(w.Who) == seat(who) })
}

// part gives a process and a rival, both heard since the other came, an instance and a slot of their own: the one that came later
// moves. One that was not heard since, or drains, is a predecessor, whose slot it keeps.
func (j *Judge) part(w *watched, at time.Time) {
	if !w.voiced || w.draining || !w.end.at.IsZero() {
		return
	}
	for _, other := range slices.Clone(w.in.members) {
		if !w.rival(other) || other.draining || !other.end.at.IsZero() || other.spoke < w.arrived || w.spoke < other.arrived {
			continue
		}
		stays, goes := other, w
		if cmp.Or(cmp.Compare(w.arrived, other.arrived), w.First.Compare(other.First), strings.Compare(w.Key, other.Key)) < 0 {
			stays, goes = w, other
		}
		j.depart(goes, stays, at)
		if goes == w {
			return
		}
	}
}

// depart moves a process beside another. Its number is the first that nobody who was heard since it came has.
func (j *Judge) depart(w, from *watched, at time.Time) {
	base := event.InstanceKey(w.Host, w.Who)
	n := 2
	for ; n < maxBeside; n++ {
		in := j.instances[numbered(base, n, 1)]
		if in == nil || !slices.ContainsFunc(in.members, func(m *watched) bool { return m != w && m.end.at.IsZero() && m.spoke >= w.arrived }) {
			break
		}
	}
	j.unindex(w)
	w.ordinal = n
	w.Instance, w.Slot = w.instanceKey(), w.slotKey()
	w.answers, w.shared = answers{}, answers{}
	j.index(w)
	j.comes(w, at)
	if s := from.place; s != nil && s.life == nil {
		s.life, s.before, s.quiet = from, nil, false
	}
}

func (w *watched) instanceKey() string {
	return numbered(event.InstanceKey(w.Host, w.Who), w.number(), 1)
}

func (w *watched) slotKey() string { return numbered(event.SlotKey(w.Host, w.Who), w.number(), 2) }

func (w *watched) number() int {
	if w.Who.GetUnit() != "" {
		return 0 // that tells it from others
	}
	return w.ordinal
}

// numbered puts a number behind the unit of a key, which so many fields follow.
func numbered(key string, n, fields int) string {
	if n == 0 {
		return key
	}
	cut := len(key)
	for range fields {
		cut = strings.LastIndexByte(key[:cut], '/')
	}
	return key[:cut] + "#" + strconv.Itoa(n) + key[cut:]
}
