package nvml

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"lowtide/event"
)

// What parent and child say to each other. The parent writes one request, a line of text, and waits for its end frame before
// the next. A frame of the child is four bytes of length, big endian, of what follows; one byte of kind; a body:
//
//	hello   Batch: NVML is open; schema is the protocol's version
//	asking  the uuid of the card that is asked next, so that the parent knows where a call hangs
//	device  Batch: source is the card's uuid, events are what was read there, `source` bodies what was not
//	end     Batch: the request is answered; `source` bodies are about no single card
//	xid     Batch: one xid event, at any time
//	failed  Batch: NVML cannot be used, the `source` bodies say why; the child ends
const protocol = 1

type kind byte

const (
	hello  kind = 'h'
	asking kind = 'a'
	device kind = 'd'
	end    kind = 'e'
	xid    kind = 'x'
	failed kind = 'f'
)

const (
	maxFrame   = 4 << 20 // bytes of one frame
	maxEvents  = 1 << 16 // of one frame: two bytes on the wire can be an event of hundreds in memory
	maxUUID    = 128     // bytes
	maxRequest = 16 << 10
	readStep   = 64 << 10
)

var errGarbage = errors.New("malformed frame")

// message is a decoded frame.
type message struct {
	kind     kind
	version  uint32 // of hello
	uuid     string // of asking and device
	events   []*event.Event
	failures []failure
}

// frameReader cuts a stream into frames. It holds no more memory than has really come.
type frameReader struct {
	in   *bufio.Reader
	body bytes.Buffer
}

func newFrameReader(in io.Reader) *frameReader {
	return &frameReader{in: bufio.NewReaderSize(in, 16<<10)}
}

// next returns the next frame. The error is io.EOF only between two frames; it wraps errGarbage when the bytes are no frame.
func (r *frameReader) next() (message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return message{}, err
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size < 1 || size > maxFrame {
		return message{}, fmt.Errorf("%w: its length is %d bytes, 1 to %d are allowed", errGarbage, size, maxFrame)
	}
	if r.body.Cap() > readStep && size < readStep {
		r.body = bytes.Buffer{} // one large frame does not stay in memory
	}
	r.body.Reset()
	if _, err := io.CopyN(&r.body, r.in, size); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return message{}, err
	}
	return decode(kind(r.body.Bytes()[0]), r.body.Bytes()[1:])
}

// decode keeps nothing of body.
func decode(k kind, body []byte) (message, error) {
	m := message{kind: k}
	switch k {
	case asking:
		m.uuid = string(body)
		return m, checkUUID(m.uuid)
	case hello, device, end, xid, failed:
	default:
		return m, fmt.Errorf("%w: of no known kind (%q)", errGarbage, byte(k))
	}
	if err := countEvents(body); err != nil {
		return m, err
	}
	var b event.Batch
	if err := proto.Unmarshal(body, &b); err != nil {
		return m, fmt.Errorf("%w: %w", errGarbage, err)
	}
	m.version, m.uuid = b.Schema, b.Source
	if k == device {
		if err := checkUUID(m.uuid); err != nil {
			return m, err
		}
	}
	for i, e := range b.Events {
		if err := event.Validate(e); err != nil {
			return m, fmt.Errorf("%w: event %d: %w", errGarbage, i, err)
		}
		switch {
		case e.Source != nil && k != xid:
			m.failures = append(m.failures, failure{e.Source.Status, cut(e.Source.Error, maxReason)})
		case (e.Gpu != nil || e.GpuProcess != nil) && k == device, e.Xid != nil && k == xid:
			m.events = append(m.events, e)
		default:
			return m, fmt.Errorf("%w: event %d: a body %q has no place in a frame of kind %q", errGarbage, i, e.Body(), byte(k))
		}
	}
	return m, nil
}

// countEvents looks at the bytes before memory is spent on them.
func countEvents(body []byte) error {
	const field = 7 // Batch.events
	events := 0
	for len(body) > 0 {
		number, _, size := protowire.ConsumeField(body)
		if size < 0 {
			return fmt.Errorf("%w: %w", errGarbage, protowire.ParseError(size))
		}
		if number == field {
			if events++; events > maxEvents {
				return fmt.Errorf("%w: more than %d events", errGarbage, maxEvents)
			}
		}
		body = body[size:]
	}
	return nil
}

// checkUUID also keeps a uuid fit to stand in a request line.
func checkUUID(uuid string) error {
	if uuid == "" || len(uuid) > maxUUID || !utf8.ValidString(uuid) || strings.ContainsFunc(uuid, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%w: %q is no uuid of a card", errGarbage, cut(uuid, maxUUID))
	}
	return nil
}

// frameWriter is the child's side; the sampler and the Xid watcher share it.
type frameWriter struct {
	mu      sync.Mutex
	out     io.Writer
	waiting []byte
}

// add queues one frame; flush sends all that are queued in one write, so that a card costs one system call.
func (w *frameWriter) add(k kind, b *event.Batch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.append(k, b, "")
}

func (w *frameWriter) ask(uuid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.append(asking, nil, uuid); err != nil {
		return err
	}
	return w.send()
}

// send one frame, and whatever waits before it, at once.
func (w *frameWriter) write(k kind, b *event.Batch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.append(k, b, ""); err != nil {
		return err
	}
	return w.send()
}

func (w *frameWriter) append(k kind, b *event.Batch, text string) error {
	start := len(w.waiting)
	waiting := append(w.waiting, 0, 0, 0, 0, byte(k))
	if b != nil {
		var err error
		if waiting, err = (proto.MarshalOptions{}).MarshalAppend(waiting, b); err != nil {
			return fmt.Errorf("encode frame: %w", err)
		}
	}
	waiting = append(waiting, text...)
	size := len(waiting) - start - 4
	if size > maxFrame || b != nil && len(b.Events) > maxEvents {
		return fmt.Errorf("encode frame: %d bytes, %d events; the limits are %d and %d", size, len(b.GetEvents()), maxFrame, maxEvents)
	}
	binary.BigEndian.PutUint32(waiting[start:], uint32(size))
	w.waiting = waiting
	return nil
}

func (w *frameWriter) send() error {
	_, err := w.out.Write(w.waiting)
	if w.waiting = w.waiting[:0]; cap(w.waiting) > readStep {
		w.waiting = nil
	}
	if err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// request asks for one reading of all cards but those to be skipped.
type request struct {
	tick time.Time
	skip []string // uuids
}

// line is `sample TICK [UUID…]`, the tick in nanoseconds since 1970.
func (r request) line() []byte {
	line := strconv.AppendInt([]byte("sample "), r.tick.UnixNano(), 10)
	for _, uuid := range r.skip {
		line = append(append(line, ' '), uuid...)
	}
	return append(line, '\n')
}

func parseRequest(line string) (request, error) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "sample" {
		return request{}, fmt.Errorf("parse request: %q is not `sample TICK [UUID…]`", cut(line, 100))
	}
	nanoseconds, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil || nanoseconds <= 0 {
		return request{}, fmt.Errorf("parse request: the tick %q is no time", cut(words[1], 100))
	}
	return request{tick: time.Unix(0, nanoseconds).UTC(), skip: words[2:]}, nil
}
