package processor

import (
	"time"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/rules/variable"
)

const (
	watchEvery = 10 * time.Second // of the host's time: how often a sensor that is not well is judged again
	hostSilent = 10 * time.Minute // of broker time: a host that says nothing for as long cannot be seen
	others     = 2 * time.Minute  // of broker time: somebody else was heard within it, so that it is not the broker
	gone       = 24 * time.Hour   // a sensor that is missing as long was taken away
	maxSensors = 256              // of one host
)

// The collector of a host as a sensor: it is well while anything of it is heard.
const (
	collector     = "collector"
	collectorGone = "silent"
)

var sourceIDs = struct{ seconds, source, status, cluster, host variable.ID }{
	variable.Must("blind.seconds"), variable.Must("blind.source"), variable.Must("blind.status"), variable.Must("cluster"), variable.Must("host"),
}

// sensor is one source of a host, as it tells about itself. Only one that was well can go blind: what never was there is no loss.
type sensor struct {
	key     string
	name    string
	status  string
	well    time.Time // the newest time that it was; zero when it never was
	blind   bool
	since   time.Duration // of the host's time: when it was first not well
	back    time.Duration // of the host's time: since when it is well again; zero while it is not
	backAt  time.Time
	judged  time.Time
	sample  *variable.Sample
	answers answers
}

func (h *host) sensor(name string) *sensor {
	s := h.sensors[name]
	if s == nil && len(h.sensors) < maxSensors {
		s = &sensor{key: h.key + "/" + name, name: name}
		h.sensors[name] = s
	}
	return s
}

// source takes what a source says about itself. Lost and timeout are failures of what was there; absent, unsupported and denied
// say that it cannot be had, which nobody is paged for.
func (j *Judge) source(h *host, told *event.SourceStatus, at time.Time) {
	s := h.sensor(told.Name)
	if s == nil {
		return
	}
	j.status(h, s, told.Status, at)
}

func (j *Judge) status(h *host, s *sensor, status string, at time.Time) {
	s.status = status
	switch {
	case status == "ok":
		s.well = at
		if s.blind && s.backAt.IsZero() {
			s.back, s.backAt = h.elapsed, at
			j.judgeSensor(h, s, at)
		}
	case s.well.IsZero():
	case status == "lost" || status == "timeout" || status == collectorGone:
		if !s.blind || !s.backAt.IsZero() {
			s.since, s.back, s.backAt = h.elapsed, 0, time.Time{}
		}
		if !s.blind {
			s.blind = true
			h.blind++
		}
		j.judgeSensor(h, s, at)
	case s.blind:
		s.back, s.backAt = 0, time.Time{}
		j.judgeSensor(h, s, at)
	}
}

func (h *host) see(s *sensor) {
	if s.blind {
		s.blind, s.back, s.backAt = false, 0, time.Time{}
		h.blind--
	}
}

// rest is how long a sensor has to be well before it counts as such: as long as the rules ask for whose incidents are open. One that
// works for a moment now and then is one trouble.
func (j *Judge) rest(s *sensor) (keep time.Duration) {
	for _, in := range j.incidents.Open(s.key) {
		if rule := j.rules[in.Rule]; rule != nil {
			keep = max(keep, rule.Keep)
		}
	}
	return keep
}

// watch judges the sensors that are not well anew as the host's time passes.
func (j *Judge) watch(h *host, at time.Time) {
	for _, s := range h.sortedSensors() {
		if s.blind && s.status != collectorGone && !within(at, s.judged, watchEvery) {
			j.judgeSensor(h, s, at)
		}
	}
}

func (h *host) sortedSensors() []*sensor {
	return inOrder(h.sensors, func(s *sensor) string { return s.name })
}

// Tick says what the broker's time is, at least once a minute. A host that was silent for ten minutes while others of the partition
// were heard cannot be seen; one is never judged so by its own clock, and never in a replay, which calls no Tick.
func (j *Judge) Tick(now time.Time) { j.tick(now, false) }

// tick is Tick where somebody may have been heard whose host is not among those of this judge.
func (j *Judge) tick(now time.Time, heard bool) {
	for _, h := range j.hosts {
		if h.told || h.toldAt.IsZero() {
			h.told, h.toldAt = false, now
		}
	}
	for _, h := range j.hosts {
		heard = heard || now.Sub(h.toldAt) < others
	}
	for _, h := range j.ordered() {
		silence := now.Sub(h.toldAt)
		s := h.sensors[collector]
		switch {
		case silence < hostSilent:
			if s != nil && s.blind {
				j.status(h, s, "ok", now)
			}
		case heard:
			j.darken(h, now)
			if silence > gone && (s == nil || !s.blind) {
				continue // it was taken away, as was said then
			}
			if s = h.sensor(collector); s == nil {
				continue
			}
			if s.well.IsZero() || !s.blind {
				s.well = h.toldAt
			}
			j.status(h, s, collectorGone, now)
		}
	}
	if len(j.awaiting) > 0 {
		j.reconsider(nil, now, false)
	}
	for _, t := range []*incident.Tracker{j.incidents, j.shadows} {
		for _, f := range t.Abandon(now) {
			j.emit(f)
		}
	}
}

// darken judges what is open about the sensors of a host that is silent. It opens nothing: what they would say is not known.
func (j *Judge) darken(h *host, now time.Time) {
	if h.blind == 0 {
		return
	}
	for _, s := range h.sortedSensors() {
		if s.blind && s.name != collector && (len(j.incidents.Open(s.key)) > 0 || h.elapsed-s.since > gone) {
			j.judgeSensor(h, s, now)
		}
	}
}

// judgeSensor asks the rules about one sensor of one host. One that is away for a day is not waited for any longer, so
// that a host which was taken away can be forgotten.
func (j *Judge) judgeSensor(h *host, s *sensor, at time.Time) {
	s.judged = at
	if s.sample == nil {
		s.sample = variable.NewSample()
		s.sample.SetString(sourceIDs.source, s.name)
		s.sample.SetString(sourceIDs.cluster, h.name.cluster)
		s.sample.SetString(sourceIDs.host, h.name.name)
		h.label(s.sample)
	}
	s.sample.SetString(sourceIDs.status, s.status)
	dark := h.elapsed - s.since // a clock that leaps makes nobody blind
	if s.name == collector {
		dark = at.Sub(s.well)
	}
	v := view{kind: "source", subject: s.key, key: s.key, at: at, sample: s.sample, host: h, related: h.cardKeys()}
	switch {
	case !s.backAt.IsZero():
		s.sample.SetNumber(sourceIDs.seconds, 0)
		if h.elapsed-s.back >= j.rest(s) {
			v.well = s.name + " is well again since " + s.backAt.UTC().Format(time.RFC3339)
			h.see(s)
		}
	case dark > gone:
		s.sample.SetNumber(sourceIDs.seconds, 0)
		v.well = s.name + " was not seen for a day, and is not waited for any longer"
		h.see(s)
		s.well = time.Time{} // until it is well again it can be lost no more
	case s.status != "lost" && s.status != "timeout" && s.status != collectorGone:
		s.sample.SetNumber(sourceIDs.seconds, 0)
	default:
		s.sample.SetNumber(sourceIDs.seconds, max(0, dark.Seconds()))
	}
	j.ask(j.perHost, &s.answers, &v)
	s.sample.Settle()
	if len(j.incidents.Open(s.key)) == 0 && !s.blind {
		s.sample, s.answers = nil, answers{}
	}
}

// cardKeys are what may explain that the driver's library does not answer.
func (h *host) cardKeys() []string {
	keys := make([]string, 0, len(h.cards))
	for _, c := range h.sortedCards() {
		keys = append(keys, c.key)
	}
	return keys
}
