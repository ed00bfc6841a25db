package spool

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"lowtide/event"
)

// Lane is one first-in-first-out queue on disk. Append, Head and Pop are for one goroutine, its owner; everything else may be called
// from anywhere. What touches the disk holds no lock, so that a lane whose disk hangs hangs alone.
type Lane struct {
	spool  *Spool
	name   string
	folder string
	cursor *os.File

	// The owner's.
	buffer  []byte
	window  window
	refused error     // by the last write
	retry   time.Time // before which no other is tried

	dirty   atomic.Bool // written to since the last fsync
	renamed atomic.Bool // files came or went since then

	mu       sync.Mutex // over what follows; never held over the disk
	segments []*segment // oldest first; the last may still be written
	offset   int64      // in the first one: where what is not sent begins
	held     *segment   // of the record that Head returned
	heldSize Amount
	heldEnd  int64
	next     uint64 // number of the segment to come
	oldest   time.Time
	counts   laneCounts
}

// laneCounts only grow, but for fault.
type laneCounts struct {
	full    Amount // dropped to make room
	damaged Amount // dropped because they could not be read any more
	torn    uint64 // records cut off by the end of their writer
	faulty  uint64 // segments that were left before their end
	since   Amount // dropped since the spool was empty, for whatever reason
	lastAt  time.Time
	fault   error // of the last write; nil when it went well
}

// openLane takes over what an earlier collector left.
func openLane(s *Spool, name string) (*Lane, error) {
	l := &Lane{spool: s, name: name, folder: filepath.Join(s.o.Folder, name), next: 1}
	if err := os.Mkdir(l.folder, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	file, at, damaged, err := openCursor(filepath.Join(l.folder, "cursor"))
	if err != nil {
		return nil, err
	}
	l.cursor = file
	if damaged {
		s.o.Log.Warn("spool does not know how far it was sent; sending all of it again under its old ids", "lane", name)
	}
	numbers, err := listSegments(l.folder)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	l.next = at.segment + 1
	for i, number := range numbers {
		l.next = max(l.next, number+1)
		path := segmentPath(l.folder, number)
		if number < at.segment { // sent; its collector ended before it could remove it
			if err := os.Remove(path); err != nil {
				return nil, errors.Join(err, file.Close())
			}
			continue
		}
		from := headerBytes
		if number == at.segment {
			from = max(from, at.offset)
		}
		if err := l.adopt(number, path, from, i == len(numbers)-1); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return l, nil
}

// adopt reads a segment through once. The newest one may end in a torn record, which is cut off.
func (l *Lane) adopt(number uint64, path string, from int64, newest bool) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	found := scan(file, info.Size(), from)
	log := l.spool.o.Log.With("lane", l.name, "file", path, "good_bytes", found.size, "bad_bytes", info.Size()-found.size)
	switch {
	case found.fault == nil:
	case newest && errors.Is(found.fault, errTorn):
		l.counts.torn++
		log.Warn("spool ends in a torn record, which is cut off: its collector was killed, or the host crashed", "error", found.fault)
		if err := file.Truncate(found.size); err != nil {
			return err
		}
	default:
		l.counts.faulty++
		log.Warn("spool has a damaged segment; what follows in it is skipped", "error", found.fault)
	}
	if found.left.Messages == 0 {
		return os.Remove(path)
	}
	if len(l.segments) == 0 {
		l.offset, l.oldest = found.from, found.first
	}
	l.segments = append(l.segments, &segment{number: number, path: path, size: found.size, left: found.left, first: found.first})
	l.spool.used.Add(found.size)
	return nil
}

// Empty says whether nothing waits.
func (l *Lane) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.segments) == 0
}

// sync forces to disk what was written since the last call.
func (l *Lane) sync() error {
	var faults []error
	if l.dirty.Swap(false) {
		if s := l.active(); s != nil {
			l.mu.Lock()
			file := s.file
			l.mu.Unlock()
			if file != nil {
				if err := file.Sync(); err != nil && !errors.Is(err, os.ErrClosed) { // sealed meanwhile, and forced by that
					faults = append(faults, err)
				}
			}
		}
	}
	if l.renamed.Swap(false) {
		faults = append(faults, syncFolder(l.folder))
	}
	return errors.Join(faults...)
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func (l *Lane) close() error {
	l.window.close()
	var faults []error
	if s := l.active(); s != nil {
		faults = append(faults, l.seal(s))
	}
	return errors.Join(append(faults, syncFolder(l.folder), l.cursor.Close())...)
}

// laneNames in the order in which they lose what they hold.
func laneNames() []string { return []string{event.LaneSamples, event.LaneUrgent} }
