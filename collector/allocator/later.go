package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	againAfter  = time.Minute     // an ask that failed for a passing reason is sent once more; a probe's own pace is a minute
	againWithin = 5 * time.Minute // or else given up
)

// later is an ask that is to be sent once more, without a file meanwhile.
type later struct {
	*sent
	due time.Time
}

// sendLater sends what was put off once more: it has kept its place among the asks of the host. The lock is held.
func (d *desk) sendLater(connected []probe, now time.Time) {
	waiting := d.later
	d.later = nil
	for _, l := range waiting {
		i := slices.IndexFunc(connected, func(c probe) bool { return c.life == l.life })
		switch {
		case d.source.ended(l.life):
			d.failed(l.sent, "died", errors.New("the process ended before it was asked again"), 0, now)
		case now.Sub(l.due) > againWithin:
			d.failed(l.sent, "timeout", fmt.Errorf("%w: its probe was away when it was to be asked again", context.DeadlineExceeded), 0, now)
		case now.Before(l.due) || i < 0:
			d.later = append(d.later, l)
		default:
			if _, err := d.send(connected[i].peer, connected[i].gpu, l.sent, now); err != nil {
				d.failed(l.sent, "unsent", err, 0, now)
			}
		}
	}
}
