package processor

import (
	"maps"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/processor/worker"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// growers are the series whose growth is a class of its own.
var growers = [...]string{"live", "outside", "anon", "pinned", "fds", "sockets", "threads", "graphs", "awaiting"}

// growthSeries names, for each class that is a growth, the growers that it is about. All of them must be proven level before an
// incident of the class ends.
var growthSeries = map[string][]int{"retention": {0}, "native_growth": {1}, "host_memory": {2}, "pinned_memory": {3}, "fd_leak": {4, 5},
	"thread_leak": {6}, "graph_pools": {7}, "stream_backlog": {8}}

// growerIDs are the variables of the growers, found once.
var growerIDs = func() (all [len(growers)]struct {
	growth, low, high, z, abort, request, hoursLow, hoursHigh, early, steady, level variable.ID
}) {
	for i, series := range growers {
		v := func(field string) variable.ID { return variable.Must(series + "." + field) }
		one := &all[i]
		one.growth, one.low, one.high, one.z = v("growth"), v("growth_low"), v("growth_high"), v("z")
		one.abort, one.request = v("per_abort"), v("per_request")
		one.hoursLow, one.hoursHigh = v("hours_to_limit_low"), v("hours_to_limit_high")
		one.early, one.steady, one.level = v("early"), v("steady"), v("level")
	}
	return all
}()

// view is what is judged at one moment: a sample, whose it is, and which incidents it belongs to.
type view struct {
	kind, subject string // of the finding
	key           string // of the incidents
	at            time.Time
	sample        *variable.Sample
	w             *watched // nil where no process is meant
	host          *host
	related       []string
	life          string // the process life; empty where none is meant
	exited        bool   // that life ended
	well          string // of a sensor that can see again: since when, as a sentence
}

// look has the sample complete: the rules' own readings are, what a finding tells beside them may not be.
func (v *view) look() {
	if v.w != nil {
		v.w.Sample()
	}
}

// observe gives one answer to the incidents, and emits what follows from it. It says whether anything did: else the same are open.
func (j *Judge) observe(v *view, q *question, result rules.Result) (told bool) {
	refuted := ""
	if result.Refute == rules.True {
		result.When = rules.False
		if q.isOpen(q.incidents.Open(v.key)) {
			v.look()
			refuted = q.rule.Refuted(v.sample)
		}
	}
	if v.kind == "worker" && result.When != rules.True && j.siblings(v.w, q, v.at) {
		return false
	}
	o := incident.Observation{Time: v.at, Key: v.key, Related: v.related, Rule: q.rule, Result: result, Worker: v.life, Exited: v.exited}
	if v.w != nil {
		o.Release, o.Group = v.w.Who.GetRelease(), v.w.group
		if len(q.series) > 0 {
			o.Growth = !v.w.unseen(q.series) // what only a snapshot shows is never proven to be level
			o.Onset = v.w.onset(q.series)
			o.Proof, o.Proven = v.w.proven(q.series)
		}
	}
	o.Refuted = refuted
	if v.w != nil && snapshotTells(q.rule.Class) {
		o.Evidence = v.w.EvidenceAt()
	}
	if v.well != "" {
		o.Growth, o.Proven, o.Proof = true, true, v.well
	}
	j.seen, j.about, o.Fill = *v, q, j.fill
	for _, f := range q.incidents.Observe(o) {
		told = true
		j.emit(f)
		if f.State == event.Resolved && v.w != nil && !q.rule.Shadow {
			j.settle(v.w)
			if v.w.end.at.IsZero() {
				j.comes(v.w, v.at)
			}
		}
	}
	return told
}

// unseen says that nobody tells of a series, and what holds it is told instead: private pools are a part of what is cached.
func (w *watched) unseen(series []int) bool {
	if len(series) != 1 || growers[series[0]] != "graphs" {
		return false
	}
	_, told := w.Level("graphs")
	_, instead := w.Level("cached")
	return !told && instead
}

// onset is when the first of the series began to grow; zero when none was called.
func (w *watched) onset(series []int) (first time.Time) {
	for _, i := range series {
		if onset, called := w.Called(growers[i]); called && (first.IsZero() || onset.Before(first)) {
			first = onset
		}
	}
	return first
}

// proven says whether every one of the series that is known is proven level, in a sentence, and none is called.
func (w *watched) proven(series []int) (string, bool) {
	if len(series) == 1 {
		if _, called := w.Called(growers[series[0]]); called {
			return "", false
		}
		return w.Proven(growers[series[0]])
	}
	var proofs []string
	for _, i := range series {
		name := growers[i]
		if _, called := w.Called(name); called {
			return "", false
		}
		text, proven := w.Proven(name)
		if !proven {
			if _, known := w.Level(name); known {
				return "", false
			}
			continue
		}
		proofs = append(proofs, name+": "+text)
	}
	return strings.Join(proofs, "; "), len(proofs) > 0
}

// fill adds what is known of the subject to a finding.
func fill(f *event.Finding, v *view, q *question) {
	s := v.sample
	f.Subject = event.Subject{Kind: v.kind, Key: v.subject}
	f.Labels = map[string]string{"cluster": v.host.name.cluster, "host": v.host.name.name}
	added, _ := s.Labels(labelsID)
	maps.Copy(f.Labels, added)
	f.Summary = q.rule.Summary(s)
	f.Evidence = q.rule.Evidence(s)
	f.CounterEvidence = q.rule.Against(s)
	f.Advice = q.rule.AdviceFor(s)
	f.Slot = ""
	if w := v.w; w != nil {
		f.Slot, f.Worker, f.Release = w.Slot, w.Who, w.Who.GetRelease()
		if v.kind == "worker" || v.kind == "instance" {
			f.Slot = v.key
			f.Symptoms = w.symptoms(f.Onset, v.at)
			if missing := w.Missing(); len(missing) > 0 {
				f.NotAssessable = missing
			}
		}
		if c := w.Config; c != nil {
			f.ConfigHash, f.EngineVersion, f.TorchVersion, f.AllocConf = c.ConfigHash, c.EngineVersion, c.TorchVersion, c.AllocConf
		}
		if len(q.series) > 0 {
			series := w.foremost(q.series)
			fillGrowth(f, s, series)
			if f.Growth != nil {
				f.Series, f.Points = growers[series], thin(w.Curve(growers[series]))
			}
		}
		if q.rule.Class == "kv_block_leak" {
			f.Series, f.Points = "kv", thin(w.Curve("kv"))
		}
		if snapshotTells(q.rule.Class) {
			f.Snapshot, f.Holders = w.Evidence(q.rule.Class)
		}
	}
}

// foremost is the series that a finding of several tells: the one that was called, else the first.
func (w *watched) foremost(series []int) int {
	for _, i := range series {
		if _, called := w.Called(growers[i]); called {
			return i
		}
	}
	return series[0]
}

func fillGrowth(f *event.Finding, s *variable.Sample, series int) {
	id := growerIDs[series]
	value, known := s.Number(id.growth)
	low, lowKnown := s.Number(id.low)
	high, highKnown := s.Number(id.high)
	if known && lowKnown && highKnown {
		f.Growth = &event.Growth{Value: value, Low: low, High: high, Unit: strings.TrimSuffix(variable.All()[id.growth].Unit, "/h")}
	}
	f.PerAbort, f.PerRequest = measure(s, id.abort), measure(s, id.request)
	low, lowKnown = s.Number(id.hoursLow)
	high, highKnown = s.Number(id.hoursHigh)
	if lowKnown && highKnown {
		f.HoursToLimit = &event.Interval{Low: low, High: high}
	}
}

// replicas counts the workers of the release that do not grow in the series; nil where the class is no growth, or nobody else is known.
func (j *Judge) replicas(w *watched, series []int, at time.Time) *event.Replicas {
	if len(series) == 0 {
		return nil
	}
	mask := uint16(0)
	for _, i := range series {
		mask |= 1 << i
	}
	healthy, total := j.board.replicas(w.kin(), w.Key, w.Who.GetRelease(), at, mask)
	if total == 0 {
		return nil
	}
	return &event.Replicas{Healthy: healthy, Total: total}
}

// thin keeps the first and the last of the levels and as many between them as a finding has room for, evenly by their number.
func thin(dots []worker.Dot) []event.Point {
	if len(dots) == 0 {
		return nil
	}
	points := make([]event.Point, 0, event.MaxPoints)
	n := min(len(dots), event.MaxPoints)
	for i := range n {
		at := i
		if n < len(dots) {
			at = i * (len(dots) - 1) / (n - 1)
		}
		points = append(points, event.Point{Time: dots[at].At.UTC(), Value: dots[at].Value})
	}
	return points
}

func measure(s *variable.Sample, id variable.ID) *event.Measure {
	if v, known := s.Number(id); known {
		one := variable.All()[id]
		return &event.Measure{Name: one.Name, Value: v, Unit: one.Unit}
	}
	return nil
}

// symptoms are the process's own and those of its slot: that it was ended from outside, that it was started again.
func (w *watched) symptoms(onset, at time.Time) []event.Symptom {
	all := w.Symptoms(onset)
	add := func(name string, when time.Time, text string) {
		if !slices.ContainsFunc(all, func(s event.Symptom) bool { return s.Name == name }) {
			all = append(all, event.Symptom{Name: name, Time: when.UTC(), LagSeconds: when.Sub(onset).Seconds(), Text: text})
		}
	}
	if s := w.place; s != nil {
		if e := &s.end; e.killed() && within(at, e.at, pairing) {
			add("kill", e.at, e.words())
		}
		if n := s.restarts.within(at, pairing); n > 0 {
			add("restart", s.restarts.newest(), counted(n, "restart")+" in the last hour, planned ones left out")
		}
	}
	return all
}
