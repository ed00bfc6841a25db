package event

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The fields of Batch, Event and Timestamp that the reader of the plain form knows.
const (
	batchSchema, batchHost, batchSource, batchProducer, batchLane, batchSequence, batchEvents          = 1, 2, 3, 4, 5, 6, 7
	eventTime, eventHost, eventWorker                                                                  = 1, 2, 3
	eventGpu, eventGpuProcess, eventAllocator, eventEngine, eventProcess, eventMachine, eventBodyAfter = 10, 11, 12, 13, 14, 15, 16
	stampSeconds, stampNanos                                                                           = 1, 2

	lastSecond = 253402300799 // of the year 9999
	maxPieces  = 1024         // events of a message that room is kept for
	maxKept    = 256 << 10    // bytes of one that room is kept for
)

// BatchReader reads batches that follow each other, of any number of hosts. It remembers what stands in every message of a host, byte for
// byte the same: the host, its workers and its cards' names are read once and then shared. What it remembers is bounded, and a fleet that
// needs more is read right, only slower. It is not safe for concurrent use. Nothing that it returns may be changed.
//
// As the reader of NDJSON, it tries the plain form first, and never says what is wrong with a message: protobuf reads what is not in
// that form, so that there is one definition of what is right.
type BatchReader struct {
	lines *decoder // of the JSON form
	known acquaintances

	// Of the message that is being read.
	text   []byte // with the slack behind it
	pieces []piece
	counts [eventBodyAfter - eventGpu]int
	raw    []byte // of the last time
	stamp  *timestamppb.Timestamp
	begin  beginningOnWire
	wireRooms
}

// piece is an event of which all is known but what its body says.
type piece struct {
	time     *timestamppb.Timestamp
	worker   *Worker
	card     string // the first of the worker
	rare     *Event // read already
	body     uint64 // field number; 0 while there is none
	from, to int    // where the body stands
}

// beginningOnWire is what stands before the last body: most events that follow each other are of one time and one worker.
type beginningOnWire struct {
	raw []byte
	piece
}

// NewBatchReader returns one that has seen nothing yet.
func NewBatchReader() *BatchReader {
	return &BatchReader{lines: newDecoder(), known: newAcquaintances()}
}

// Decode is DecodeBatch, but for what it remembers.
func (r *BatchReader) Decode(contentType string, data []byte) (*Batch, []string, error) {
	if len(data) <= MaxBatch && contentType == "" {
		if b := r.plain(data); b != nil {
			return b, nil, nil
		}
	}
	return decodeBatch(r.lines, contentType, data)
}

// plain reads a batch in the plain form, or returns nil.
func (r *BatchReader) plain(data []byte) *Batch {
	r.text = append(append(r.text[:0], data...), make([]byte, slack)...) // which also brings all of it near at once
	b := r.outline(r.text, len(data))
	whole := b != nil
	if whole {
		b.Events = r.events(r.text, b.Host)
		whole = len(b.Events) == len(r.pieces)
	}
	r.forget()
	if !whole {
		return nil
	}
	return b
}

// forget ends a message. Nothing of it stays but what is known of the host, and room for the next one.
func (r *BatchReader) forget() {
	if clear(r.pieces); cap(r.pieces) > maxPieces {
		r.pieces = nil
	}
	if cap(r.text) > maxKept {
		r.text = nil
	}
	r.pieces, r.raw, r.stamp, r.begin, r.wireRooms = r.pieces[:0], nil, nil, beginningOnWire{}, wireRooms{}
	clear(r.counts[:])
	r.known.leave()
}

// outline reads all of a batch but the bodies of its events, which it counts: then they are made at once, as many as there are. The host
// comes first, as in every message that is written by field number.
func (r *BatchReader) outline(data []byte, end int) *Batch {
	b := &Batch{}
	for at := 0; at < end; {
		tag, value, next := scalar(data, at, end)
		ok := true
		switch tag {
		case batchEvents<<3 | wireBytes:
			ok = b.Host != nil && r.event(data, next-int(value), next)
		case batchSchema<<3 | wireVarint:
			b.Schema, ok = Schema, value == Schema
		case batchHost<<3 | wireBytes:
			if b.Host == nil {
				b.Host = r.known.enter(data[next-int(value) : next])
			} else {
				ok = false
			}
			ok = ok && b.Host != nil
		case batchSource<<3 | wireBytes:
			ok = r.known.text(&b.Source, ofBatch, data[next-int(value):next])
		case batchProducer<<3 | wireBytes:
			ok = r.known.text(&b.Producer, ofBatch, data[next-int(value):next])
		case batchLane<<3 | wireBytes:
			ok = r.known.text(&b.Lane, ofBatch, data[next-int(value):next])
		case batchSequence<<3 | wireVarint:
			b.Sequence = value
		default:
			ok = false
		}
		if !ok {
			return nil
		}
		at = next
	}
	if b.Schema != Schema || validateBatch(b) != nil {
		return nil
	}
	return b
}

// event reads an event without a host, which stands in the batch, and all of it but the body. One with a rare body is protobuf's to read.
func (r *BatchReader) event(data []byte, from, to int) bool {
	var p piece
	at := from
	if n := len(r.begin.raw); n > 0 && n <= to-from && string(r.begin.raw) == string(data[from:from+n]) {
		p = r.begin.piece
		at += n
	}
	for begun := at; at < to; {
		tag, value, next := scalar(data, at, to)
		start := next - int(value)
		switch tag {
		case eventTime<<3 | wireBytes:
			if p.time != nil {
				return false
			}
			if p.time = r.time(data, start, next); p.time == nil {
				return false
			}
		case eventWorker<<3 | wireBytes:
			if p.worker != nil {
				return false
			}
			if p.worker, p.card = r.known.worker(data, start, next); p.worker == nil {
				return false
			}
		case eventGpu<<3 | wireBytes, eventGpuProcess<<3 | wireBytes, eventAllocator<<3 | wireBytes, eventEngine<<3 | wireBytes, eventProcess<<3 | wireBytes, eventMachine<<3 | wireBytes:
			if p.body != 0 {
				return false
			}
			if at > begun {
				r.begin = beginningOnWire{data[from:at], p}
			}
			p.body, p.from, p.to = tag>>3, start, next
		case noTag, eventHost<<3 | wireBytes:
			return false
		default:
			p = piece{rare: rareEvent(data[from:to])}
			r.pieces = append(r.pieces, p)
			return p.rare != nil
		}
		at = next
	}
	if p.time == nil || p.body == 0 || p.worker == nil && p.body != eventGpu && p.body != eventMachine {
		return false
	}
	r.counts[p.body-eventGpu]++
	r.pieces = append(r.pieces, p)
	return true
}

// rareEvent lets protobuf read an event, or returns nil where something is wrong with it.
func rareEvent(data []byte) *Event {
	e := new(Event)
	if proto.Unmarshal(data, e) != nil || e.Host != nil || Validate(e) != nil {
		return nil
	}
	return e
}

// events reads the bodies that stand in a message, or returns nil where one is not in the plain form.
func (r *BatchReader) events(data []byte, host *Host) []*Event {
	if len(r.pieces) == 0 {
		return nil
	}
	out := make([]*Event, len(r.pieces))
	for i := range r.pieces {
		p := &r.pieces[i]
		e := p.rare
		switch p.body {
		case eventGpu:
			e = r.gpu(data, p.from, p.to)
		case eventGpuProcess:
			e = r.gpuProcess(data, p.from, p.to, p.card)
		case eventAllocator:
			e = r.allocator(data, p.from, p.to, p.card)
		case eventEngine:
			e = r.engine(data, p.from, p.to)
		case eventProcess:
			e = r.process(data, p.from, p.to)
		case eventMachine:
			e = r.machine(data, p.from, p.to)
		}
		if e == nil {
			return nil
		}
		if e.Host = host; p.body != 0 {
			e.Time, e.Worker = p.time, p.worker
		}
		out[i] = e
	}
	return out
}

// time reads a time in the bounds of an event's, or returns nil. Events of a tick that follow each other share one.
func (r *BatchReader) time(data []byte, from, to int) *timestamppb.Timestamp {
	if r.stamp == nil || string(r.raw) != string(data[from:to]) {
		seconds, nanos, ok := plainStamp(data, from, to)
		if !ok {
			return nil
		}
		r.raw, r.stamp = data[from:to], &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}
	}
	return r.stamp
}

// plainStamp reads a time after 1970 and before the year 10000.
func plainStamp(data []byte, from, to int) (seconds int64, nanos int32, ok bool) {
	for at := from; at < to; {
		tag, value, next := scalar(data, at, to)
		switch {
		case tag == stampSeconds<<3|wireVarint && value > 0 && value <= lastSecond:
			seconds = int64(value)
		case tag == stampNanos<<3|wireVarint && value < 1e9:
			nanos = int32(value)
		default:
			return 0, 0, false
		}
		at = next
	}
	return seconds, nanos, seconds > 0
}
