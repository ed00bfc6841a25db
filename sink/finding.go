package sink

import (
	"strings"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
)

// finding adds the row of a transition; findings and incidents share it, and the stream's sequence is the version. What a rule that is
// tried out finds is no incident.
func (j *joiner) finding(m *Message) {
	f := m.Finding
	at := f.Time
	if !storable(at) {
		j.refuse(m, m.Time, "finding "+f.ID+": time is outside the years 1971 to 2100", nil)
		return
	}
	body, err := event.MarshalFinding(f)
	if err != nil {
		j.refuse(m, m.Time, "finding "+f.ID+": "+err.Error(), nil)
		return
	}
	cluster, host := placeOf(f)
	var growth, low, high, perRequest, perAbort, hoursLow, hoursHigh, onset, pid any
	unit := ""
	if g := f.Growth; g != nil {
		growth, low, high, unit = g.Value, g.Low, g.High, g.Unit
	}
	if f.PerRequest != nil {
		perRequest = f.PerRequest.Value
	}
	if f.PerAbort != nil {
		perAbort = f.PerAbort.Value
	}
	if f.HoursToLimit != nil {
		hoursLow, hoursHigh = f.HoursToLimit.Low, f.HoursToLimit.High
	}
	if storable(f.Onset) {
		onset = f.Onset.UTC()
	}
	if f.Worker != nil {
		pid = f.Worker.Pid
	}
	holders := ""
	if len(f.Holders) > 0 {
		holders = text(f.Holders)
	}
	row := []any{at.UTC(), cluster, host, f.ID, f.Incident, f.Subject.Kind, f.Subject.Key, f.Slot, pid, f.Rule, f.Class,
		f.State, f.Severity, f.Confidence, f.Summary, growth, low, high, unit, perRequest, perAbort, hoursLow, hoursHigh, onset, f.Release,
		f.ConfigHash, f.EngineVersion, f.TorchVersion, f.AllocConf, text(f.Labels), text(f.Evidence), text(f.CounterEvidence), text(f.Symptoms),
		text(f.Advice), text(f.NotAssessable), string(body), m.Sequence, holders, f.Snapshot, f.Shadow}
	j.findings = append(j.findings, row)
	if !f.Shadow {
		j.incidents = append(j.incidents, row)
	}
}

// placeOf reads cluster and host from the slot or the subject's key, which begin with them.
func placeOf(f *event.Finding) (cluster, host string) {
	key := f.Slot
	if key == "" {
		key = f.Subject.Key
	}
	parts := strings.SplitN(key, "/", 3)
	if len(parts) < 2 {
		return f.Labels["cluster"], ""
	}
	return parts[0], parts[1]
}

// text is a part of the finding as JSON. These parts marshalled within the whole finding a moment ago, so that an error is a
// defect of this program; it stands in the column rather than being lost.
func text(v any) string {
	out, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return string(out)
}
