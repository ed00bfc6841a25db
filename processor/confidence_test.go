package processor

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

// A calibration only rises, starts somewhere and is never certain; every class has one.
func TestCalibrationRises(t *testing.T) {
	for _, class := range rules.Classes() {
		kind := KindOfEvidence(class)
		if !slices.Contains(KindsOfEvidence(), kind) || len(calibration[kind]) == 0 {
			t.Fatalf("%s: evidence of kind %q has no calibration", class, kind)
		}
	}
	for kind, rungs := range calibration {
		for n, one := range rungs {
			if one.Right <= 0 || one.Right >= 1 || n > 0 && (one.Score <= rungs[n-1].Score || one.Right <= rungs[n-1].Right) {
				t.Errorf("%s: rung %d is %+v", kind, n, one)
			}
		}
	}
	first := calibration[byFilling][0]
	if got := probability("retention", first.Score-100); got != first.Right {
		t.Errorf("far below what was measured it is %v, want %v", got, first.Right)
	}
	last := calibration[byFilling][len(calibration[byFilling])-1]
	if got := probability("retention", last.Score); got != last.Right {
		t.Errorf("at the last rung it is %v, want %v", got, last.Right)
	}
}

// What speaks against a finding lowers its score, what was seen beside it raises it.
func TestScoreWeighsTheEvidence(t *testing.T) {
	judge := NewJudge(builtin(t), func(*event.Finding) {})
	judge.Apply(&event.Event{Time: timestamppb.New(time.Unix(1_790_000_000, 0)), Host: &event.Host{Name: "h"}, Worker: &event.Worker{Pid: 7, StartTicks: event.Ptr(uint64(9)), Unit: "u"}, Process: &event.Process{AnonBytes: event.Ptr(uint64(1 << 30))}})
	judge.Flush()
	var w *watched
	for _, one := range judge.workers {
		w = one
	}
	plain := &event.Finding{Class: "stall", State: event.Suspected}
	weigh := func(f *event.Finding) float64 { return score(f, w.Sample(), w, nil) }
	base := weigh(plain)
	for name, test := range map[string]struct {
		f    *event.Finding
		more float64
	}{
		"confirmed":      {&event.Finding{Class: "stall", State: event.Confirmed}, perConfirm},
		"symptom":        {&event.Finding{Class: "stall", State: event.Suspected, Symptoms: []event.Symptom{{Name: "latency"}}}, perSymptom},
		"a restart":      {&event.Finding{Class: "stall", State: event.Suspected, Symptoms: []event.Symptom{{Name: "restart"}}}, 0},
		"an explanation": {&event.Finding{Class: "stall", State: event.Suspected, CounterEvidence: []event.CounterEvidence{{State: event.Present}, {State: event.RuledOut}}}, -perCounter},
		"not assessable": {&event.Finding{Class: "stall", State: event.Suspected, CounterEvidence: []event.CounterEvidence{{State: event.NotAssessable}}}, -perUnknown},
	} {
		if got := weigh(test.f) - base; got < test.more-1e-9 || got > test.more+1e-9 {
			t.Errorf("%s changes the score by %v, want %v", name, got, test.more)
		}
	}
}

// Of the real recordings those whose quiet nobody tells stay at 0.6, and no finding is certain.
func TestConfidenceOfRealRecordings(t *testing.T) {
	for name := range verdicts {
		last := make(map[string]float64)
		for _, f := range replayFile(t, "testdata/"+name+".ndjson.gz") {
			if f.Confidence <= 0.3 || f.Confidence >= 1 {
				t.Errorf("%s: %s %s with confidence %v", name, f.Class, f.State, f.Confidence)
			}
			if f.Confidence < last[f.Incident] {
				t.Errorf("%s: confidence of %s falls from %v to %v", name, f.Class, last[f.Incident], f.Confidence)
			}
			last[f.Incident] = f.Confidence
		}
	}
}
