package event

import (
	"sync"
	"testing"
	"time"
)

var shelfTime = time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)

func TestShelfGivesABatchToTheOtherReaderOnce(t *testing.T) {
	s := NewShelf(1000)
	s.Enter(Judging, 3)
	s.Enter(Storing, 3)
	b := &Batch{}
	s.Put(Judging, 3, 7, shelfTime, b, 100)
	if _, ok := s.Take(Judging, 7, shelfTime); ok {
		t.Error("the one who put it there got it back")
	}
	if _, ok := s.Take(Storing, 7, shelfTime.Add(time.Nanosecond)); ok {
		t.Error("a message of another stream was taken for it")
	}
	if got, ok := s.Take(Storing, 7, shelfTime); !ok || got != b {
		t.Error("the other reader did not get it")
	}
	if _, ok := s.Take(Storing, 7, shelfTime); ok {
		t.Error("it was given twice")
	}
}

func TestShelfKeepsOnlyWhatTwoRead(t *testing.T) {
	s := NewShelf(1000)
	s.Enter(Judging, 3)
	s.Put(Judging, 3, 1, shelfTime, &Batch{}, 100) // nobody stores
	s.Enter(Storing, 3)
	s.Enter(Storing, 4)
	s.Put(Storing, 4, 2, shelfTime, &Batch{}, 100) // another process judges 4
	if _, ok := s.Take(Storing, 1, shelfTime); ok {
		t.Error("kept for nobody")
	}
	if _, ok := s.Take(Judging, 2, shelfTime); ok {
		t.Error("kept for another process")
	}
	s.Put(Judging, 3, 3, shelfTime, &Batch{}, 100)
	s.Leave(Storing, 3)
	s.Leave(Storing, 4)
	if _, ok := s.Take(Storing, 3, shelfTime); ok || s.bytes != 0 || len(s.order) != 0 {
		t.Error("something stays for a reader that left")
	}
}

// Room for ten: of fifteen the first five make room for the others, and what was taken makes room too.
func TestShelfIsBounded(t *testing.T) {
	s := NewShelf(1000)
	s.Enter(Judging, 0)
	s.Enter(Storing, 0)
	for n := range uint64(15) {
		s.Put(Judging, 0, n, shelfTime, &Batch{}, 100)
	}
	s.Put(Judging, 0, 99, shelfTime, &Batch{}, 501) // more than half of the room
	for n := range uint64(15) {
		if _, ok := s.Take(Storing, n, shelfTime); ok != (n >= 5) {
			t.Errorf("%d: %v", n, ok)
		}
	}
	if _, ok := s.Take(Storing, 99, shelfTime); ok {
		t.Error("one that needs half of the room is there")
	}
	for n := range uint64(10_000) {
		s.Put(Judging, 0, n, shelfTime, &Batch{}, 100)
		s.Take(Storing, n, shelfTime)
	}
	if s.bytes != 0 || len(s.batches) != 0 || len(s.order) > 1 {
		t.Errorf("%d bytes, %d batches, %d in order are left", s.bytes, len(s.batches), len(s.order))
	}
	var none *Shelf
	none.Enter(Judging, 0)
	none.Put(Judging, 0, 1, shelfTime, &Batch{}, 1)
	if _, ok := none.Take(Storing, 1, shelfTime); ok {
		t.Error("no shelf gave something")
	}
}

func TestShelfIsSharedByGoroutines(t *testing.T) {
	s := NewShelf(100)
	var all sync.WaitGroup
	for _, by := range []Side{Judging, Storing} {
		all.Go(func() {
			s.Enter(by, 1)
			for n := range uint64(1000) {
				if _, ok := s.Take(by, n, shelfTime); !ok {
					s.Put(by, 1, n, shelfTime, &Batch{}, 10)
				}
			}
			s.Leave(by, 1)
		})
	}
	all.Wait()
	if len(s.batches) != 0 || s.bytes != 0 {
		t.Errorf("%d batches of %d bytes are left", len(s.batches), s.bytes)
	}
}
