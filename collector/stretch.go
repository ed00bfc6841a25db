package collector

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// stretched makes each real second many seconds of event time, so that minutes on real hardware are judged as hours, as the recordings
// are (only time is stretched: latencies stay real, rates per hour are divided). It exists for tests on hardware.
type stretched struct {
	next   Outlet
	origin time.Time // real
	start  time.Time // of event time
	factor float64
}

// Publish implements Outlet.
func (s stretched) Publish(source string, events []*event.Event) error {
	out := make([]*event.Event, len(events))
	for i, e := range events {
		e = proto.CloneOf(e)
		e.Time = timestamppb.New(s.at(e.At()))
		if e.Worker != nil && e.Worker.StartTime != nil {
			e.Worker.StartTime = timestamppb.New(s.at(e.Worker.StartTime.AsTime()))
		}
		out[i] = e
	}
	return s.next.Publish(source, out)
}

func (s stretched) at(t time.Time) time.Time {
	return s.start.Add(time.Duration(float64(t.Sub(s.origin)) * s.factor))
}
