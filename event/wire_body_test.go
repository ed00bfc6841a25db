package event

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Every field of the bodies that come often, and of a worker, is read where it belongs, alone and beside all others. An event is what protobuf
// says, field by field, and protobuf was not needed for it.
func TestBatchReaderKnowsEveryField(t *testing.T) {
	fill := func(m protoreflect.Message, f protoreflect.FieldDescriptor) {
		n := int(f.Number())
		switch {
		case f.IsList():
			list := m.Mutable(f).List()
			list.Append(protoreflect.ValueOf(fmt.Sprint("card ", n)))
			list.Append(protoreflect.ValueOf(fmt.Sprint("other card ", n)))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOf(fmt.Sprint("text ", n)))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOf(uint64(1)<<(2*n)+uint64(n)))
		case f.Kind() == protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOf(int64(1000+n)))
		case f.Kind() == protoreflect.DoubleKind:
			m.Set(f, protoreflect.ValueOf(float64(n)+0.5))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOf(true))
		case f.Kind() == protoreflect.MessageKind:
			m.Set(f, protoreflect.ValueOf((&timestamppb.Timestamp{Seconds: 1_700_000_000, Nanos: 5}).ProtoReflect()))
		default:
			t.Fatalf("%s is of a kind that this test does not know", f.FullName())
		}
	}
	host, stamp := &Host{Cluster: "c", Name: "n"}, &timestamppb.Timestamp{Seconds: 1_800_000_000}
	r := NewBatchReader()
	read := func(what string, events ...*Event) {
		t.Helper()
		text, err := EncodeBatch(&Batch{Host: host, Source: "s", Producer: "p", Lane: LaneSamples, Events: events})
		if err != nil {
			t.Fatal(err)
		}
		got := r.plain(text)
		if got == nil {
			t.Fatalf("%s is not in the plain form", what)
		}
		for i, want := range events {
			if e := got.Events[i]; e.Host != got.Host || !proto.Equal(withoutHost(e), want) {
				t.Errorf("%s: read as %v\nwant %v", what, e, want)
			}
		}
	}
	for _, of := range []struct {
		body proto.Message
		put  func(*Event, proto.Message)
	}{
		{new(Gpu), func(e *Event, m proto.Message) { e.Gpu = m.(*Gpu) }},
		{new(GpuProcess), func(e *Event, m proto.Message) { e.GpuProcess = m.(*GpuProcess) }},
		{new(Allocator), func(e *Event, m proto.Message) { e.Allocator = m.(*Allocator) }},
		{new(Engine), func(e *Event, m proto.Message) { e.Engine = m.(*Engine) }},
		{new(Process), func(e *Event, m proto.Message) { e.Process = m.(*Process) }},
		{new(Machine), func(e *Event, m proto.Message) { e.Machine = m.(*Machine) }},
		{new(Worker), func(e *Event, m proto.Message) { e.Worker, e.Process = m.(*Worker), &Process{Fds: Ptr(uint64(3))} }},
	} {
		one := func(only protoreflect.FieldDescriptor) *Event {
			body := of.body.ProtoReflect().New()
			fields := body.Descriptor().Fields()
			for i := range fields.Len() {
				f := fields.Get(i)
				needed := f.FullName() == "lowtide.event.Gpu.uuid" || f.FullName() == "lowtide.event.Worker.pid"
				if only == nil || f == only || needed {
					fill(body, f)
				}
			}
			e := &Event{Time: stamp, Worker: &Worker{Pid: 7}}
			of.put(e, body.Interface())
			return e
		}
		var all []*Event
		for i, fields := 0, of.body.ProtoReflect().Descriptor().Fields(); i < fields.Len(); i++ {
			read(string(fields.Get(i).FullName()), one(fields.Get(i)))
			all = append(all, one(fields.Get(i)))
		}
		read(fmt.Sprintf("%T", of.body), append(all, one(nil))...)
	}
}
