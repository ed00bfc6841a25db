// Package status owns what a source says about itself: the values of a `source` event's status and the errors behind them. It
// stands apart from collector so that sources need nothing of the agent that runs them.
package status

import (
	"context"
	"errors"
	"os"
)

// What a source's error may wrap.
var (
	ErrAbsent      = errors.New("absent")      // the thing to be read is not on this host
	ErrUnsupported = errors.New("unsupported") // it is there, but cannot be asked this
	ErrDenied      = errors.New("denied")      // permission is missing
	ErrLost        = errors.New("lost")        // it was there and is gone, or readings were lost
)

// The values of a `source` event's status.
const (
	OK          = "ok"
	Absent      = "absent"
	Unsupported = "unsupported"
	Denied      = "denied"
	Timeout     = "timeout"
	Lost        = "lost"
)

// Of maps the error of a Collect to the status of its `source` event. An error that says nothing more is lost: a reading
// was expected and did not come.
func Of(err error) string {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.Is(err, ErrDenied), errors.Is(err, os.ErrPermission):
		return Denied
	case errors.Is(err, ErrUnsupported), errors.Is(err, errors.ErrUnsupported):
		return Unsupported
	case errors.Is(err, ErrAbsent), errors.Is(err, os.ErrNotExist):
		return Absent
	default:
		return Lost
	}
}
