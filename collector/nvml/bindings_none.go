//go:build !cgo

package nvml

import (
	"lowtide/collector/status"
	"lowtide/event"
)

const hasBindings = false

func openCards(string) cards { return none{} }

// none stands in where the library cannot be called.
type none struct{}

func (none) open(func(*event.Event)) []failure { return []failure{{status.Absent, noBindings}} }

func (none) sample(request, *frameWriter) (failures, fatal []failure, err error) {
	return nil, []failure{{status.Absent, noBindings}}, nil
}

func (none) close() {}
