package kernel

import (
	"fmt"
	"slices"
	"time"

	"lowtide/event"
)

// A node was seen to log 11,760 Xids in one go (45, the clean-up after one real error).
const (
	repeatSpan     = 10 * time.Second // the same error of the same process within it is a repeat
	perSecond      = 50               // events
	ofApplications = 40               // of these, at most so many that blame the program: a storm must not crowd the device's out
	storm          = 10               // from so many repeats on their number is an event of its own
	maxErrors      = 1024             // errors remembered at a time
)

// limiter keeps the rate of events bounded. Order is the log's.
type limiter struct {
	second time.Time // that the counts are of
	kept   int
	left   uint64 // events left out since last asked
	errors map[failure]*repeats
}

// failure is what makes two Xids the same.
type failure struct {
	pci  string
	code uint64
	pid  int64
}

type repeats struct {
	since time.Time
	n     int
	last  *event.Event
}

// goesOn is false once the clock was set back behind the first one, or every repeat until then would be taken for one of it.
func (r *repeats) goesOn(at time.Time) bool {
	since := at.Sub(r.since)
	return since >= 0 && since < repeatSpan
}

func failureOf(x *event.Xid) failure {
	f := failure{pci: x.Pci, code: x.GetCode(), pid: x.GetPid()}
	if f.code == busLost {
		f.pid = 0 // said twice, once with the process that happened to ask and once without
	}
	return f
}

// keep says whether the event leaves.
func (l *limiter) keep(e *event.Event) bool {
	at := e.At()
	if e.Xid != nil {
		if r := l.errors[failureOf(e.Xid)]; r != nil && r.goesOn(at) {
			r.n++
			r.last = e
			return false
		}
	}
	if !l.room(at, e.Xid != nil && event.ApplicationXid(e.Xid.GetCode())) {
		l.left++
		return false
	}
	if e.Xid != nil {
		if r := l.errors[failureOf(e.Xid)]; r != nil && r.n > 0 {
			e.Xid.Text = repeated(e.Xid.Text, r.n)
		}
		if l.errors == nil {
			l.errors = make(map[failure]*repeats)
		}
		if len(l.errors) < maxErrors {
			l.errors[failureOf(e.Xid)] = &repeats{since: at}
		}
	}
	return true
}

func (l *limiter) room(at time.Time, application bool) bool {
	if second := at.Truncate(time.Second); !second.Equal(l.second) {
		l.second, l.kept = second, 0
	}
	if l.kept >= perSecond || application && l.kept >= ofApplications {
		return false
	}
	l.kept++
	return true
}

// sweep forgets the errors whose span is over at this time. A storm's last repeat leaves then, with their number.
func (l *limiter) sweep(now time.Time) (out []*event.Event) {
	for f, r := range l.errors {
		if r.goesOn(now) {
			continue
		}
		if r.n >= storm {
			r.last.Xid.Text = repeated(r.last.Xid.Text, r.n)
			out = append(out, r.last)
		}
		delete(l.errors, f)
	}
	slices.SortFunc(out, func(a, b *event.Event) int { return a.At().Compare(b.At()) })
	return out[:min(len(out), perSecond)]
}

func repeated(text string, n int) string {
	return fmt.Sprintf("%s [repeated %d times within %s]", text, n, repeatSpan)
}
