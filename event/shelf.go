package event

import (
	"context"
	"sync"
	"time"
)

// shelfPatience is how long Take waits for a judge that has not read the message yet. Once it has waited so long, no judge is waited for that has not
// come to that place of the stream.
const shelfPatience = 200 * time.Millisecond

// Shelf holds the batches that the judges of a process have decoded until the store, which reads the same stream, comes by and need not decode them
// again. It is bounded: what the store does not take in time is dropped, and decoded by itself. A nil Shelf holds nothing. Batches on it belong to both,
// who must not change them.
type Shelf struct {
	mu      sync.Mutex
	most    int // bytes of messages
	bytes   int
	wanted  bool
	judged  [PartitionCount]judged
	batches map[slot]shelved
	order   []slot // as they came, and some that were taken since
	taken   uint64 // sequence that the store is past

	awaited int           // partition whose message Take waits for
	until   uint64        // and its sequence
	come    chan struct{} // closed when its judge has come to it; nil while nobody waits
}

// slot names a message. The time keeps apart messages of two streams that gave out the same sequence.
type slot struct {
	sequence uint64
	at       int64
}

type shelved struct {
	batch *Batch
	bytes int
}

// judged is what the shelf knows of a partition's judge.
type judged struct {
	here bool
	late uint64 // sequence for which it was waited in vain
	last uint64 // sequence that it read last
}

// NewShelf returns a shelf for batches whose messages have at most so many bytes in all; decoded they have three to five times as many.
func NewShelf(most int) *Shelf { return &Shelf{most: most, batches: map[slot]shelved{}} }

// Judged says whether a partition is judged in this process: the store waits for nobody else.
func (s *Shelf) Judged(partition int, here bool) {
	if s == nil || partition < 0 || partition >= PartitionCount {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judged[partition] = judged{here: here}
}

// Wanted says whether the store reads at all: nothing is kept otherwise.
func (s *Shelf) Wanted(wanted bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted, s.taken = wanted, 0
	clear(s.batches)
	s.order, s.bytes = nil, 0
}

// Put leaves a decoded message of some bytes to the store, or, when b is nil, tells only that a judge has read it. Messages of a partition come in
// the order of the stream.
func (s *Shelf) Put(partition int, sequence uint64, at time.Time, b *Batch, bytes int) {
	if s == nil || partition < 0 || partition >= PartitionCount {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judged[partition].last = sequence
	if s.come != nil && s.awaited == partition && sequence >= s.until {
		close(s.come)
		s.come = nil
	}
	if b == nil || !s.wanted || sequence <= s.taken || bytes > s.most/2 {
		return
	}
	key := slot{sequence, at.UnixNano()}
	if _, again := s.batches[key]; again { // a partition that left and came back
		return
	}
	s.batches[key] = shelved{b, bytes}
	s.order = append(s.order, key)
	s.bytes += bytes
	s.trim()
}

// trim drops what the store is past, and the oldest where there is too much.
func (s *Shelf) trim() {
	for len(s.order) > 0 {
		oldest, there := s.batches[s.order[0]]
		if there && s.bytes <= s.most && s.order[0].sequence > s.taken {
			break
		}
		if there {
			s.drop(s.order[0], oldest)
		}
		s.order = s.order[1:]
	}
	if len(s.order) > 2*len(s.batches)+1024 { // the oldest waits, and most of what came after it was taken
		kept := make([]slot, 0, len(s.batches))
		for _, key := range s.order {
			if _, there := s.batches[key]; there {
				kept = append(kept, key)
			}
		}
		s.order = kept
	}
}

// Take returns what a judge decoded of a message, given by its partition, its sequence in the stream and the broker's time, and removes it. It waits a
// moment for a judge that has not come to it yet. One goroutine takes at a time, in the order of the stream.
func (s *Shelf) Take(ctx context.Context, partition int, sequence uint64, at time.Time) (*Batch, bool) {
	if s == nil || partition < 0 || partition >= PartitionCount {
		return nil, false
	}
	key := slot{sequence, at.UnixNano()}
	s.mu.Lock()
	one, there := s.batches[key]
	judge := s.judged[partition]
	if !there && s.wanted && judge.here && judge.last < sequence && judge.last >= judge.late {
		come := make(chan struct{})
		s.awaited, s.until, s.come = partition, sequence, come
		s.mu.Unlock()
		patience := time.NewTimer(shelfPatience)
		select {
		case <-come:
		case <-patience.C:
		case <-ctx.Done():
		}
		patience.Stop()
		s.mu.Lock()
		s.come = nil
		if one, there = s.batches[key]; !there && s.judged[partition].last < sequence {
			for i := range s.judged { // where all stand still, waiting for each in turn would be waiting for seconds
				if s.judged[i].last < sequence {
					s.judged[i].late = sequence
				}
			}
		}
	}
	defer s.mu.Unlock()
	if there {
		s.drop(key, one)
	}
	s.taken = max(s.taken, sequence)
	s.trim()
	return one.batch, there
}

func (s *Shelf) drop(key slot, one shelved) {
	delete(s.batches, key)
	s.bytes -= one.bytes
}
