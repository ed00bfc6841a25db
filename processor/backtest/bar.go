package backtest

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	barEvery = 200 * time.Millisecond
	barWidth = 30
)

// bar says on a terminal how far it is, and nothing elsewhere.
type bar struct {
	out     io.Writer
	now     func() time.Time
	shown   bool
	started time.Time
	last    time.Time
	drawn   bool
}

// show draws it anew, at most some times a second.
func (b *bar) show(at, from, to time.Time, events int) {
	if !b.shown {
		return
	}
	now := b.now()
	if b.started.IsZero() {
		b.started = now
	}
	if now.Sub(b.last) < barEvery {
		return
	}
	b.last, b.drawn = now, true
	part := min(max(at.Sub(from).Seconds()/to.Sub(from).Seconds(), 0), 1)
	full := int(part * barWidth)
	rate := ""
	if took := now.Sub(b.started).Seconds(); took > 0 {
		rate = fmt.Sprintf(", %.0f events/s", float64(events)/took)
	}
	fmt.Fprintf(b.out, "\r[%s%s] %3.0f %%, at %s%s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), part*100, at.UTC().Format("01-02 15:04"), rate)
}

// end takes it away.
func (b *bar) end() {
	if b.drawn {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}
