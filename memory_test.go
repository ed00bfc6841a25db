package main

import (
	"log/slog"
	"math"
	"runtime/debug"
	"testing"
)

func TestHeapIsBounded(t *testing.T) {
	limit, percent := debug.SetMemoryLimit(math.MaxInt64), debug.SetGCPercent(100)
	defer func() { debug.SetMemoryLimit(limit); debug.SetGCPercent(percent) }()
	t.Setenv("GOGC", "150")
	boundMemory(slog.New(slog.DiscardHandler))
	if got := debug.SetMemoryLimit(-1); got == math.MaxInt64 || got < 64<<20 {
		t.Errorf("half of this machine's memory is %d bytes", got)
	}
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC of the environment was overruled: %d", got)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	t.Setenv("GOMEMLIMIT", "1GiB")
	t.Setenv("GOGC", "")
	boundMemory(slog.New(slog.DiscardHandler))
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("GOMEMLIMIT of the environment was overruled: %d", got)
	}
	if got := debug.SetGCPercent(100); got != 200 {
		t.Errorf("garbage may become %d %% of what lives", got)
	}
}
