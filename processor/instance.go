package processor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lowtide/event"
)

// speech is which instance the newest engine event of a process was about, so that the same words need no new search.
type speech struct {
	who   *event.Worker
	found *instance
	epoch int
}

// speaksFor returns the workers for which an engine's event holds. It names a process of the instance, often the front end, and an
// engine index that need not be that process's own.
func (j *Judge) speaksFor(h *host, e *event.Event, at time.Time) []*watched {
	w := h.process(e, at)
	if w != nil && w.speech.epoch == j.epoch && w.speech.found != nil && alike(w.speech.who, e.Worker) {
		w.hear(at)
		return j.audience(w.speech.found, w, e, at)
	}
	key := event.InstanceKey(e.Host, e.Worker)
	if w != nil && w.ordinal > 0 {
		key = numbered(key, w.ordinal, 1)
	}
	if in := j.instances[key]; in != nil && (w != nil || !in.hasVoice(e.Worker)) {
		if w == nil {
			return in.members
		}
		w.hear(at)
		w.own = w.own || w.Instance == key
		w.speech = speech{e.Worker, in, j.epoch}
		return j.audience(in, w, e, at)
	}
	w = j.worker(h, e, at)
	switch index := e.Worker.GetEngineIndex(); {
	case w.Instance == key:
		w.own = true
	case w.own || w.other != nil && *w.other != index: // about ranks that are not known
		return nil
	default:
		w.other = &index
	}
	return j.audience(w.in, w, e, at)
}

// alike says that two names of a worker name one instance.
func alike(a, b *event.Worker) bool {
	return a == b || a.Unit == b.Unit && a.GetEngineIndex() == b.GetEngineIndex() && (a.EngineIndex == nil) == (b.EngineIndex == nil) &&
		a.Engine == b.Engine && a.Model == b.Model && a.Pid == b.Pid && slices.Equal(a.GpuUuids, b.GpuUuids)
}

// instance is the process tree behind one endpoint and engine index.
type instance struct {
	key     string
	members []*watched
	speaker *watched // the one on whose sample it is judged
	slot    string   // that its incidents belong to
	life    string   // the process life that stands for its own

	faulty    []string // cards that members had, on which something is wrong
	related   []string
	relatedAt int
}

// heardBy says whether the instance is judged on this worker's sample: a rank of the engine, else its core, a front end last, and
// none that is gone while another is there.
func (in *instance) heardBy(w *watched, at time.Time) bool {
	if in.speaker == nil || in.speaker != w && in.speaker.gone(at) {
		in.speaker = nil
		for _, other := range in.members {
			if other.gone(at) && other != w {
				continue
			}
			if in.speaker == nil || order(other, in.speaker) < 0 {
				in.speaker = other
			}
		}
	}
	return in.speaker == w
}

// speaking returns the one that was found to speak; nil where there is none.
func (in *instance) speaking() *watched {
	if in == nil {
		return nil
	}
	return in.speaker
}

func (w *watched) gone(at time.Time) bool {
	return w.Exited(at) || !w.end.at.IsZero() || !within(at, w.heard, silent)
}

// order is that in which processes speak for their instance.
func order(a, b *watched) int {
	standing := func(w *watched) int {
		switch w.Who.GetRole() {
		case "frontend":
			return 2
		case "other":
			return 1
		}
		return 0
	}
	core := func(w *watched) int {
		if w.Who.GetRole() == "core" {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(standing(a), standing(b)), cmp.Compare(a.Who.GetRank(), b.Who.GetRank()), cmp.Compare(core(a), core(b)), strings.Compare(a.Key, b.Key))
}

// standing returns the slot of the instance's incidents, which stays while one is open there, and sets the life that it is judged
// in, which stays while that process lives: another speaker is no restart.
func (j *Judge) standing(in *instance, w *watched, at time.Time) string {
	if in.slot != w.Slot {
		held := false
		for _, one := range j.incidents.Open(in.slot) {
			held = held || j.perInstance.has(one.Class)
		}
		if !held {
			in.slot = w.Slot
		}
	}
	if in.life != w.Key {
		if other := j.workers[in.life]; other == nil || other.in != in || other.gone(at) {
			in.life = w.Key
		}
	}
	return in.slot
}
