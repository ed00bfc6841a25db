package sink

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrMarks says that the saved marks of a seat cannot be read.
var ErrMarks = errors.New("marks of a seat cannot be read")

const (
	marksVersion = 1
	maxMarks     = 40_000             // of a seat; more than that many hosts, restarts and findings within marksKept lose the oldest
	marksKept    = 3 * 24 * time.Hour // beyond the 24 h of the stream, because a spool may come back later than that
	maxMarksText = 1 << 20            // bytes
)

// marks tell what was published twice, also outside the broker's own window: by the highest sequence of each host, producer and lane,
// since a lane is first-in-first-out; and by the id of each finding.
type marks struct {
	stored  uint64 // all messages up to this sequence of the stream were seen
	known   map[uint64]mark
	evicted uint64
}

type mark struct {
	sequence uint64 // the producer's; 0 of a finding
	stream   uint64 // sequence of its newest message
	at       int64  // seconds since 1970, broker's time
}

// markKey is the beginning of a hash, which is shorter than what it stands for.
func markKey(parts ...string) uint64 {
	var room [256]byte
	text := room[:0]
	for _, part := range parts {
		text = append(append(text, part...), 0)
	}
	sum := sha256.Sum256(text)
	return binary.BigEndian.Uint64(sum[:])
}

// take notes a message and says whether it is new, and how many of its producer are missing between it and the one before.
func (m *marks) take(message *Message) (fresh bool, missing uint64, before mark) {
	var key, sequence uint64
	switch {
	case message.Finding != nil:
		key = markKey("finding", message.Finding.ID)
	case message.Batch.GetProducer() != "":
		b := message.Batch
		key, sequence = markKey(b.Host.GetCluster(), b.Host.GetName(), b.Producer, b.Lane), b.Sequence
	default:
		return true, 0, mark{}
	}
	last, seen := m.known[key]
	if seen && sequence <= last.sequence {
		return false, 0, last
	}
	m.known[key] = mark{sequence, message.Sequence, message.Time.Unix()}
	if seen {
		missing = sequence - last.sequence - 1
	}
	return true, missing, last
}

// prune forgets what is old by the broker's time, and the oldest beyond maxMarks.
func (m *marks) prune(now time.Time) {
	oldest := now.Add(-marksKept).Unix()
	for key, one := range m.known {
		if one.at < oldest {
			delete(m.known, key)
		}
	}
	if len(m.known) <= maxMarks {
		return
	}
	keys := m.keys()
	slices.SortStableFunc(keys, func(a, b uint64) int { return cmp.Compare(m.known[a].stream, m.known[b].stream) })
	for _, key := range keys[:len(keys)-maxMarks] {
		delete(m.known, key)
		m.evicted++
	}
}

func (m *marks) keys() []uint64 {
	keys := make([]uint64, 0, len(m.known))
	for key := range m.known {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// encode writes: version, length and text of the stream's identity, stored, number of marks, and each mark as the difference of its key
// from the one before, its sequence, its message and its time.
func (m *marks) encode(stream string) []byte {
	out := append([]byte{marksVersion}, binary.AppendUvarint(nil, uint64(len(stream)))...)
	out = append(out, stream...)
	out = binary.AppendUvarint(out, m.stored)
	out = binary.AppendUvarint(out, uint64(len(m.known)))
	last := uint64(0)
	for _, key := range m.keys() {
		one := m.known[key]
		for _, n := range [...]uint64{key - last, one.sequence, one.stream, uint64(one.at)} {
			out = binary.AppendUvarint(out, n)
		}
		last = key
	}
	return out
}

// decodeMarks reads what encode wrote, and the identity of the stream that it belongs to.
func decodeMarks(text []byte) (m *marks, stream string, err error) {
	if len(text) > maxMarksText {
		return nil, "", fmt.Errorf("%w: %d bytes, the limit is %d", ErrMarks, len(text), maxMarksText)
	}
	if len(text) == 0 || text[0] != marksVersion {
		return nil, "", fmt.Errorf("%w: another version", ErrMarks)
	}
	rest, broken := text[1:], false
	next := func() uint64 {
		n, size := binary.Uvarint(rest)
		if size <= 0 {
			broken, rest = true, nil
			return 0
		}
		rest = rest[size:]
		return n
	}
	length := next()
	if length > uint64(len(rest)) {
		return nil, "", fmt.Errorf("%w: cut short", ErrMarks)
	}
	stream, rest = string(rest[:length]), rest[length:]
	m = &marks{stored: next()}
	count := next()
	if count > uint64(len(rest)) || count > maxMarks {
		return nil, "", fmt.Errorf("%w: %d marks in %d bytes", ErrMarks, count, len(rest))
	}
	m.known = make(map[uint64]mark, count)
	last := uint64(0)
	for i := range count {
		difference := next()
		one := mark{next(), next(), int64(next())}
		if broken {
			return nil, "", fmt.Errorf("%w: cut short", ErrMarks)
		}
		if i > 0 && difference == 0 || last+difference < last {
			return nil, "", fmt.Errorf("%w: marks are out of order", ErrMarks)
		}
		last += difference
		m.known[last] = one
	}
	if broken || len(rest) > 0 {
		return nil, "", fmt.Errorf("%w: %d bytes behind the end", ErrMarks, len(rest))
	}
	return m, stream, nil
}

// markBook is where the broker keeps the marks of a seat. They are written now and then: what came since is read again from the stream.
type markBook struct {
	bucket   jetstream.KeyValue
	key      string
	revision uint64
}

// read returns the saved marks, or none where there are none of this stream.
func (b *markBook) read(ctx context.Context, stream string) (*marks, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	none := &marks{known: make(map[uint64]mark)}
	entry, err := b.bucket.Get(ctx, b.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return none, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", b.key, err)
	}
	b.revision = entry.Revision()
	m, of, err := decodeMarks(entry.Value())
	if err != nil {
		return none, fmt.Errorf("read %s: %w", b.key, err)
	}
	if of != stream {
		return none, nil
	}
	return m, nil
}

func (b *markBook) write(ctx context.Context, m *marks, stream string) error {
	revision, err := put(ctx, b.bucket, b.key, m.encode(stream), b.revision)
	if err != nil {
		return err
	}
	b.revision = revision
	return nil
}
