package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/collector/status"
	"lowtide/event"
)

// target is an endpoint and what was read from it before. One goroutine at a time works on it.
type target struct {
	url        *url.URL
	name       string   // its address without credentials
	paths      []string // to try until one answers as an engine
	engine     *mapping // that it has to be; nil: any
	worker     *event.Worker
	configured bool

	mapping *mapping // that recognised it; nil until then
	path    string   // where its metrics are
	learned          // from the process that is there now

	given   *event.Worker // by the configuration
	ever    bool          // it has answered as an engine
	unready bool          // the process was seen before it was ready
	missed  int           // candidates: tries that found no engine
	retry   time.Time
	failing int // ticks in a row; those that answer are asked first

	events []*event.Event // of the tick
	err    error
}

// learned is what belongs to one process life.
type learned struct {
	answered  bool // with its engine's families
	counters  map[counterKey]float64
	histogram map[int64]*[measures]distribution
	promises  map[int64]*promise
	noted     map[int64]bool // its SLO's thresholds were compared with its edges
	config    configuration
}

// forget begins a new process life.
func (t *target) forget() {
	t.learned = learned{}
	t.mapping, t.path = nil, ""
	t.missed, t.retry = 0, time.Time{}
}

// adopt takes over what discovery knows about the process of the endpoint; another process than before is another life. What the
// configuration says stays.
func (t *target) adopt(w *event.Worker) {
	if w == nil || t.given.GetPid() != 0 {
		return
	}
	if t.given != nil {
		w = proto.CloneOf(w)
		proto.Merge(w, t.given)
	}
	if was := t.worker; was.GetPid() != 0 && w.GetPid() != 0 && (was.GetPid() != w.GetPid() ||
		was.StartTicks != nil && w.StartTicks != nil && was.GetStartTicks() != w.GetStartTicks()) {
		t.forget()
		t.unready = true
	}
	t.worker = w
}

// scrape reads the target once and leaves what it found in t.events and t.err.
func (s *Source) scrape(ctx context.Context, t *target, tick time.Time, scratch *scratch) {
	defer scratch.rest()
	t.events = nil
	r, err := s.read(ctx, t, scratch)
	if err != nil {
		t.err = t.failed(err)
		if loading(err) {
			t.unready = true
		}
		if errors.Is(err, status.ErrAbsent) && t.worker.GetPid() == 0 {
			t.learned = learned{} // nobody listens: who comes next, as far as can be told, is another process
		}
		return
	}
	t.err = nil
	if !t.answered {
		t.answered, t.ever = true, true
		t.counters = make(map[counterKey]float64)
		t.histogram = make(map[int64]*[measures]distribution)
		t.promises = make(map[int64]*promise)
		t.noted = make(map[int64]bool)
		if t.unready {
			e := t.stamped(&group{m: t.mapping, r: r, index: noIndex, models: t.mapping.models(r, r.indices[0])}, tick)
			e.Lifecycle = &event.Lifecycle{State: "ready"}
			t.events = append(t.events, e)
		}
		t.unready = false
	}
	s.ask(ctx, t, tick, scratch)
	for _, index := range r.indices {
		t.events = append(t.events, s.tell(t, r, index, tick)...)
	}
	t.prune(r.indices)
}

// prune forgets the indices that are not there, once there have been more than there may be at a time: an engine that is missing
// once is remembered, names that are new at each reading are not.
func (l *learned) prune(indices []int64) {
	if len(l.histogram) <= maxIndices {
		return
	}
	gone := func(index int64) bool { return !slices.Contains(indices, index) }
	maps.DeleteFunc(l.counters, func(k counterKey, _ float64) bool { return gone(k.index) })
	maps.DeleteFunc(l.histogram, func(index int64, _ *[measures]distribution) bool { return gone(index) })
	maps.DeleteFunc(l.promises, func(index int64, _ *promise) bool { return gone(index) })
	maps.DeleteFunc(l.noted, func(index int64, _ bool) bool { return gone(index) })
	maps.DeleteFunc(l.config.told, func(index int64, _ told) bool { return gone(index) })
}

// read fetches and parses the exposition, looking for it while it is not known where it is.
func (s *Source) read(ctx context.Context, t *target, scratch *scratch) (*reading, error) {
	if t.mapping != nil {
		r, m, err := s.try(ctx, t, t.path, scratch)
		if err == nil && m != t.mapping {
			path := t.path
			t.forget() // another engine has taken its place
			t.mapping, t.path = m, path
		}
		return r, err
	}
	var first error
	for _, path := range t.paths {
		r, m, err := s.try(ctx, t, path, scratch)
		if err == nil {
			t.mapping, t.path = m, path
			return r, nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, errReached) || errors.Is(err, context.DeadlineExceeded) {
			return nil, first // nothing there speaks HTTP now: another path would not change that
		}
	}
	return nil, first
}

// try reads one path and says whose metrics they are.
func (s *Source) try(ctx context.Context, t *target, path string, scratch *scratch) (*reading, *mapping, error) {
	at := *t.url
	if path != at.Path {
		at.Path, at.RawPath = path, ""
	}
	if err := s.get(ctx, &at, acceptText, maxBody, &scratch.body); err != nil {
		return nil, nil, err
	}
	families, err := scratch.decode(s.wanted)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errReached, err)
	}
	for _, m := range s.mappings {
		if t.engine != nil && t.engine != m {
			continue
		}
		r, err := m.read(families)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errReached, err)
		}
		if m.recognises(r) {
			return r, m, nil
		}
	}
	if t.engine != nil {
		return nil, nil, fmt.Errorf("%w: %w: has no metrics of %s; hint: are the engine's metrics switched on?", errReached, status.ErrUnsupported, t.engine.table.Name)
	}
	return nil, nil, fmt.Errorf("%w: %w: has no metrics of a known engine; hint: describe it in an engine table", errReached, status.ErrUnsupported)
}

// tell makes the events of one engine behind the endpoint.
func (s *Source) tell(t *target, r *reading, index int64, tick time.Time) []*event.Event {
	g := &group{m: t.mapping, r: r, index: index, models: t.mapping.models(r, index), counters: t.counters}
	var events []*event.Event
	body := &event.Engine{}
	m := body.ProtoReflect()
	for _, f := range t.mapping.fields {
		if v, ok := g.value(f.rows); ok {
			put(m, f.of, v)
		}
	}
	fit(body)
	var now, deltas [measures]distribution
	before := t.histogram[index]
	for which := range now {
		now[which] = g.measure(which)
		if before != nil {
			deltas[which] = now[which].since(before[which])
			if !now[which].known() {
				now[which] = before[which] // a family that is missing once is not a new process
			}
		}
	}
	t.histogram[index] = &now
	fill(body, &deltas)
	s.promise(t, g, body, &now, &deltas)
	if proto.Size(body) > 0 {
		e := t.stamped(g, tick)
		e.Engine = body
		events = append(events, e)
	}
	if config := g.configure(&t.config, tick); config != nil {
		e := t.stamped(g, tick)
		e.Config = config
		events = append(events, e)
	}
	return events
}

// promise counts against the SLO of the model.
func (s *Source) promise(t *target, g *group, body *event.Engine, now, deltas *[measures]distribution) {
	model := t.worker.GetModel()
	if len(g.models) == 1 {
		model = g.models[0]
	}
	for _, slo := range s.o.SLOs {
		if !slo.matches(model) {
			continue
		}
		p := t.promises[g.index]
		if p == nil {
			p = &promise{}
			t.promises[g.index] = p
		}
		p.count(slo, deltas)
		p.put(body)
		if !t.noted[g.index] {
			t.noted[g.index] = true
			if text := slo.between(now); text != "" {
				s.o.Log.Warn("slo is judged more strictly than it says", "slo", slo.Model, "target", t.name, "thresholds", text)
			}
		}
		return
	}
}

// fit keeps ratios of one pool consistent: kv_usage minus kv_evictable is what is held, and that must survive where the gauge is
// of another pool (a hybrid model has several) than the evictable tokens, so that the two together pass 1.
func fit(e *event.Engine) {
	if e.KvUsage != nil && e.KvEvictable != nil && *e.KvUsage > 1 {
		over := *e.KvUsage - 1
		e.KvUsage, e.KvEvictable = proto.Float64(1), proto.Float64(max(0, *e.KvEvictable-over))
	}
}
