package event

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The wire types of protobuf that events have.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

// The fields of Batch, Event and Timestamp that the reader of the plain form knows.
const (
	batchSchema, batchHost, batchSource, batchProducer, batchLane, batchSequence, batchEvents = 1, 2, 3, 4, 5, 6, 7
	eventTime, eventHost, eventWorker                                                         = 1, 2, 3
	eventGpu, eventGpuProcess, eventAllocator, eventEngine, eventProcess                      = 10, 11, 12, 13, 14
	stampSeconds, stampNanos                                                                  = 1, 2

	lastSecond = 253402300799 // of the year 9999
)

// BatchReader reads batches that follow each other. It remembers hosts and workers, which stand in every message, byte for byte the
// same: they are read once and then shared, and so is the time of a tick. It is not safe for concurrent use. Nothing that it returns may
// be changed.
//
// As the reader of NDJSON, it tries the plain form first, and never says what is wrong with a message: protobuf reads what is not in
// that form, so that there is one definition of what is right.
type BatchReader struct {
	lines  *decoder // of the JSON form
	wire   *decoder // its words, hosts, workers, homes and slots; what it knows is keyed by the bytes on the wire
	events int      // of the last batch
}

// NewBatchReader returns one that has seen nothing yet.
func NewBatchReader() *BatchReader { return &BatchReader{lines: newDecoder(), wire: newDecoder()} }

// Decode is DecodeBatch, but for what it remembers.
func (r *BatchReader) Decode(contentType string, data []byte) (*Batch, []string, error) {
	if len(data) <= MaxBatch && contentType == "" {
		if b := r.plain(data); b != nil {
			return b, nil, nil
		}
	}
	return decodeBatch(r.lines, contentType, data)
}

// field reads a tag and returns what stands behind it: a number, or bytes.
func field(data []byte) (number, kind, value uint64, bytes, rest []byte, ok bool) {
	tag, n := uvarint(data)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
		return 0, 0, 0, nil, nil, false
	}
	data = data[n:]
	switch number, kind = tag>>3, tag&7; kind {
	case wireVarint:
		if value, n = uvarint(data); n <= 0 {
			return 0, 0, 0, nil, nil, false
		}
		return number, kind, value, nil, data[n:], true
	case wireFixed64:
		if len(data) < 8 {
			return 0, 0, 0, nil, nil, false
		}
		return number, kind, binary.LittleEndian.Uint64(data), nil, data[8:], true
	case wireBytes:
		length, n := uvarint(data)
		if n <= 0 || length > uint64(len(data)-n) {
			return 0, 0, 0, nil, nil, false
		}
		return number, kind, 0, data[n : n+int(length)], data[n+int(length):], true
	}
	return 0, 0, 0, nil, nil, false
}

// uvarint is binary.Uvarint with its short form first: nearly all tags and lengths are one byte.
func uvarint(data []byte) (uint64, int) {
	if len(data) > 0 && data[0] < 0x80 {
		return uint64(data[0]), 1
	}
	return binary.Uvarint(data)
}

// plain reads a batch in the plain form, or returns nil.
func (r *BatchReader) plain(data []byte) *Batch {
	d, b := r.wire, &Batch{}
	if r.events > 0 {
		b.Events = make([]*Event, 0, r.events)
	}
	for len(data) > 0 {
		number, kind, value, bytes, rest, ok := field(data)
		if !ok {
			return nil
		}
		data = rest
		switch {
		case number == batchSchema && kind == wireVarint && value == Schema:
			b.Schema = Schema
		case number == batchHost && kind == wireBytes && b.Host == nil:
			if b.Host = d.wireHost(bytes); b.Host == nil {
				return nil
			}
		case number == batchSource && kind == wireBytes:
			b.Source, ok = d.wireWord(bytes)
		case number == batchProducer && kind == wireBytes:
			b.Producer, ok = d.wireWord(bytes)
		case number == batchLane && kind == wireBytes:
			b.Lane, ok = d.wireWord(bytes)
		case number == batchSequence && kind == wireVarint:
			b.Sequence = value
		case number == batchEvents && kind == wireBytes:
			e := d.wireEvent(bytes)
			if e == nil {
				return nil
			}
			b.Events = append(b.Events, e)
		default:
			return nil
		}
		if !ok {
			return nil
		}
	}
	if b.Schema != Schema || b.Host == nil || validateBatch(b) != nil || len(b.Host.BootId) > maxString {
		return nil
	}
	for _, e := range b.Events {
		e.Host = b.Host
	}
	r.events = min(len(b.Events), 1024)
	return b
}

// wireEvent reads an event without a host, which stands in the batch. One with a rare body is protobuf's to read.
func (d *decoder) wireEvent(data []byte) *Event {
	d.draft = draft{}
	whole := data
	for len(data) > 0 {
		number, kind, _, bytes, rest, ok := field(data)
		if !ok || kind != wireBytes {
			return nil
		}
		data = rest
		switch {
		case number == eventTime && d.draft.time == nil:
			d.draft.time = d.wireTime(bytes)
			ok = d.draft.time != nil
		case number == eventWorker && d.draft.worker == nil:
			d.draft.worker = d.wireWorker(bytes)
			ok = d.draft.worker != nil
		case d.draft.event != nil: // a second body
			return nil
		case number == eventGpu:
			home := home(d, &d.homes.gpu)
			d.draft.event, home.event.Gpu = &home.event, &home.body
			d.slots = slots{uints: home.uints[:], ints: home.ints[:], floats: home.floats[:], bools: home.bools[:]}
			ok = d.wireBody(bytes, &home.body)
		case number == eventGpuProcess:
			home := home(d, &d.homes.gpuProcess)
			d.draft.event, home.event.GpuProcess = &home.event, &home.body
			d.slots = slots{uints: home.uints[:]}
			ok = d.wireBody(bytes, &home.body)
		case number == eventAllocator:
			home := home(d, &d.homes.allocator)
			d.draft.event, home.event.Allocator = &home.event, &home.body
			d.slots = slots{uints: home.uints[:], bools: home.bools[:]}
			ok = d.wireBody(bytes, &home.body)
		case number == eventEngine:
			home := home(d, &d.homes.engine)
			d.draft.event, home.event.Engine = &home.event, &home.body
			d.slots = slots{uints: home.uints[:], floats: home.floats[:], bools: home.bools[:]}
			ok = d.wireBody(bytes, &home.body)
		case number == eventProcess:
			home := home(d, &d.homes.process)
			d.draft.event, home.event.Process = &home.event, &home.body
			d.slots = slots{uints: home.uints[:], floats: home.floats[:]}
			ok = d.wireBody(bytes, &home.body)
		case number == eventHost:
			return nil
		default:
			return rareEvent(whole)
		}
		if !ok {
			return nil
		}
	}
	return d.draft.finish(len(whole))
}

// rareEvent lets protobuf read an event, or returns nil where something is wrong with it.
func rareEvent(data []byte) *Event {
	e := new(Event)
	if proto.Unmarshal(data, e) != nil || e.Host != nil || Validate(e) != nil {
		return nil
	}
	return e
}

// wireBody reads a body of which at least one field is set. A field that comes twice counts as the last one says, as everywhere in protobuf.
func (d *decoder) wireBody(data []byte, body wired) bool {
	set := false
	for len(data) > 0 {
		number, kind, value, bytes, rest, ok := field(data)
		if !ok {
			return false
		}
		data = rest
		switch kind {
		case wireVarint:
			if at := body.wireUint(number); at != nil {
				if *at == nil {
					*at = &d.slots.uints[d.slots.uintN]
					d.slots.uintN++
				}
				**at = value
			} else if at := body.wireBool(number); at != nil {
				if *at == nil {
					*at = &d.slots.bools[d.slots.boolN]
					d.slots.boolN++
				}
				**at = value != 0
			} else if at := body.wireInt(number); at != nil {
				if *at == nil {
					*at = &d.slots.ints[d.slots.intN]
					d.slots.intN++
				}
				**at = int64(value)
			} else {
				return false
			}
			set = true
		case wireFixed64:
			at := body.wireFloat(number)
			if at == nil {
				return false
			}
			if *at == nil {
				*at = &d.slots.floats[d.slots.floatN]
				d.slots.floatN++
			}
			**at = math.Float64frombits(value)
			set = true
		case wireBytes:
			at := body.wireText(number)
			if at == nil {
				return false
			}
			if *at, ok = d.wireWord(bytes); !ok {
				return false
			}
			set = set || *at != ""
		}
	}
	return set
}

// wireWord returns a text, one that was seen before where it may be.
func (d *decoder) wireWord(raw []byte) (string, bool) {
	if known, ok := d.words[string(raw)]; ok {
		return known, true
	}
	if !utf8.Valid(raw) {
		return "", false
	}
	word := string(raw)
	if d.words != nil && len(word) <= maxWord {
		if len(d.words) >= maxKnown {
			clear(d.words)
		}
		d.words[word] = word
	}
	return word, true
}

// wireTime reads a time in the bounds of an event's, or returns nil. The events of a tick share one.
func (d *decoder) wireTime(raw []byte) *timestamppb.Timestamp {
	if d.stamp.time != nil && string(d.stamp.text) == string(raw) {
		return d.stamp.time
	}
	t := new(timestamppb.Timestamp)
	for data := raw; len(data) > 0; {
		number, kind, value, _, rest, ok := field(data)
		switch {
		case !ok || kind != wireVarint:
			return nil
		case number == stampSeconds && value > 0 && value <= lastSecond:
			t.Seconds = int64(value)
		case number == stampNanos && value < 1e9:
			t.Nanos = int32(value)
		default:
			return nil
		}
		data = rest
	}
	if t.Seconds == 0 {
		return nil
	}
	d.stamp.text, d.stamp.time = append(d.stamp.text[:0], raw...), t
	return t
}

// wireHost reads a host that may stand in a subject, or returns nil.
func (d *decoder) wireHost(raw []byte) *Host {
	if h := d.hosts[string(raw)]; h != nil {
		return h
	}
	h := new(Host)
	if proto.Unmarshal(raw, h) != nil || ValidateHost(h) != nil {
		return nil
	}
	d.hosts.keep(raw, h)
	return h
}

// wireWorker reads a process, or returns nil.
func (d *decoder) wireWorker(raw []byte) *Worker {
	if w := d.workers[string(raw)]; w != nil {
		return w
	}
	w := new(Worker)
	if proto.Unmarshal(raw, w) != nil || w.Pid <= 0 {
		return nil
	}
	d.workers.keep(raw, w)
	return w
}
