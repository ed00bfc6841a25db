package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"lowtide/collector/status"
	"lowtide/event"
)

const (
	maxFailures    = 8   // that are told one by one
	maxFailureText = 240 // bytes of each
)

// failures are what went wrong at several targets. The text is bounded; all of them can be asked about with errors.Is.
type failures []error

func (f failures) Error() string {
	var b strings.Builder
	for i, err := range f {
		if i == maxFailures {
			b.WriteString("; and " + strconv.Itoa(len(f)-i) + " more")
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(cut(err.Error(), maxFailureText))
	}
	return b.String()
}

func (f failures) Unwrap() []error { return f }

// failed is the error of a target. What answered before and is not there now is lost.
func (t *target) failed(err error) error {
	if errors.Is(err, status.ErrAbsent) && t.ever {
		return fmt.Errorf("%s: %w: answered before, and does not any more (%s)", t.name, status.ErrLost, cut(err.Error(), 100))
	}
	return fmt.Errorf("%s: %w", t.name, err)
}

// loading says whether a failure is one of an engine that is not ready yet. A timeout is not: an engine that has run for days can
// be too busy to answer, and a `ready` afterwards would make its judge wait through a warm-up.
func loading(err error) bool {
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// cut shortens text at a rune.
func cut(text string, n int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= n {
		return text
	}
	return event.Shorten(text, n) + "…"
}
