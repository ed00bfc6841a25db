package scorecard

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"lowtide/collector/sim"
	"lowtide/rules"
)

// Result is all that a run found out.
type Result struct {
	Seeds      Seeds              `json:"seeds"`
	Targets    []Target           `json:"targets"`
	Score      Score              `json:"simulated"`
	Healthy    Calm               `json:"healthy"`
	Undeclared Calm               `json:"undeclared_caches"`
	Punctual   []Punctual         `json:"punctual,omitempty"`
	Hidden     []Hidden           `json:"missing_sensors,omitempty"`
	Confidence []ReliabilityTable `json:"confidence,omitempty"`
	Real       []RealVerdict      `json:"real,omitempty"`
	Mistakes   []Mistake          `json:"mistakes,omitempty"`
}

// job is one recording to play.
type job struct {
	scenario sim.Scenario
	seed     uint64
}

// judging makes the judge of one recording.
type judging struct {
	pack *rules.Pack
	raw  bool // findings carry the score that confidence is made from
}

// playAll plays jobs on all processors. The trials come in the order of the jobs, whoever was done first.
func (j judging) playAll(ctx context.Context, jobs []job) ([]*trial, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, next := make([]*trial, len(jobs)), make(chan int)
	var workers sync.WaitGroup
	for range min(len(jobs), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for n := range next {
				t, err := j.play(ctx, jobs[n].scenario, jobs[n].seed)
				if err != nil {
					cancel(fmt.Errorf("play %s, seed %d: %w", jobs[n].scenario.Name, jobs[n].seed, err))
					continue
				}
				out[n] = t
			}
		})
	}
	for n := range jobs {
		if ctx.Err() != nil {
			break
		}
		next <- n
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return out, nil
}

// jobsOf lists the recordings of all scenarios with all seeds.
func jobsOf(scenarios []sim.Scenario, seeds Seeds) (out []job) {
	for _, s := range scenarios {
		for seed := seeds.From; seed <= seeds.To; seed++ {
			out = append(out, job{s, seed})
		}
	}
	return out
}

// undeclaredTimes is how many recordings of undeclared caches are played for each of any other scenario: a cache that nobody declared is
// as common as a leak, and one scenario of a hundred would not say so. Confidence is measured with them; they count nowhere else.
const undeclaredTimes = 4

// withCaches adds the further recordings of undeclared caches, with the seeds after the others.
func withCaches(jobs []job, scenarios []sim.Scenario, seeds Seeds) []job {
	for _, s := range scenarios {
		if s.Undeclared {
			jobs = append(jobs, jobsOf([]sim.Scenario{s}, Seeds{seeds.To + 1, seeds.To + (undeclaredTimes-1)*seeds.count()})...)
		}
	}
	return jobs
}

// lookAlikes are the healthy scenarios whose findings are false without a doubt.
func lookAlikes(all []sim.Scenario) (out []sim.Scenario) {
	for _, s := range all {
		if s.Class == "" && !s.Undeclared {
			out = append(out, s)
		}
	}
	return out
}

// measure plays all scenarios with all seeds, and then healthy ones with later seeds until as many healthy worker-days are reached.
func (j judging) measure(ctx context.Context, scenarios []sim.Scenario, seeds Seeds, healthyDays float64) (*Result, error) {
	trials, err := j.playAll(ctx, withCaches(jobsOf(scenarios, seeds), scenarios, seeds))
	if err != nil {
		return nil, err
	}
	r := &Result{Seeds: seeds}
	counts := newTally()
	for _, t := range trials {
		if !t.scenario.Undeclared {
			counts.add(t)
		}
		r.take(t)
	}
	r.Score, r.Punctual, r.Hidden, r.Confidence = counts.score(), punctuality(trials), hiddenOf(trials), reliability(trials)
	calm := lookAlikes(scenarios)
	for seed := seeds.To + 1; len(calm) > 0 && r.Healthy.Days < healthyDays; seed++ {
		more, err := j.playAll(ctx, jobsOf(calm, Seeds{seed, seed}))
		if err != nil {
			return nil, err
		}
		for _, t := range more {
			r.take(t)
		}
	}
	return r, nil
}

// take counts what was said of healthy workers, and keeps what was wrong.
func (r *Result) take(t *trial) {
	if t.scenario.Undeclared {
		r.Undeclared.add(t)
	} else {
		r.Healthy.add(t)
	}
	r.Mistakes = append(r.Mistakes, t.mistakes()...)
}
