package spool

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Append writes one record behind the others, which has survived the end of this process when it returns, and a crash of the host a
// second later. Where the spool is full the oldest segments go first. After an error nothing was written: it wraps ErrFull or
// ErrTooLarge or is the disk's own, and for the next second the same one is returned without another try.
func (l *Lane) Append(r *Record) error {
	l.buffer = l.buffer[:0]
	var err error
	if l.buffer, err = appendRecord(l.buffer, r); err != nil {
		return err
	}
	size := int64(len(l.buffer))
	if headerBytes+size > l.spool.o.MaxBytes {
		return fmt.Errorf("%w: %d bytes of %d", ErrTooLarge, size, l.spool.o.MaxBytes)
	}
	if l.refused != nil && time.Until(l.retry) > 0 {
		return l.refused
	}
	for {
		if err = l.room(size); err == nil {
			err = l.write(r)
		}
		if err == nil || !noSpace(err) || !l.spool.dropOldest(l) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("write spool: %w", err)
		l.refused, l.retry = err, time.Now().Add(retryAfter)
	} else {
		l.refused = nil
	}
	l.mu.Lock()
	l.counts.fault = err
	l.mu.Unlock()
	if cap(l.buffer) > 16*windowBytes {
		l.buffer = nil
	}
	return err
}

// retryAfter is how long a disk that refused a write is left alone.
const retryAfter = time.Second

func noSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// room makes a segment ready that can take so many bytes within the bounds.
func (l *Lane) room(size int64) error {
	active := l.active()
	if active != nil && (active.faulty || active.size+size > l.spool.o.segmentBytes() && active.size > headerBytes) {
		if err := l.seal(active); err != nil {
			return err
		}
		active = nil
	}
	if active == nil {
		size += headerBytes
	}
	for l.spool.used.Load()+size > l.spool.o.MaxBytes {
		if !l.spool.dropOldest(l) {
			return ErrFull
		}
	}
	if active != nil {
		return nil
	}
	if low, err := l.spool.low(size); err != nil {
		return err
	} else if low != nil && !l.spool.dropOldest(l) { // does not grow, but goes on
		return low
	}
	return l.create()
}

func (l *Lane) active() *segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.segments); n > 0 && l.segments[n-1].file != nil {
		return l.segments[n-1]
	}
	return nil
}

func (l *Lane) create() error {
	s := &segment{number: l.next, path: segmentPath(l.folder, l.next), size: headerBytes}
	file, err := l.spool.o.create(s.path)
	if err != nil {
		return err
	}
	if _, err := file.WriteAt([]byte(magic), 0); err != nil {
		return errors.Join(err, file.Close(), os.Remove(s.path))
	}
	s.file = file
	l.next++
	l.spool.used.Add(headerBytes)
	l.renamed.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.segments = append(l.segments, s); len(l.segments) == 1 {
		l.offset = headerBytes
	}
	return nil
}

// write appends the buffer to the active segment, whole or not at all.
func (l *Lane) write(r *Record) error {
	s := l.active()
	if _, err := l.spool.o.write(s.file, l.buffer, s.size); err != nil {
		if cut := s.file.Truncate(s.size); cut != nil {
			s.faulty = true
			err = errors.Join(err, cut)
		}
		if s.size == headerBytes { // it would count as a segment that can be dropped, and holds nothing
			err = errors.Join(err, l.remove(s))
		}
		return err
	}
	l.dirty.Store(true)
	size := int64(len(l.buffer))
	l.spool.used.Add(size)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.left.Messages == 0 {
		s.first = r.At
	}
	if l.segments[0] == s && s.left.Messages == 0 {
		l.oldest = r.At
	}
	s.left.add(Amount{1, uint64(r.Events)})
	s.size += size
	return nil
}

// seal forces a segment to disk and writes no more to it.
func (l *Lane) seal(s *segment) error {
	l.mu.Lock()
	file := s.file
	s.file = nil
	l.mu.Unlock()
	return errors.Join(file.Sync(), file.Close())
}
