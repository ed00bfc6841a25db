// Package processor judges: it feeds events to workers, asks the rules, and turns answers into incidents. One Judge is one
// partition, one recording or one test; live and replay share it. It knows no statistics and sends nothing to people.
package processor

import (
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/incident"
	"lowtide/processor/worker"
	"lowtide/rules"
	"lowtide/rules/variable"
)

const (
	forget     = 6 * time.Hour // a process that is silent this long is gone
	sweepEvery = time.Hour
	maxWorkers = 10_000           // of one partition
	silent     = 5 * time.Minute  // a process that says nothing for as long does not speak for its slot
	endLag     = 10 * time.Second // an error may be told this long after the process that it ended
)

// growthSeries names the series whose growth a class is, which must be proven level before an incident ends.
var growthSeries = map[string]string{"retention": "live", "native_growth": "outside", "host_memory": "anon"}

// Judge judges the events of one partition in their order. It is not safe for concurrent use.
type Judge struct {
	pack      *rules.Pack
	emit      func(*event.Finding)
	workers   map[string]*watched
	instances map[string][]*watched
	devices   map[string][]*watched // by host and GPU
	rules     []*rules.Rule         // the pack's, in the order of precedence
	incidents *incident.Tracker
	clocks    map[hostName]*clock
}

// NewJudge returns a judge that calls emit with every transition, in the goroutine that calls Apply or Flush.
func NewJudge(pack *rules.Pack, emit func(*event.Finding)) *Judge {
	return &Judge{pack: pack, emit: emit, workers: make(map[string]*watched), instances: make(map[string][]*watched),
		devices: make(map[string][]*watched), incidents: incident.NewTracker(), clocks: make(map[hostName]*clock)}
}

// Apply takes one event that names its host.
func (j *Judge) Apply(e *event.Event) {
	clock := j.clock(e.Host, e.At())
	switch {
	case e.Gpu != nil:
		for _, w := range present(j.devices[event.HostKey(e.Host)+"/"+e.Gpu.Uuid], e.At()) {
			j.give(w, e)
		}
	case e.Xid != nil && e.Worker == nil:
		// NVML names only the device. What the device did is true for all that use it; what a program did, for the only one.
		all := j.devices[event.HostKey(e.Host)+"/"+e.Xid.GpuUuid]
		users := present(all, e.At())
		if len(users) == 0 {
			users = present(all, e.At().Add(-endLag)) // the error may be what ended it
		}
		if len(users) == 1 || !event.ApplicationXid(e.Xid.GetCode()) {
			for _, w := range users {
				j.give(w, e)
			}
		}
	case e.Worker == nil:
	case e.Engine != nil || e.Config != nil || e.Lifecycle.GetState() == "ready":
		for _, w := range present(j.instance(e), e.At()) {
			j.give(w, e)
		}
	default:
		j.give(j.worker(e), e)
	}
	if clock.newest.Sub(clock.swept) > sweepEvery {
		j.sweep()
	}
}

// Flush closes every tick that is still being put together: the end of a recording is its last moment.
func (j *Judge) Flush() {
	for _, w := range j.sorted() {
		if w.Close() {
			j.evaluate(w, w.Last)
		}
	}
}

func (j *Judge) give(w *watched, e *event.Event) {
	if w.Apply(e) {
		at := w.Last
		if e.Oom != nil || e.Xid != nil {
			at = e.At()
		}
		j.evaluate(w, at)
	}
}

func (j *Judge) worker(e *event.Event) *watched {
	key := event.WorkerKey(e.Host, e.Worker)
	if w := j.workers[key]; w != nil {
		w.hear(e.At())
		if e.Engine == nil && e.Config == nil && w.Learn(e.Worker) {
			j.move(w)
		}
		return w
	}
	if len(j.workers) >= maxWorkers {
		j.forgetOldest()
	}
	who := e.Worker
	if e.Worker.EngineIndex != nil && (e.Engine != nil || e.Config != nil) && e.Worker.GetRole() == "frontend" {
		who = proto.CloneOf(who) // the index is that of the engine it speaks for
		who.EngineIndex = nil
	}
	w := &watched{Worker: worker.New(key, e.Host, who, e.At()), answers: make([]answer, len(j.ordered())), heard: e.At()}
	j.workers[key] = w
	j.index(w)
	return w
}

// instance returns the workers for which an engine's event holds. It names a process of the instance, often the front end, and an
// engine index that need not be that process's own.
func (j *Judge) instance(e *event.Event) []*watched {
	key := event.InstanceKey(e.Host, e.Worker)
	found := j.instances[key]
	if len(found) > 0 {
		if w := j.workers[event.WorkerKey(e.Host, e.Worker)]; w != nil {
			w.hear(e.At())
			w.own = w.own || w.Instance == key
		}
		return found
	}
	w := j.worker(e)
	switch index := e.Worker.GetEngineIndex(); {
	case w.Instance == key:
		w.own = true
	case w.own || w.other != nil && *w.other != index: // about ranks that are not known
		return nil
	default:
		w.other = &index
	}
	return j.instances[w.Instance]
}

// watched is a worker with what each rule last said about it.
type watched struct {
	*worker.Worker
	answers []answer
	devices []string  // keys under which the judge finds it
	own     bool      // an engine of its own index is heard of
	other   *int64    // else the only other one
	heard   time.Time // the newest event of its own, rather than of its instance or its device
}

func (w *watched) hear(at time.Time) {
	if at.After(w.heard) {
		w.heard = at
	}
}

type answer struct {
	generations uint64 // of all that the rule reads; they only grow, so that the same sum means the same values
	result      rules.Result
	known       bool
}

// ask evaluates a rule when something it reads has changed.
func (a *answer) ask(rule *rules.Rule, s *variable.Sample) rules.Result {
	var sum uint64
	for _, id := range rule.Reads() {
		sum += s.Generation(id)
	}
	if !a.known || sum != a.generations {
		a.generations, a.result, a.known = sum, rule.Evaluate(s), true
	}
	return a.result
}

func (j *Judge) evaluate(w *watched, at time.Time) {
	open := len(j.incidents.Open(w.Slot)) > 0
	for i, rule := range j.ordered() {
		result := w.answers[i].ask(rule, w.Sample())
		if !open && result.When != rules.True {
			continue
		}
		if result.When != rules.True && j.siblings(w, rule.Class, at) {
			continue
		}
		o := incident.Observation{Time: at, Slot: w.Slot, Rule: rule, Result: result, Worker: w.Key}
		if series, ok := growthSeries[rule.Class]; ok {
			o.Growth, o.Proven = true, w.Proven(series)
			o.Onset, _ = w.Called(series)
		}
		o.Fill = func(f *event.Finding) { fill(f, w.Worker, rule) }
		if f := j.incidents.Observe(o); f != nil {
			open = true
			j.emit(f)
			if f.State == event.Resolved {
				j.settle(w)
			}
		}
	}
}

// fill adds what the worker knows to a finding.
func fill(f *event.Finding, w *worker.Worker, rule *rules.Rule) {
	s := w.Sample()
	f.Subject = event.Subject{Kind: "worker", Key: w.Key}
	f.Worker = w.Who
	f.Labels = map[string]string{"cluster": w.Host.GetCluster(), "host": w.Host.GetName()}
	f.Summary = rule.Summary(s)
	f.Evidence = rule.Evidence(s)
	f.CounterEvidence = rule.Against(s)
	f.Release = w.Who.GetRelease()
	if c := w.Config; c != nil {
		f.ConfigHash, f.EngineVersion, f.TorchVersion, f.AllocConf = c.ConfigHash, c.EngineVersion, c.TorchVersion, c.AllocConf
	}
	f.Symptoms = w.Symptoms(f.Onset)
	f.Confidence = confidence(f, s)
	f.NotAssessable = notAssessable(s)
	if series, ok := growthSeries[rule.Class]; ok {
		f.Growth = growth(s, series)
		f.PerAbort = measure(s, series+".per_abort")
		f.PerRequest = measure(s, series+".per_request")
		low, lowKnown := s.Number(variable.Must(series + ".hours_to_limit_low"))
		high, highKnown := s.Number(variable.Must(series + ".hours_to_limit_high"))
		if lowKnown && highKnown {
			f.HoursToLimit = &event.Interval{Low: low, High: high}
		}
	}
}

func growth(s *variable.Sample, series string) *event.Growth {
	id := variable.Must(series + ".growth")
	value, known := s.Number(id)
	low, lowKnown := s.Number(variable.Must(series + ".growth_low"))
	high, highKnown := s.Number(variable.Must(series + ".growth_high"))
	if !known || !lowKnown || !highKnown {
		return nil
	}
	return &event.Growth{Value: value, Low: low, High: high, Unit: strings.TrimSuffix(variable.All()[id].Unit, "/h")}
}

func measure(s *variable.Sample, name string) *event.Measure {
	id := variable.Must(name)
	if v, known := s.Number(id); known {
		return &event.Measure{Name: name, Value: v, Unit: variable.All()[id].Unit}
	}
	return nil
}

// confidence grows with the quiet points behind a verdict and with a second axis; without sight of quiet it stays under 0.6.
// It is not calibrated yet.
func confidence(f *event.Finding, s *variable.Sample) float64 {
	base := 0.65
	if f.State != event.Suspected {
		base = 0.85
	}
	if n, known := s.Number(variable.Must("quiet.count")); known && n > 4 {
		base += math.Min(0.1, 0.01*(n-4))
	}
	if inferred, _ := s.Bool(variable.Must("quiet.inferred")); inferred {
		base = math.Min(base, 0.6)
	}
	return math.Round(base*100) / 100
}

// notAssessable names the classes that this worker's sensors cannot settle.
func notAssessable(s *variable.Sample) map[string]string {
	out := make(map[string]string)
	for class, name := range map[string]string{"retention": "live.now", "native_growth": "outside.now", "kv_pressure": "kv.now", "kv_block_leak": "kv.now",
		"host_memory": "anon.now", "fragmentation": "snapshot.fragmentation"} {
		id := variable.Must(name)
		if !s.Known(id) {
			out[class] = variable.All()[id].Sensor
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
