package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A processor that starts while ClickHouse is away judges and announces; it stores once the tables are there.
func TestStoringWaitsForTheSchema(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("migrate 0001: store is away")
		tries, filled := 0, false
		var said bytes.Buffer
		s := &schema{log: slog.New(slog.NewTextHandler(&said, nil)), done: make(chan struct{}), last: errors.New("not yet"), fill: func(context.Context) error { filled = true; return nil }, migrate: func(context.Context) error {
			if tries++; tries < 4 {
				return away
			}
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- s.run(ctx) }()
		stored := make(chan int, 1)
		work := s.first(func(_ context.Context, seat int, _ uint64) error { stored <- seat; return nil })
		go func() { ended <- work(ctx, 7, 1) }()
		synctest.Wait()
		if s.well() != away || len(stored) != 0 {
			t.Errorf("ready: %v, stored %d", s.well(), len(stored))
		}
		time.Sleep(4 * schemaAgain)
		if seat := <-stored; seat != 7 || s.well() != nil || tries != 4 {
			t.Errorf("seat %d, %v, %d tries", seat, s.well(), tries)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if !filled {
			t.Error("the rollups are not filled")
		}
		if n := strings.Count(said.String(), "store is away"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}
