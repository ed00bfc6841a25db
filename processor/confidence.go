package processor

import (
	"math"
	"slices"

	"lowtide/event"
	"lowtide/rules/variable"
)

// Confidence is the probability that the class of a finding is right. It is made in two steps: a score from the evidence, and a map
// from score to probability that was measured on simulated recordings, healthy look-alikes and undeclared caches among them
// (calibration.go). It is capped where levels are guesses: quiet that is only inferred or marked, load that is only matched. A simulator
// is kinder than the world there.

const (
	inferredCap = 0.6 // design.md, Worker: without the engine's metrics quiet is a guess
	matchedCap  = 0.9 // a worker that never drains is compared with itself at the same load, not with nothing

	// A rule that a user wrote was not there when the calibration was made: what is known of its class says little about it.
	ownCap       = 0.5
	ownConfirmed = 0.7
)

// The kinds of evidence, each with a map of its own.
const (
	byFilling = "filling" // growth of what caches fill as well: tensors and host memory. Only the shape tells them apart
	byTrend   = "trend"   // growth of what no cache fills
	byResidue = "residue" // what should be empty is not
	byEvent   = "event"   // something happened, or holds now
)

// kindOf says what the evidence of a class is.
func kindOf(class string) string {
	switch {
	case class == "stream_backlog" || class == "kv_block_leak":
		return byResidue
	case class == "retention" || class == "host_memory":
		return byFilling
	case len(growthSeries[class]) > 0:
		return byTrend
	}
	return byEvent
}

var confidenceIDs = struct {
	matched, inferred, late, gap, resets, accounting variable.ID
}{
	variable.Must("quiet.matched"), variable.Must("quiet.inferred"),
	variable.Must("quality.late"), variable.Must("quality.gap_seconds"), variable.Must("quality.resets"), variable.Must("quality.accounting"),
}

// The weights of the evidence, in the manner of log-odds; only their order matters, since the map is measured.
const (
	perStraight  = 5.0 // last third of the time against the whole, and second half against the first: a cache that fills bends
	perDoubling  = 0.5 // of the hours over which it was straight
	perTightness = 1.0 // lower bound of the slope over the slope, 0..1
	perWork      = 0.5 // growth follows requests or aborts: so does a cache
	perPeer      = 1.5 // of another release, that does not grow
	perRestart   = 1.5 // the same slope came back
	perCap       = 1.0 // declared caches are exceeded, so that one that is not declared is less likely
	perSymptom   = 0.5
	perCounter   = 0.25 // a legitimate explanation that is present
	perUnknown   = 0.1  // one that cannot be assessed
	perConfirm   = 1.5
	perTrouble   = 0.5 // with the data: late events, gaps, resets
	perBroken    = 1.5 // accounting of the card
	longGap      = 3600.0
	straight     = 0.9 // of a line, by both measures
)

// score weighs the evidence of a finding. Growth is that of the series that it is about, nil where none is.
func score(f *event.Finding, s *variable.Sample, w *watched, series []int) float64 {
	is := func(id variable.ID) bool { v, known := s.Bool(id); return known && v }
	number := func(id variable.ID) float64 { v, _ := s.Number(id); return v }
	sum := 0.0
	for _, c := range f.CounterEvidence {
		switch c.State {
		case event.Present:
			sum -= perCounter
		case event.NotAssessable:
			sum -= perUnknown
		}
	}
	if slices.ContainsFunc(f.Symptoms, func(one event.Symptom) bool { return one.Name != "restart" }) {
		sum += perSymptom
	}
	if number(confidenceIDs.late) > 0 || number(confidenceIDs.gap) > longGap || number(confidenceIDs.resets) > 0 {
		sum -= perTrouble
	}
	if is(confidenceIDs.accounting) {
		sum -= perBroken
	}
	switch kindOf(f.Class) {
	case byFilling, byTrend:
		sum += trendScore(w, series)
		for _, axis := range secondAxes {
			if is(axis.id) {
				sum += axis.weight
			}
		}
	default:
		if f.State == event.Confirmed {
			sum += perConfirm
		}
	}
	return sum
}

// secondAxes are what else speaks for a growth, and how much.
var secondAxes = [...]struct {
	id     variable.ID
	weight float64
}{
	{variable.Must("proof.work"), perWork}, {variable.Must("proof.peer"), perPeer}, {variable.Must("proof.restart"), perRestart}, {variable.Must("proof.cap"), perCap},
}

// trendScore weighs the shape of a growth.
func trendScore(w *watched, series []int) (sum float64) {
	if w == nil {
		return 0
	}
	growth, known := w.Slope(growers[w.foremost(series)])
	if !known || !(growth.Slope > 0) {
		return 0
	}
	sum += perTightness * min(1, max(0, growth.Low/growth.Slope))
	shape := min(growth.Level.Ratio, growth.Level.Halves)
	if shape != shape {
		return sum
	}
	sum += perStraight * min(1, max(0, shape))
	if shape >= straight {
		sum += perDoubling * math.Log2(max(3, growth.Hours)/3)
	}
	return sum
}

// rung of a calibration: from this score on, the class was right in this part of the cases.
type rung struct{ Score, Right float64 }

// probability is the calibrated one; below the lowest score that was measured it is that of the lowest.
func probability(class string, score float64) float64 {
	rungs := calibration[kindOf(class)]
	right := rungs[0].Right
	for _, one := range rungs[1:] {
		if score < one.Score {
			break
		}
		right = one.Right
	}
	return right
}

// confidence puts the two steps together.
func (j *Judge) confidence(f *event.Finding, v *view, q *question) float64 {
	series := q.series
	raw := score(f, v.sample, v.w, series)
	if j.uncalibrated {
		return raw
	}
	p := probability(f.Class, raw)
	if inferred, known := v.sample.Bool(confidenceIDs.inferred); known && inferred && kindOf(f.Class) != byEvent {
		p = min(p, inferredCap)
	}
	if matched, known := v.sample.Bool(confidenceIDs.matched); known && matched && len(series) > 0 {
		p = min(p, matchedCap)
	}
	if q.rule.Own {
		most := ownCap
		if f.State == event.Confirmed {
			most = ownConfirmed
		}
		p = min(p, most)
	}
	return math.Round(100*p) / 100
}

// Uncalibrated makes the judge's findings carry the score that their confidence is made from: what a calibration is measured on.
func (j *Judge) Uncalibrated() { j.uncalibrated = true }

// KindOfEvidence names the calibration that a class belongs to.
func KindOfEvidence(class string) string { return kindOf(class) }

// KindsOfEvidence lists the calibrations there are.
func KindsOfEvidence() []string { return []string{byFilling, byTrend, byResidue, byEvent} }
