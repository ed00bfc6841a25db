package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"lowtide/collector/status"
)

const (
	chunk      = 256 << 10
	maxScan    = 8 << 20  // bytes read of a file in one go; the rest waits for the next
	maxBacklog = 64 << 20 // bytes; of more, only the newest maxScan are read

	maxWeighed  = 256 << 10   // bytes of lines that had to be parsed, likewise: a hostile one of 16 KiB takes 20 ms
	unlinkedFor = time.Minute // a file without a name that nobody has written to for so long is let go
)

// follower reads what is appended to one file.
type follower struct {
	path    string
	stream  *stream
	file    *os.File // nil: not there yet
	info    os.FileInfo
	offset  int64
	partial []byte    // the beginning of a line without its end
	passing bool      // the rest of a line that was too long
	lost    int64     // bytes passed over since last asked
	written time.Time // when the last bytes were read
}

// start opens the file at its end, so that only what is appended from now on counts.
func (f *follower) start(fromBeginning bool) {
	if f.open() == nil && !fromBeginning {
		f.offset = f.info.Size()
	}
}

func (f *follower) open() error {
	// Without O_NONBLOCK a named pipe would wait for its writer.
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is no regular file", status.ErrUnsupported)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.info, f.offset, f.partial, f.passing, f.written = file, info, 0, nil, false, time.Time{}
	return nil
}

// scan reads what was appended. After a rename the rest of the old file is read first, then the new one from its beginning; a
// file that became shorter was truncated, and is read from its beginning.
func (f *follower) scan(now time.Time, buffer []byte) error {
	defer func() { f.stream.settle(now) }()
	if f.file == nil {
		if err := f.open(); err != nil {
			return f.problem(err)
		}
	}
	for range 2 {
		more, err := f.read(now, buffer)
		if err != nil {
			return f.problem(errors.Join(err, f.leave(now)))
		}
		if more {
			return nil
		}
		info, err := os.Stat(f.path)
		if err != nil {
			if f.unlinked() && now.Sub(f.written) >= unlinkedFor {
				err = errors.Join(err, f.leave(now))
			}
			return f.problem(err) // the old file is still followed: whoever renamed it may be writing to it yet
		}
		if os.SameFile(info, f.info) {
			return nil
		}
		if err := f.leave(now); err != nil {
			return f.problem(err)
		}
		if err := f.open(); err != nil {
			return f.problem(err)
		}
	}
	return nil
}

func (f *follower) problem(err error) error { return fmt.Errorf("follow log %s: %w", f.path, err) }

// unlinked says whether the file was deleted, so that only who has it open keeps it on the disk.
func (f *follower) unlinked() bool {
	info, err := f.file.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

// leave closes the file; a line that had no end is its last.
func (f *follower) leave(now time.Time) error {
	if f.file == nil {
		return nil
	}
	if !f.passing {
		f.stream.region(f.partial, now)
	}
	err := f.file.Close()
	f.file, f.partial = nil, nil
	return err
}

// read looks at up to maxScan bytes, and parses up to maxWeighed of them. More says that not all was read.
func (f *follower) read(now time.Time, buffer []byte) (more bool, err error) {
	info, err := f.file.Stat()
	if err != nil {
		return false, err
	}
	switch size := info.Size(); {
	case size < f.offset:
		f.offset, f.partial, f.passing = 0, nil, false
	case size-f.offset > maxBacklog:
		f.lost += size - maxScan - f.offset
		f.offset, f.partial, f.passing = size-maxScan, nil, true // from the middle of a line
	}
	f.stream.weighed = 0
	for read := 0; read < maxScan && f.stream.weighed < maxWeighed; {
		n, err := f.file.ReadAt(buffer, f.offset)
		f.offset += int64(n)
		read += n
		if n > 0 || f.written.IsZero() {
			f.written = now
		}
		f.take(buffer[:n], now)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// take looks at the complete lines of what was read, and keeps the beginning of one that is not.
func (f *follower) take(b []byte, now time.Time) {
	last := bytes.LastIndexByte(b, '\n')
	if last < 0 {
		f.keep(b, now)
		return
	}
	first := bytes.IndexByte(b, '\n')
	switch {
	case f.passing:
		f.passing = false
		b, last = b[first+1:], last-first-1
	case len(f.partial) > 0:
		f.stream.region(append(f.partial, b[:first+1]...), now)
		f.partial = f.partial[:0]
		b, last = b[first+1:], last-first-1
	}
	if last >= 0 {
		f.stream.region(b[:last+1], now)
	}
	f.keep(b[last+1:], now)
}

func (f *follower) keep(b []byte, now time.Time) {
	if f.passing {
		return
	}
	f.partial = append(f.partial, b...)
	if len(f.partial) > maxLine {
		f.stream.region(f.partial, now)
		f.partial, f.passing = f.partial[:0], true
	}
}
