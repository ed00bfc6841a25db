// Package recording owns the source that plays recordings: their events, moved in time and paced. It refuses to change what
// was recorded other than the times.
package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// maxEvents bounds one Collect: 2,000 events decode in a few hundredths of a second.
const maxEvents = 2000

// Options say how a recording is played.
type Options struct {
	Name   string      // the source's name; "recording-" and the file's base name when empty
	Speed  float64     // recorded seconds per second; 1 when zero
	Start  time.Time   // where the first event is moved to; when zero, times stay as recorded and all is due at once
	Suffix string      // appended to the hosts' names, so that recordings of one host do not become one
	Ready  func() bool // false holds back what is due, such as while the backlog is full; nil is always ready
	Max    int         // events per Collect; 2,000 when zero
}

// Source plays one recording. After its end it yields nothing more.
type Source struct {
	o      Options
	name   string
	file   io.Closer
	reader *event.Reader
	next   *event.Event
	origin time.Time
	done   bool
	failed error
}

// Open opens the file, plain or gzip. The error names it.
func Open(path string, o Options) (*Source, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	if o.Name == "" {
		base, _, _ := strings.Cut(filepath.Base(path), ".")
		o.Name = event.Token("recording-" + base)
	}
	s, err := New(file, path, o)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.file = file
	return s, nil
}

// New plays what r holds; name stands in errors, before the line. The first event is read at once, so that a file that is no
// recording is refused here.
func New(r io.Reader, name string, o Options) (*Source, error) {
	if o.Name == "" {
		o.Name = "recording"
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Speed < 0 {
		return nil, fmt.Errorf("play %s: speed %v is negative", name, o.Speed)
	}
	if o.Max <= 0 {
		o.Max = maxEvents
	}
	reader, err := event.NewReader(r, name)
	if err != nil {
		return nil, fmt.Errorf("play recording: %w", err)
	}
	s := &Source{o: o, name: name, reader: reader}
	if s.next, err = reader.Next(); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("play %s: it holds no events", name)
	} else if err != nil {
		return nil, fmt.Errorf("play recording: %w", err)
	}
	s.origin = s.next.At()
	return s, nil
}

// Name implements collector.Source.
func (s *Source) Name() string { return s.o.Name }

// Done says whether the recording has been played to its end, or to the line that could not be read.
func (s *Source) Done() bool { return s.done }

// Collect returns the events that are due at the tick, in their order and at most Max of them, each with its moved time. What
// lies in the past is due at once. A line that cannot be read ends the recording: each later call says so, wrapping ErrLost.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	if s.failed != nil || s.done || s.o.Ready != nil && !s.o.Ready() {
		return nil, s.failed
	}
	var events []*event.Event
	for len(events) < s.o.Max {
		if err := ctx.Err(); err != nil {
			return events, nil // the rest is due at the next tick
		}
		at := s.moved(s.next.At())
		if !s.o.Start.IsZero() && at.After(tick) {
			break
		}
		events = append(events, s.placed(s.next, at))
		next, err := s.reader.Next()
		if err != nil {
			return events, s.end(err)
		}
		s.next = next
	}
	return events, nil
}

func (s *Source) end(err error) error {
	s.done, s.next = true, nil
	if s.file != nil {
		if shut := s.file.Close(); shut != nil && errors.Is(err, io.EOF) {
			err = shut
		}
		s.file = nil
	}
	if !errors.Is(err, io.EOF) {
		s.failed = fmt.Errorf("%w: play recording: %w", status.ErrLost, err)
	}
	return s.failed
}

// Close lets go of the file before the end. No Collect may run or follow.
func (s *Source) Close() error {
	if s.file == nil {
		return nil
	}
	file := s.file
	s.file, s.done = nil, true
	return file.Close()
}

// Warnings returns what the reader left out so far.
func (s *Source) Warnings() []string { return s.reader.Warnings() }

// moved maps a recorded time: its distance from the first event, divided by the speed, from Start on.
func (s *Source) moved(at time.Time) time.Time {
	if s.o.Start.IsZero() {
		return at
	}
	return s.o.Start.Add(s.scaled(at.Sub(s.origin)))
}

func (s *Source) scaled(d time.Duration) time.Duration {
	if s.o.Speed == 1 {
		return d // no rounding through a float
	}
	return time.Duration(float64(d) / s.o.Speed)
}

// placed puts the event at its time. A worker's start moves along, or every sample would be of a process not yet born.
func (s *Source) placed(e *event.Event, at time.Time) *event.Event {
	e.Time = timestamppb.New(at)
	if s.o.Suffix != "" {
		e.Host = &event.Host{Cluster: e.Host.Cluster, Name: event.Token(e.Host.Name + "-" + s.o.Suffix), BootId: e.Host.BootId}
	}
	if w := e.Worker; w != nil && w.StartTime != nil && !s.o.Start.IsZero() {
		w = proto.CloneOf(w)
		w.StartTime = timestamppb.New(s.moved(w.StartTime.AsTime()))
		e.Worker = w
	}
	return e
}
