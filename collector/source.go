// Package collector owns the agent of one host: the Source contract, the tick loop that asks every source, and the publisher
// that hands what they saw to JetStream. It refuses to judge: what a reading means is the processor's to say.
package collector

import (
	"context"
	"time"

	"lowtide/event"
)

// Source is one sensor of a host.
type Source interface {
	// Name is the source's token in subjects and `source` events: letters, digits, - and _. It never changes.
	Name() string

	// Collect reads the sensor once. Only the loop calls it, once per tick and never while an earlier call is still running, so
	// that a source needs no lock of its own. The context carries the deadline; a source that cannot heed it is left alone
	// until it returns. Events carry the tick's time (or, where they were observed earlier, that earlier time); an event
	// without a host is given the agent's. No events and a nil error mean that there was nothing to see, which is healthy.
	// Events that come with an error are published: the error says what is missing. An error wraps status.ErrAbsent, ErrUnsupported,
	// ErrDenied or ErrLost where one of them is meant. The caller owns the events afterwards.
	Collect(ctx context.Context, tick time.Time) ([]*event.Event, error)
}

// Waker is a Source that can have something to say between two ticks: a failed allocation, a device error, the end of a process.
type Waker interface {
	Source

	// Wake returns the source's one channel, of capacity one, on which it asks to be read now. The Collect that follows is told
	// the present moment as its tick and returns what waits, but no samples: those belong to the ticks.
	Wake() <-chan struct{}
}
