package processor

import (
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
	"lowtide/rules/variable"
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

// A rule that somebody wrote, or whose condition he changed, was not there when confidence was measured; one of which he only changed what follows was.
func TestConfidenceOfOwnRulesIsNotThatOfTheClass(t *testing.T) {
	for name, test := range map[string]struct {
		rules string
		id    string
		state string
		want  float64
	}{
		"a new one":             {"rules:\n  - id: mine\n    class: blind\n    scope: host\n    when: |\n      blind.seconds > 60.0\n    severity: {alone: ticket}\n    summary: x\n", "mine", event.Suspected, 0.5},
		"a new one, confirmed":  {"rules:\n  - id: mine\n    class: blind\n    scope: host\n    when: |\n      blind.seconds > 60.0\n    severity: {alone: ticket}\n    summary: x\n", "mine", event.Confirmed, 0.7},
		"another threshold":     {"rules:\n  - id: retention\n    thresholds: {floor: 16 * MiB}\n", "retention", event.Suspected, 0.5},
		"another severity only": {"rules:\n  - id: blind\n    severity: {alone: info}\n", "blind", event.Suspected, -1},
		"the built-in one":      {"rules: []\n", "blind", event.Suspected, -1},
	} {
		pack, err := rules.LoadSources([]rules.Source{{Name: "mine.yaml", Content: []byte(test.rules)}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		judge := NewJudge(pack, func(*event.Finding) {})
		rule := pack.Rule(test.id)
		sample := variable.NewSample()
		f := &event.Finding{Class: rule.Class, State: test.state}
		got := judge.confidence(f, &view{sample: sample}, &question{rule: rule})
		want := test.want
		if measured := math.Round(100*probability(rule.Class, score(f, sample, nil, nil))) / 100; want < 0 {
			want = measured
		} else if measured < want {
			t.Fatalf("%s: the class alone has %v, nothing is tested", name, measured)
		}
		if got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
