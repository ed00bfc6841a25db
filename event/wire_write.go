package event

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The kinds of the fields of a body, by their numbers from 1: text, uint, int, float, bool.
const (
	gpuKinds        = "tituuuubfffuuubt"
	gpuProcessKinds = "tu"
	allocatorKinds  = "ttbuuuuuuuuuuuuuuuuuu"
	engineKinds     = "ffuuuuuuuuuuufffffffuuffbuf"
	processKinds    = "uuuuuuuuufuu"
)

// appendBatch writes a batch as protobuf does, by field number, without the hosts of its events. It returns nil where something is not in
// the plain form: a text that is not UTF-8, or fields that this version does not know; protobuf then writes it, or says what is wrong.
func appendBatch(b *Batch) []byte {
	if len(b.unknownFields) > 0 || len(b.Host.unknownFields) > 0 {
		return nil
	}
	out := make([]byte, 0, 128+256*len(b.Events))
	out = appendNumber(out, batchSchema, Schema)
	start := len(out)
	ok := true
	text := func(number int, s string) {
		ok = ok && utf8.ValidString(s)
		out = appendText(out, number, s)
	}
	text(1, b.Host.Cluster)
	text(2, b.Host.Name)
	text(3, b.Host.BootId)
	out = nest(out, start, batchHost)
	text(batchSource, b.Source)
	text(batchProducer, b.Producer)
	text(batchLane, b.Lane)
	if b.Sequence != 0 {
		out = appendNumber(out, batchSequence, b.Sequence)
	}
	for _, e := range b.Events {
		start := len(out)
		if out = appendEvent(out, e); out == nil || !ok {
			return nil
		}
		out = nest(out, start, batchEvents)
	}
	return out
}

// AppendEvent appends an event to what stands of a Batch's encoded form, as the last of its events and without its host. What EncodeBatch
// returns of a batch without events may stand before it. After an error, which says what cannot be encoded, out is as long as it was.
func AppendEvent(out []byte, e *Event) ([]byte, error) {
	if plain := appendEvent(out, e); plain != nil {
		return nest(plain, len(out), batchEvents), nil
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
		if out = appendStamp(out, e.Time); out == nil {
			return nil
		}
		out = nest(out, start, eventTime)
	}
	if e.Worker != nil {
		start := len(out)
		if out = appendWorker(out, e.Worker); out == nil {
			return nil
		}
		out = nest(out, start, eventWorker)
	}
	start := len(out)
	switch _, _, bodies := e.body(); {
	case bodies != 1:
	case e.Gpu != nil && len(e.Gpu.unknownFields) == 0:
		return nest(appendBody(out, e.Gpu, gpuKinds), start, eventGpu)
	case e.GpuProcess != nil && len(e.GpuProcess.unknownFields) == 0:
		return nest(appendBody(out, e.GpuProcess, gpuProcessKinds), start, eventGpuProcess)
	case e.Allocator != nil && len(e.Allocator.unknownFields) == 0:
		return nest(appendBody(out, e.Allocator, allocatorKinds), start, eventAllocator)
	case e.Engine != nil && len(e.Engine.unknownFields) == 0:
		return nest(appendBody(out, e.Engine, engineKinds), start, eventEngine)
	case e.Process != nil && len(e.Process.unknownFields) == 0:
		return nest(appendBody(out, e.Process, processKinds), start, eventProcess)
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

// nest makes what was written from start on a message of that number. Nil stays nil.
func nest(out []byte, start, number int) []byte {
	if out == nil {
		return nil
	}
	var head [12]byte
	prefix := protowire.AppendTag(head[:0], protowire.Number(number), protowire.BytesType)
	prefix = protowire.AppendVarint(prefix, uint64(len(out)-start))
	out = append(out, prefix...)
	copy(out[start+len(prefix):], out[start:len(out)-len(prefix)])
	copy(out[start:], prefix)
	return out
}

func appendNumber(out []byte, number int, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(out, protowire.Number(number), protowire.VarintType), v)
}

// appendText writes a text that is not empty.
func appendText(out []byte, number int, s string) []byte {
	if s == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, protowire.Number(number), protowire.BytesType), s)
}

func appendStamp(out []byte, t *timestamppb.Timestamp) []byte {
	if len(t.ProtoReflect().GetUnknown()) > 0 {
		return nil
	}
	if t.Seconds != 0 {
		out = appendNumber(out, stampSeconds, uint64(t.Seconds))
	}
	if t.Nanos != 0 {
		out = appendNumber(out, stampNanos, uint64(int64(t.Nanos)))
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
		out = appendNumber(out, 1, uint64(w.Pid))
	}
	if w.StartTicks != nil {
		out = appendNumber(out, 2, *w.StartTicks)
	}
	if w.StartTime != nil {
		start := len(out)
		if out = appendStamp(out, w.StartTime); out == nil {
			return nil
		}
		out = nest(out, start, 3)
	}
	out = appendText(out, 4, w.Role)
	if w.Rank != nil {
		out = appendNumber(out, 5, uint64(*w.Rank))
	}
	for _, uuid := range w.GpuUuids {
		if !utf8.ValidString(uuid) {
			return nil
		}
		out = protowire.AppendString(protowire.AppendTag(out, 6, protowire.BytesType), uuid) // an empty one counts
	}
	out = appendText(out, 7, w.Engine)
	if w.EngineIndex != nil {
		out = appendNumber(out, 8, uint64(*w.EngineIndex))
	}
	for i, s := range [...]string{w.Unit, w.Model, w.Release, w.Pod, w.ContainerId} {
		out = appendText(out, 9+i, s)
	}
	return out
}

// appendBody writes the fields of a body that are set, or returns nil.
func appendBody(out []byte, body wired, kinds string) []byte {
	for i := range len(kinds) {
		number := i + 1
		switch kinds[i] {
		case 't':
			s := *body.wireText(uint64(number))
			if !utf8.ValidString(s) {
				return nil
			}
			out = appendText(out, number, s)
		case 'u':
			if v := *body.wireUint(uint64(number)); v != nil {
				out = appendNumber(out, number, *v)
			}
		case 'i':
			if v := *body.wireInt(uint64(number)); v != nil {
				out = appendNumber(out, number, uint64(*v))
			}
		case 'f':
			if v := *body.wireFloat(uint64(number)); v != nil {
				out = protowire.AppendTag(out, protowire.Number(number), protowire.Fixed64Type)
				out = binary.LittleEndian.AppendUint64(out, math.Float64bits(*v))
			}
		case 'b':
			if v := *body.wireBool(uint64(number)); v != nil {
				out = appendNumber(out, number, protowire.EncodeBool(*v))
			}
		}
	}
	return out
}
