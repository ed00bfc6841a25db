// Package spool owns the collector's disk buffer while the broker is away: a folder of bounded segments for each lane, with a checksum
// per record, first-in-first-out. It survives the end of its process at any moment (every record is handed to the kernel before it
// counts as kept) and a crash of the host but for the last second (forced to disk once a second, and with every segment). When its
// bound is reached the oldest segments are dropped and counted, samples before what is urgent. It refuses to decide: what is spooled, and
// when and how fast it is sent, is the publisher's to say; a full disk is an error to the one who appends, and a status.
package spool

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lowtide/event"
)

// MinBytes is the smallest bound a spool can have.
const MinBytes = 1 << 20

const (
	segmentShare = 64       // a segment is such a part of the bound: so much is dropped at once
	minSegment   = 64 << 10 // bytes
	maxSegment   = 8 << 20

	leaveBytes = 1 << 30 // of the disk that are left to others,
	leaveShare = 20      // or a twentieth of it where that is less
)

var (
	// ErrFull is wrapped where the bound is reached and nothing can be dropped for the lane.
	ErrFull = errors.New("spool is full")
	// ErrDiskFull is wrapped where so little of the disk is free that the spool does not grow.
	ErrDiskFull = errors.New("disk is full")
	// ErrLocked is wrapped where another collector uses the folder.
	ErrLocked = errors.New("another collector uses it")
)

// Options say where a spool is and how large it may grow.
type Options struct {
	Folder   string        // made where it is missing; what it holds is for its owner alone: folders 0700, files 0600
	MaxBytes int64         // of all segments together; MinBytes at least
	Sync     time.Duration // how often what was written is forced to disk; 1 s when zero
	Log      *slog.Logger  // nil discards

	now    func() time.Time                                     // the wall clock, for what people read
	space  func(folder string) (free, total uint64, err error)  // of the disk
	write  func(file *os.File, b []byte, at int64) (int, error) // pwrite
	create func(path string) (file *os.File, err error)         // a new segment
}

func (o *Options) fill() {
	if o.Sync <= 0 {
		o.Sync = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.space == nil {
		o.space = diskSpace
	}
	if o.write == nil {
		o.write = (*os.File).WriteAt
	}
	if o.create == nil {
		o.create = func(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) }
	}
}

func (o *Options) segmentBytes() int64 {
	return min(max(o.MaxBytes/segmentShare, minSegment), maxSegment)
}

// Spool is an open folder. Its lanes are used apart from each other.
type Spool struct {
	o       Options
	lock    *os.File
	samples *Lane
	urgent  *Lane
	used    atomic.Int64 // bytes of all segments

	stop    chan struct{}
	syncing sync.WaitGroup
	mu      sync.Mutex
	unsafe  error // of the last fsync; nil when it went well
}

// Open locks the folder and takes over what an earlier collector left in it: every record is read once, a torn last one is cut off,
// a damaged one ends its segment. Both are counted and logged. The error wraps ErrLocked where the folder is in use.
func Open(o Options) (*Spool, error) {
	o.fill()
	if o.MaxBytes < MinBytes {
		return nil, fmt.Errorf("open spool: %d bytes is less than %d", o.MaxBytes, MinBytes)
	}
	s := &Spool{o: o, stop: make(chan struct{})}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open spool %s: %w", o.Folder, err)
	}
	s.syncing.Go(s.keepSyncing)
	return s, nil
}

func (s *Spool) open() (err error) {
	if err := os.MkdirAll(s.o.Folder, 0o700); err != nil {
		return err
	}
	if s.lock, err = os.OpenFile(filepath.Join(s.o.Folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return ErrLocked
		}
		return fmt.Errorf("lock: %w", err)
	}
	for _, name := range laneNames() {
		l, err := openLane(s, name)
		if err != nil {
			if s.samples != nil {
				err = errors.Join(err, s.samples.close())
			}
			return err
		}
		if name == event.LaneUrgent {
			s.urgent = l
		} else {
			s.samples = l
		}
	}
	return nil
}

// Lane returns the lane of this name, event.LaneSamples or event.LaneUrgent.
func (s *Spool) Lane(name string) *Lane {
	if name == event.LaneUrgent {
		return s.urgent
	}
	return s.samples
}

// Close forces everything to disk and unlocks the folder. The lanes' owners have ended by then.
func (s *Spool) Close() error {
	close(s.stop)
	s.syncing.Wait()
	if err := errors.Join(s.samples.close(), s.urgent.close(), s.lock.Close()); err != nil {
		return fmt.Errorf("close spool %s: %w", s.o.Folder, err)
	}
	return nil
}

func (s *Spool) keepSyncing() {
	tick := time.NewTicker(s.o.Sync)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			err := errors.Join(s.urgent.sync(), s.samples.sync())
			s.mu.Lock()
			s.unsafe = err
			s.mu.Unlock()
		}
	}
}

// dropOldest makes room for a lane: samples go before what is urgent, and nothing urgent for samples.
func (s *Spool) dropOldest(asking *Lane) bool {
	return s.samples.drop() || asking == s.urgent && s.urgent.drop()
}

// low says, by an error that wraps ErrDiskFull, that so many bytes more would take of the disk what is left to others.
func (s *Spool) low(bytes int64) (low, err error) {
	free, total, err := s.o.space(s.o.Folder)
	if err != nil {
		return nil, err
	}
	if leave := min(leaveBytes, total/leaveShare); free < leave+uint64(bytes) {
		return fmt.Errorf("%w: %d MiB of %d MiB are free below %s, and %d MiB are left to others", ErrDiskFull, free>>20, total>>20, s.o.Folder, leave>>20), nil
	}
	return nil, nil
}

// diskSpace is what the file system has for us, and all of it, bytes.
func diskSpace(folder string) (free, total uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return 0, 0, fmt.Errorf("read free disk: %w", err)
	}
	return fs.Bavail * uint64(fs.Bsize), fs.Blocks * uint64(fs.Bsize), nil
}
