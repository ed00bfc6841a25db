package scorecard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/worker"
)

// beforehand is how much earlier than its onset a trouble may be told: samples are a minute apart and late by part of a second.
const beforehand = 2 * time.Minute

// trial is one recording that was played, what was planted in it and what was found.
type trial struct {
	scenario sim.Scenario
	seed     uint64
	onset    time.Time

	planted []incident // about what the class was planted in
	healthy []incident // about all else
	days    float64    // that healthy workers were seen for
	blind   []blindSpot
	fourth  time.Time // the quiet point at which growth since the onset can be called: the fourth or later, three hours after the first
}

// isHealthy says that nothing was planted, so that every finding is false.
func (t *trial) isHealthy() bool { return t.scenario.Class == "" }

// name is how the recording is made again.
func (t *trial) name() string {
	return fmt.Sprintf("lowtide simulate --scenario %s --seed %d", t.scenario.Name, t.seed)
}

// found returns the first incident of the right class, nil when there is none. One that was told before the trouble began was right
// by accident.
func (t *trial) found() *incident {
	for n := range t.planted {
		if one := &t.planted[n]; one.class == t.scenario.Class && !one.first.Before(t.onset.Add(-beforehand)) {
			return one
		}
	}
	return nil
}

// wrong returns the incidents that should not be, of the planted ones and of the healthy ones.
func (t *trial) wrong() []incident {
	var out []incident
	for _, one := range t.planted {
		if one.class != t.scenario.Class || one.first.Before(t.onset.Add(-beforehand)) {
			out = append(out, one)
		}
	}
	return append(out, t.healthy...)
}

// play makes one recording and judges it as it is made.
func (j judging) play(ctx context.Context, s sim.Scenario, seed uint64) (*trial, error) {
	var told []*event.Finding
	judge := processor.NewJudge(j.pack, func(f *event.Finding) { told = append(told, f) })
	if j.raw {
		judge.Uncalibrated()
	}
	seen := newWitness()
	rec, err := sim.Play(s, seed, 0, step, func(e *event.Event) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		seen.event(e)
		judge.Apply(e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	judge.Flush()
	seen.settle(rec.Pids)
	t := &trial{scenario: s, seed: seed, onset: rec.Onset}
	for _, one := range incidents(told) {
		if seen.concerns(one.about) {
			t.planted = append(t.planted, one)
		} else {
			t.healthy = append(t.healthy, one)
		}
	}
	if t.isHealthy() {
		t.healthy, t.planted = append(t.healthy, t.planted...), nil
	}
	t.days = seen.healthyDays(t.isHealthy())
	reports := judge.Reports()
	t.blind = blindSpots(s.Sensors, reports)
	t.fourth = callable(reports, rec)
	return t, nil
}

// step is the time between samples.
const step = time.Minute

// witness remembers who was seen in a recording.
type witness struct {
	planted map[int64]bool
	workers map[int64]*sight
	cards   map[string]bool // of the planted ones
	hosts   map[string]bool // cluster/name
}

// sight is what was seen of one process: how often, by the source that saw it most, and where.
type sight struct {
	process, card, allocator int
	cards                    map[string]bool
	host                     string
	counts                   bool // as a worker
}

func newWitness() *witness {
	return &witness{planted: make(map[int64]bool), workers: make(map[int64]*sight), cards: make(map[string]bool), hosts: make(map[string]bool)}
}

func (w *witness) event(e *event.Event) {
	if e.Worker == nil {
		return
	}
	s := w.workers[e.Worker.Pid]
	if s == nil {
		s = &sight{cards: make(map[string]bool), host: e.Host.GetCluster() + "/" + e.Host.GetName(), counts: e.Worker.Role != "other"}
		w.workers[e.Worker.Pid] = s
		for _, uuid := range e.Worker.GpuUuids {
			s.cards[uuid] = true
		}
	}
	switch {
	case e.Process != nil:
		s.process++
	case e.GpuProcess != nil:
		s.card++
	case e.Allocator != nil:
		s.allocator++
	}
}

// settle says which processes the trouble was planted in.
func (w *witness) settle(pids []int64) {
	for _, pid := range pids {
		w.planted[pid] = true
		if s := w.workers[pid]; s != nil {
			w.hosts[s.host] = true
			for uuid := range s.cards {
				w.cards[uuid] = true
			}
		}
	}
}

// concerns says whether a finding is about what was planted: the processes, their cards, or their hosts.
func (w *witness) concerns(a about) bool {
	switch a.kind {
	case "gpu":
		return w.cards[a.key[strings.LastIndexByte(a.key, '/')+1:]]
	case "source", "host":
		return w.hosts[a.host]
	}
	return w.planted[a.pid]
}

// healthyDays is for how many days workers were seen in which nothing was planted.
func (w *witness) healthyDays(all bool) float64 {
	ticks := 0
	for pid, s := range w.workers {
		if s.counts && (all || !w.planted[pid]) {
			ticks += max(s.process, s.card, s.allocator)
		}
	}
	return (time.Duration(ticks) * step).Hours() / 24
}

// callable is when the growth that was planted can be called at the earliest, of any of its workers; zero where none had the points.
func callable(reports []worker.Report, rec sim.Recording) time.Time {
	var best time.Time
	for _, r := range reports {
		if !slices.Contains(rec.Pids, r.Who.GetPid()) {
			continue
		}
		for _, s := range r.Series {
			if s.Name != "live" {
				continue
			}
			if at := fourthPoint(s.Points, rec.Onset); !at.IsZero() && (best.IsZero() || at.Before(best)) {
				best = at
			}
		}
	}
	return best
}

// fourthPoint is the first quiet point after the onset that is the fourth or later and three hours after the first, to the nearest ten
// minutes; zero when there is none.
func fourthPoint(points []worker.Dot, onset time.Time) time.Time {
	first := 0
	for first < len(points) && points[first].At.Before(onset) {
		first++
	}
	for n := first + 3; n < len(points); n++ {
		if points[n].At.Sub(points[first].At) >= callSpan {
			return points[n].At
		}
	}
	return time.Time{}
}

const callSpan = 3*time.Hour - 5*time.Minute
