package processor

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
)

const (
	rollout   = 15 * time.Minute // a deploy that was marked, or a drain, explains the ends of so long after it
	aftermath = time.Minute      // when one process of a unit ends, its front end or parent ends the others within this time
	patience  = 10 * time.Minute // a request to end is held back as long: the new release that it made room for may come yet
	faultLag  = 5 * time.Minute  // a process that ends by itself so soon after it made an error on the GPU did not plan to
	maxNotes  = 32
)

// ending is how a process life ended.
type ending struct {
	at      time.Time // zero while it lives
	life    string
	release string
	by      string
	signal  int64 // zero where none ended it
	code    int64 // valid where exited is true
	exited  bool
	unknown bool // nobody told how; it was gone
	planned bool // a rollout, a drain, a word of farewell
	after   bool // another process of the unit had ended, and nobody named this one as a victim
	fault   bool // the process made an error on the GPU just before
	early   bool // it belongs to an engine and was never ready; a job without one is done when it ends
	counted bool // as a restart
	awaited bool // whether it was a kill waits for a successor

	victim, culprit memory
	byGrowth        bool
}

const (
	sigKill = 9
	sigTerm = 15
)

// read takes over what the lifecycle event tells. A shell or a container runtime tells a signal as a code above 128.
func (e *ending) read(l *event.Lifecycle) {
	e.by = l.By
	e.signal = l.GetSignal()
	if l.ExitCode != nil {
		e.code, e.exited = *l.ExitCode, true
	}
	if e.signal == 0 && e.exited {
		switch e.code {
		case 128 + sigKill, -sigKill:
			e.signal = sigKill
		case 128 + sigTerm, -sigTerm:
			e.signal = sigTerm
		}
	}
	e.unknown = e.signal == 0 && !e.exited && !e.bySystem()
}

func (e *ending) bySystem() bool { return e.by == "kernel" || e.by == "cgroup" }

// killed says that it was ended from outside. Exit codes and the signals of its own errors are no kill, and neither is a request
// to end that somebody announced.
func (e *ending) killed() bool {
	switch {
	case e.at.IsZero() || e.awaited:
		return false
	case e.bySystem():
		return !e.after
	}
	return (e.signal == sigKill || e.signal == sigTerm) && !e.planned && !e.after
}

// proven says that the kill was no request to end.
func (e *ending) proven() bool { return e.bySystem() || e.signal == sigKill }

// unclean says that the process did not end as somebody meant it to.
func (e *ending) unclean() bool {
	switch {
	case e.fault || e.bySystem():
		return true
	case e.planned:
		return false
	}
	return !(e.exited && e.code == 0 && e.signal == 0) || e.early
}

func (e *ending) words() string {
	text := "ended from outside"
	if e.signal != 0 {
		text = "ended by signal " + strconv.FormatInt(e.signal, 10)
	}
	if e.by != "" && e.by != "unknown" {
		text += " of the " + e.by
	}
	return text
}

// tell sets the kill on a sample: of the process that was killed, or of its successor.
func (e *ending) tell(w *watched) {
	s := w.Sample()
	s.SetBool(slotIDs.kill, true)
	s.SetString(slotIDs.by, e.by)
	s.SetBool(slotIDs.proven, e.proven())
	s.Unset(slotIDs.signal)
	if e.signal != 0 {
		s.SetNumber(slotIDs.signal, float64(e.signal))
	}
	s.Unset(slotIDs.victim)
	s.Unset(slotIDs.culprit)
	s.Unset(slotIDs.growth)
	if e.victim.known() {
		s.SetNumber(slotIDs.victim, e.victim.newest)
	}
	if e.bySystem() && e.culprit.known() {
		s.SetNumber(slotIDs.culprit, e.culprit.newest)
		s.SetBool(slotIDs.growth, e.byGrowth)
	}
}

// note is something that was said about a unit of a host, or about all of it.
type note struct {
	at   time.Time
	unit string // empty: the whole host
	life string // whose end it is
}

// notes are the newest of them.
type notes []note

func (n *notes) add(one note) {
	if len(*n) == maxNotes {
		*n = slices.Delete(*n, 0, 1)
	}
	*n = append(*n, one)
}

// about says whether anything was noted about the unit in a window before a moment; of the whole host too. A unit may be written as it
// stands in a slot.
func (n notes) about(unit string, at time.Time, window time.Duration) bool {
	return slices.ContainsFunc(n, func(one note) bool {
		return (one.unit == "" || one.unit == unit || one.unit == strings.ReplaceAll(unit, "/", "_")) && within(at, one.at, window) && !one.at.After(at)
	})
}

// unitOf is the unit that a mark is about: that of its worker, else the one that it names, heard of or not: a name that nobody has must
// not stand for all. A mark that names nothing but its kind is about the whole host: "".
func (h *host) unitOf(e *event.Event) string {
	switch unit := e.Worker.GetUnit(); {
	case unit != "":
		return unit
	case e.Mark.Name == e.Mark.Kind:
		return ""
	}
	return e.Mark.Name
}

func (h *host) deployed(unit string, at time.Time) bool { return h.deploys.about(unit, at, rollout) }

// serves says that it belongs to an engine, by what it is told to be or by what is heard of it.
func (w *watched) serves() bool {
	return w.Who.GetEngine() != "" || w.Who.GetModel() != "" || w.Sample().Known(slotIDs.running)
}

// planned says that somebody meant the process to end: it, or one that speaks for its unit, drains, has said farewell, or a
// deploy was marked.
func (w *watched) planned(at time.Time) bool {
	unit := w.Who.GetUnit()
	return w.draining || w.bye || w.home.deployed(unit, at) || unit != "" && w.home.drains.about(unit, at, rollout)
}

// aftermath says that it ends because another process of its unit did: what a parent does to the rest is no kill of its own.
func (w *watched) aftermath(at time.Time) bool {
	unit := w.Who.GetUnit()
	return unit != "" && slices.ContainsFunc(w.home.deaths, func(n note) bool {
		return n.unit == unit && n.life != w.Key && within(at, n.at, aftermath) && !n.at.After(at)
	})
}

// lifecycle takes the news that a process started, drains or has ended.
func (j *Judge) lifecycle(h *host, e *event.Event, at time.Time) {
	w := j.worker(h, e, at)
	if w == nil {
		return
	}
	switch l := e.Lifecycle; l.State {
	case "draining":
		w.draining, w.bye = true, w.bye || l.GetSaidBye()
		if unit := w.Who.GetUnit(); unit != "" {
			h.drains.add(note{at: at, unit: unit, life: w.Key})
		}
		j.give(w, e, at)
	case "exited":
		j.exit(h, w, e, at)
	default:
		j.give(w, e, at)
	}
	h.ends = true // somebody on this host tells how processes end
}

// exit ends a process life: what hid it is masked by it, and who ended it is judged.
func (j *Judge) exit(h *host, w *watched, e *event.Event, at time.Time) {
	if !w.end.at.IsZero() && !w.end.unknown {
		return // told twice
	}
	if w.End() {
		j.evaluate(w, w.Last)
	}
	w.Apply(e)
	end := ending{at: at, life: w.Key, release: w.Who.GetRelease(), early: !w.Ready() && w.serves()}
	end.read(e.Lifecycle)
	if w.doomed != "" && within(at, w.doomedAt, aftermath) && (end.signal == sigKill || end.unknown) {
		end.by, end.signal, end.unknown = w.doomed, sigKill, false
	}
	w.bye = w.bye || e.Lifecycle.GetSaidBye()
	end.fault = within(at, w.faultAt, faultLag)
	end.after = w.doomed == "" && w.aftermath(at)
	end.planned = w.planned(at)
	end.awaited = end.killed() && !end.proven()
	j.blame(h, w, &end)
	w.end = end
	if unit := w.Who.GetUnit(); unit != "" {
		h.deaths.add(note{at: at, unit: unit, life: w.Key})
	}
	if s := w.place; s != nil {
		j.remember(s, w)
		s.end, s.quiet = end, false
		if s.before == w {
			s.before = nil
		}
		if s.life != w && s.life != nil && s.life.end.at.IsZero() {
			j.follow(s, s.life, at) // its successor was there first
		}
	}
	if end.awaited {
		j.awaiting = append(j.awaiting, awaited{w: w, due: h.elapsed + patience})
	}
	j.close(w, at, true)
}

// close judges a life at its end.
func (j *Judge) close(w *watched, at time.Time, exited bool) {
	switch {
	case w.end.killed():
		w.end.tell(w)
	case w.end.unknown || w.end.awaited:
		w.Sample().Unset(slotIDs.kill)
	default:
		w.Sample().SetBool(slotIDs.kill, false)
	}
	j.judge(w, at, exited)
}

// reread looks again at an end that came before the kernel's account of it.
func (j *Judge) reread(h *host, w *watched, at time.Time) {
	e := &w.end
	if e.at.IsZero() || e.bySystem() || !within(at, e.at, aftermath) || e.signal != sigKill && !e.unknown {
		return
	}
	e.by, e.signal, e.unknown, e.awaited = w.doomed, sigKill, false, false
	j.blame(h, w, e)
	if s := w.place; s != nil && s.end.life == w.Key {
		counted := s.end.counted
		s.end, s.quiet = *e, false
		s.end.counted = counted
	}
	e.tell(w)
	j.askAbout(w, j.killed, at)
}

// awaited is an end of which it is not sure yet whether it was a kill.
type awaited struct {
	w   *watched
	due time.Duration // of the host's time
}

// reconsider settles the ends that were held back: when the successor has come, when patience is over, and at the end of a
// recording. A successor of another release shows that it was a rollout. Without a host all are looked at, at the broker's time: the
// time of a host that is silent does not pass.
func (j *Judge) reconsider(h *host, at time.Time, over bool) {
	j.awaiting = slices.DeleteFunc(j.awaiting, func(a awaited) bool {
		w := a.w
		if h != nil && w.home != h {
			return false
		}
		s := w.place
		var next *watched
		if s != nil && s.life != w && s.end.life == w.Key {
			next = s.life
		}
		known := next != nil && (next.Who.GetRelease() != "" || w.end.release == "")
		quiet := h == nil && !over && at.Sub(w.home.toldAt) >= patience
		if !known && !over && !quiet && w.home.elapsed < a.due {
			return false
		}
		if s != nil && s.end.life == w.Key {
			w.end.planned = w.end.planned || s.end.planned
		}
		w.end.awaited = false
		if s != nil && s.end.life == w.Key {
			s.end.awaited, s.end.planned, s.quiet = false, w.end.planned, false
		}
		if w.end.killed() {
			when := at
			if h == nil {
				when = w.home.newest
			}
			w.end.tell(w)
			j.askAbout(w, j.killed, when)
		}
		return true
	})
}
