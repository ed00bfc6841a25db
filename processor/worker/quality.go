package worker

import (
	"math"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

var nan = math.NaN()

func zeroIfUnknown(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

const (
	stepBack  = time.Minute    // a clock that falls by more than this may have been set
	leap      = 24 * time.Hour // so may one that rises by more: a process that is silent for as long is forgotten
	noClock   = 100 * 365 * 24 * time.Hour
	stepTicks = 3    // ticks in a row, each later than the one before, that prove it
	frozenFor = 3    // samples without any change in the engine's numbers
	atWork    = 0.05 // utilisation of a GPU that does something
)

// quality is what is wrong with the data of one life. It is shown; nothing is concluded from it.
type quality struct {
	Late    float64
	Longest time.Duration // silence
	Steps   int           // of the clock, against the order of events

	Shift time.Duration // added to the clock of the host since it was set back
	Back  time.Time     // newest of the ticks that came from before
	Backs int

	Same      int // samples in a row in which no field of the engine moved
	Engine    uint64
	Allocated float64
	Frozen    int // quiet samples that were not believed
}

// moment is the time of an event on a clock that neither runs backwards nor leaps. An event that is late, or of another age, is only
// late; but when tick after tick comes from there, it is the clock that was set.
func (q *quality) moment(at, tick time.Time) time.Time {
	if q.Shift != 0 {
		at = at.Add(q.Shift)
	}
	apart := event.Ago(at, tick)
	if tick.IsZero() || apart >= -stepBack && apart <= leap {
		if apart >= 0 {
			q.Backs = 0
		}
		return at
	}
	if q.Backs == 0 || at.After(q.Back) {
		q.Backs++
		q.Back = at
	}
	if q.Backs > stepTicks && apart.Abs() < noClock {
		q.Shift += time.Second - apart
		q.Steps++
		q.Backs = 0
		return tick.Add(time.Second)
	}
	if apart > 0 {
		return tick.Add(-time.Nanosecond) // not now, whenever it was
	}
	return at
}

func (q *quality) late() { q.Late++ }

func (q *quality) silence(gap time.Duration, before time.Time) {
	if !before.IsZero() {
		q.Longest = max(q.Longest, gap)
	}
}

// frozen says that an engine's zeros are not believed: no field has moved for some samples, while the GPU works and what PyTorch
// holds changes. sum is the engine's fingerprint.
func (q *quality) frozen(sum uint64, allocated, utilization float64) bool {
	if sum == q.Engine {
		q.Same++
	} else {
		q.Same = 0
	}
	before := q.Allocated
	q.Engine, q.Allocated = sum, allocated
	if q.Same >= frozenFor && utilization > atWork && math.Abs(allocated-before) > floors[live] {
		q.Frozen++
		return true
	}
	return false
}

// odds are powers of an odd number: what fingerprints weigh their parts by.
var odds = func() (all [16]uint64) {
	weight := uint64(1)
	for i := range all {
		weight *= 0x9e3779b97f4a7c15
		all[i] = weight
	}
	return all
}()

// fingerprint changes when any count or gauge of the engine does: the sum of each times a power of its own of an odd number.
func fingerprint(e *event.Engine) (sum uint64) {
	sum = orAbsent(e.Running)*odds[0] + orAbsent(e.Waiting)*odds[1] + orAbsent(e.PreemptionsTotal)*odds[2] + orAbsent(e.FinishedTotal)*odds[3] +
		orAbsent(e.AbortedTotal)*odds[4] + orAbsent(e.ErrorsTotal)*odds[5] + orAbsent(e.PromptTokensTotal)*odds[6]
	sum += orAbsent(e.GenerationTokensTotal)*odds[7] + orAbsent(e.EvictedTokensTotal)*odds[8] + orAbsent(e.SloTotal)*odds[9] + orAbsent(e.LoadedAdapters)*odds[10]
	return sum + bitsOf(e.KvUsage)*odds[11] + bitsOf(e.KvEvictable)*odds[12] + bitsOf(e.TtftP95Seconds)*odds[13] + bitsOf(e.ItlP95Seconds)*odds[14]
}

// bitsOf are those of a gauge, or what no gauge has.
func bitsOf(v *float64) uint64 {
	if v == nil {
		return math.MaxUint64
	}
	return math.Float64bits(*v)
}

// orAbsent is a count, or what no count is.
func orAbsent(v *uint64) uint64 {
	if v == nil {
		return math.MaxUint64
	}
	return *v
}

var qualityIDs = struct{ late, gap, resets, accounting variable.ID }{
	variable.Must("quality.late"), variable.Must("quality.gap_seconds"), variable.Must("quality.resets"), variable.Must("quality.accounting"),
}

func (w *Worker) qualityFeatures() {
	w.sample.SetNumber(qualityIDs.late, w.quality.Late)
	w.sample.SetNumber(qualityIDs.gap, w.quality.Longest.Seconds())
	w.sample.SetNumber(qualityIDs.resets, float64(w.counters.Resets))
	for i := range w.now.cards {
		if v := w.value(column(outside, i)); !math.IsNaN(v) {
			w.sample.SetBool(qualityIDs.accounting, v < -floors[outside])
		}
	}
}

// value is the newest value of a column, NaN when this tick did not read it.
func (w *Worker) value(column int) float64 {
	if column >= len(w.level) {
		return nan
	}
	return w.level[column]
}
