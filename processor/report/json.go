package report

import (
	"fmt"
	"math"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// The JSON form of a report. What is unknown is absent, as everywhere; an upper bound that is absent beside a lower one is open.
type jsonReport struct {
	Key       string            `json:"key"`
	Slot      string            `json:"slot"`
	Instance  string            `json:"instance"`
	Host      jsontext.Value    `json:"host,omitzero"`
	Worker    jsontext.Value    `json:"worker,omitzero"`
	Config    jsontext.Value    `json:"config,omitzero"`
	First     time.Time         `json:"first,omitzero"`
	Last      time.Time         `json:"last,omitzero"`
	Ready     time.Time         `json:"ready,omitzero"`
	Verdict   string            `json:"verdict"`
	Why       string            `json:"why,omitempty"`
	Quiet     jsonQuiet         `json:"quiet"`
	Cards     []jsonCard        `json:"cards,omitempty"`
	Series    []jsonSeries      `json:"series,omitempty"`
	Lacking   []string          `json:"lacking,omitempty"`
	Missing   map[string]string `json:"not_assessable,omitempty"`
	Quality   []string          `json:"data_quality,omitempty"`
	Asked     []string          `json:"asked,omitempty"`
	Incidents []jsonIncident    `json:"incidents,omitempty"`
}

type jsonQuiet struct {
	Count    int       `json:"count"`
	Hours    *float64  `json:"hours,omitempty"`
	Matched  bool      `json:"matched,omitzero"`
	Inferred bool      `json:"inferred,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
}

type jsonCard struct {
	UUID     string   `json:"uuid,omitempty"`
	Total    *float64 `json:"total_bytes,omitempty"`
	Used     *float64 `json:"used_bytes,omitempty"`
	Free     *float64 `json:"free_bytes,omitempty"`
	Reserved *float64 `json:"reserved_bytes,omitempty"`
	Live     *float64 `json:"live_bytes,omitempty"`
	Cached   *float64 `json:"cached_bytes,omitempty"`
	Awaiting *float64 `json:"awaiting_bytes,omitempty"`
	Outside  *float64 `json:"outside_bytes,omitempty"`
	Limit    *float64 `json:"limit_bytes,omitempty"`
	Headroom *float64 `json:"headroom_bytes,omitempty"`
}

type jsonSeries struct {
	Name      string    `json:"name"`
	GPU       string    `json:"gpu_uuid,omitempty"`
	Unit      string    `json:"unit"`
	Now       *float64  `json:"now,omitempty"`
	Level     *float64  `json:"level,omitempty"`
	Growth    *float64  `json:"growth,omitempty"` // per hour, as its bounds
	Low       *float64  `json:"growth_low,omitempty"`
	High      *float64  `json:"growth_high,omitempty"`
	Called    bool      `json:"called"`
	Onset     time.Time `json:"onset,omitzero"`
	Lacking   string    `json:"lacking,omitempty"`
	HoursLow  *float64  `json:"hours_to_limit_low,omitempty"`
	HoursHigh *float64  `json:"hours_to_limit_high,omitempty"`
	Points    []jsonDot `json:"quiet_levels,omitempty"`
	Trace     []jsonDot `json:"trace,omitempty"`
}

type jsonDot struct {
	Time  time.Time `json:"time"`
	Value float64   `json:"value"`
}

type jsonIncident struct {
	Open     bool             `json:"open"`
	Carried  bool             `json:"carried,omitzero"`
	Findings []jsontext.Value `json:"findings"`
}

// MarshalJSON returns the JSON form of a report with its incidents, one line without its end.
func MarshalJSON(s Subject) ([]byte, error) {
	identity, err := vocabulary(s)
	if err != nil {
		return nil, err
	}
	out := jsonReport{Key: s.Key, Slot: s.Slot, Instance: s.Instance, Host: identity.Host, Worker: identity.Worker, Config: identity.Config,
		First: s.First.UTC(), Last: s.Last.UTC(), Ready: s.Ready.UTC(), Verdict: s.Verdict, Why: s.Why, Lacking: s.Lacking, Missing: s.Missing, Quality: s.Quality, Asked: s.Asked,
		Quiet: jsonQuiet{Count: s.Quiet.Count, Hours: known(s.Quiet.Hours), Matched: s.Quiet.Matched, Inferred: s.Quiet.Inferred, Newest: s.Quiet.Newest.UTC()}}
	for _, c := range s.Cards {
		out.Cards = append(out.Cards, jsonCard{c.UUID, known(c.Total), known(c.Used), known(c.Free), known(c.Reserved), known(c.Live), known(c.Cached),
			known(c.Awaiting), known(c.Outside), known(c.Limit), known(c.Headroom)})
	}
	for _, r := range s.Series {
		one := jsonSeries{Name: r.Name, GPU: r.GPU, Unit: r.Unit, Now: known(r.Now), Level: known(r.Level), Growth: known(r.Growth.Slope), Low: known(r.Growth.Low),
			High: known(r.Growth.High), Called: r.Called, Onset: r.Onset.UTC(), Lacking: r.Lacking, HoursLow: known(r.HoursLow), HoursHigh: known(r.HoursHigh)}
		for _, d := range finiteDots(r.Points) {
			one.Points = append(one.Points, jsonDot{d.At.UTC(), d.Value})
		}
		for _, d := range finiteDots(r.Trace) {
			one.Trace = append(one.Trace, jsonDot{d.At.UTC(), d.Value})
		}
		out.Series = append(out.Series, one)
	}
	for _, c := range s.Cases {
		one := jsonIncident{Open: c.Open(), Carried: c.Carried}
		for _, f := range c.Findings {
			text, err := event.MarshalFinding(f)
			if err != nil {
				return nil, fmt.Errorf("write finding %s: %w", f.ID, err)
			}
			one.Findings = append(one.Findings, text)
		}
		out.Incidents = append(out.Incidents, one)
	}
	return json.Marshal(out, json.Deterministic(true))
}

type identity struct {
	Host   jsontext.Value `json:"host"`
	Worker jsontext.Value `json:"worker"`
	Config jsontext.Value `json:"config"`
}

// vocabulary takes host, worker and config in the form that events have: there is one.
func vocabulary(s Subject) (out identity, err error) {
	text, err := event.MarshalEvent(&event.Event{Time: timestamppb.New(s.Last), Host: s.Host, Worker: s.Who, Config: s.Config})
	if err != nil {
		return out, fmt.Errorf("write identity: %w", err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("write identity: %w", err)
	}
	return out, nil
}

// known is nil for what is not a measured number.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
