package event

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// What an incident tells of its life, as vocabulary.md and the design name it, is read back as it was written.
func TestFindingGoesRoundAsJSON(t *testing.T) {
	at := time.Date(2026, 11, 3, 12, 0, 0, 5, time.UTC)
	f := &Finding{
		ID: "f2", Incident: "i1", Time: at, Subject: Subject{Kind: "worker", Key: "prod/gpu-07/boot/4242/99"}, Slot: "prod/gpu-07/u/0/1",
		Worker: &Worker{Pid: 4242, Rank: Ptr(int64(0))}, Rule: "retention", Class: "retention", State: Resolved, Severity: Page, Confidence: 0.9, Summary: "s",
		Evidence:        Measures{{Name: "z", Value: 1, Unit: "bytes"}, {Name: "a", Value: 0}},
		CounterEvidence: []CounterEvidence{{Name: "kv", State: RuledOut}},
		Symptoms:        []Symptom{{Name: "oom", Time: at, LagSeconds: -3}},
		Growth:          &Growth{Value: 2, Low: 1, High: 3, Unit: "bytes"}, HoursToLimit: &Interval{Low: 6.5, High: 11},
		Onset: at.Add(-time.Hour), Release: "r42", NotAssessable: map[string]string{"fragmentation": "snapshot"},
		MaskedRestarts: 2, Resolution: "5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)",
		Group: "prod/llama/r41", Alike: 3, AlikeSlots: []string{"prod/gpu-07/u/0/1", "prod/gpu-08/u/0/1", "prod/gpu-09/u/0/1"},
	}
	text, err := MarshalFinding(f)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"f2","incident":"i1","time":"2026-11-03T12:00:00.000000005Z","subject":{"kind":"worker","key":"prod/gpu-07/boot/4242/99"},` +
		`"slot":"prod/gpu-07/u/0/1","worker":{"pid":4242,"rank":0},"rule":"retention","class":"retention","state":"resolved","severity":"page","confidence":0.9,` +
		`"summary":"s","evidence":{"z":{"value":1,"unit":"bytes"},"a":{"value":0}},"counter_evidence":[{"name":"kv","state":"ruled_out"}],` +
		`"symptoms":[{"name":"oom","time":"2026-11-03T12:00:00.000000005Z","lag_seconds":-3}],"growth":{"value":2,"low":1,"high":3,"unit":"bytes"},` +
		`"hours_to_limit":{"low":6.5,"high":11},"onset":"2026-11-03T11:00:00.000000005Z","release":"r42","masked_restarts":2,` +
		`"resolution":"5 quiet points over 3.2 h, growth at most 1.1 MiB/h, in release r42 (it began in r41)","group":"prod/llama/r41","alike":3,` +
		`"alike_slots":["prod/gpu-07/u/0/1","prod/gpu-08/u/0/1","prod/gpu-09/u/0/1"],"not_assessable":{"fragmentation":"snapshot"}}`
	if string(text) != want {
		t.Errorf("written as\n%s\nwant\n%s", text, want)
	}
	back, err := UnmarshalFinding(text)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(back.Worker, f.Worker) {
		t.Errorf("worker %v, want %v", back.Worker, f.Worker)
	}
	back.Worker = f.Worker
	if !reflect.DeepEqual(back, f) {
		t.Errorf("read back as\n%+v\nwant\n%+v", back, f)
	}
}

// What is not known or does not hold is absent.
func TestFindingWithoutALife(t *testing.T) {
	text, err := MarshalFinding(&Finding{ID: "f1", Incident: "i1", Class: "blind", State: Suspected, Severity: Ticket})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"f1","incident":"i1","time":"0001-01-01T00:00:00Z","subject":{"kind":"","key":""},"rule":"","class":"blind","state":"suspected","severity":"ticket","confidence":0,"summary":""}`
	if string(text) != want {
		t.Errorf("written as %s, want %s", text, want)
	}
}
