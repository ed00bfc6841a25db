package engine

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNextBackoff(t *testing.T) {
	wait := firstBackoff
	var waits []time.Duration
	for range 9 {
		wait = nextBackoff(wait, time.Second)
		waits = append(waits, wait)
		wait *= 2
	}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	if want := []time.Duration{ms(100), ms(200), ms(400), ms(800), ms(1600), ms(3200), ms(6400), ms(10000), ms(10000)}; !slices.Equal(waits, want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
	if got := nextBackoff(wait, time.Minute); got != firstBackoff {
		t.Errorf("after a minute of life: %s", got)
	}
}

func TestLineLogCutsAndKeepsTheLastLines(t *testing.T) {
	var out strings.Builder
	l := &lineLog{log: slog.New(slog.NewTextHandler(&out, nil))}
	l.Write([]byte("level=WARN msg=ebb a=1\nhalf"))
	l.Write([]byte(" line\n\n" + strings.Repeat("x", 3*maxLine)))
	l.flush()
	if got, want := l.tail(), "level=WARN msg=ebb a=1\nhalf line\n"+strings.Repeat("x", maxLine); got != want {
		t.Errorf("last lines: %d bytes, want %d", len(got), len(want))
	}
	if !strings.Contains(out.String(), "level=WARN msg=\"engine child: ebb a=1\"") || !strings.Contains(out.String(), "level=INFO msg=\"engine child: half line\"") {
		t.Errorf("log %.300s", out.String())
	}
	for range 100 {
		l.Write([]byte("flow\n"))
	}
	if got := l.tail(); got != strings.TrimSuffix(strings.Repeat("flow\n", tailLines), "\n") {
		t.Errorf("last lines %q", got)
	}
}
