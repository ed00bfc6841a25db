package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stopLimit bounds the whole shutdown; what has not ended by then is named and left to the end of the process.
const stopLimit = 20 * time.Second

// parts runs what `up` composes. Each part has a context of its own, so that they end one after another, the last started first: the
// collector stops before the broker that acknowledges what it still holds.
type parts struct {
	started []part
	ended   chan error // one entry for every part that ended by itself
}

type part struct {
	name string
	stop func(context.Context) error // returns when the part is gone, or the context is over
}

func newParts() *parts { return &parts{ended: make(chan error, 16)} }

// lead starts the parts, waits until ctx ends or one of them fails, and stops them. An end that was asked for while they started is no error.
func (p *parts) lead(ctx context.Context, start func() error) error {
	err := start()
	switch {
	case err == nil:
		err = p.wait(ctx)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		err = nil
	}
	return errors.Join(err, p.stop())
}

// run starts a part that ends when its context does. An end before that, with or without an error, ends all.
func (p *parts) run(name string, body func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := body(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if ctx.Err() == nil {
			if err == nil {
				err = fmt.Errorf("%s: ended by itself", name)
			}
			p.ended <- err
			done <- nil // reported already
			return
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		done <- err
	}()
	p.started = append(p.started, part{name, func(limit context.Context) error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-limit.Done():
			return fmt.Errorf("%s: did not stop within %s", name, stopLimit)
		}
	}})
}

// onStop adds what has to be closed, in its place among the parts.
func (p *parts) onStop(name string, stop func(context.Context) error) {
	p.started = append(p.started, part{name, stop})
}

// wait returns nil when ctx ends, else why a part ended by itself.
func (p *parts) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.ended:
		return err
	}
}

// stop ends the parts, last started first, and joins their errors.
func (p *parts) stop() error {
	limit, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	var failures []error
	for len(p.started) > 0 {
		last := len(p.started) - 1
		failures = append(failures, p.started[last].stop(limit))
		p.started = p.started[:last]
	}
	return errors.Join(failures...)
}
