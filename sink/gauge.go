package sink

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	watchEvery = 10 * time.Second
	sayAgain   = 10 * time.Minute // that the store is still away, or still refuses
	readyFor   = 30 * time.Second // the store may be away that long, as when it starts again, without a word to whoever asks
)

// gauge is what is known of a seat. It stays when the seat is left, so that counters only grow.
type gauge struct {
	mu      sync.Mutex
	running int
	fault   error // why it cannot read or plan

	awayAt, saidAt time.Time
	awayBy         error
	rejectedAt     time.Time // when it was last said that rows are refused

	storedTo  uint64
	oldest    time.Time // broker's time of the oldest message of the block that is being stored
	rows      int       // of the last block
	took      time.Duration
	blocks    uint64
	allRows   uint64
	retries   uint64
	rejected  uint64
	lostCount uint64
	doubles   uint64

	behind time.Time // since when the rollups lack something that is stored

	looked  time.Time // when the rest was read
	pending uint64
	first   uint64
	clear   uint64  // nothing of the seat waits up to this sequence
	left    float64 // seconds; NaN when unknown
}

func (g *gauge) with(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

func (g *gauge) enter() { g.with(func() { g.running++; g.left = math.NaN(); g.looked = time.Time{} }) }
func (g *gauge) leave() {
	g.with(func() {
		g.running--
		g.fault, g.awayAt, g.oldest, g.behind = nil, time.Time{}, time.Time{}, time.Time{}
	})
}
func (g *gauge) broken(err error)       { g.with(func() { g.fault = err }) }
func (g *gauge) works()                 { g.with(func() { g.fault = nil }) }
func (g *gauge) holds(oldest time.Time) { g.with(func() { g.oldest = oldest }) }
func (g *gauge) lose(n uint64)          { g.with(func() { g.lostCount += n }) }
func (g *gauge) repeated(n int)         { g.with(func() { g.doubles += uint64(n) }) }
func (g *gauge) stored(last uint64) {
	g.with(func() { g.storedTo, g.oldest = last, time.Time{} })
}

// unfilled notes since when the rollups lack something; filled, since when they do after they got some of it, or all.
func (g *gauge) unfilled(since time.Time) {
	g.with(func() {
		if g.behind.IsZero() {
			g.behind = since
		}
	})
}

func (g *gauge) filled(since time.Time, all bool) {
	g.with(func() {
		if g.behind = since; all {
			g.behind = time.Time{}
		}
	})
}

// waits says that the broker had messages of the seat when it was asked last, though no block is being stored.
func (g *gauge) waits() (yes bool) {
	g.with(func() { yes = g.pending > 0 })
	return yes
}

// begins is the oldest sequence that the stream is known to have.
func (g *gauge) begins() (first uint64) {
	g.with(func() { first = g.first })
	return first
}

func (g *gauge) inserted(rows int, took time.Duration) {
	g.with(func() { g.rows, g.took, g.blocks, g.allRows = rows, took, g.blocks+1, g.allRows+uint64(rows) })
}

// away notes a failed insert and says whether to speak of it.
func (g *gauge) away(err error, now time.Time) (speak bool) {
	g.with(func() {
		g.retries++
		if g.awayAt.IsZero() {
			g.awayAt, speak = now, true
		}
		if speak = speak || now.Sub(g.saidAt) >= sayAgain; speak {
			g.saidAt = now
		}
		g.awayBy = err
	})
	return speak
}

// back returns how long the store was away.
func (g *gauge) back(now time.Time) (away time.Duration) {
	g.with(func() {
		if !g.awayAt.IsZero() {
			away, g.awayAt, g.awayBy = now.Sub(g.awayAt), time.Time{}, nil
		}
	})
	return away
}

func (g *gauge) refused(rows int, now time.Time) (speak bool) {
	g.with(func() {
		g.rejected += uint64(rows)
		if speak = now.Sub(g.rejectedAt) >= sayAgain; speak {
			g.rejectedAt = now
		}
	})
	return speak
}

// holding says in words how long the stream still has what is not stored.
func (g *gauge) holding() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if math.IsNaN(g.left) {
		return "unknown"
	}
	return time.Duration(g.left * float64(time.Second)).Round(time.Second).String()
}

func (g *gauge) ready(now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.running == 0:
		return nil
	case g.fault != nil:
		return g.fault
	case !g.awayAt.IsZero() && now.Sub(g.awayAt) >= readyFor:
		return g.awayBy
	}
	return nil
}

// watch looks at the stream now and then, and lets the durable consumer follow, until ctx ends.
func (r *run) watch(ctx context.Context) {
	var before struct {
		at   time.Time
		last uint64
	}
	shown, told := uint64(math.MaxUint64), false
	for {
		looking, cancel := context.WithTimeout(ctx, brokerLimit)
		source := r.source // look writes to it
		info, err := source.look(looking)
		if err == nil {
			var stored uint64
			r.gauge.with(func() { stored = r.gauge.storedTo })
			if stored != shown {
				if _, err = r.owner.js.ResetConsumerToSequence(looking, source.stream, source.durable, stored+1); err == nil {
					shown = stored
				}
			}
			pending, known := uint64(0), false
			if err == nil {
				if c, err := r.owner.js.Consumer(looking, source.stream, source.durable); err == nil {
					pending, known = c.CachedInfo().NumPending, true
				}
			}
			now := r.owner.now()
			rate := 0.0
			if seconds := now.Sub(before.at).Seconds(); !before.at.IsZero() && seconds > 0 && info.State.LastSeq >= before.last {
				rate = float64(info.State.LastSeq-before.last) / seconds
			}
			// Of the look before: the consumer may not have heard yet of what the stream took a moment ago.
			clear := before.last
			before.at, before.last = now, info.State.LastSeq
			losing := false
			r.gauge.with(func() {
				g := r.gauge
				g.looked, g.first = now, info.State.FirstSeq
				if g.pending = pending; known && pending == 0 && stored == g.storedTo {
					g.clear = clear
				}
				g.left = secondsLeft(info, stored, g.oldest, rate, now)
				losing = info.State.FirstSeq > stored+1 && pending > 0
			})
			if losing && !told {
				r.log.Error("the stream drops events that are not stored yet; they are lost", "stored", stored, "stream_begins", info.State.FirstSeq)
			}
			told = losing
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			r.log.Debug("cannot look at the stream", "error", err)
		}
		cancel()
		if pause(ctx, watchEvery) != nil {
			return
		}
	}
}

// secondsLeft is how long it takes until the oldest message that is not stored falls out of the stream, by its age or because newer ones
// need the room, at the present rate of messages a second. For a seat that has nothing waiting it is how long the store may be away.
func secondsLeft(info *jetstream.StreamInfo, stored uint64, oldest time.Time, rate float64, now time.Time) float64 {
	left := math.Inf(1)
	if age := info.Config.MaxAge; age > 0 {
		left = age.Seconds()
		if !oldest.IsZero() {
			left -= now.Sub(oldest).Seconds()
		}
	}
	if room := float64(info.Config.MaxBytes); room > 0 && rate > 0 && info.State.Msgs > 0 {
		each := float64(info.State.Bytes) / float64(info.State.Msgs)
		waiting := float64(info.State.LastSeq-min(stored, info.State.LastSeq)) * each
		left = min(left, (room-waiting)/(rate*each))
	}
	return max(left, 0)
}

// gaugeHelp are the metrics, in the order in which Collect gives them.
var gaugeHelp = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(g *gauge, now time.Time) float64
}{
	{"running", "1 while this process stores the seat.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return float64(min(g.running, 1)) }},
	{"pending_messages", "Messages of the seat in the stream that are not stored.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return float64(g.pending) }},
	{"oldest_unstored_seconds", "Age of the oldest message of the block that is being stored; 0 when none is.", prometheus.GaugeValue, func(g *gauge, now time.Time) float64 {
		if g.oldest.IsZero() {
			return 0
		}
		return max(now.Sub(g.oldest).Seconds(), 0)
	}},
	{"stored_sequence", "All messages of the seat up to this sequence of the stream are stored.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return float64(g.storedTo) }},
	{"stream_first_sequence", "Oldest sequence that the stream still has; past the stored one, events were lost.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return float64(g.first) }},
	{"stream_left_seconds", "Until the oldest message that is not stored falls out of the stream, at the present rate.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return g.left }},
	{"away_seconds", "How long the store has not taken what it is given; 0 when it does.", prometheus.GaugeValue, func(g *gauge, now time.Time) float64 {
		if g.awayAt.IsZero() {
			return 0
		}
		return max(now.Sub(g.awayAt).Seconds(), 0)
	}},
	{"rollups_behind_seconds", "How long the rollups have lacked something that is stored; 0 when they have all.", prometheus.GaugeValue, func(g *gauge, now time.Time) float64 {
		if g.behind.IsZero() {
			return 0
		}
		return max(now.Sub(g.behind).Seconds(), 0)
	}},
	{"block_rows", "Rows of the last block.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return float64(g.rows) }},
	{"block_seconds", "How long the last block took to store, with its retries.", prometheus.GaugeValue, func(g *gauge, _ time.Time) float64 { return g.took.Seconds() }},
	{"blocks_total", "Blocks stored.", prometheus.CounterValue, func(g *gauge, _ time.Time) float64 { return float64(g.blocks) }},
	{"rows_total", "Rows stored.", prometheus.CounterValue, func(g *gauge, _ time.Time) float64 { return float64(g.allRows) }},
	{"retries_total", "Inserts that failed and were tried again.", prometheus.CounterValue, func(g *gauge, _ time.Time) float64 { return float64(g.retries) }},
	{"refused_rows_total", "Rows that the store refused; they are kept as events named refused.", prometheus.CounterValue, func(g *gauge, _ time.Time) float64 { return float64(g.rejected) }},
	{"lost_messages_total", "Messages that fell out of the stream before they were stored.", prometheus.CounterValue, func(g *gauge, _ time.Time) float64 { return float64(g.lostCount) }},
	{"repeated_messages_total", "Messages that were published twice and are stored once.", prometheus.CounterValue, func(g *gauge, _ time.Time) float64 { return float64(g.doubles) }},
}

// Describe sends nothing: the seats of this process come and go, which makes an unchecked collector.
func (s *Storer) Describe(chan<- *prometheus.Desc) {}

// Collect gives what is known, and asks nobody: the streams are looked at every ten seconds beside it.
func (s *Storer) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for seat, g := range s.seats {
		g.with(func() {
			for _, m := range gaugeHelp {
				value := m.value(g, now)
				unknown := g.looked.IsZero() && (m.name == "pending_messages" || m.name == "stream_first_sequence" || m.name == "stream_left_seconds")
				if unknown || math.IsNaN(value) { // absent is not zero
					continue
				}
				out <- prometheus.MustNewConstMetric(prometheus.NewDesc("lowtide_store_"+m.name, m.help, []string{"seat"}, nil), m.kind, value, seatName(seat))
			}
		})
	}
}
