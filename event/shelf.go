package event

import (
	"sync"
	"time"
)

// Side is one of the two readers that read every message of the event stream in a process.
type Side int

// The readers of a Shelf.
const (
	Judging Side = iota
	Storing
)

// Shelf holds the batches that one of two readers of the event stream has decoded, until the other one comes by, which need not decode
// them again. It is bounded: what the other reader does not take in time is dropped, and decoded by itself. A nil Shelf holds nothing. Batches
// on it belong to both readers, which must not change them.
type Shelf struct {
	mu      sync.Mutex
	most    int // bytes of messages
	bytes   int
	readers [2][PartitionCount]bool
	batches map[slot]shelved
	order   []slot // as they came; those that were taken stay until it is their turn
}

// slot names a message. The time keeps apart messages of two streams that gave out the same sequence.
type slot struct {
	sequence uint64
	at       int64
}

type shelved struct {
	batch *Batch
	by    Side
	bytes int
}

// NewShelf returns a shelf for batches whose messages have at most so many bytes in all; decoded they have three to five times as many.
func NewShelf(most int) *Shelf { return &Shelf{most: most, batches: map[slot]shelved{}} }

// Enter says that a reader reads a partition from now on, and Leave that it does not any more: only what two read is kept.
func (s *Shelf) Enter(by Side, partition int) { s.set(by, partition, true) }

// Leave ends what Enter began. What the other reader put there for this one is dropped in its turn.
func (s *Shelf) Leave(by Side, partition int) { s.set(by, partition, false) }

func (s *Shelf) set(by Side, partition int, reads bool) {
	if s == nil || partition < 0 || partition >= PartitionCount {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers[by][partition] = reads; !reads && s.readers[by] == [PartitionCount]bool{} {
		clear(s.batches)
		s.order, s.bytes = nil, 0
	}
}

// Take returns what the other reader decoded of a message, given by its sequence in the stream and the broker's time, and removes it.
func (s *Shelf) Take(by Side, sequence uint64, at time.Time) (*Batch, bool) {
	if s == nil {
		return nil, false
	}
	key := slot{sequence, at.UnixNano()}
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.batches[key]
	if !ok || one.by == by {
		return nil, false
	}
	s.drop(key, one)
	return one.batch, true
}

// Put leaves a decoded message of some bytes to the other reader, when that reads the partition.
func (s *Shelf) Put(by Side, partition int, sequence uint64, at time.Time, b *Batch, bytes int) {
	if s == nil || partition < 0 || partition >= PartitionCount {
		return
	}
	key := slot{sequence, at.UnixNano()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.readers[1-by][partition] || bytes > s.most/2 {
		return
	}
	if _, both := s.batches[key]; both { // the other one decoded it at the same time
		return
	}
	s.batches[key] = shelved{b, by, bytes}
	s.order = append(s.order, key)
	s.bytes += bytes
	for len(s.order) > 0 {
		oldest, there := s.batches[s.order[0]]
		if there && s.bytes <= s.most {
			break
		}
		if there {
			s.drop(s.order[0], oldest)
		}
		s.order = s.order[1:]
	}
}

func (s *Shelf) drop(key slot, one shelved) {
	delete(s.batches, key)
	s.bytes -= one.bytes
}
