package event

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	json "github.com/go-json-experiment/json"
)

// The states of a finding.
const (
	Suspected = "suspected"
	Confirmed = "confirmed"
	Resolved  = "resolved"
)

// The severities of a finding, in rising order.
const (
	Info   = "info"
	Ticket = "ticket"
	Page   = "page"
)

// The three answers that counter-evidence can give.
const (
	RuledOut      = "ruled_out"
	Present       = "present"
	NotAssessable = "not_assessable"
)

// Finding is one transition of one incident: what was concluded about a subject, from what, and what speaks against it.
type Finding struct {
	Recording string    `json:"recording,omitempty"` // set by replay only
	ID        string    `json:"id"`                  // unique per transition, the same when it is judged again
	Incident  string    `json:"incident"`            // the same from suspected to resolved, across restarts of the process
	Time      time.Time `json:"time"`
	Subject   Subject   `json:"subject"`
	Slot      string    `json:"slot,omitempty"`
	Worker    *Worker   `json:"worker,omitempty"`

	Labels     map[string]string `json:"labels,omitempty"`
	Rule       string            `json:"rule"`
	Shadow     bool              `json:"shadow,omitzero"` // of a rule that is tried out: recorded, and told to nobody
	Class      string            `json:"class"`
	State      string            `json:"state"`
	Severity   string            `json:"severity"`
	Confidence float64           `json:"confidence"` // 0..1
	Summary    string            `json:"summary"`

	Evidence        Measures          `json:"evidence,omitempty"`
	CounterEvidence []CounterEvidence `json:"counter_evidence,omitempty"`
	Symptoms        []Symptom         `json:"symptoms,omitempty"`

	Growth       *Growth   `json:"growth,omitempty"`
	Series       string    `json:"series,omitempty"` // what Growth and Points are of, such as live
	Points       []Point   `json:"points,omitempty"` // its levels when quiet, oldest first, at most MaxPoints, in the unit of Growth
	PerRequest   *Measure  `json:"per_request,omitempty"`
	PerAbort     *Measure  `json:"per_abort,omitempty"`
	HoursToLimit *Interval `json:"hours_to_limit,omitempty"`

	Onset         time.Time `json:"onset,omitzero"`
	Release       string    `json:"release,omitempty"`
	ConfigHash    string    `json:"config_hash,omitempty"`
	EngineVersion string    `json:"engine_version,omitempty"`
	TorchVersion  string    `json:"torch_version,omitempty"`
	AllocConf     string    `json:"alloc_conf,omitempty"`

	MaskedRestarts int    `json:"masked_restarts,omitzero"` // process lives that ended while the incident was open, and hid it
	Resolution     string `json:"resolution,omitempty"`     // why it is resolved: the proof and its release, "24 h without it", or "explained by" a class

	Group      string    `json:"group,omitempty"`       // cluster/model/release, in which alike incidents roll up
	Alike      int       `json:"alike,omitzero"`        // open incidents of the class in the group, this one included; absent when it is alone, or resolved
	AlikeSlots []string  `json:"alike_slots,omitempty"` // where they are, sorted, at most 16
	Replicas   *Replicas `json:"replicas,omitempty"`    // the workers of the release, where others than this one can be compared

	Holders  []Holder `json:"holders,omitempty"`  // what holds the memory by the last snapshot: the stacks that grew most, else the largest; at most five
	Snapshot string   `json:"snapshot,omitempty"` // name of the raw snapshot, which stays on the host

	Advice        []string          `json:"advice,omitempty"`
	NotAssessable map[string]string `json:"not_assessable,omitempty"` // class → the sensor that is missing
}

// Subject is what a finding is about. Kind is worker, instance, gpu, host, source or partition.
type Subject struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
}

// MaxPoints bounds the points of a finding: as many as a chart in a message may have.
const MaxPoints = 20

// Point is a level at one moment.
type Point struct {
	Time  time.Time `json:"time"`
	Value float64   `json:"value"`
}

// Replicas counts the workers of a release, model and role that are heard and have enough points to be compared, this one included,
// and those of them that do not grow as this one does.
type Replicas struct {
	Healthy int `json:"healthy"`
	Total   int `json:"total"`
}

// Growth is a slope per hour with its 95 % interval. Unit is that of the series (bytes, 1, ratio).
type Growth struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Unit  string  `json:"unit"`
}

// Interval is a forecast in hours: never a single number.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Holder is one allocation stack and what it holds.
type Holder struct {
	Frames      []string `json:"frames"` // "file:line function", the program's own first
	LiveBytes   uint64   `json:"live_bytes"`
	Blocks      uint64   `json:"blocks,omitzero"`
	GrowthBytes *int64   `json:"growth_bytes,omitempty"` // since an earlier snapshot of the same process
}

// Symptom is something seen beside the condition. LagSeconds counts from the onset of the finding to the symptom.
type Symptom struct {
	Name       string    `json:"name"`
	Time       time.Time `json:"time"`
	LagSeconds float64   `json:"lag_seconds"`
	Text       string    `json:"text,omitempty"`
}

// CounterEvidence is one legitimate explanation and what became of it: ruled_out, present or not_assessable.
type CounterEvidence struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Text  string `json:"text,omitempty"`
}

// Measure is a value with its unit.
type Measure struct {
	Name  string  `json:"-"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

// Measures is a list that keeps a rule's order and is an object in JSON: name → {value, unit}.
type Measures []Measure

// MarshalJSONTo writes the measures as one object, in their order.
func (m Measures) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, one := range m {
		if err := enc.WriteToken(jsontext.String(one.Name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, one); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// UnmarshalJSONFrom reads the object form, in the order it was written.
func (m *Measures) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*m = nil
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != jsontext.KindEndObject {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		one := Measure{Name: name.String()}
		if err := json.UnmarshalDecode(dec, &one); err != nil {
			return err
		}
		*m = append(*m, one)
	}
	_, err := dec.ReadToken()
	return err
}

// MarshalFinding returns the JSON form of a finding, one line without its end.
func MarshalFinding(f *Finding) ([]byte, error) { return json.Marshal(f, options) }

// UnmarshalFinding reads the JSON form of a finding.
func UnmarshalFinding(line []byte) (*Finding, error) {
	f := new(Finding)
	if err := json.Unmarshal(line, f, options); err != nil {
		return nil, err
	}
	return f, nil
}
