package nvml

import (
	"context"
	"strings"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// failure is one thing that could not be read: what and where in words, and the status it means. It crosses the pipe from the
// child as the `source` body of an event.
type failure struct {
	kind string // of collector/status
	text string
}

func (f failure) Error() string { return f.text }

// Unwrap is nil for a kind that no status names, which status.Of takes for lost.
func (f failure) Unwrap() error {
	switch f.kind {
	case status.Absent:
		return status.ErrAbsent
	case status.Unsupported:
		return status.ErrUnsupported
	case status.Denied:
		return status.ErrDenied
	case status.Timeout:
		return context.DeadlineExceeded
	case status.Lost:
		return status.ErrLost
	default:
		return nil
	}
}

// maxReason bounds the text of a `source` event, in bytes; eight cards that fail alike stay below it.
const maxReason = 4 << 10

// join makes one error of all failures, on one line. It is nil when there are none.
func join(failures []failure) error {
	if len(failures) == 0 {
		return nil
	}
	all := make([]error, len(failures))
	var text strings.Builder
	for i, f := range failures {
		all[i] = f
		if text.Len() < maxReason {
			if i > 0 {
				text.WriteString("; ")
			}
			text.WriteString(f.text)
		}
	}
	return several{text: cut(text.String(), maxReason), all: all}
}

type several struct {
	text string
	all  []error
}

func (s several) Error() string   { return s.text }
func (s several) Unwrap() []error { return s.all }

func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return event.Shorten(text, limit) + "…"
}

// backoff is the wait before something is tried again: 1 s, doubled up to a minute. The zero value is ready.
type backoff struct{ wait time.Duration }

const (
	firstWait = time.Second
	lastWait  = time.Minute
)

func (b *backoff) next() time.Duration {
	b.wait = min(max(2*b.wait, firstWait), lastWait)
	return b.wait
}

func (b *backoff) reset() { b.wait = 0 }
