package event

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

var shelfTime = time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)

func wantedShelf(partitions ...int) *Shelf {
	s := NewShelf(1000)
	s.Wanted(true)
	for _, p := range partitions {
		s.Judged(p, true)
	}
	return s
}

func TestShelfGivesABatchOnce(t *testing.T) {
	s := wantedShelf(3)
	b := &Batch{}
	s.Put(3, 6, shelfTime, &Batch{}, 100)
	if _, ok := s.Take(t.Context(), 3, 6, shelfTime.Add(time.Nanosecond)); ok {
		t.Error("a message of another stream was taken for it")
	}
	s.Put(3, 7, shelfTime, b, 100)
	s.Put(3, 7, shelfTime, &Batch{}, 100) // the partition was judged again
	if got, ok := s.Take(t.Context(), 3, 7, shelfTime); !ok || got != b {
		t.Error("the store did not get it")
	}
	if _, ok := s.Take(t.Context(), 3, 7, shelfTime); ok {
		t.Error("it was given twice")
	}
	if s.bytes != 0 || len(s.batches) != 0 {
		t.Errorf("%d bytes, %d batches are left", s.bytes, len(s.batches))
	}
}

// What the store is past, as after a start of the judges, is not kept, and nothing that waits makes the rest grow.
func TestShelfForgetsWhatTheStoreIsPast(t *testing.T) {
	s := wantedShelf(0, 1)
	s.Put(1, 1_000_000, shelfTime, &Batch{}, 100) // far ahead: it waits all the time
	for n := uint64(1); n <= 100_000; n++ {
		s.Put(0, n, shelfTime, &Batch{}, 100)
		s.Take(t.Context(), 0, n, shelfTime)
	}
	if len(s.order) > 2000 || s.bytes != 100 {
		t.Errorf("%d in order, %d bytes", len(s.order), s.bytes)
	}
	s.Put(0, 5, shelfTime, &Batch{}, 100)
	if s.bytes != 100 {
		t.Error("what the store is past is kept")
	}
	if _, ok := s.Take(t.Context(), 1, 1_000_000, shelfTime); !ok {
		t.Error("what waited is gone")
	}
}

func TestShelfKeepsOnlyWhatIsWanted(t *testing.T) {
	s := NewShelf(1000)
	s.Judged(3, true)
	s.Put(3, 1, shelfTime, &Batch{}, 100)
	s.Wanted(true)
	if _, ok := s.Take(t.Context(), 3, 1, shelfTime); ok {
		t.Error("kept for nobody")
	}
	s.Put(3, 2, shelfTime, &Batch{}, 100)
	s.Wanted(false)
	if _, ok := s.Take(t.Context(), 3, 2, shelfTime); ok || s.bytes != 0 || len(s.order) != 0 {
		t.Error("something stays for a store that left")
	}
}

// Room for ten: of fifteen the first five make room for the others, and what was taken makes room too.
func TestShelfIsBounded(t *testing.T) {
	s := wantedShelf(0)
	for n := uint64(1); n <= 15; n++ {
		s.Put(0, n, shelfTime, &Batch{}, 100)
	}
	s.Put(0, 16, shelfTime, &Batch{}, 501) // more than half of the room
	for n := uint64(1); n <= 15; n++ {
		if _, ok := s.Take(t.Context(), 0, n, shelfTime); ok != (n > 5) {
			t.Errorf("%d: %v", n, ok)
		}
	}
	if _, ok := s.Take(t.Context(), 0, 16, shelfTime); ok {
		t.Error("one that needs half of the room is there")
	}
	for n := uint64(100); n < 10_000; n++ {
		s.Put(0, n, shelfTime, &Batch{}, 100)
		s.Take(t.Context(), 0, n, shelfTime)
	}
	if s.bytes != 0 || len(s.batches) != 0 || len(s.order) > 1 {
		t.Errorf("%d bytes, %d batches, %d in order are left", s.bytes, len(s.batches), len(s.order))
	}
	var none *Shelf
	none.Judged(0, true)
	none.Wanted(true)
	none.Put(0, 1, shelfTime, &Batch{}, 1)
	if _, ok := none.Take(t.Context(), 0, 1, shelfTime); ok {
		t.Error("no shelf gave something")
	}
}

// The store waits for a judge that is here and will come to the message, once in vain, and for nobody else.
func TestShelfWaitsForTheJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := wantedShelf(0, 1, 3)
		took := func(partition int, sequence uint64) (time.Duration, bool) {
			began := time.Now()
			_, ok := s.Take(t.Context(), partition, sequence, shelfTime)
			return time.Since(began), ok
		}
		go func() {
			time.Sleep(50 * time.Millisecond)
			s.Put(0, 10, shelfTime, &Batch{}, 1)
		}()
		for _, c := range []struct {
			why       string
			partition int
			sequence  uint64
			took      time.Duration
			ok        bool
		}{
			{"it comes", 0, 10, 50 * time.Millisecond, true},
			{"the judge is past it", 0, 9, 0, false},
			{"the judge does not come", 1, 11, shelfPatience, false},
			{"nor is it waited for again", 1, 12, 0, false},
			{"nor another one that has not come there", 3, 12, 0, false},
			{"another process judges it", 2, 13, 0, false},
		} {
			if d, ok := took(c.partition, c.sequence); d != c.took || ok != c.ok {
				t.Errorf("%s: %v after %v, want %v after %v", c.why, ok, d, c.ok, c.took)
			}
		}
		s.Put(1, 3, shelfTime, &Batch{}, 1) // it reads on, far behind
		if d, ok := took(1, 14); d != 0 || ok {
			t.Errorf("a judge that is far behind is waited for: %v after %v", ok, d)
		}
		s.Put(1, 12, shelfTime, &Batch{}, 1) // it came to where it was waited for
		go func() {
			time.Sleep(30 * time.Millisecond)
			s.Put(1, 20, shelfTime, nil, 0) // refused
		}()
		if d, ok := took(1, 20); d != 30*time.Millisecond || ok {
			t.Errorf("a message that the judge refuses: %v after %v", ok, d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Put(1, 21, shelfTime, &Batch{}, 1)
		began := time.Now()
		if _, ok := s.Take(ctx, 1, 30, shelfTime); ok || time.Since(began) != 0 {
			t.Error("an ended context is waited with")
		}
	})
}
