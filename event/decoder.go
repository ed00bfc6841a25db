package event

import (
	"bytes"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	maxWord     = 128     // bytes of a string that may well come again
	maxIdentity = 4 << 10 // bytes of a host or a worker that may
	maxKnown    = 4096    // beyond so many of a kind all are forgotten, and learned again
)

// decoder reads events that follow each other, in NDJSON or in a batch. It tries the plain form first: objects of known members, none
// of them twice, strings without escapes, whole numbers without fraction or exponent, times in UTC. It never says what is wrong with
// a line: the strict reader reads what is not in that form, so that there is one definition of what is right. The zero decoder
// remembers nothing. It is not safe for concurrent use.
type decoder struct {
	text  []byte
	draft draft
	slots
	orders orders
	homes  homes

	// What stands on nearly every line, byte for byte the same, is read once and then shared.
	words   map[string]string
	hosts   known[Host]
	workers known[Worker]
	begins  [2]beginning // the last with a worker and the last without
	begun   int          // where what may be remembered of the present line begins; odd where nothing is
	stamp   struct {     // the last time: the lines of a tick have the same
		text []byte
		time *timestamppb.Timestamp
	}
	today day
}

// slots are where the optional fields of the object being read keep their values: part of that object's own allocation.
type slots struct {
	uints                      []uint64
	ints                       []int64
	floats                     []float64
	bools                      []bool
	uintN, intN, floatN, boolN int // how many are taken
}

func newDecoder() *decoder {
	return &decoder{words: make(map[string]string), hosts: make(known[Host]), workers: make(known[Worker])}
}

// event is UnmarshalEvent, but for what it remembers.
func (d *decoder) event(text []byte) (*Event, []string, error) {
	if len(text) <= MaxLine {
		if e := d.scan(text); e != nil {
			return e, nil, nil
		}
	}
	return unmarshalStrictly(text)
}

// draft is what was read of a line. The event comes with its body, in one allocation.
type draft struct {
	time   *timestamppb.Timestamp
	host   *Host
	worker *Worker
	event  *Event
}

// scan reads a line in the plain form. It returns nil for any other, and for every line that is not valid.
func (d *decoder) scan(text []byte) *Event {
	d.text = text
	for at := d.resume(); ; at++ {
		name, end := quoted(text, at)
		if end = take(text, end, ':'); end < 0 {
			return nil
		}
		if d.draft.event == nil && string(name) != "time" && string(name) != "host" {
			d.remember(at)
		}
		if at = d.member(name, skip(text, end)); at < 0 {
			return nil
		}
		if at = skip(text, at); at >= len(text) || text[at] != ',' {
			if at = take(text, at, '}'); at < 0 || skip(text, at) < len(text) {
				return nil
			}
			return d.draft.finish(len(text))
		}
	}
}

// beginning is what stands between the time of a line and its body, and what was read from it.
type beginning struct {
	text   []byte
	host   *Host
	worker *Worker
}

// resume starts a line. Its time mostly comes first, and what follows up to the body is mostly as in a line before.
func (d *decoder) resume() int {
	d.draft, d.begun = draft{}, odd
	at := take(d.text, 0, '{')
	if at < 0 || !starts(d.text, at, "time") {
		return at
	}
	if at = d.time(at+len(`"time":`), &d.draft.time); at < 0 {
		return odd
	}
	for i := range d.begins {
		if b := &d.begins[i]; len(b.text) > 0 && bytes.HasPrefix(d.text[at:], b.text) {
			d.draft.host, d.draft.worker = b.host, b.worker
			return at + len(b.text)
		}
	}
	d.begun = at
	return take(d.text, at, ',')
}

// remember keeps what stands up to here for the next lines, unless it is from them.
func (d *decoder) remember(at int) {
	if d.begun < 0 || d.words == nil || at-d.begun > maxIdentity {
		return
	}
	b := &d.begins[0]
	if d.draft.worker == nil {
		b = &d.begins[1]
	}
	b.text, b.host, b.worker = append(b.text[:0], d.text[d.begun:at]...), d.draft.host, d.draft.worker
}

// member reads one of an event's own members.
func (d *decoder) member(name []byte, at int) int {
	switch string(name) {
	case "time":
		return d.time(at, &d.draft.time)
	case "host":
		return d.host(at)
	case "worker":
		return d.worker(at)
	}
	if d.draft.event != nil {
		return odd // a second body
	}
	switch string(name) {
	case "gpu":
		return d.gpu(at)
	case "gpu_process":
		return d.gpuProcess(at)
	case "allocator":
		return d.allocator(at)
	case "engine":
		return d.engine(at)
	case "process":
		return d.process(at)
	case "machine":
		return d.machine(at)
	case "source":
		return d.source(at)
	}
	return odd // a rare body, or one of another version
}

// finish puts together what was read from so many bytes, or returns nil when Validate might object.
func (l *draft) finish(size int) *Event {
	e := l.event
	if l.time == nil || e == nil {
		return nil
	}
	if l.worker == nil && aboutProcess(e) || e.Gpu != nil && e.Gpu.Uuid == "" {
		return nil
	}
	e.Time, e.Host, e.Worker = l.time, l.host, l.worker
	if size > maxString { // the worker may be most of it
		_, body, _ := e.body()
		size = proto.Size(body)
	}
	if suspect(e, size) {
		return nil
	}
	return e
}

// known holds what was read, by its text.
type known[T any] map[string]*T

func (k known[T]) keep(text []byte, v *T) {
	if k == nil || len(text) > maxIdentity {
		return
	}
	if len(k) >= maxKnown {
		clear(k)
	}
	k[string(text)] = v
}

// host reads a host that may stand in a subject, or finds it among those seen before.
func (d *decoder) host(at int) int {
	if d.draft.host != nil {
		return odd
	}
	raw := flat(d.text, at)
	if h := d.hosts[string(raw)]; h != nil {
		d.draft.host = h
		return at + len(raw)
	}
	h := new(Host)
	end := object(d, at, h, hostMembers, &d.orders.host)
	if end < 0 || ValidateHost(h) != nil {
		return odd
	}
	d.draft.host = h
	if end == at+len(raw) {
		d.hosts.keep(raw, h)
	}
	return end
}

// worker reads a process, or finds it among those seen before.
func (d *decoder) worker(at int) int {
	if d.draft.worker != nil {
		return odd
	}
	raw := flat(d.text, at)
	if w := d.workers[string(raw)]; w != nil {
		d.draft.worker = w
		return at + len(raw)
	}
	home := new(struct {
		worker Worker
		uints  [1]uint64
		ints   [2]int64
	})
	w := &home.worker
	d.slots = slots{uints: home.uints[:], ints: home.ints[:]}
	end := object(d, at, w, workerMembers, &d.orders.worker)
	if end < 0 || w.Pid <= 0 {
		return odd
	}
	d.draft.worker = w
	if end == at+len(raw) {
		d.workers.keep(raw, w)
	}
	return end
}

// flat returns the text up to the next closing brace: all of an object without objects in it. Where that brace stands in a string
// it is less than the object, and then it equals no object that was read before.
func flat(text []byte, at int) []byte {
	return text[at : at+bytes.IndexByte(text[at:], '}')+1]
}
