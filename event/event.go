// Package event owns the vocabulary: the bodies a collector publishes, their identity, subjects and message ids, the JSON form
// with exactly the names of vocabulary.md, recordings, and the finding. It does no I/O to the network and judges nothing.
package event

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// Schema is the version of Batch that this program writes and reads.
const Schema = 1

// The lanes of a producer, each first-in-first-out.
const (
	LaneSamples = "samples"
	LaneUrgent  = "urgent" // oom, xid, lifecycle: must not wait behind samples
)

// MaxLine is the longest event in JSON, in bytes. A snapshot summary may take 256 KiB.
const MaxLine = 1 << 20

// Ptr returns a pointer to v, since an optional field is one.
func Ptr[T any](v T) *T { return &v }

// At returns the time of the event, in UTC.
func (e *Event) At() time.Time { return e.GetTime().AsTime() }

// Body names the event's body as the JSON form does. It is empty when the event has none.
func (e *Event) Body() string {
	name, _, _ := e.body()
	return name
}

// body also counts, so that Validate can say what is wrong.
func (e *Event) body() (name string, message proto.Message, bodies int) {
	note := func(present bool, body string, m proto.Message) {
		if present {
			name, message = body, m
			bodies++
		}
	}
	note(e.Gpu != nil, "gpu", e.Gpu)
	note(e.GpuProcess != nil, "gpu_process", e.GpuProcess)
	note(e.Allocator != nil, "allocator", e.Allocator)
	note(e.Engine != nil, "engine", e.Engine)
	note(e.Process != nil, "process", e.Process)
	note(e.Machine != nil, "machine", e.Machine)
	note(e.Xid != nil, "xid", e.Xid)
	note(e.Oom != nil, "oom", e.Oom)
	note(e.Lifecycle != nil, "lifecycle", e.Lifecycle)
	note(e.Snapshot != nil, "snapshot", e.Snapshot)
	note(e.Config != nil, "config", e.Config)
	note(e.Mark != nil, "mark", e.Mark)
	note(e.Log != nil, "log", e.Log)
	note(e.Source != nil, "source", e.Source)
	note(e.OtherBody != nil, e.GetOtherBody().GetName(), e.OtherBody)
	return name, message, bodies
}

// Lane returns the lane an event travels in.
func Lane(e *Event) string {
	if e.Oom != nil || e.Xid != nil || e.Lifecycle != nil {
		return LaneUrgent
	}
	return LaneSamples
}

// Validate says what an event lacks, or what in it is out of bounds, in the words of the vocabulary. The host may be missing inside a
// Batch.
func Validate(e *Event) error {
	if e.Time == nil {
		return errors.New("field time: missing; every event has one, RFC 3339 in UTC")
	}
	if err := e.Time.CheckValid(); err != nil || e.Time.Seconds <= 0 {
		return fmt.Errorf("field time: %s is out of range", e.At().Format(time.RFC3339))
	}
	name, message, bodies := e.body()
	if bodies != 1 {
		if bodies == 0 {
			return errors.New("no body: an event has exactly one, such as gpu, allocator or engine")
		}
		return fmt.Errorf("%d bodies: an event has exactly one", bodies)
	}
	size := proto.Size(message)
	if size == 0 {
		return fmt.Errorf("body %s: is empty; leave out what was not read", name)
	}
	if e.Host != nil {
		if err := ValidateHost(e.Host); err != nil {
			return err
		}
	}
	switch {
	case e.Worker == nil && aboutProcess(e):
		return fmt.Errorf("field worker: missing; %s is about a process", name)
	case e.Worker != nil && e.Worker.Pid <= 0:
		return fmt.Errorf("field worker.pid: %d is no process", e.Worker.Pid)
	case e.Gpu != nil && e.Gpu.Uuid == "":
		return errors.New("field gpu.uuid: missing")
	}
	if suspect(e, size) {
		return bounds(e)
	}
	return nil
}

func aboutProcess(e *Event) bool {
	return e.GpuProcess != nil || e.Allocator != nil || e.Engine != nil || e.Process != nil || e.Lifecycle != nil
}
