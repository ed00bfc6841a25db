package engine

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// backoff is how long a candidate that serves no engine's metrics is left alone: most listening ports are something else, and
// some of them complain about every connection.
func backoff(misses int) time.Duration {
	return min(time.Minute<<min(max(misses-1, 0), 4), 10*time.Minute)
}

// Collect reads every target and tries the candidates whose turn it is. There is one `engine` event for each engine behind an
// endpoint, a `config` event when a target is seen first, has changed, and every ten minutes, and a `lifecycle` event `ready`
// when a process answers that was seen before it was ready: it had failed (other than by a timeout), or its endpoint appeared
// after the source had begun to look. What was there at the beginning gets none, since nobody knows since when it is ready.
// The error names every target that could not be read; the events of the others come with it.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read engines: %w", err)
	}
	if s.begun.IsZero() {
		s.begun = tick
	}
	crowd := s.discover()
	due, left := s.due(tick)
	s.scrapeAll(ctx, due, tick)
	var events []*event.Event
	var failed failures
	for _, t := range due {
		if t.mapping == nil && !t.configured {
			if ctx.Err() != nil {
				continue // it may not have had its turn
			}
			t.missed++
			t.retry = tick.Add(backoff(t.missed))
			continue
		}
		events = append(events, t.events...)
		t.events = nil
		if t.err != nil {
			t.failing++
			failed = append(failed, t.err)
		} else {
			t.failing = 0
		}
	}
	if left > 0 {
		failed = append(failed, fmt.Errorf("%w: %d endpoints are not tried, because %d engines are read", status.ErrUnsupported, left, maxTargets))
	}
	if crowd > 0 {
		failed = append(failed, fmt.Errorf("%w: %d endpoints more than %d are not looked at", status.ErrUnsupported, crowd, maxCandidate))
	}
	if len(failed) > 0 {
		return events, fmt.Errorf("read engines: %w", failed)
	}
	return events, nil
}

// scrapeAll asks at most maxAtOnce targets at a time and returns when all have been asked.
func (s *Source) scrapeAll(ctx context.Context, due []*target, tick time.Time) {
	turn := make(chan *target)
	var workers sync.WaitGroup
	for i := range min(maxAtOnce, len(due)) {
		workers.Go(func() {
			for t := range turn {
				s.contained(ctx, t, tick, s.scratch[i])
			}
		})
	}
	for _, t := range due {
		turn <- t
	}
	close(turn)
	workers.Wait()
}

// contained scrapes, and turns a panic into the target's failure: in a goroutine of its own it would end the agent.
func (s *Source) contained(ctx context.Context, t *target, tick time.Time, scratch *scratch) {
	defer func() {
		if r := recover(); r != nil {
			t.events, t.err = nil, fmt.Errorf("%s: %w: panic: %v", t.name, status.ErrLost, r)
		}
	}()
	s.scrape(ctx, t, tick, scratch)
}

// due returns the targets of this tick in the order in which they are asked, and how many candidates there is no room for.
// Those that answered come first, so that a target that hangs costs nobody else's reading; candidates come last.
func (s *Source) due(tick time.Time) (due []*target, left int) {
	due = slices.Clone(s.configured)
	var candidates []*target
	for _, address := range sortedKeys(s.found) {
		t := s.found[address]
		switch {
		case t.mapping == nil:
			if !tick.Before(t.retry) {
				candidates = append(candidates, t)
			}
		default:
			due = append(due, t) // there was room for it when it was a candidate
		}
	}
	slices.SortStableFunc(due, func(a, b *target) int { return a.failing - b.failing })
	slices.SortStableFunc(candidates, func(a, b *target) int { return a.missed - b.missed })
	if len(due) == maxTargets {
		return due, len(candidates)
	}
	return append(due, candidates[:min(len(candidates), maxProbes, maxTargets-len(due))]...), 0
}

// discover takes in the endpoints that there are now and forgets those that are gone. It returns how many are too many.
func (s *Source) discover() (crowd int) {
	if s.o.Discover == nil {
		return 0
	}
	list := s.o.Discover()
	here := make(map[string]bool, len(list))
	for _, d := range list {
		d.Configured = false
		t, err := s.target(d)
		if err != nil {
			continue // an endpoint that no address can be made of is none
		}
		address := addressOf(t.url)
		if known := s.byAddress(address); known != nil {
			known.adopt(d.Worker)
			continue
		}
		t.engine = nil // a command line may say one engine and serve another's metrics
		if known := s.found[address]; known != nil {
			known.adopt(d.Worker)
		} else if len(s.found) == maxCandidate {
			crowd++
			continue
		} else {
			t.unready = s.looked || s.younger(d.Worker)
			s.found[address] = t
		}
		here[address] = true
	}
	for address := range s.found {
		if !here[address] {
			delete(s.found, address)
		}
	}
	s.looked = s.looked || list != nil
	return crowd
}

// younger says whether a process began after the source did.
func (s *Source) younger(w *event.Worker) bool {
	return w.GetStartTime() != nil && w.StartTime.AsTime().After(s.begun)
}

// byAddress returns the configured target of an address, so that discovery tells whose process it is and reads it no second time.
func (s *Source) byAddress(address string) *target {
	for _, t := range s.configured {
		if addressOf(t.url) == address {
			return t
		}
	}
	return nil
}

// addressOf is host and port, in one spelling.
func addressOf(u *url.URL) string {
	host, port := u.Hostname(), u.Port()
	if host == "localhost" || host == "::1" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return host + ":" + port
}
