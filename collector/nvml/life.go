package nvml

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"lowtide/collector/status"
	"lowtide/event"
)

// life is the parent's view of one run of the child: one goroutine reads its frames until the stream ends.
type life struct {
	*process
	started  time.Time
	progress chan struct{} // of capacity one: something below has changed
	read     chan struct{} // closed when the reading goroutine has returned
	urgent   func([]*event.Event)
	answered func(uuid string)
	tick     time.Time // of the last request; this and skip belong to the one that sends
	skip     []string

	mu      sync.Mutex
	ready   bool      // the hello has come
	pending bool      // a request is not yet answered in full
	sent    time.Time // of the pending request
	asked   string    // the card that is being asked
	answer  answer
	failed  []failure // the child's own reason to end
	err     error     // why the stream is over
}

// answer is what has come of one request.
type answer struct {
	events   []*event.Event
	failures []failure
}

func live(p *process, urgent func([]*event.Event), answered func(uuid string)) *life {
	l := &life{process: p, started: time.Now(), progress: make(chan struct{}, 1), read: make(chan struct{}), urgent: urgent, answered: answered}
	go l.listen()
	return l
}

func (l *life) listen() {
	defer close(l.read)
	frames := newFrameReader(l.out)
	var err error
	for err == nil {
		var m message
		if m, err = frames.next(); err == nil {
			err = l.take(m)
		}
	}
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	l.kill() // who sends garbage, or has closed its end, is of no use any more
	l.out.Close()
	l.signal()
}

func (l *life) take(m message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case m.kind == failed:
		l.failed = m.failures
		if len(l.failed) == 0 {
			l.failed = []failure{{status.Lost, "NVML child gave up and did not say why"}}
		}
		return io.EOF
	case m.kind == hello && !l.ready:
		if m.version != protocol {
			return fmt.Errorf("%w: the child speaks version %d of the protocol, not %d; hint: restart lowtide after an upgrade", errGarbage, m.version, protocol)
		}
		l.ready = true
	case m.kind == xid: // also before the hello
		l.urgent(m.events)
		return nil
	case m.kind == asking && l.pending:
		l.asked = m.uuid
		return nil
	case m.kind == device && l.pending:
		l.answered(m.uuid)
		l.answer.events = append(l.answer.events, m.events...)
		l.answer.failures = append(l.answer.failures, m.failures...)
		return nil
	case m.kind == end && l.pending:
		l.answer.failures = append(l.answer.failures, m.failures...)
		l.pending, l.asked = false, ""
	default:
		return fmt.Errorf("%w: one of kind %q comes out of turn", errGarbage, byte(m.kind))
	}
	l.signal()
	return nil
}

func (l *life) signal() {
	select {
	case l.progress <- struct{}{}:
	default:
	}
}

// send hands over a request. The pipe takes the line without a reader, and there is never more than one in it.
func (l *life) send(r request) error {
	l.mu.Lock()
	l.pending, l.sent, l.asked, l.answer = true, time.Now(), "", answer{}
	l.mu.Unlock()
	if _, err := l.in.Write(r.line()); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	return nil
}

// harvest takes what has come so far of the answer.
func (l *life) harvest() answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.answer
	l.answer = answer{}
	return a
}

// state is a copy of what decides what to do next.
func (l *life) state() (ready, pending bool, sent time.Time, asked string, failed []failure, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready, l.pending, l.sent, l.asked, l.failed, l.err
}

// obituary says why the stream is over. The process has been killed by then at the latest, so that it ends, unless it hangs in the
// driver.
func (l *life) obituary(err error, limit <-chan time.Time) string {
	if errors.Is(err, errGarbage) {
		return fmt.Sprintf("NVML child is no longer understood: %v", err)
	}
	select {
	case <-l.ended:
		return "NVML child ended: " + l.how()
	case <-limit:
		return fmt.Sprintf("NVML child closed its pipe: %v", err)
	}
}
