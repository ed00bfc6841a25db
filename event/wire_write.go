package event

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// appendBatch writes a batch as protobuf does, by field number, without the hosts of its events. It returns nil where something is not in
// the plain form: a text that is not UTF-8, or fields that this version does not know; protobuf then writes it, or says what is wrong.
func appendBatch(b *Batch) []byte {
	if len(b.unknownFields) > 0 || len(b.Host.unknownFields) > 0 {
		return nil
	}
	for _, s := range [...]string{b.Host.Cluster, b.Host.Name, b.Host.BootId, b.Source, b.Producer, b.Lane} {
		if !utf8.ValidString(s) {
			return nil
		}
	}
	out := make([]byte, 0, 128+256*len(b.Events))
	out = appendNumber(out, batchSchema<<3|wireVarint, Schema)
	start := len(out)
	out = opened(out, batchHost)
	out = appendText(out, 1<<3|wireBytes, b.Host.Cluster)
	out = appendText(out, 2<<3|wireBytes, b.Host.Name)
	out = appendText(out, 3<<3|wireBytes, b.Host.BootId)
	out = closed(out, start)
	out = appendText(out, batchSource<<3|wireBytes, b.Source)
	out = appendText(out, batchProducer<<3|wireBytes, b.Producer)
	out = appendText(out, batchLane<<3|wireBytes, b.Lane)
	if b.Sequence != 0 {
		out = appendNumber(out, batchSequence<<3|wireVarint, b.Sequence)
	}
	for _, e := range b.Events {
		start := len(out)
		out = closed(appendEvent(opened(out, batchEvents), e), start)
		if out == nil {
			return nil
		}
	}
	return out
}

// AppendEvent appends an event to what stands of a Batch's encoded form, as the last of its events and without its host. What EncodeBatch
// returns of a batch without events may stand before it. After an error, which says what cannot be encoded, out is as long as it was.
func AppendEvent(out []byte, e *Event) ([]byte, error) {
	if plain := closed(appendEvent(opened(out, batchEvents), e), len(out)); plain != nil {
		return plain, nil
	}
	whole, err := proto.MarshalOptions{}.MarshalAppend(out, &Batch{Events: []*Event{withoutHost(e)}})
	if err != nil {
		return out, err
	}
	return whole, nil
}

// appendEvent writes an event without its host, or returns nil.
func appendEvent(out []byte, e *Event) []byte {
	if len(e.unknownFields) > 0 {
		return nil
	}
	if e.Time != nil {
		start := len(out)
		if out = closed(appendStamp(opened(out, eventTime), e.Time), start); out == nil {
			return nil
		}
	}
	if e.Worker != nil {
		start := len(out)
		if out = closed(appendWorker(opened(out, eventWorker), e.Worker), start); out == nil {
			return nil
		}
	}
	start := len(out)
	switch _, _, bodies := e.body(); {
	case bodies != 1:
	case e.Gpu != nil && len(e.Gpu.unknownFields) == 0:
		return closed(appendGpu(opened(out, eventGpu), e.Gpu), start)
	case e.GpuProcess != nil && len(e.GpuProcess.unknownFields) == 0:
		return closed(appendGpuProcess(opened(out, eventGpuProcess), e.GpuProcess), start)
	case e.Allocator != nil && len(e.Allocator.unknownFields) == 0:
		return closed(appendAllocator(opened(out, eventAllocator), e.Allocator), start)
	case e.Engine != nil && len(e.Engine.unknownFields) == 0:
		return closed(appendEngine(opened(out, eventEngine), e.Engine), start)
	case e.Process != nil && len(e.Process.unknownFields) == 0:
		return closed(appendProcess(opened(out, eventProcess), e.Process), start)
	case e.Machine != nil && len(e.Machine.unknownFields) == 0:
		return closed(appendMachine(opened(out, eventMachine), e.Machine), start)
	}
	// A rare body, or several. Time and worker are written already, and come before it.
	rare := withoutHost(e)
	rare.Time, rare.Worker = nil, nil
	out, err := proto.MarshalOptions{}.MarshalAppend(out, rare)
	if err != nil {
		return nil
	}
	return out
}

func appendStamp(out []byte, t *timestamppb.Timestamp) []byte {
	if len(t.ProtoReflect().GetUnknown()) > 0 {
		return nil
	}
	if t.Seconds != 0 {
		out = appendNumber(out, stampSeconds<<3|wireVarint, uint64(t.Seconds))
	}
	if t.Nanos != 0 {
		out = appendNumber(out, stampNanos<<3|wireVarint, uint64(int64(t.Nanos)))
	}
	return out
}

func appendWorker(out []byte, w *Worker) []byte {
	if len(w.unknownFields) > 0 {
		return nil
	}
	for _, s := range [...]string{w.Role, w.Engine, w.Unit, w.Model, w.Release, w.Pod, w.ContainerId} {
		if !utf8.ValidString(s) {
			return nil
		}
	}
	if w.Pid != 0 {
		out = appendNumber(out, 1<<3|wireVarint, uint64(w.Pid))
	}
	out = appendUint(out, 2<<3|wireVarint, w.StartTicks)
	if w.StartTime != nil {
		start := len(out)
		if out = closed(appendStamp(opened(out, 3), w.StartTime), start); out == nil {
			return nil
		}
	}
	out = appendText(out, 4<<3|wireBytes, w.Role)
	out = appendInt(out, 5<<3|wireVarint, w.Rank)
	for _, uuid := range w.GpuUuids {
		if !utf8.ValidString(uuid) {
			return nil
		}
		out = append(appendNumber(out, 6<<3|wireBytes, uint64(len(uuid))), uuid...) // an empty one counts
	}
	out = appendText(out, 7<<3|wireBytes, w.Engine)
	out = appendInt(out, 8<<3|wireVarint, w.EngineIndex)
	out = appendText(out, 9<<3|wireBytes, w.Unit)
	out = appendText(out, 10<<3|wireBytes, w.Model)
	out = appendText(out, 11<<3|wireBytes, w.Release)
	out = appendText(out, 12<<3|wireBytes, w.Pod)
	return appendText(out, 13<<3|wireBytes, w.ContainerId)
}
