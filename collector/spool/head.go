package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Head returns the oldest record, the same one until Pop is called, or nil when there is none. What cannot be read is skipped to the
// next segment and counted. The error is one of the system that may pass, such as too many open files.
func (l *Lane) Head() (*Record, error) {
	for {
		s, offset, end := l.front()
		if s == nil {
			l.window.close()
			return nil, nil
		}
		if offset >= end {
			if err := l.finish(s); err != nil {
				return nil, err
			}
			continue
		}
		r, next, err := l.window.read(s, offset, end)
		if err != nil {
			if passing(err) {
				return nil, fmt.Errorf("read spool: %w", err)
			}
			if err := l.skip(s, err); err != nil {
				return nil, err
			}
			continue
		}
		if l.hold(s, Amount{1, uint64(r.Events)}, next, r.At) {
			r.Data = bytes.Clone(r.Data)
			return &r, nil
		}
	}
}

func (l *Lane) front() (s *segment, offset, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) == 0 {
		return nil, 0, 0
	}
	return l.segments[0], l.offset, l.segments[0].size
}

// passing says whether another try may end otherwise: what holds now would hold up the lane for ever.
func passing(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// hold notes which record is with the owner. It fails where the record's segment has been dropped meanwhile.
func (l *Lane) hold(s *segment, size Amount, end int64, at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) == 0 || l.segments[0] != s {
		return false
	}
	l.held, l.heldSize, l.heldEnd, l.oldest = s, size, end, at
	return true
}

// Pop takes the record out that Head returned: it has been sent, or given up. Where its segment was dropped meanwhile it is out already.
// The error is that of a file that could not be changed, in which case the record may be sent again by the next collector.
func (l *Lane) Pop() error {
	l.mu.Lock()
	s := l.held
	if s == nil {
		l.mu.Unlock()
		return nil
	}
	l.held = nil
	if len(l.segments) == 0 || l.segments[0] != s {
		l.mu.Unlock()
		return nil
	}
	l.offset = l.heldEnd
	s.left.sub(l.heldSize)
	done := l.offset >= s.size
	at := cursor{s.number, l.offset}
	l.mu.Unlock()
	if done {
		return l.finish(s)
	}
	return l.mark(at)
}

// finish removes a segment that has been sent to its end, also the one that is being written: the next record begins another.
func (l *Lane) finish(s *segment) error {
	err := errors.Join(l.mark(cursor{s.number + 1, 0}), l.remove(s))
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) == 0 {
		l.counts.since = Amount{}
	}
	return err
}

func (l *Lane) mark(at cursor) error {
	if _, err := l.cursor.WriteAt(at.encode(), 0); err != nil {
		return fmt.Errorf("write cursor of spool: %w", err)
	}
	return nil
}

// skip gives up the rest of a segment.
func (l *Lane) skip(s *segment, why error) error {
	l.mu.Lock()
	lost := s.left
	l.counts.faulty++
	l.counts.damaged.add(lost)
	l.lose(lost)
	l.mu.Unlock()
	l.spool.o.Log.Warn("spool has a damaged segment; what follows in it is skipped", "lane", l.name, "file", s.path, "messages", lost.Messages, "error", why)
	return l.finish(s)
}

// lose counts what is dropped for whatever reason. The caller holds the lock.
func (l *Lane) lose(lost Amount) {
	l.counts.since.add(lost)
	l.counts.lastAt = l.spool.o.now()
}

// remove takes a segment off the list and its file off the disk.
func (l *Lane) remove(s *segment) error {
	l.mu.Lock()
	listed := l.forget(s)
	l.mu.Unlock()
	if !listed {
		return nil // dropped meanwhile
	}
	return l.unlink(s)
}

// forget takes a segment off the list. The caller holds the lock.
func (l *Lane) forget(s *segment) bool {
	for i, one := range l.segments {
		if one != s {
			continue
		}
		l.segments = append(l.segments[:i:i], l.segments[i+1:]...)
		if i == 0 {
			l.offset, l.oldest = headerBytes, time.Time{}
			if len(l.segments) > 0 {
				l.oldest = l.segments[0].first
			}
		}
		return true
	}
	return false
}

func (l *Lane) unlink(s *segment) error {
	var closed error
	if s.file != nil {
		closed = s.file.Close()
	}
	l.spool.used.Add(-s.size)
	l.renamed.Store(true)
	if err := errors.Join(closed, os.Remove(s.path)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove segment of spool: %w", err)
	}
	return nil
}

// drop gives up the oldest segment that is not being written, and says whether there was one. Anybody may call it.
func (l *Lane) drop() bool {
	l.mu.Lock()
	if len(l.segments) == 0 || l.segments[0].file != nil {
		l.mu.Unlock()
		return false
	}
	s := l.segments[0]
	lost := s.left
	if l.held == s {
		lost.sub(l.heldSize) // it is still being sent
	}
	l.counts.full.add(lost)
	first := l.counts.since.Messages == 0
	l.lose(lost)
	total := l.counts.since
	l.forget(s)
	l.mu.Unlock()
	if first {
		l.spool.o.Log.Warn("spool is full: the oldest messages are dropped", "lane", l.name, "messages", lost.Messages, "of", s.first.UTC().Format(time.RFC3339),
			"hint", "the broker is away for longer than --spool-max has room for")
	} else {
		l.spool.o.Log.Debug("spool drops its oldest segment", "lane", l.name, "messages", lost.Messages, "in_all", total.Messages)
	}
	if err := l.unlink(s); err != nil {
		l.spool.o.Log.Error("spool cannot drop a segment", "lane", l.name, "file", s.path, "error", err)
	}
	return true
}
