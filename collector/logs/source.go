// Package logs owns the source that follows the logs of engines, files and units of the journal, and knows a few lines in them:
// failed allocations in every form that package oom reads, and the signatures of this package's table. It refuses to keep
// or send anything else of a log, to read what was logged before it began, and to believe what a log says of the kernel.
package logs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

const (
	defaultPoll = 250 * time.Millisecond
	perSecond   = 50   // events of all streams together
	maxWaiting  = 1000 // events between two Collects
)

// File is a log that a process writes, such as a redirected stdout, or a file under /var/log/pods.
type File struct {
	Path   string
	Worker *event.Worker // whose it is, as far as that is known: the events carry it; may be nil
}

// Unit is a systemd unit whose output goes to the journal.
type Unit struct {
	Name   string        // "vllm" is vllm.service
	Worker *event.Worker // likewise; the pid of each event is the one the journal gives
}

// Options say what to follow.
type Options struct {
	Files         []File
	Journal       []Unit
	FromBeginning bool          // read what the files already have, too
	Poll          time.Duration // how often files are looked at between ticks; 250 ms when zero
	Journalctl    string        // the program; "journalctl" when empty
}

// Source follows logs. Files are read by Collect, and between two of them every Poll, so that a failed allocation is told at once.
type Source struct {
	wake    chan struct{}
	stop    context.CancelFunc
	running sync.WaitGroup
	journal *journal // nil without units
	once    sync.Once
	closing error

	mu       sync.Mutex
	files    []*follower
	buffer   []byte
	waiting  []*event.Event
	now      time.Time // of the look that is under way
	second   time.Time // that kept is of
	kept     int
	left     uint64
	problems []error // of the last look at the files
}

// New opens the files at their ends and starts to follow. The error says what is wrong with the options; a file that is not
// there yet, or may not be read, is no error: Collect says so, and a file that comes later is read from its beginning.
func New(o Options) (*Source, error) {
	s, err := newSource(o)
	if err != nil {
		return nil, err
	}
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	ctx, stop := context.WithCancel(context.Background()) // ended by Close
	s.stop = stop
	s.running.Go(func() { s.poll(ctx, o.Poll) })
	if s.journal != nil {
		s.running.Go(func() { s.journal.run(ctx, s.entry) })
	}
	return s, nil
}

func newSource(o Options) (*Source, error) {
	if len(o.Files)+len(o.Journal) == 0 {
		return nil, errors.New("open logs: neither a file nor a unit is named; hint: leave the source out, or name what it is to follow")
	}
	s := &Source{wake: make(chan struct{}, 1), stop: func() {}, buffer: make([]byte, chunk)}
	seen := make(map[string]bool)
	for _, file := range o.Files {
		if !filepath.IsAbs(file.Path) || seen[file.Path] {
			return nil, fmt.Errorf("open logs: file %q is named twice or is no absolute path", file.Path)
		}
		seen[file.Path] = true
		f := &follower{path: file.Path, stream: &stream{worker: file.Worker, out: s.keep}}
		f.start(o.FromBeginning)
		s.files = append(s.files, f)
	}
	if len(o.Journal) == 0 {
		return s, nil
	}
	s.journal = &journal{command: o.Journalctl, units: make(map[string]*unit)}
	if s.journal.command == "" {
		s.journal.command = "journalctl"
	}
	for _, u := range o.Journal {
		name := u.Name
		if !strings.Contains(name, ".") {
			name += ".service"
		}
		if u.Name == "" || strings.HasPrefix(name, "-") || s.journal.units[name] != nil {
			return nil, fmt.Errorf("open logs: unit %q is named twice or is no unit's name", u.Name)
		}
		w := u.Worker
		if w == nil {
			w = &event.Worker{Unit: name}
		}
		s.journal.units[name] = &unit{worker: proto.CloneOf(w), stream: &stream{worker: proto.CloneOf(w), out: s.keep}}
	}
	return s, nil
}

// Name is "logs".
func (s *Source) Name() string { return "logs" }

// Wake fires when a failed allocation waits.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect reads what was appended and hands over what was recognised in it. It reads at most 8 MiB of each file; the rest waits
// for the next call. The error wraps status.ErrAbsent, ErrDenied or ErrUnsupported for each log that cannot be followed, and
// ErrLost when a log grew faster than it is read, or had more than fifty recognised lines a second.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scan(ctx, time.Now())
	events := s.waiting
	s.waiting = nil
	for _, e := range events {
		if e.At().After(tick) {
			e.Time = timestamppb.New(tick) // it came between the tick and this call
		}
	}
	err := errors.Join(s.problems...)
	if s.journal != nil {
		err = errors.Join(err, s.journal.problem())
	}
	for _, f := range s.files {
		if f.lost > 0 {
			err = errors.Join(err, fmt.Errorf("follow log %s: %w: %d bytes were passed over, it grows faster than it is read", f.path, status.ErrLost, f.lost))
			f.lost = 0
		}
	}
	if s.left > 0 {
		err = errors.Join(err, fmt.Errorf("follow logs: %w: %d events above %d a second were left out", status.ErrLost, s.left, perSecond))
		s.left = 0
	}
	return events, err
}

// Close ends the following, and waits for it.
func (s *Source) Close() error {
	s.once.Do(func() {
		s.stop()
		s.running.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range s.files {
			if f.file != nil {
				s.closing = errors.Join(s.closing, f.file.Close())
				f.file = nil
			}
		}
		s.files = nil
	})
	return s.closing
}

func (s *Source) poll(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.mu.Lock()
			s.scan(ctx, time.Now())
			s.mu.Unlock()
		}
	}
}

// scan looks at every file. The lock is held.
func (s *Source) scan(ctx context.Context, now time.Time) {
	s.problems, s.now = s.problems[:0], now
	for _, f := range s.files {
		if ctx.Err() != nil {
			return
		}
		if err := f.scan(now, s.buffer); err != nil {
			s.problems = append(s.problems, err)
		}
	}
	if s.journal != nil {
		for _, u := range s.journal.units {
			u.stream.settle(now)
		}
	}
}

// entry takes what the journal's goroutine read.
func (s *Source) entry(e entry, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
	u := s.journal.units[e.unit]
	u.take(e, now)
	u.stream.settle(now)
}

// keep takes a recognised line. The lock is held.
func (s *Source) keep(e *event.Event) {
	if second := s.now.Truncate(time.Second); !second.Equal(s.second) {
		s.second, s.kept = second, 0
	}
	if s.kept >= perSecond || len(s.waiting) >= maxWaiting {
		s.left++
		return
	}
	s.kept++
	s.waiting = append(s.waiting, e)
	if e.Oom == nil {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default: // it was already asked for
	}
}
