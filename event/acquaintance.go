package event

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	maxRemembered = 16 << 20 // bytes of all hosts, about: 3,000 hosts of eight workers, which weigh 5.2 KB each; a process has a reader for each of 64 partitions
	maxWorkers    = 128      // of a host
	maxTexts      = 256      // of a host, in the bodies of a kind
	agedOut       = 256      // messages of a host after which a worker that was in none of them makes room for another one
)

// Texts are remembered by what they stand in, and then by their place: the cards of a host come in the same order every time, but not all
// sources in every message.
const (
	ofBatch = iota
	ofGpu
	ofGpuProcess
	ofAllocator
	ofMachine
	textKinds
)

// acquaintances are what a BatchReader knows of the hosts that it has read messages of.
type acquaintances struct {
	most  int
	bytes int                      // of the hosts, about, at most so many
	hosts map[string]*acquaintance // by what stands on the wire
	words map[string]string        // texts that were new to a host lately: others have the same

	now  *acquaintance // whose message is being read
	said [textKinds]int
}

// acquaintance is what is remembered of a host.
type acquaintance struct {
	host     *Host
	kept     bool
	bytes    int // with all that it holds, about
	messages uint32
	last     int // worker that was read last
	workers  []colleague
	texts    [textKinds][]string
}

// colleague is a worker of a host.
type colleague struct {
	raw    string // as on the wire; the texts of the worker are parts of it
	worker *Worker
	card   string // its first
	seen   uint32 // number of the host's message
}

// What things weigh beside their texts, in bytes, in a heap.
const (
	hostWeight   = 384
	workerWeight = 384
	textWeight   = 16
)

func newAcquaintances() acquaintances {
	return acquaintances{most: maxRemembered, hosts: make(map[string]*acquaintance), words: make(map[string]string)}
}

// enter begins a message of a host, and returns that, or nil where it may not stand in a subject.
func (m *acquaintances) enter(raw []byte) *Host {
	clear(m.said[:])
	a := m.hosts[string(raw)]
	if a == nil {
		h := new(Host)
		if proto.Unmarshal(raw, h) != nil || ValidateHost(h) != nil || len(h.BootId) > maxString {
			return nil
		}
		a = &acquaintance{host: h}
		if len(raw) <= maxIdentity {
			a.kept, m.hosts[string(raw)] = true, a
			m.hold(a, hostWeight+2*len(raw))
		}
	}
	m.now = a
	a.messages++
	return a.host
}

// hold adds to what a host weighs. Others are forgotten where all together are too heavy, whichever come first: of a fleet that is too
// large most are then still known at their next message, where none would be if the one unseen for longest had to go.
func (m *acquaintances) hold(a *acquaintance, bytes int) {
	if !a.kept {
		return
	}
	a.bytes += bytes
	if m.bytes += bytes; m.bytes <= m.most {
		return
	}
	for raw, other := range m.hosts { // which begins somewhere
		if other != a {
			delete(m.hosts, raw)
			m.bytes -= other.bytes
			other.kept = false
		}
		if m.bytes <= m.most {
			return
		}
	}
}

// leave ends a message.
func (m *acquaintances) leave() { m.now = nil }

// text reads a text of the present host's message, which is mostly the one that came at this place the last time.
func (m *acquaintances) text(into *string, of int, raw []byte) bool {
	if m.now != nil {
		if texts, n := m.now.texts[of], m.said[of]; n < len(texts) && texts[n] == string(raw) {
			*into = texts[n]
			m.said[of]++
			return true
		}
	}
	return m.newText(into, of, raw)
}

func (m *acquaintances) newText(into *string, of int, raw []byte) bool {
	word, known := m.words[string(raw)]
	if !known {
		if len(raw) > maxString || !utf8.Valid(raw) {
			return false
		}
		word = string(raw)
	}
	*into = word
	if len(word) > maxWord {
		return true
	}
	if !known {
		if len(m.words) >= maxKnown {
			for any := range m.words {
				delete(m.words, any)
				break
			}
		}
		m.words[word] = word
	}
	a := m.now
	if a == nil {
		return true
	}
	switch n := m.said[of]; {
	case n < len(a.texts[of]):
		m.hold(a, len(word)-len(a.texts[of][n]))
		a.texts[of][n] = word
	case n < maxTexts:
		a.texts[of] = append(a.texts[of], word)
		m.hold(a, textWeight+len(word))
	default:
		return true
	}
	m.said[of]++
	return true
}

// worker reads a process of the present host, which is mostly the one of the event before, or the one that followed it the last time. It
// returns nil where something is wrong with it, and else also the first of its cards.
func (m *acquaintances) worker(data []byte, from, to int) (w *Worker, card string) {
	a, raw := m.now, data[from:to]
	if a.last < len(a.workers) {
		if c := &a.workers[a.last]; c.raw == string(raw) {
			c.seen = a.messages
			return c.worker, c.card
		}
		next := a.last + 1
		if next == len(a.workers) {
			next = 0
		}
		if c := &a.workers[next]; c.raw == string(raw) {
			a.last, c.seen = next, a.messages
			return c.worker, c.card
		}
	}
	return a.find(m, data, from, to)
}

// find looks for a process among all that are known of a host, and makes it known otherwise.
func (a *acquaintance) find(m *acquaintances, data []byte, from, to int) (w *Worker, card string) {
	raw, oldest := data[from:to], 0
	for i := range a.workers {
		c := &a.workers[i]
		if c.raw == string(raw) {
			a.last, c.seen = i, a.messages
			return c.worker, c.card
		}
		if a.messages-c.seen > a.messages-a.workers[oldest].seen {
			oldest = i
		}
	}
	if len(raw) > maxIdentity {
		w := strangeWorker(raw)
		if w == nil || w.length() > maxString {
			return nil, ""
		}
		return w, ""
	}
	text := string(raw)
	if w = readWorker(text, data, from, to); w == nil {
		return nil, ""
	}
	if len(w.GpuUuids) > 0 {
		card = w.GpuUuids[0]
	}
	c := colleague{raw: text, worker: w, card: card, seen: a.messages}
	if n := len(a.workers); n == maxWorkers || n > 0 && a.messages-a.workers[oldest].seen > agedOut {
		m.hold(a, len(raw)-len(a.workers[oldest].raw))
		a.workers[oldest], a.last = c, oldest
	} else {
		a.workers, a.last = append(a.workers, c), n
		m.hold(a, workerWeight+len(raw))
	}
	return w, card
}

// readWorker reads a process from its bytes, given also as the text of which its own are made. It returns nil where something is wrong
// with it.
func readWorker(text string, data []byte, from, to int) *Worker {
	home := new(struct {
		worker Worker
		start  timestamppb.Timestamp
		uints  [1]uint64
		ints   [2]int64
		uuids  [1]string
	})
	w := &home.worker
	for at := from; at < to; {
		tag, value, next := scalar(data, at, to)
		at = next
		var into *string
		switch tag {
		case 1<<3 | wireVarint:
			w.Pid = int64(value)
			continue
		case 2<<3 | wireVarint:
			home.uints[0], w.StartTicks = value, &home.uints[0]
			continue
		case 3<<3 | wireBytes:
			var ok bool
			if home.start.Seconds, home.start.Nanos, ok = plainStamp(data, next-int(value), next); !ok || w.StartTime != nil {
				return strangeWorker(data[from:to])
			}
			w.StartTime = &home.start
			continue
		case 5<<3 | wireVarint:
			home.ints[0], w.Rank = int64(value), &home.ints[0]
			continue
		case 8<<3 | wireVarint:
			home.ints[1], w.EngineIndex = int64(value), &home.ints[1]
			continue
		case 4<<3 | wireBytes:
			into = &w.Role
		case 6<<3 | wireBytes:
			if w.GpuUuids == nil {
				w.GpuUuids = home.uuids[:0]
			}
			w.GpuUuids = append(w.GpuUuids, "")
			into = &w.GpuUuids[len(w.GpuUuids)-1]
		case 7<<3 | wireBytes:
			into = &w.Engine
		case 9<<3 | wireBytes:
			into = &w.Unit
		case 10<<3 | wireBytes:
			into = &w.Model
		case 11<<3 | wireBytes:
			into = &w.Release
		case 12<<3 | wireBytes:
			into = &w.Pod
		case 13<<3 | wireBytes:
			into = &w.ContainerId
		default:
			return strangeWorker(data[from:to])
		}
		if *into = text[next-int(value)-from : next-from]; !utf8.ValidString(*into) {
			return nil
		}
	}
	if w.Pid <= 0 {
		return nil
	}
	return w
}

// strangeWorker lets protobuf read a process.
func strangeWorker(raw []byte) *Worker {
	w := new(Worker)
	if proto.Unmarshal(raw, w) != nil || w.Pid <= 0 {
		return nil
	}
	return w
}
