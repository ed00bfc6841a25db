package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"sync"
)

// tap listens to NATS clients that publish to JetStream, and keeps what the server acknowledged: message id → stream sequence.
type tap struct {
	mu    sync.Mutex
	acked map[string]uint64
}

func newTap() *tap { return &tap{acked: map[string]uint64{}} }

// acknowledged returns a copy of what the server has acknowledged so far.
func (t *tap) acknowledged() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]uint64, len(t.acked))
	for id, sequence := range t.acked {
		out[id] = sequence
	}
	return out
}

// link returns where the two directions of one connection are to be written.
func (t *tap) link() (up, down io.Writer) {
	sent := &replies{ids: map[string]string{}}
	return &frames{visit: sent.published}, &frames{visit: func(head []string, payload []byte) { t.answered(sent, head, payload) }}
}

// replies remembers which message waits for which reply.
type replies struct {
	mu  sync.Mutex
	ids map[string]string // reply subject → message id
}

func (r *replies) published(head []string, payload []byte) {
	if !strings.EqualFold(head[0], "HPUB") || len(head) != 5 {
		return
	}
	length, err := strconv.Atoi(head[3])
	if err != nil || length > len(payload) {
		return
	}
	for line := range bytes.SplitSeq(payload[:length], []byte("\r\n")) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && strings.EqualFold(string(name), "Nats-Msg-Id") {
			r.mu.Lock()
			r.ids[head[2]] = string(bytes.TrimSpace(value))
			r.mu.Unlock()
		}
	}
}

func (t *tap) answered(sent *replies, head []string, payload []byte) {
	if !strings.EqualFold(head[0], "MSG") || len(head) < 4 {
		return
	}
	sent.mu.Lock()
	id, waits := sent.ids[head[1]]
	delete(sent.ids, head[1])
	sent.mu.Unlock()
	var ack struct {
		Stream   string          `json:"stream"`
		Sequence uint64          `json:"seq"`
		Error    json.RawMessage `json:"error"`
	}
	if !waits || json.Unmarshal(payload, &ack) != nil || ack.Stream == "" || len(ack.Error) > 0 {
		return
	}
	t.mu.Lock()
	t.acked[id] = ack.Sequence
	t.mu.Unlock()
}

// frames splits one direction of the NATS protocol into its lines, each with the payload that follows it. A line that it does not
// understand ends it: nothing is known of the rest.
type frames struct {
	visit  func(head []string, payload []byte)
	buffer []byte
	broken bool
}

// maxFrame bounds what is kept of one frame, in bytes.
const maxFrame = 16 << 20

// Write never fails: a listener must not disturb.
func (f *frames) Write(b []byte) (int, error) {
	if f.broken {
		return len(b), nil
	}
	f.buffer = append(f.buffer, b...)
	for {
		end := bytes.IndexByte(f.buffer, '\n')
		if end < 0 {
			f.broken = len(f.buffer) > 1<<20
			return len(b), nil
		}
		head := strings.Fields(string(f.buffer[:end]))
		size := 0
		if len(head) > 0 {
			switch strings.ToUpper(head[0]) {
			case "PUB", "HPUB", "MSG", "HMSG":
				n, err := strconv.Atoi(head[len(head)-1])
				if err != nil || n < 0 || n > maxFrame {
					f.broken = true
					return len(b), nil
				}
				size = n + 2
			}
		}
		if len(f.buffer) < end+1+size {
			return len(b), nil
		}
		if size > 0 {
			f.visit(head, f.buffer[end+1:end+1+size-2])
		}
		f.buffer = f.buffer[end+1+size:]
	}
}
