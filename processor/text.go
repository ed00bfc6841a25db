package processor

import (
	"google.golang.org/protobuf/proto"

	"lowtide/collector/oom"
	"lowtide/event"
)

// spelled is an OOM with the numbers that its text tells, where whoever published it sent the text alone. The event is not changed.
func spelled(e *event.Event) *event.Event {
	o := e.Oom
	if o.Text == "" || o.RequestedBytes != nil || o.FreeBytes != nil || o.AllocatedBytes != nil || o.VictimPid != nil {
		return e
	}
	read, ok := oom.Parse(o.Text)
	if !ok {
		return e
	}
	proto.Merge(read, o) // what was sent counts
	return &event.Event{Time: e.Time, Host: e.Host, Worker: e.Worker, Oom: read}
}
