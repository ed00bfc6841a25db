// Package kernel owns the source that follows the kernel log: Xid errors of NVIDIA's driver, and the OOM killer's victims. It
// takes only what the kernel itself wrote from now on, since any program that may open /dev/kmsg can write lines of its own
// (they carry another facility, which the kernel sees to). It refuses to judge a code, and to read what was logged before.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

const (
	maxWaiting  = 1000        // events between two Collects
	maxFailures = 100         // reads in a row that fail: then the log is opened anew
	lastWait    = time.Second // for a reading of /proc that hangs in the driver, at the end
)

// Options say where the kernel log is.
type Options struct {
	Path     string        // /dev/kmsg when empty
	ProcRoot string        // /proc when empty
	Retry    time.Duration // between attempts to open a log that is absent or denied; one minute when zero
}

// Source follows the kernel log in a goroutine of its own, which Close ends. Collect hands over what was seen.
type Source struct {
	o      Options
	open   func() (device, error)
	gpus   *gpus
	clock  clock
	wake   chan struct{}
	ending chan struct{}
	ended  chan struct{}
	close  sync.Once

	mu      sync.Mutex
	device  device // nil while there is none
	closed  bool
	limit   limiter
	waiting []*event.Event
	failed  error  // why the log is not being read
	passed  uint64 // records overwritten before they were read, since the last Collect
	overrun bool
}

// device is the open kernel log: a Read returns one record.
type device interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Open begins to follow the log. A log that is absent or may not be read is no error: Collect then says so, with
// status.ErrAbsent or ErrDenied, and every minute it is tried again.
func Open(o Options) (*Source, error) {
	if o.Path == "" {
		o.Path = "/dev/kmsg"
	}
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	if o.Retry < 0 {
		return nil, fmt.Errorf("open kernel log: retry every %v is negative", o.Retry)
	}
	return follow(o, func() (device, error) { return openLog(o.Path) }, systemClock), nil
}

func follow(o Options, open func() (device, error), now func() (time.Time, time.Duration)) *Source {
	if o.Retry == 0 {
		o.Retry = time.Minute
	}
	s := &Source{o: o, open: open, gpus: newGPUs(o.ProcRoot), clock: clock{now: now},
		wake: make(chan struct{}, 1), ending: make(chan struct{}), ended: make(chan struct{})}
	s.device, s.failed = open() // here, so that nothing logged after Open is missed
	go s.run(s.device)
	return s
}

func openLog(path string) (device, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("open kernel log: %w: %w; hint: run as root or with CAP_SYSLOG, and in a container let it have the device", status.ErrDenied, err)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		return nil, fmt.Errorf("open kernel log: %w: %w; hint: in a container mount /dev/kmsg", status.ErrAbsent, err)
	case err != nil:
		return nil, fmt.Errorf("open kernel log: %w", err)
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(fmt.Errorf("open kernel log: seek its end: %w", err), file.Close())
	}
	return file, nil
}

// Name is "kernel".
func (s *Source) Name() string { return "kernel" }

// Wake fires when an event waits.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect hands over what the log said since the last call. It never waits. The error wraps status.ErrLost when records were
// overwritten before they could be read, or more came than fifty a second; repeats of an Xid (same device, code and process
// within ten seconds) are no loss: they are counted in the text of a later event.
func (s *Source) Collect(_ context.Context, tick time.Time) ([]*event.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := append(s.waiting, s.limit.sweep(time.Now())...)
	s.waiting = nil
	for _, e := range events {
		if e.At().After(tick) {
			e.Time = timestamppb.New(tick) // it came between the tick and this call
		}
	}
	slices.SortStableFunc(events, func(a, b *event.Event) int { return a.At().Compare(b.At()) })
	err := s.failed
	if s.overrun {
		err = errors.Join(err, fmt.Errorf("read kernel log: %w: %d records were overwritten before they were read", status.ErrLost, s.passed))
	}
	if s.limit.left > 0 {
		err = errors.Join(err, fmt.Errorf("read kernel log: %w: %d events above %d a second were left out", status.ErrLost, s.limit.left, perSecond))
	}
	s.overrun, s.passed, s.limit.left = false, 0, 0
	return events, err
}

// Close ends the reading and waits for it. What was seen and not collected is lost.
func (s *Source) Close() (err error) {
	s.close.Do(func() {
		close(s.ending)
		s.mu.Lock()
		s.closed = true
		if s.device != nil {
			err = s.device.Close()
		}
		s.mu.Unlock()
		<-s.ended
		s.gpus.await(lastWait)
	})
	return err
}

// run reads the log, and opens it anew where it fails, until Close.
func (s *Source) run(d device) {
	defer close(s.ended)
	for {
		if d != nil {
			err := s.read(d)
			s.mu.Lock()
			if s.closed {
				s.mu.Unlock()
				return
			}
			s.device, s.failed = nil, errors.Join(err, d.Close())
			s.mu.Unlock()
		}
		timer := time.NewTimer(s.o.Retry)
		select {
		case <-s.ending:
			timer.Stop()
			return
		case <-timer.C:
		}
		var err error
		d, err = s.open()
		s.mu.Lock()
		if s.closed && d != nil {
			s.mu.Unlock()
			d.Close() // nothing was written to it, and nobody is left to tell
			return
		}
		s.device, s.failed = d, err
		s.mu.Unlock()
	}
}

// read follows one open log until it fails or is closed.
func (s *Source) read(d device) error {
	a := assembler{gpus: s.gpus}
	buffer := make([]byte, maxRecord)
	var next uint64 // sequence number expected
	skipped := false
	for failures := 0; failures < maxFailures; {
		until, _ := a.waiting()
		if err := d.SetReadDeadline(until); err != nil {
			return fmt.Errorf("read kernel log: %w: %s cannot be followed: %w", status.ErrUnsupported, s.o.Path, err)
		}
		n, err := d.Read(buffer)
		switch {
		case err == nil:
			failures = 0
			r, ok := parseRecord(buffer[:n])
			if !ok {
				continue
			}
			if skipped && next > 0 && r.sequence > next {
				s.lost(r.sequence - next)
			}
			next, skipped = r.sequence+1, false
			s.deliver(a.take(r, s.clock.at(r.uptime)))
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.deliver(a.settle(time.Now()))
		case errors.Is(err, syscall.EPIPE): // overwritten; the next read begins with the oldest that is left
			failures++
			skipped = true
			s.lost(0)
		case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EINTR): // longer than any record may be
			failures++
			skipped = true
		case errors.Is(err, io.EOF):
			return fmt.Errorf("read kernel log: %w: %s has an end, so it is no kernel log", status.ErrUnsupported, s.o.Path)
		default:
			return fmt.Errorf("read kernel log: %w", err)
		}
	}
	return fmt.Errorf("read kernel log: %w: %d reads in a row failed", status.ErrLost, maxFailures)
}

func (s *Source) lost(records uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overrun = true
	s.passed += records
}

// deliver puts events where Collect finds them.
func (s *Source) deliver(events []*event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		if !s.limit.keep(e) {
			continue
		}
		if len(s.waiting) >= maxWaiting {
			s.limit.left++
			continue
		}
		s.waiting = append(s.waiting, e)
		select {
		case s.wake <- struct{}{}:
		default: // it was already asked for
		}
	}
}
