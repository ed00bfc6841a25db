package collector

import (
	"context"
	"io"
	"sync"
	"time"

	"lowtide/event"
)

// reopenAfter is how long a source that could not be opened is left alone.
const reopenAfter = 30 * time.Second

// closed stands for a source that could not be opened: it says so at every tick and hurts no other. What is in the way may go, such
// as an older collector on the probes' socket, so it is tried again.
type closed struct {
	name  string
	err   error
	open  func() (Source, error)
	tried time.Time
	wake  chan struct{}

	mu     sync.Mutex // Close may come while a call hangs
	source Source     // once it is open
	ended  chan struct{}
	relay  sync.WaitGroup
}

func newClosed(name string, err error, open func() (Source, error)) *closed {
	return &closed{name: name, err: err, open: open, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// Name implements Source.
func (c *closed) Name() string { return c.name }

// Wake implements Waker, for the source that may come to be behind it.
func (c *closed) Wake() <-chan struct{} { return c.wake }

// Collect implements Source.
func (c *closed) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	source, err := c.reopen(tick)
	if err != nil {
		return nil, err
	}
	return source.Collect(ctx, tick)
}

func (c *closed) reopen(tick time.Time) (Source, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source != nil {
		return c.source, nil
	}
	if c.tried.IsZero() {
		c.tried = tick // it has just been tried
	}
	if since := tick.Sub(c.tried); since >= 0 && since < reopenAfter {
		return nil, c.err
	}
	c.tried = tick
	source, err := c.open()
	if err != nil {
		c.err = err
		return nil, err
	}
	c.source = source
	if w, ok := source.(Waker); ok {
		c.relay.Go(func() { c.forward(w.Wake()) })
	}
	return source, nil
}

// forward hands on the calls of the source until either ends.
func (c *closed) forward(calls <-chan struct{}) {
	for {
		select {
		case <-c.ended:
			return
		case _, open := <-calls:
			if !open {
				return
			}
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Close ends the source that came to be open.
func (c *closed) Close() error {
	close(c.ended)
	c.relay.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if closer, ok := c.source.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
