// Package nvml owns what the NVIDIA driver's management library says about this host's cards: memory by card, MIG instance and
// process, power, temperature, utilisation, ECC and row remapping, and Xid errors as they happen. The library runs in a child
// process, since a call that hangs holds its thread and the library's lock for good: the child is killed and started again. It
// refuses to judge, to name processes beyond their pid, and to change anything on a card.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// Options of New. All may be left out.
type Options struct {
	Command       []string      // the child; `lowtide nvml-child`, which is this program, when empty
	Library       string        // path or soname of the library; libnvidia-ml.so.1 when empty
	Interval      time.Duration // between samples; 1 s when zero. A Collect within an interval that has its samples returns Xids only
	Deadline      time.Duration // for one reading of all cards, after which the child is killed; 4 s when zero
	StartDeadline time.Duration // for opening the library, which takes long where cards have to wake up; a minute when zero
}

// Source is the sensor `nvml`. Events: gpu, gpu_process (its worker is a pid and no more), xid.
//
// The driver reports the pids of the initial pid namespace, or of this one where it can translate. In any other than the initial
// namespace it may leave processes out, so that processes_complete is false there.
type Source struct {
	options Options
	start   func() (*process, error)
	built   bool // with the library's bindings, or with a command that is
	wake    chan struct{}
	closing chan struct{}
	closed  sync.Once

	reading sync.Mutex // held by Collect, and by Close once there is none any more
	life    *life
	dying   *life // killed, and not yet gone
	sampled int64 // the interval that has its samples, counted since 1970
	retry   time.Time
	waits   backoff   // before the next start
	buried  []failure // why the last life ended
	reason  []failure // what the last reading could not tell

	mu      sync.Mutex // over what the reading goroutine shares
	urgent  []*event.Event
	dropped int
	hung    map[string]*hang
}

// hang is a card at which a call did not return. It is left out for a while, since each try costs all cards a deadline.
type hang struct {
	backoff
	until time.Time
	text  string
}

const noBindings = "this lowtide was built without cgo, which NVIDIA's library needs; hint: build it with CGO_ENABLED=1 and a C compiler"

// maxUrgent bounds the Xids that wait. The first are kept: they are nearest to the cause.
const maxUrgent = 256

// New returns the source. The child is started by the first Collect.
func New(o Options) *Source {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.Deadline <= 0 {
		o.Deadline = 4 * time.Second
	}
	if o.StartDeadline <= 0 {
		o.StartDeadline = time.Minute
	}
	s := &Source{options: o, built: hasBindings || len(o.Command) > 0, wake: make(chan struct{}, 1), closing: make(chan struct{}),
		sampled: -1, hung: make(map[string]*hang)}
	s.start = func() (*process, error) {
		argv := slices.Clone(o.Command)
		if len(argv) == 0 {
			self, err := os.Executable()
			if err != nil {
				return nil, fmt.Errorf("find this program: %w", err)
			}
			argv = []string{self, "nvml-child"}
		}
		if o.Library != "" {
			argv = append(argv, "--library="+o.Library)
		}
		return spawn(argv)
	}
	return s
}

// Name is nvml.
func (s *Source) Name() string { return "nvml" }

// Wake fires when an Xid waits.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect returns the Xids that wait and, once an interval, one gpu event for each card and MIG instance and one gpu_process event
// for each process on it. Cards that could be read come also when others could not. It returns when the context ends or the
// deadline is over, whichever is first.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	select {
	case <-s.closing:
		return nil, errors.New("collect nvml: it is closed")
	default:
	}
	events, lost := s.takeUrgent(tick)
	if err := ctx.Err(); err != nil {
		return events, fmt.Errorf("ask NVML: %w", err)
	}
	if tick.UnixNano()/int64(s.options.Interval) == s.sampled {
		return events, join(append(lost, s.reason...)) // what was missing at the tick is still missing
	}
	sampled, failures := s.sample(ctx, tick)
	s.reason = failures
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return append(events, sampled...), fmt.Errorf("ask NVML: %w", err)
	}
	return append(events, sampled...), join(append(lost, failures...))
}

// sample goes on from wherever the last call left the child.
func (s *Source) sample(ctx context.Context, tick time.Time) (events []*event.Event, failures []failure) {
	if !s.built {
		return nil, []failure{{status.Absent, noBindings}}
	}
	if reason := s.ensure(time.Now()); reason != nil {
		return nil, reason
	}
	for began := time.Now(); ; {
		now := time.Now()
		ready, pending, sent, asked, reason, err := s.life.state()
		limit := now.Add(s.options.Deadline)
		switch {
		case reason != nil:
			return append(events, s.life.harvest().events...), s.bury(reason)
		case err != nil:
			after := time.NewTimer(min(time.Second, s.options.Deadline))
			text := s.life.obituary(err, after.C)
			after.Stop()
			return append(events, s.life.harvest().events...), s.bury([]failure{{status.Lost, text}})
		case !ready && now.Sub(s.life.started) >= s.options.StartDeadline:
			return nil, s.bury([]failure{{status.Timeout, fmt.Sprintf("NVML was not open after %v, its child is killed and started again", s.options.StartDeadline)}})
		case !ready && now.Sub(began) >= s.options.Deadline:
			return nil, []failure{s.unanswered(ready, asked, sent)}
		case ready && pending && now.Sub(sent) >= s.options.Deadline:
			events = append(events, s.life.harvest().events...)
			return events, s.hang(asked, now)
		case ready && pending:
			limit = sent.Add(s.options.Deadline)
		case ready && s.life.tick.Equal(tick):
			a := s.life.harvest()
			s.waits.reset()
			return append(events, a.events...), append(a.failures, s.skipped(s.life.skip)...)
		case ready:
			// A late answer to an earlier tick carries that tick's time.
			events = append(events, s.life.harvest().events...)
			r := request{tick: tick, skip: s.skips(now)}
			s.life.tick, s.life.skip = tick, r.skip
			s.sampled = tick.UnixNano() / int64(s.options.Interval)
			if err := s.life.send(r); err != nil {
				s.life.kill() // the reader says why
			}
		}
		if ctx.Err() != nil {
			return events, []failure{s.unanswered(ready, asked, sent)}
		}
		timer := time.NewTimer(limit.Sub(now))
		select {
		case <-s.life.progress:
		case <-timer.C:
		case <-ctx.Done():
		case <-s.closing:
			timer.Stop()
			return events, []failure{{status.Lost, "closed while it was read"}}
		}
		timer.Stop()
	}
}

// ensure has a child run, or says why there is none.
func (s *Source) ensure(now time.Time) []failure {
	if s.life != nil {
		return nil
	}
	if s.dying != nil {
		select {
		case <-s.dying.ended:
			s.dying = nil
		default:
			return append(slices.Clone(s.buried), failure{status.Timeout, "the killed NVML child has not ended, no other is started; hint: it hangs in the driver, see dmesg"})
		}
	}
	if now.Before(s.retry) {
		return s.buried
	}
	p, err := s.start()
	if err != nil {
		s.retry = now.Add(s.waits.next())
		s.buried = []failure{{status.Of(err), fmt.Sprintf("run NVML child: %v", err)}}
		return s.buried
	}
	s.life = live(p, s.takeXids, s.forgive)
	return nil
}

// bury ends the child's life; the next one starts after a wait.
func (s *Source) bury(reason []failure) []failure {
	s.life.kill()
	s.life.in.Close()
	s.dying, s.life = s.life, nil
	s.retry = time.Now().Add(s.waits.next())
	s.buried = reason
	return reason
}

// hang buries the child and notes the card that held it up. That card is left out for a while once the next child runs, so that
// the others are read.
func (s *Source) hang(uuid string, now time.Time) []failure {
	if uuid == "" {
		return s.bury([]failure{{status.Timeout, fmt.Sprintf("NVML did not answer within %v, its child is killed and started again", s.options.Deadline)}})
	}
	text := fmt.Sprintf("%s: a call of %s did not return within %v", uuid, now.UTC().Format(time.TimeOnly), s.options.Deadline)
	reason := s.bury([]failure{{status.Timeout, text + ", the child is killed and started again"}})
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hung[uuid]
	if h == nil {
		h = new(hang)
		s.hung[uuid] = h
	}
	h.text, h.until = text, s.retry.Add(h.next())
	return reason
}

// forgive forgets that a card hung: it has answered.
func (s *Source) forgive(uuid string) { s.mu.Lock(); defer s.mu.Unlock(); delete(s.hung, uuid) }

// skips are the cards that are not asked now.
func (s *Source) skips(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var skip []string
	length := 0
	for uuid, h := range s.hung {
		if now.Before(h.until) && length+len(uuid) < maxRequest/2 {
			skip = append(skip, uuid)
			length += len(uuid) + 1
		}
	}
	slices.Sort(skip)
	return skip
}

func (s *Source) skipped(skip []string) []failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failures []failure
	for _, uuid := range skip {
		if h := s.hung[uuid]; h != nil {
			failures = append(failures, failure{status.Timeout, h.text + ", it is left out for a while"})
		}
	}
	return failures
}

func (s *Source) unanswered(ready bool, asked string, sent time.Time) failure {
	switch {
	case !ready:
		return failure{status.Timeout, "NVML is still being opened"}
	case asked == "":
		return failure{status.Timeout, fmt.Sprintf("NVML has not answered for %v", time.Since(sent).Round(time.Millisecond))}
	default:
		return failure{status.Timeout, fmt.Sprintf("%s: no answer, the request is %v old", asked, time.Since(sent).Round(time.Millisecond))}
	}
}

// takeXids is called by the reading goroutine.
func (s *Source) takeXids(events []*event.Event) {
	s.mu.Lock()
	room := min(len(events), maxUrgent-len(s.urgent))
	s.urgent = append(s.urgent, events[:room]...)
	s.dropped += len(events) - room
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Source) takeUrgent(tick time.Time) ([]*event.Event, []failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.urgent
	s.urgent = nil
	for _, e := range events {
		if e.At().After(tick) { // it came between the tick and this call
			e.Time = timestamppb.New(tick)
		}
	}
	if s.dropped == 0 {
		return events, nil
	}
	lost := failure{status.Lost, fmt.Sprintf("%d Xid events were dropped, more than %d waited", s.dropped, maxUrgent)}
	s.dropped = 0
	return events, []failure{lost}
}

// closeLimit is for a child to end by itself, and again for the kernel to end it.
const closeLimit = time.Second

// Close ends the child. The error says that it could not be ended.
func (s *Source) Close() error {
	s.closed.Do(func() { close(s.closing) })
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.life != nil {
		s.life.in.Close() // it ends at the end of its input
		timer := time.NewTimer(closeLimit)
		defer timer.Stop()
		select {
		case <-s.life.ended:
		case <-timer.C:
		}
		s.life.kill()
		s.dying, s.life = s.life, nil
	}
	if s.dying == nil {
		return nil
	}
	timer := time.NewTimer(closeLimit)
	defer timer.Stop()
	select {
	case <-s.dying.ended:
		s.dying.out.Close() // unless something it started still holds the other end, the stream is over anyway
		<-s.dying.read
		s.dying = nil
		return nil
	case <-timer.C:
		return errors.New("close nvml: the killed child has not ended; hint: it hangs in the driver, see dmesg")
	}
}
