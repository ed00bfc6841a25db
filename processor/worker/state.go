package worker

import (
	"fmt"
	"sync"
	"time"

	"lowtide/processor/layout"
)

const (
	maxState = 4 << 20                   // bytes, not compressed: a process with 64 GPUs has less than one MiB
	longest  = 50 * 365 * 24 * time.Hour // of what is divided into equal stretches: centuries overflow
)

// The errors of Restore: what it was given is damaged, or was written by a build that keeps other things of a worker.
var (
	ErrState        = layout.ErrState
	ErrStateVersion = layout.ErrVersion
)

// ownLayout is that of this build: a field that comes, goes or moves makes another of it without anybody raising the version.
var ownLayout = sync.OnceValue(func() *layout.Layout {
	return layout.New(layout.Options{Magic: "LTW", Version: 2, Most: maxState}, new(Worker))
})

// Parts are what a worker's state consists of.
func (w *Worker) Parts() []any {
	return []any{&w.Key, &w.Slot, &w.Instance, &w.Host, &w.Who, &w.Config, &w.First, &w.Last, &w.tick, &w.dirty, &w.now, &w.level, &w.ready, &w.said,
		&w.exited, &w.load, &w.counters, &w.quiet, &w.match, &w.inferred, &w.ooms, &w.faults, &w.marks, &w.quality, &w.trace, &w.snapshots,
		&w.sample, &w.basis, &w.calls}
}

func (r *reading) Parts() []any {
	return []any{&r.cards, &r.engine, &r.engineAt, &r.process, &r.freshAllocator, &r.freshGPU, &r.freshDevice, &r.freshProcess, &r.freshEngine}
}

func (c *card) Parts() []any { return []any{&c.uuid, &c.allocator, &c.process, &c.device} }

func (o *ooms) Parts() []any {
	return []any{&o.pid, &o.times, &o.last, &o.lastAt, &o.joined, &o.told, &o.pending, &o.total, &o.grew}
}

// The configuration is the worker's own pointer, which Resume sets again.
func (b *basis) Parts() []any {
	return []any{&b.current, &b.changed, &b.windows, &b.owed, &b.ooms, &b.ready, &b.columns, &b.last, &b.next}
}

// The sentence is put together anew when somebody asks.
func (c *call) Parts() []any {
	return []any{&c.Points, &c.Early, &c.Steady, &c.Onset, &c.Growth, &c.Level, &c.Lacking, &c.Filling, &c.Step, &c.Proven, &c.Proof, &c.Per, &c.Work}
}

// The points of a sight at matched load are its own.
func (s *sight) Parts() []any { return []any{&s.From, &s.Hours, &s.Level, &s.Work, &s.Sigma} }

// What caches are declared is read from the configuration anew.
func (c *caps) Parts() []any { return nil }

// Prepare notes what is no part of a state as it is now, and says whether Resume would take the worker as it is; call it before the worker
// is written. A clock that says 1970 is why it would not.
func (w *Worker) Prepare() (sound bool) {
	w.show() // what a tick left for later is in the sample, then, and not in the parts
	w.basis.current = w.basis.config == w.Config
	return w.broken() == ""
}

// Resume completes a worker whose parts were read. It fails with an ErrState for what the worker would stumble over.
func (w *Worker) Resume() error {
	if w.basis.current {
		w.basis.config = w.Config
	}
	if what := w.broken(); what != "" {
		return fmt.Errorf("%w: %s", ErrState, what)
	}
	return nil
}

// Anew returns the same process as if it had been seen for the first time at its newest moment.
func (w *Worker) Anew() *Worker {
	fresh := New(w.Key, w.Host, w.Who, w.Last)
	fresh.Slot, fresh.Instance = w.Slot, w.Instance
	return fresh
}

// Save returns all that is known of the process, between two events, for Restore. It fails for a clock that says 1970, and for text that is
// not UTF-8.
func (w *Worker) Save() ([]byte, error) {
	if !w.Prepare() {
		return nil, fmt.Errorf("save worker %s: %w: %s", w.Key, ErrState, w.broken())
	}
	parts, err := ownLayout().Write(w)
	if err != nil {
		return nil, fmt.Errorf("save worker %s: %w", w.Key, err)
	}
	return ownLayout().Seal(parts), nil
}

// Restore makes a worker of what Save returned; it goes on as the saved one would have. An error is an ErrState or an ErrStateVersion.
func Restore(saved []byte) (*Worker, error) {
	w := new(Worker)
	parts, err := ownLayout().Open(saved)
	if err == nil {
		_, err = ownLayout().Read(parts, w)
	}
	if err == nil {
		err = w.Resume()
	}
	if err != nil {
		return nil, fmt.Errorf("restore worker: %w", err)
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
		{"identity", w.Key != "" && w.Host != nil && w.Who != nil && w.sample != nil && !w.First.IsZero()},
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
