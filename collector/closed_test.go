package collector

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lowtide/collector/allocator"
	"lowtide/collector/status"
	"lowtide/event"
)

// A collector that starts while an older one still has the probes' socket takes it over once that one is gone.
func TestSourceIsOpenedOnceNothingIsInTheWay(t *testing.T) {
	folder, err := os.MkdirTemp("", "lt") // a socket's path has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	open := func() (Source, error) {
		return allocator.Listen(allocator.Options{Socket: filepath.Join(folder, "p.sock")})
	}
	older, err := allocator.Listen(allocator.Options{Socket: filepath.Join(folder, "p.sock")})
	if err != nil {
		t.Fatal(err)
	}
	_, refused := open()
	if refused == nil {
		t.Fatal("two collectors have one socket")
	}
	s := newClosed("allocator", refused, open)
	defer s.Close()
	tick := time.Now()
	collect := func(after time.Duration) error {
		_, err := s.Collect(context.Background(), tick.Add(after))
		return err
	}
	for _, after := range []time.Duration{0, 5 * time.Second, reopenAfter + time.Second} {
		if err := collect(after); err == nil || status.Of(err) == status.OK {
			t.Errorf("after %v: %v", after, err)
		}
	}
	if err := older.Close(); err != nil {
		t.Fatal(err)
	}
	if err := collect(reopenAfter + 6*time.Second); err == nil {
		t.Error("tried again too soon")
	}
	if err := collect(2*reopenAfter + 2*time.Second); err != nil {
		t.Errorf("nothing is in the way any more: %v", err)
	}
}

func TestClosedSourceHandsOnCalls(t *testing.T) {
	wake := make(chan struct{}, 1)
	s := newClosed("x", errors.New("no"), func() (Source, error) {
		return waking{fake{"x", func(context.Context, time.Time) ([]*event.Event, error) { return nil, nil }}, wake}, nil
	})
	tick := time.Now()
	if _, err := s.Collect(t.Context(), tick); err == nil {
		t.Fatal("open before its time")
	}
	if _, err := s.Collect(t.Context(), tick.Add(reopenAfter)); err != nil {
		t.Fatal(err)
	}
	wake <- struct{}{}
	select {
	case <-s.Wake():
	case <-time.After(10 * time.Second):
		t.Error("a call was not handed on")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
