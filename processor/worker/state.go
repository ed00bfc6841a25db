package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"lowtide/rules/variable"
)

const (
	stateVersion = 1                         // raised when a part begins to mean something else
	maxState     = 4 << 20                   // bytes, not compressed: a process with 64 GPUs has less than one MiB
	maxElements  = 1 << 12                   // of a list
	longest      = 50 * 365 * 24 * time.Hour // of what is divided into equal stretches: centuries overflow
)

// ErrStateVersion says that a state was written by a build that keeps other things of a worker. It is not guessed at: the worker begins anew.
var ErrStateVersion = errors.New("state of a worker from another version")

// stateMagic begins each state. Then come the version in one byte, the layout and a checksum of the rest in four each, lowest first, and the
// parts, compressed by s2.
const (
	stateMagic  = "LTW"
	stateHeader = len(stateMagic) + 1 + 4 + 4
)

// ownLayout is that of this build: a field that comes, goes or moves makes another of it without anybody raising the version.
var ownLayout = sync.OnceValue(func() uint32 { return fingerprint32(new(Worker).parts(new(bool))) })

// parts are what a worker consists of. Current says that the calls were made under the configuration that holds.
func (w *Worker) parts(current *bool) []any {
	return []any{&w.Key, &w.Slot, &w.Instance, &w.Host, &w.Who, &w.Config, &w.First, &w.Last, &w.tick, &w.dirty, &w.now, &w.level, &w.ready, &w.said,
		&w.exited, &w.load, &w.counters, &w.quiet, &w.match, &w.inferred, &w.ooms, &w.faults, &w.marks, &w.quality, &w.trace, &w.snapshots,
		&w.basis, &w.calls, current}
}

func (r *reading) parts() []any {
	return []any{&r.cards, &r.engine, &r.engineAt, &r.process, &r.freshAllocator, &r.freshGPU, &r.freshDevice, &r.freshProcess, &r.freshEngine}
}

func (c *card) parts() []any { return []any{&c.uuid, &c.allocator, &c.process, &c.device} }

func (o *ooms) parts() []any {
	return []any{&o.pid, &o.times, &o.last, &o.lastAt, &o.joined, &o.told, &o.pending, &o.total, &o.grew}
}

// The configuration is the worker's own pointer, which Restore sets again.
func (b *basis) parts() []any {
	return []any{&b.changed, &b.windows, &b.owed, &b.ooms, &b.ready, &b.columns, &b.last, &b.next}
}

// The sentence is put together anew when somebody asks.
func (c *call) parts() []any {
	return []any{&c.Points, &c.Early, &c.Steady, &c.Onset, &c.Growth, &c.Level, &c.Lacking, &c.Filling, &c.Step, &c.Proven, &c.Proof, &c.Per, &c.Work}
}

// The points of a sight at matched load are its own.
func (s *sight) parts() []any { return []any{&s.From, &s.Hours, &s.Level, &s.Work, &s.Sigma} }

// What caches are declared is read from the configuration anew.
func (c *caps) parts() []any { return nil }

// Save returns all that is known of the process, between two events, for Restore. It fails for a clock that says 1970, and for text that is
// not UTF-8.
func (w *Worker) Save() ([]byte, error) {
	if what := w.broken(); what != "" {
		return nil, fmt.Errorf("save worker %s: %w: %s", w.Key, ErrState, what)
	}
	return w.write()
}

func (w *Worker) write() ([]byte, error) {
	current := w.basis.config == w.Config
	c := codec{bytes: make([]byte, 0, 32<<10)}
	c.all(w.parts(&current))
	c.block(w.sample.Save())
	if len(c.bytes) > maxState {
		c.fail("%d bytes are too much", len(c.bytes))
	}
	if c.err != nil {
		return nil, fmt.Errorf("save worker %s: %w", w.Key, c.err)
	}
	return seal(c.bytes), nil
}

func seal(parts []byte) []byte {
	out := make([]byte, stateHeader+s2.MaxEncodedLen(len(parts)))
	body := s2.Encode(out[stateHeader:], parts)
	copy(out, stateMagic)
	out[len(stateMagic)] = stateVersion
	binary.LittleEndian.PutUint32(out[len(stateMagic)+1:], ownLayout())
	binary.LittleEndian.PutUint32(out[len(stateMagic)+5:], checksum(body))
	return append([]byte(nil), out[:stateHeader+len(body)]...)
}

func checksum(body []byte) uint32 { return crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) }

func unseal(state []byte) ([]byte, error) {
	if len(state) < stateHeader || string(state[:len(stateMagic)]) != stateMagic {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrState)
	}
	if v := state[len(stateMagic)]; v != stateVersion {
		return nil, fmt.Errorf("%w: it is version %d, this build reads %d", ErrStateVersion, v, stateVersion)
	}
	if l := binary.LittleEndian.Uint32(state[len(stateMagic)+1:]); l != ownLayout() {
		return nil, fmt.Errorf("%w: it has layout %08x, this build reads %08x", ErrStateVersion, l, ownLayout())
	}
	body := state[stateHeader:]
	if binary.LittleEndian.Uint32(state[len(stateMagic)+5:]) != checksum(body) {
		return nil, fmt.Errorf("%w: the checksum is wrong", ErrState)
	}
	if n, err := s2.DecodedLen(body); err != nil || n > maxState {
		return nil, fmt.Errorf("%w: %d bytes, %d at most", ErrState, n, maxState)
	}
	parts, err := s2.Decode(nil, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	return parts, nil
}

// Restore makes a worker of what Save returned; it goes on as the saved one would have. An error is an ErrState or an ErrStateVersion.
func Restore(state []byte) (*Worker, error) {
	parts, err := unseal(state)
	if err != nil {
		return nil, fmt.Errorf("restore worker: %w", err)
	}
	w, err := restore(parts)
	if err != nil {
		return nil, fmt.Errorf("restore worker: %w", err)
	}
	return w, nil
}

func restore(parts []byte) (*Worker, error) {
	w, current := new(Worker), false
	c := codec{bytes: parts, reading: true}
	c.all(w.parts(&current))
	sample := c.block(nil)
	if c.left() > 0 {
		c.fail("more than it should hold")
	}
	if c.err != nil {
		return nil, c.err
	}
	var err error
	if w.sample, err = variable.Restore(sample); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	if current {
		w.basis.config = w.Config
	}
	if what := w.broken(); what != "" {
		return nil, fmt.Errorf("%w: %s", ErrState, what)
	}
	return w, nil
}

// earliest is when minutes and hours can be counted from.
var earliest = time.Unix(24*60*60, 0)

func counted(t time.Time) bool { return !t.Before(earliest) }

// broken names what the worker would stumble over, which no state should hold; "" when there is nothing.
func (w *Worker) broken() string {
	widest := columnsOf(maxCards)
	for _, of := range [...]struct {
		what  string
		right bool
	}{
		{"identity", w.Key != "" && w.Host != nil && w.Who != nil && !w.First.IsZero()},
		{"clock", w.tick.IsZero() && w.quality.Shift == 0 || counted(w.tick)},
		{"cards", len(w.now.cards) <= maxCards && len(w.faults.Cards) <= maxCards && len(w.load.Room.Cards) <= maxCards},
		{"columns", w.basis.next >= 0 && len(w.level) <= widest && len(w.calls) <= widest},
		{"quiet points", w.quiet.whole(widest)},
		{"matched load", w.match.whole(w.tick)},
		{"trace", w.trace.whole(w.tick, widest)},
		{"load", w.load.whole()},
		{"room", w.load.Room.whole()},
		{"OOMs", len(w.ooms.times) <= maxSymptoms && w.ooms.pending >= 0},
		{"faults", len(w.faults.New) <= maxXids && w.faults.N >= 0 && len(w.faults.Times) == min(w.faults.N, maxXids)},
		{"marks", len(w.marks.Waiting) <= maxMarks},
		{"snapshots", w.snapshots.whole()},
	} {
		if !of.right {
			return of.what
		}
	}
	return ""
}

func (q *quiet) whole(widest int) bool {
	n := len(q.Points)
	for i := range q.Points {
		if !counted(q.Points[i].at()) || int(q.Points[i].Release) >= len(q.Releases) {
			return false
		}
	}
	return n <= maxPoints && len(q.Releases) <= maxReleases && q.Low.rows() == n && q.Spread.rows() == n && q.Low.Width == q.Spread.Width && q.Low.Width <= widest &&
		len(q.Open.Low) == len(q.Open.High) && len(q.Open.Low) <= widest && (n > 0 || !q.Kept)
}

func (m *match) whole(tick time.Time) bool {
	return stretched(m.Start, tick, m.Length, matchWindow) && len(m.Work) <= maxWindows && len(m.Cells) <= maxWindows*matchBins &&
		(m.SeenOf == 0 || len(m.Seen.Level) > 0) && len(m.Seen.Hours) == len(m.Seen.Level) && len(m.Seen.Work) == len(m.Seen.Level) &&
		m.Low.rows() == len(m.Cells) && m.Low.Width <= width(columnsOf(maxCards))
}

func (t *trace) whole(tick time.Time, widest int) bool {
	return stretched(t.Start, tick, t.Length, time.Minute) && t.Low.rows() <= maxDots && t.Low.Width <= widest
}

// stretched says that equal stretches of time have begun before a tick, and are as long as doubling makes them; or that there are none.
func stretched(from, tick time.Time, length, first time.Duration) bool {
	if from.IsZero() {
		return length == 0
	}
	for first < length && first < longest {
		first *= 2
	}
	return !from.After(tick) && length == first && tick.Sub(from) < longest
}

func (l *load) whole() bool {
	newest := int64(0)
	if !l.Last.IsZero() {
		newest = l.Last.Unix() / 60
	}
	right := l.Newest == newest && (newest == 0 || counted(l.Last)) && l.Storm.Hour.Part >= 0 && l.Storm.Own.N <= halfHours && l.Storm.Own.Next < halfHours &&
		l.Demand.Own.N <= halfHours && l.Demand.Own.Next < halfHours && l.Demand.N <= uint8(len(l.Demand.Requests)) && l.Demand.Next < uint8(len(l.Demand.Requests)) &&
		l.Latency.Objective.Own.whole()
	for _, p := range [...]*pace{&l.Latency.TTFT, &l.Latency.ITL} {
		right = right && p.Queued.N <= queuedValues
		for _, b := range p.Free {
			right = right && (b == nil || b.whole())
		}
	}
	return right
}

func (b *baseline) whole() bool {
	return b.N <= uint8(len(b.Values)) && b.Next < uint8(len(b.Values))
}

func (r *room) whole() bool {
	right := r.Host.whole() && r.Retries.Part >= 0
	for i := range r.Cards {
		right = right && r.Cards[i].Track.whole()
	}
	return right
}

func (t *track) whole() bool {
	if t.N < 0 || t.N > len(t.At) {
		return false
	}
	for _, at := range t.At[:t.N] {
		if !counted(time.Unix(at, 0)) {
			return false
		}
	}
	return true
}
