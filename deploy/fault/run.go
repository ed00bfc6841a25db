package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

const (
	stopGrace = 25 * time.Second // for a process to end in order
	lookEvery = time.Second
	coldWait  = 3 * time.Second
	// findingWait is longer than the half minute after which a finding comes again that was delivered to a notifier which then ended.
	findingWait = 45 * time.Second
)

// result is what became of one run.
type result struct {
	Seed       uint64              `json:"seed"`
	Passed     bool                `json:"passed"`
	Problems   []string            `json:"problems,omitempty"`
	Schedule   []string            `json:"schedule"`
	Processors int                 `json:"processors"`
	Seconds    float64             `json:"seconds"`
	Drained    float64             `json:"drained_seconds"` // from the last fault's end to everything being as it should
	Messages   int                 `json:"messages"`
	Repeats    int                 `json:"repeats,omitempty"`
	Events     map[string]int      `json:"events"`
	Readings   int                 `json:"readings"`
	Incidents  int                 `json:"incidents"`
	Findings   int                 `json:"findings"`
	Posts      int                 `json:"posts"`
	Digests    int                 `json:"digests,omitempty"`
	Hits       map[Kind]int        `json:"hits,omitempty"`      // calls that a bad store or a bad Slack answered
	Accidents  map[string][]string `json:"accidents,omitempty"` // what was said last in the lives that ended by themselves, by part
	Folder     string              `json:"folder,omitempty"`    // of a run that failed
}

// runner does runs, each in a folder of its own.
type runner struct {
	shape  Shape
	bins   binaries
	all    library
	pack   *rules.Pack
	folder string
	drain  time.Duration
	keep   bool
	out    io.Writer
}

// run does one run. An error says that it could not be done; a run that found something wrong is no error.
func (r *runner) run(ctx context.Context, seed uint64) (*result, error) {
	began := time.Now()
	plan := NewPlan(seed, r.shape)
	res := &result{Seed: seed, Processors: plan.Processors, Hits: map[Kind]int{}, Accidents: map[string][]string{}}
	for _, f := range plan.Faults {
		res.Schedule = append(res.Schedule, f.String())
	}
	folder := filepath.Join(r.folder, fmt.Sprintf("seed-%d", seed))
	if err := os.RemoveAll(folder); err != nil {
		return nil, fmt.Errorf("clear the run's folder: %w", err)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the run's folder: %w", err)
	}
	journal, err := os.Create(filepath.Join(folder, "journal.txt"))
	if err != nil {
		return nil, fmt.Errorf("open the run's journal: %w", err)
	}
	told := func(line string) { fmt.Fprintf(journal, "%s %s\n", time.Now().UTC().Format("15:04:05.000"), line) }
	for _, line := range res.Schedule {
		told("plan " + line)
	}
	w, err := newWorld(ctx, plan, folder, r.bins, r.all)
	if err == nil {
		err = r.disturb(ctx, w, res, told)
	}
	if err != nil {
		res.Problems = append(res.Problems, "the run was not completed: "+err.Error())
	}
	err = w.close()
	w.tally(res)
	for _, name := range slices.Sorted(maps.Keys(res.Accidents)) {
		for _, said := range res.Accidents[name] {
			if strings.HasPrefix(said, "panic: ") || strings.HasPrefix(said, "fatal error: ") {
				res.Problems = append(res.Problems, name+" crashed, and its restart healed it: "+said)
			}
		}
	}
	res.Passed = len(res.Problems) == 0
	res.Seconds = time.Since(began).Seconds()
	for _, problem := range res.Problems {
		told("PROBLEM " + problem)
	}
	err = errors.Join(err, journal.Close())
	feeds, _ := filepath.Glob(filepath.Join(folder, "*.ndjson"))
	for _, feed := range feeds {
		err = errors.Join(err, os.Remove(feed))
	}
	if res.Passed && !r.keep {
		err = errors.Join(err, os.RemoveAll(folder))
	} else {
		res.Folder = folder
	}
	return res, err
}

// disturb plays, injects, heals, waits and checks.
func (r *runner) disturb(ctx context.Context, w *world, res *result, told func(string)) error {
	for _, c := range w.collectors {
		if err := w.play(c); err != nil {
			return err
		}
	}
	if err := w.inject(ctx, told); err != nil {
		return err
	}
	healed := time.Now()
	told("everything is healed")
	l := newLedger(r.pack)
	late, err := r.played(ctx, w, l, told)
	if err != nil {
		return err
	}
	s, err := r.settle(ctx, w, l, told)
	if err != nil {
		return err
	}
	res.Drained = time.Since(healed).Seconds()
	if len(s.Problems) == 0 {
		if s, err = r.end(ctx, w, told); err != nil {
			return err
		}
	}
	res.Problems = append(res.Problems, slices.Concat(late, s.Problems)...)
	res.Messages, res.Repeats, res.Events, res.Readings = s.Messages, s.Repeats, s.Events, s.Readings
	res.Incidents, res.Findings, res.Posts, res.Digests = s.Incidents, s.Findings, s.Posts, s.Digests
	return nil
}

// played waits until all that is played has reached the broker, and ends the collectors.
func (r *runner) played(ctx context.Context, w *world, l *ledger, told func(string)) (problems []string, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, r.drain, errors.New("the collectors do not come to an end"))
	defer cancel()
	waiting := until(limited, lookEvery/2, func() (bool, error) {
		conn, js, err := w.dial()
		if err != nil {
			return false, err
		}
		defer conn.Close()
		if err := l.read(limited, js); err != nil {
			return false, err
		}
		marks := l.marks()
		return !slices.ContainsFunc(w.collectors, func(c *playing) bool { return !marks[c.part.mark(c.life)] }), nil
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if waiting != nil {
		problems = append(problems, waiting.Error()) // which of them, the look that follows says
	}
	for _, c := range w.collectors {
		if err := c.stop(stopGrace); err != nil && !c.ownsUp() {
			problems = append(problems, err.Error())
		}
	}
	told("the collectors have ended")
	return problems, nil
}

// settle looks again and again until nothing is wrong, or until the pipeline has had time enough.
func (r *runner) settle(ctx context.Context, w *world, l *ledger, told func(string)) (*state, error) {
	limited, cancel := context.WithTimeoutCause(ctx, r.drain, errors.New("the pipeline does not come to rest"))
	defer cancel()
	var s *state
	before := ""
	err := until(limited, lookEvery, func() (bool, error) {
		now, err := w.look(limited, l, true)
		if err != nil {
			return false, err
		}
		s = now
		if text := fmt.Sprint(s.Problems); text != before {
			before = text
			told(fmt.Sprintf("%d messages, %d findings, %d posts; wrong: %.300q", s.Messages, s.Findings, s.Posts, s.Problems))
		}
		return len(s.Problems) == 0, nil
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil {
		return s, nil
	}
	// Its time is up. One whole look says what is wrong, and that is the result.
	last, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, lookErr := w.look(last, newLedger(r.pack), false)
	if lookErr != nil {
		return nil, errors.Join(err, lookErr)
	}
	if len(s.Problems) > 0 {
		s.Problems = append([]string{fmt.Sprintf("%v after %v: what follows is how it was then", context.Cause(limited), r.drain)}, s.Problems...)
	}
	return s, nil
}

// end stops everything in order, and looks again: an orderly end and a start after it change nothing.
func (r *runner) end(ctx context.Context, w *world, told func(string)) (*state, error) {
	var problems []string
	for _, p := range w.processors {
		if err := p.stop(stopGrace); err != nil {
			problems = append(problems, err.Error())
		}
	}
	told("all have ended")
	unacknowledged, err := w.unacknowledged(ctx)
	if err != nil {
		return nil, err
	}
	// What was handed from one to the other while all were ending is not lost: the next to start has it.
	if w.plan.Cold || len(unacknowledged) > 0 {
		told(fmt.Sprintf("a processor is started once more; not acknowledged yet: %v", unacknowledged))
		more, err := r.again(ctx, w.processors[0], w)
		if err != nil {
			return nil, err
		}
		problems = append(problems, more...)
	}
	s, err := w.look(ctx, newLedger(r.pack), false)
	if err != nil {
		return nil, err
	}
	for _, problem := range s.Problems {
		problems = append(problems, "after the end: "+problem)
	}
	s.Problems = problems
	return s, nil
}

// again starts a processor on what is there, gives it time to do what it would do too much, and ends it. Since it is the only one,
// everything is acknowledged then.
func (r *runner) again(ctx context.Context, p *judging, w *world) (problems []string, err error) {
	if err := p.start(); err != nil {
		return nil, err
	}
	if err := p.readied(ctx); err != nil {
		problems = append(problems, "after a cold start: "+err.Error())
	}
	pause(ctx, coldWait)
	limited, cancel := context.WithTimeout(ctx, findingWait)
	defer cancel()
	_ = until(limited, lookEvery, func() (bool, error) { // judges acknowledge with their next checkpoint, at the latest when they end
		left, err := w.unacknowledged(limited)
		return err == nil && !slices.ContainsFunc(slices.Collect(maps.Keys(left)), func(name string) bool { return strings.HasPrefix(name, event.StreamFindings) }), err
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := p.stop(stopGrace); err != nil {
		problems = append(problems, err.Error())
	}
	left, err := w.unacknowledged(ctx)
	if err != nil {
		return nil, err
	}
	if len(left) > 0 {
		problems = append(problems, fmt.Sprintf("after the orderly end of the only processor messages are not acknowledged: %v", left))
	}
	return problems, nil
}

// unacknowledged asks every consumer what it waits for to hear back.
func (w *world) unacknowledged(ctx context.Context) (map[string]uint64, error) {
	conn, js, err := w.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_, left, err := pendings(ctx, js)
	return left, err
}

// tally counts what hit whom.
func (w *world) tally(res *result) {
	add := func(hits map[Kind]int) {
		for kind, n := range hits {
			res.Hits[kind] += n
		}
	}
	if w.slack != nil {
		add(w.slack.hit)
	}
	note := func(c *child) {
		if c == nil {
			return
		}
		if _, accidents := c.counts(); len(accidents) > 0 {
			res.Accidents[c.name] = accidents
		}
	}
	for _, p := range w.processors {
		add(p.store.hit)
		note(p.child)
	}
	for _, c := range w.collectors {
		note(c.child)
	}
	note(w.engine)
	for _, n := range w.nodes {
		note(n.child)
	}
}
