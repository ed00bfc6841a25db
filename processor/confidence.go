package processor

import (
	"math"
	"slices"

	"lowtide/event"
	"lowtide/rules/variable"
)

// Confidence is the probability that the class of a finding is right. It is made in two steps: a score from the evidence, and a map
// from score to probability that was measured on simulated recordings, healthy look-alikes and undeclared caches among them
// (calibration.go). What was never measured is capped: quiet that is only inferred or marked, load that is only matched.

const (
	inferredCap = 0.6 // design.md, Worker: without the engine's metrics quiet is a guess
	matchedCap  = 0.9 // a worker that never drains is compared with itself at the same load, not with nothing
)

// The kinds of evidence, each with a map of its own.
const (
	byTrend   = "trend"   // growth over points
	byResidue = "residue" // what should be empty is not
	byEvent   = "event"   // something happened, or holds now
)

// kindOf says what the evidence of a class is.
func kindOf(class string) string {
	switch {
	case class == "stream_backlog" || class == "kv_block_leak":
		return byResidue
	case len(growthSeries[class]) > 0:
		return byTrend
	}
	return byEvent
}

var confidenceIDs = struct {
	count, hours, matched, inferred, late, gap, resets, accounting, work, peer, cap, restart variable.ID
}{
	variable.Must("quiet.count"), variable.Must("quiet.hours"), variable.Must("quiet.matched"), variable.Must("quiet.inferred"),
	variable.Must("quality.late"), variable.Must("quality.gap_seconds"), variable.Must("quality.resets"), variable.Must("quality.accounting"),
	variable.Must("proof.work"), variable.Must("proof.peer"), variable.Must("proof.cap"), variable.Must("proof.restart"),
}

// The weights of the evidence, in the manner of log-odds; only their order matters, since the map is measured.
const (
	perDoubling  = 0.5 // of the points, and of their hours
	perTightness = 1.5 // lower bound of the slope over the slope, 0..1
	perStraight  = 2.0 // last third of the time against the whole: a cache that fills bends
	perAxis      = 1.5 // work, peer or restart
	perCap       = 1.0 // declared caches are exceeded, so that one that is not declared is less likely
	perSymptom   = 0.5
	perCounter   = 0.5 // a legitimate explanation that is present
	perUnknown   = 0.1 // one that cannot be assessed
	perConfirm   = 1.5
	perTrouble   = 0.5 // with the data: late events, gaps, resets
	perBroken    = 1.5 // accounting of the card
	longGap      = 3600.0
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
	case byTrend:
		sum += trendScore(s, w, series, is, number)
	default:
		if f.State == event.Confirmed {
			sum += perConfirm
		}
	}
	return sum
}

func trendScore(s *variable.Sample, w *watched, series []int, is func(variable.ID) bool, number func(variable.ID) float64) (sum float64) {
	sum += perDoubling * math.Log2(max(4, number(confidenceIDs.count))/4)
	sum += perDoubling * math.Log2(max(3, number(confidenceIDs.hours))/3)
	if w != nil {
		if growth, known := w.Slope(growers[w.foremost(series)]); known && growth.Slope > 0 {
			sum += perTightness * min(1, max(0, growth.Low/growth.Slope))
			if r := growth.Level.Ratio; r == r {
				sum += perStraight * min(1.2, max(0, r))
			}
		}
	}
	if is(confidenceIDs.work) {
		sum += perAxis
	}
	if is(confidenceIDs.peer) {
		sum += perAxis
	}
	if is(confidenceIDs.restart) {
		sum += perAxis
	}
	if is(confidenceIDs.cap) {
		sum += perCap
	}
	return sum
}

// rung of a calibration: from this score on, the class was right in this part of the cases.
type rung struct{ Score, Right float64 }

// probability is the calibrated one.
func probability(class string, score float64) float64 {
	right := 0.5
	for _, one := range calibration[kindOf(class)] {
		if score < one.Score {
			break
		}
		right = one.Right
	}
	return right
}

// confidence puts the two steps together.
func (j *Judge) confidence(f *event.Finding, v *view, series []int) float64 {
	raw := score(f, v.sample, v.w, series)
	if j.uncalibrated {
		return raw
	}
	p := probability(f.Class, raw)
	if inferred, known := v.sample.Bool(confidenceIDs.inferred); known && inferred && kindOf(f.Class) != byEvent {
		p = min(p, inferredCap)
	}
	if matched, known := v.sample.Bool(confidenceIDs.matched); known && matched && kindOf(f.Class) == byTrend {
		p = min(p, matchedCap)
	}
	return math.Round(100*p) / 100
}

// Uncalibrated makes the judge's findings carry the score that their confidence is made from: what a calibration is measured on.
func (j *Judge) Uncalibrated() { j.uncalibrated = true }

// KindOfEvidence names the calibration that a class belongs to.
func KindOfEvidence(class string) string { return kindOf(class) }

// KindsOfEvidence lists the calibrations there are.
func KindsOfEvidence() []string { return []string{byTrend, byResidue, byEvent} }
