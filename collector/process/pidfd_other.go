//go:build !linux

package process

import "errors"

// watcher needs pidfds, which only Linux has: elsewhere the end of a process is seen at the next tick.
type watcher struct{}

type ending struct {
	life   *life
	status *exitStatus
}

func newWatcher(*reader, func()) (*watcher, error) { return nil, errors.ErrUnsupported }

func (*watcher) add(*life, func(int) (stat, error)) {}
func (*watcher) awaits(*life) bool                  { return false }
func (*watcher) take() []ending                     { return nil }
func (*watcher) drop(*life) *exitStatus             { return nil }
func (*watcher) Close() error                       { return nil }
